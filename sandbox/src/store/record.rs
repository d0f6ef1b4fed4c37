//! How versions and leases are laid out on disk. Decoding trusts nothing: what does not fit is refused with a sentence.

use bytes::Bytes;

use super::types::KeyValue;

/// The format written here. A store of a newer one is refused.
pub(crate) const FORMAT: u64 = 1;

const VERSION_TAG: u8 = b'r';
const LEASE_TAG: u8 = b'l';
/// The key of the compacted revision.
pub(crate) const COMPACTED_KEY: &[u8] = b"mcompacted";

/// Where every version lies, in order of revision and place within it.
pub(crate) const VERSION_PREFIX: &[u8] = &[VERSION_TAG];
/// Where every lease lies.
pub(crate) const LEASE_PREFIX: &[u8] = &[LEASE_TAG];

/// The place of a version.
pub(crate) fn version_key(revision: i64, sub: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(13);
    key.push(VERSION_TAG);
    key.extend_from_slice(&revision.to_be_bytes());
    key.extend_from_slice(&sub.to_be_bytes());
    key
}

/// The revision and place within it that a version's key names.
pub(crate) fn read_version_key(key: &[u8]) -> Result<(i64, u32), String> {
    let mut rest = key.strip_prefix(VERSION_PREFIX).ok_or("key of a version has the wrong tag")?;
    let revision = i64::from_be_bytes(take(&mut rest)?);
    let sub = u32::from_be_bytes(take(&mut rest)?);
    if rest.is_empty() && revision > 0 { Ok((revision, sub)) } else { Err(format!("key of a version is odd: {key:?}")) }
}

/// A version without its `mod_revision`, which its key holds.
pub(crate) fn write_version(kv: &KeyValue) -> Vec<u8> {
    let mut record = Vec::with_capacity(28 + kv.key.len() + kv.value.len());
    record.extend_from_slice(&kv.create_revision.to_be_bytes());
    record.extend_from_slice(&kv.version.to_be_bytes());
    record.extend_from_slice(&kv.lease.to_be_bytes());
    let key_len = u32::try_from(kv.key.len()).unwrap_or(u32::MAX);
    record.extend_from_slice(&key_len.to_be_bytes());
    record.extend_from_slice(&kv.key);
    record.extend_from_slice(&kv.value);
    record
}

/// Reads what [`write_version`] wrote.
pub(crate) fn read_version(mod_revision: i64, record: &[u8]) -> Result<KeyValue, String> {
    let mut rest = record;
    let create_revision = i64::from_be_bytes(take(&mut rest)?);
    let version = i64::from_be_bytes(take(&mut rest)?);
    let lease = i64::from_be_bytes(take(&mut rest)?);
    let key_len = u32::from_be_bytes(take(&mut rest)?) as usize;
    let Some((key, value)) = rest.split_at_checked(key_len) else {
        return Err(format!("version of revision {mod_revision} is shorter than its key"));
    };
    if version < 0 || create_revision > mod_revision {
        return Err(format!("version of revision {mod_revision} has figures that cannot be"));
    }
    let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    Ok(KeyValue { key, value, create_revision, mod_revision, version, lease })
}

/// The place of a lease.
pub(crate) fn lease_key(id: i64) -> Vec<u8> {
    let mut key = vec![LEASE_TAG];
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// The id a lease's key names.
pub(crate) fn read_lease_key(key: &[u8]) -> Result<i64, String> {
    let rest = key.strip_prefix(LEASE_PREFIX).ok_or("key of a lease has the wrong tag")?;
    read_number(rest)
}

/// A lone number: a lease's seconds, the compacted revision.
pub(crate) fn read_number(mut bytes: &[u8]) -> Result<i64, String> {
    let number = i64::from_be_bytes(take(&mut bytes)?);
    if bytes.is_empty() { Ok(number) } else { Err("number is longer than eight bytes".to_owned()) }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or("record is cut short")?;
    *rest = tail;
    Ok(*head)
}
