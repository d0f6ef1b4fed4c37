//! How names become ordered keys: each part is escaped and ended, so that parts compare as they would alone.

use crate::StoreError;

/// The longest log, cursor, table or column name, in bytes.
const MAX_NAME: usize = 64;

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
pub(super) fn name<'a>(what: &str, name: &'a str) -> Result<&'a str, StoreError> {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(StoreError::Invalid(format!("{what} must be 1–{MAX_NAME} printable ASCII characters")));
    }
    Ok(name)
}

/// Checks a partition or clustering key.
pub(super) fn bounded<'a>(what: &str, key: &'a [u8]) -> Result<&'a [u8], StoreError> {
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

/// What all rows of a partition start with.
pub(super) fn partition(table: &str, partition: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(table.len() + partition.len() + 16);
    part(&mut key, table.as_bytes());
    part(&mut key, partition);
    key
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

/// Takes the range of a range key apart again.
pub(super) fn split_range(key: &[u8], prefix: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut rest = key.get(prefix..)?;
    let mut next = || {
        let mut out = Vec::new();
        loop {
            match rest {
                [0, 0xff, tail @ ..] => {
                    out.push(0);
                    rest = tail;
                }
                [0, 1, tail @ ..] => {
                    rest = tail;
                    return Some(out);
                }
                [byte, tail @ ..] => {
                    out.push(*byte);
                    rest = tail;
                }
                [] => return None,
            }
        }
    };
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_parts_do() {
        let mut parts: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![0, 0], vec![0, 1], vec![0, 255], vec![1], vec![1, 0], vec![255]];
        parts.sort();
        let keys: Vec<_> = parts.iter().map(|p| partition("t", p)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
        for pair in keys.windows(2) {
            assert!(after(pair[0].clone()) <= pair[1]);
        }
    }

    #[test]
    fn a_range_key_comes_apart_again() {
        let prefix = partition("t", &[0, 7]);
        let key = range(&prefix, &[0, 0, 9], &[255, 0]);
        assert_eq!(split_range(&key, prefix.len()), Some((vec![0, 0, 9], vec![255, 0])));
    }
}
