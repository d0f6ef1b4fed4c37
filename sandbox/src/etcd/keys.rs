//! Where etcd's keys lie in the store: under one internal prefix that no client sees, so that no client reaches beyond it.

use bytes::Bytes;

use crate::store::{ETCD_PREFIX, RangeEnd};

/// The store's key for a client's.
pub(super) fn inner(key: &[u8]) -> Bytes {
    let mut inner = Vec::with_capacity(ETCD_PREFIX.len() + key.len());
    inner.extend_from_slice(ETCD_PREFIX);
    inner.extend_from_slice(key);
    Bytes::from(inner)
}

/// The store's end of a range for a client's: empty means the key alone, one zero byte means every key from there on.
pub(super) fn inner_end(range_end: &[u8]) -> RangeEnd {
    match range_end {
        [] => RangeEnd::Single,
        [0] => RangeEnd::To(beyond_all()),
        end => RangeEnd::To(inner(end)),
    }
}

/// The client's key for the store's, or `None` for a key of another API.
pub(super) fn outer(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(ETCD_PREFIX)
}

/// The first key after all of etcd's.
fn beyond_all() -> Bytes {
    let mut end = ETCD_PREFIX.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Bytes::from(end)
}
