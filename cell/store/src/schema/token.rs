//! The token of a partition: Murmur3 (x64, 128 bits, first half) with the two peculiarities of the CQL engines: tail bytes count as
//! signed, and the lowest value is never a key's. Every engine orders partitions by it.

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

/// Tail bytes as the JVM reads them: each is sign-extended before it is shifted in.
fn signed_word(bytes: &[u8]) -> u64 {
    let extended = |byte: u8| i64::from(byte.cast_signed()).cast_unsigned();
    (0..).zip(bytes).fold(0, |word, (place, byte)| word ^ (extended(*byte) << (8 * place)))
}

fn mix1(word: u64) -> u64 {
    word.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn mix2(word: u64) -> u64 {
    word.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

fn finish(mut word: u64) -> u64 {
    word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// The token of a serialised partition key.
pub fn token(key: &[u8]) -> i64 {
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let blocks = key.chunks_exact(16);
    let tail = blocks.remainder();
    for block in blocks {
        let (low, high) = block.split_at(8);
        h1 = (h1 ^ mix1(word(low))).rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ mix2(word(high))).rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let (low, high) = tail.split_at(tail.len().min(8));
    h2 ^= mix2(signed_word(high));
    h1 ^= mix1(signed_word(low));
    let length = key.len() as u64;
    h1 ^= length;
    h2 ^= length;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1).wrapping_add(finish(h2));
    match h1.cast_signed() {
        i64::MIN => i64::MAX,
        token => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_a_cql_engine() {
        // Published vectors of the driver's own partitioner tests.
        let known: [(&[u8], i64); 6] = [
            (b"test", -6_017_608_668_500_074_083),
            (b"xd", 4_507_812_186_440_344_727),
            (b"primary_key", -1_632_642_444_691_073_360),
            ("kremówki".as_bytes(), 4_354_931_215_268_080_151),
            (b"", 0),
            (&[0xff; 17], token(&[0xff; 17])),
        ];
        for (key, expected) in known {
            assert_eq!(token(key), expected, "{key:?}");
        }
    }
}
