//! How names become ordered keys: each part is escaped and ended, so that parts compare as they would alone.

use crate::StoreError;

/// The longest log, cursor, table or column name, in bytes.
const MAX_NAME: usize = 64;

/// Bytes of a token.
const TOKEN: usize = 8;

/// The longest partition or clustering key, in bytes.
const MAX_KEY: usize = 1024;

fn part(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out.extend([0, 1]);
}

/// Checks a name.
///
/// # Errors
/// [`StoreError::Invalid`], naming `what`.
pub fn name<'a>(what: &str, name: &'a str) -> Result<&'a str, StoreError> {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(StoreError::Invalid(format!("{what} must be 1–{MAX_NAME} printable ASCII characters")));
    }
    Ok(name)
}

/// Checks the length of a partition or clustering key.
///
/// # Errors
/// [`StoreError::Invalid`], naming `what`.
pub fn bounded<'a>(what: &str, key: &'a [u8]) -> Result<&'a [u8], StoreError> {
    if key.len() > MAX_KEY {
        return Err(StoreError::Invalid(format!("{what} has {} bytes, more than {MAX_KEY}", key.len())));
    }
    Ok(key)
}

pub(super) fn segment(log: &str, segment: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(log.len() + 10);
    part(&mut key, log.as_bytes());
    key.extend(segment.to_be_bytes());
    key
}

pub(super) fn entry(log: &str, segment_number: u64, number: u64) -> Vec<u8> {
    let mut key = segment(log, segment_number);
    key.extend(number.to_be_bytes());
    key
}

pub(super) fn cursor(log: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(log.len() + name.len() + 4);
    part(&mut key, log.as_bytes());
    part(&mut key, name.as_bytes());
    key
}

/// What all rows of a table start with.
pub(super) fn table(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 64);
    part(&mut key, name.as_bytes());
    key
}

/// Tokens as bytes that sort as the tokens do.
pub(super) fn token_bytes(token: i64) -> [u8; TOKEN] {
    (token.cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// What all rows of a partition start with: its table, its token, and itself.
pub(super) fn partition(table_name: &str, token: i64, partition: &[u8]) -> Vec<u8> {
    let mut key = table(table_name);
    key.extend(token_bytes(token));
    part(&mut key, partition);
    key
}

/// What a row's key holds after the table.
pub(super) struct RowKey {
    pub(super) token: i64,
    pub(super) partition: Vec<u8>,
    pub(super) clustering: Vec<u8>,
}

/// Takes apart what follows the table in a row's key.
pub(super) fn split_row(rest: &[u8]) -> Option<RowKey> {
    let (token, mut rest) = rest.split_first_chunk::<TOKEN>()?;
    let token = (u64::from_be_bytes(*token) ^ (1 << 63)).cast_signed();
    let partition = take_part(&mut rest)?;
    Some(RowKey { token, partition, clustering: rest.to_vec() })
}

/// The first key after everything that starts with a prefix made of whole parts.
pub(super) fn after(mut prefix: Vec<u8>) -> Vec<u8> {
    // A part ends with 0 1; nothing that follows it can reach 0 2.
    if let Some(last) = prefix.last_mut() {
        *last = 2;
    }
    prefix
}

pub(super) fn range(partition_prefix: &[u8], start: &[u8], end: &[u8]) -> Vec<u8> {
    let mut key = partition_prefix.to_vec();
    part(&mut key, start);
    part(&mut key, end);
    key
}

/// The first key after all ranges of a partition that start at `start` or before.
pub(super) fn after_start(partition_prefix: &[u8], start: &[u8]) -> Vec<u8> {
    let mut key = partition_prefix.to_vec();
    part(&mut key, start);
    after(key)
}

/// What a range's key starts with: its partition.
pub(super) fn partition_of_range(key: &[u8]) -> Option<&[u8]> {
    let mut rest = key;
    take_part(&mut rest)?;
    rest = rest.get(TOKEN..)?;
    take_part(&mut rest)?;
    key.get(..key.len() - rest.len())
}

/// Takes one part off the front.
fn take_part(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        match *rest {
            [0, 0xff, tail @ ..] => {
                out.push(0);
                *rest = tail;
            }
            [0, 1, tail @ ..] => {
                *rest = tail;
                return Some(out);
            }
            [byte, tail @ ..] => {
                out.push(*byte);
                *rest = tail;
            }
            [] => return None,
        }
    }
}

/// Takes the range of a range key apart again.
pub(super) fn split_range(key: &[u8], prefix: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut rest = key.get(prefix..)?;
    Some((take_part(&mut rest)?, take_part(&mut rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_parts_do() {
        let mut parts: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![0, 0], vec![0, 1], vec![0, 255], vec![1], vec![1, 0], vec![255]];
        parts.sort();
        let keys: Vec<_> = parts.iter().map(|p| partition("t", 5, p)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
        for pair in keys.windows(2) {
            assert!(after(pair[0].clone()) <= pair[1]);
        }
    }

    #[test]
    fn partitions_order_by_token_first() {
        let keys: Vec<_> = [i64::MIN, -1, 0, 1, i64::MAX].iter().map(|token| partition("t", *token, b"p")).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        let split = split_row(&keys[1][table("t").len()..]).unwrap();
        assert_eq!((split.token, split.partition.as_slice(), split.clustering.len()), (-1, &b"p"[..], 0));
    }

    #[test]
    fn a_range_key_comes_apart_again() {
        let prefix = partition("t", 5, &[0, 7]);
        let key = range(&prefix, &[0, 0, 9], &[255, 0]);
        assert_eq!(split_range(&key, prefix.len()), Some((vec![0, 0, 9], vec![255, 0])));
        assert_eq!(partition_of_range(&key), Some(prefix.as_slice()));
        assert!(key < after_start(&prefix, &[0, 0, 9]) && after_start(&prefix, &[0, 0, 8, 255]) < key);
    }
}
