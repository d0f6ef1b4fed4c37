//! Units and their logs: which unit an id belongs to, and what its log is called. The hash is frozen: changing it moves data.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Number of guild buckets of a fleet.
pub const BUCKETS: u16 = 4096;

/// What is placed and moved: a bucket, or one guild split out of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unit {
    /// 0–4095.
    Bucket(u16),
    /// A guild with a log of its own.
    Guild(i64),
}

/// The text is neither `b0000`–`b4095` nor `g<guild id>`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unit {0:?} is neither b0000–b4095 nor g<guild id>")]
pub struct InvalidUnit(pub String);

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bucket(bucket) => write!(f, "b{bucket:04}"),
            Self::Guild(guild_id) => write!(f, "g{guild_id}"),
        }
    }
}

impl FromStr for Unit {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = || InvalidUnit(text.chars().take(64).collect());
        let (kind, digits) = text.split_at_checked(1).ok_or_else(invalid)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let unit = match kind {
            "b" => digits.parse().ok().filter(|bucket| *bucket < BUCKETS).map(Self::Bucket),
            "g" => digits.parse().ok().filter(|guild_id| *guild_id > 0).map(Self::Guild),
            _ => None,
        };
        unit.filter(|unit| unit.to_string() == text).ok_or_else(invalid)
    }
}

impl Unit {
    /// The bucket of a guild, user or DM channel.
    pub fn bucket(id: i64) -> Self {
        Self::Bucket(bucket_of(id))
    }

    /// The name of the unit's log.
    pub fn log(self) -> String {
        self.to_string()
    }
}

/// The bucket of an id (guild, channel, user): a fixed 64-bit mix, modulo 4096. Channel ids are drawn so that they fall into their
/// guild's bucket, which is how a bare channel id finds its log.
pub fn bucket_of(id: i64) -> u16 {
    // splitmix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
    let mut mixed = id.cast_unsigned();
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) & u64::from(BUCKETS - 1)) as u16
}

/// The id of the user or bot with this name: the same name gives the same id, so issuing a token twice names one user. The creation
/// refuses an id whose user has another name.
pub fn user_id_of_name(kind: &str, name: &str) -> i64 {
    let digest = Sha256::digest(format!("{kind}:{name}"));
    let mut bytes = [0_u8; 8];
    bytes.copy_from_slice(&digest[..8]);
    // 61 bits, so that the time part of the id stays in a range every client library can show.
    let id = i64::from_be_bytes(bytes) & ((1 << 61) - 1);
    id | (1 << 60)
}

/// Orders candidates by weighted rendezvous hashing for a key; the first is the winner. `weight` 0 never wins.
pub fn rendezvous<'a>(key: &str, candidates: impl IntoIterator<Item = (&'a str, u32)>) -> Vec<&'a str> {
    let mut scored: Vec<(f64, &str)> = candidates
        .into_iter()
        .filter(|(_, weight)| *weight > 0)
        .map(|(name, weight)| {
            let digest = Sha256::digest(format!("{key}\u{0}{name}"));
            let mut bytes = [0_u8; 8];
            bytes.copy_from_slice(&digest[..8]);
            // A uniform number in (0, 1); -weight / ln(u) orders as weighted rendezvous asks.
            let uniform = ((u64::from_be_bytes(bytes) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            (-f64::from(weight) / uniform.ln(), name)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_frozen() {
        assert_eq!([1, 2, 81_384_788_765_712_384, i64::MAX].map(bucket_of), GOLDEN_BUCKETS);
    }

    const GOLDEN_BUCKETS: [u16; 4] = [1509, 1162, 2557, 3773];

    #[test]
    fn units_round_trip_and_nothing_else_parses() {
        for unit in [Unit::Bucket(0), Unit::Bucket(4095), Unit::Guild(1), Unit::Guild(i64::MAX)] {
            assert_eq!(unit.to_string().parse(), Ok(unit));
        }
        for text in ["", "b", "b4096", "b1", "b00001", "g0", "g-1", "g01", "x1", "g99999999999999999999", "é1", "b+001"]
        {
            assert!(text.parse::<Unit>().is_err(), "{text}");
        }
    }

    #[test]
    fn rendezvous_moves_only_what_the_leaver_had() {
        let before = [("a", 1), ("b", 1), ("c", 2)];
        let after = [("a", 1), ("c", 2)];
        let (mut moved, mut share_of_c) = (0, 0);
        for key in 0..2000 {
            let key = key.to_string();
            let (old, new) = (rendezvous(&key, before)[0], rendezvous(&key, after)[0]);
            share_of_c += i32::from(old == "c");
            if old != new {
                assert_eq!(old, "b");
                moved += 1;
            }
        }
        assert!((300..700).contains(&moved), "b had a quarter: {moved}");
        assert!((850..1150).contains(&share_of_c), "c has half: {share_of_c}");
    }
}
