//! The words of the store: keys and their versions, ranges, transactions, leases and watches.
//!
//! Only shapes and the small builders that make them readable at the call site; nothing here touches state.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

/// One version of one key. A deletion is carried as a version with `version == 0` and an empty value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The whole key, with its internal prefix.
    pub key: Bytes,
    /// What was put.
    pub value: Bytes,
    /// The revision that created the key (anew, after its last deletion).
    pub create_revision: i64,
    /// The revision that wrote this version.
    pub mod_revision: i64,
    /// 1 at creation, +1 with every put since; 0 marks a deletion.
    pub version: i64,
    /// The lease the key hangs on, or 0.
    pub lease: i64,
}

impl KeyValue {
    /// Bytes this version is counted with against the store's bounds.
    pub(crate) fn weight(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64 + 96
    }
}

/// Where a range stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeEnd {
    /// Exactly the start key.
    Single,
    /// Every key that begins with the start key.
    Prefix,
    /// Keys from the start up to, not including, this one.
    To(Bytes),
    /// Every key from the start on.
    FromKey,
}

impl RangeEnd {
    /// Whether `key` lies in the range that begins at `start`.
    #[must_use]
    pub fn contains(&self, start: &[u8], key: &[u8]) -> bool {
        match self {
            Self::Single => key == start,
            Self::Prefix => key.starts_with(start),
            Self::To(end) => key >= start && key < end.as_ref(),
            Self::FromKey => key >= start,
        }
    }

    /// The bounds for an ordered map, or `None` when the range is empty or inverted.
    pub(crate) fn bounds(&self, start: &Bytes) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
        let upper = match self {
            Self::Single => Bound::Included(start.clone()),
            Self::Prefix => prefix_end(start).map_or(Bound::Unbounded, Bound::Excluded),
            Self::To(end) if end <= start => return None,
            Self::To(end) => Bound::Excluded(end.clone()),
            Self::FromKey => Bound::Unbounded,
        };
        Some((Bound::Included(start.clone()), upper))
    }
}

/// The smallest key greater than every key with this prefix; `None` when there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(Bytes::from(end))
}

/// A read of keys, in key order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub start: Bytes,
    pub end: RangeEnd,
    /// The revision to read at; `None` reads the newest.
    pub revision: Option<i64>,
    /// At most this many keys are returned; 0 means all.
    pub limit: usize,
    /// Return keys with empty values.
    pub keys_only: bool,
    /// Return only the count.
    pub count_only: bool,
}

impl Range {
    /// The key itself.
    pub fn single(key: impl Into<Bytes>) -> Self {
        Self::new(key, RangeEnd::Single)
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::new(prefix, RangeEnd::Prefix)
    }

    /// From `start` to `end`, at the newest revision, without limit.
    pub fn new(start: impl Into<Bytes>, end: RangeEnd) -> Self {
        Self { start: start.into(), end, revision: None, limit: 0, keys_only: false, count_only: false }
    }

    /// The same range as it was at `revision`.
    #[must_use]
    pub fn at(mut self, revision: i64) -> Self {
        self.revision = Some(revision);
        self
    }

    /// The same range, stopping after `limit` keys.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// What a [`Range`] found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeResult {
    pub kvs: Vec<Arc<KeyValue>>,
    /// Keys beyond the limit exist.
    pub more: bool,
    /// Keys in the range, whatever the limit.
    pub count: usize,
    /// The store's revision when the range was read (not the revision asked for).
    pub revision: i64,
}

/// Which field of a key a [`Compare`] looks at, with the value it is compared to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompareTarget {
    Version(i64),
    CreateRevision(i64),
    ModRevision(i64),
    Lease(i64),
    Value(Bytes),
}

/// How the key's field relates to the given value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareOp {
    Equal,
    NotEqual,
    Greater,
    Less,
}

/// A condition. A missing key compares as all zeros, except that comparing its value is always false; over a range every key must
/// satisfy it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub start: Bytes,
    pub end: RangeEnd,
    pub op: CompareOp,
    pub target: CompareTarget,
}

impl Compare {
    /// The key was last written by exactly `revision`.
    pub fn mod_revision(key: impl Into<Bytes>, revision: i64) -> Self {
        let target = CompareTarget::ModRevision(revision);
        Self { start: key.into(), end: RangeEnd::Single, op: CompareOp::Equal, target }
    }

    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Self {
        let target = CompareTarget::CreateRevision(0);
        Self { start: key.into(), end: RangeEnd::Single, op: CompareOp::Equal, target }
    }
}

/// The value a put writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutValue {
    Set(Bytes),
    /// Keep the value the key has; it must exist.
    Keep,
}

/// The lease a put hangs the key on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutLease {
    None,
    Attach(i64),
    /// Keep the lease the key has; the key must exist.
    Keep,
}

/// Write one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    pub key: Bytes,
    pub value: PutValue,
    pub lease: PutLease,
    /// Answer with the version that was replaced.
    pub prev_kv: bool,
}

impl Put {
    /// Set `key` to `value`, on no lease.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: PutValue::Set(value.into()), lease: PutLease::None, prev_kv: false }
    }

    /// The same put, hung on a lease.
    #[must_use]
    pub fn lease(mut self, id: i64) -> Self {
        self.lease = PutLease::Attach(id);
        self
    }
}

/// Delete every key of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    pub start: Bytes,
    pub end: RangeEnd,
    /// Answer with the versions that were deleted.
    pub prev_kv: bool,
}

impl Delete {
    /// Delete the key itself.
    pub fn single(key: impl Into<Bytes>) -> Self {
        Self { start: key.into(), end: RangeEnd::Single, prev_kv: false }
    }
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Range(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
}

/// Conditions and what to do when all hold, or not. Every change of one transaction has one revision; a transaction that changes
/// nothing has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

impl Txn {
    /// A transaction without conditions.
    #[must_use]
    pub fn always(ops: Vec<Op>) -> Self {
        Self { compares: Vec::new(), success: ops, failure: Vec::new() }
    }

    /// A transaction that does `ops` only if `compare` holds.
    #[must_use]
    pub fn when(compare: Compare, ops: Vec<Op>) -> Self {
        Self { compares: vec![compare], success: ops, failure: Vec::new() }
    }

    /// The same transaction, doing `ops` when the conditions do not hold.
    #[must_use]
    pub fn otherwise(mut self, ops: Vec<Op>) -> Self {
        self.failure = ops;
        self
    }
}

/// What a [`Put`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutResult {
    /// The replaced version, when asked for and there was one.
    pub prev: Option<Arc<KeyValue>>,
    /// The version now in place.
    pub kv: Arc<KeyValue>,
}

/// What a [`Delete`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteResult {
    pub deleted: usize,
    /// The deleted versions, when asked for.
    pub prev: Vec<Arc<KeyValue>>,
}

/// The answer to one [`Op`], in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    Range(RangeResult),
    Put(PutResult),
    Delete(DeleteResult),
    Txn(TxnResult),
}

/// The answer to a [`Txn`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TxnResult {
    /// The store's revision after it: its own revision if it changed anything.
    pub revision: i64,
    /// Whether the conditions held.
    pub succeeded: bool,
    pub responses: Vec<OpResult>,
}

/// Whose lease it is. Ids of the etcd API are positive and it shows only those; all others are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOwner {
    Etcd,
    Internal,
}

/// A request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The id wanted; `None` lets the store choose.
    pub id: Option<i64>,
    /// Seconds to live, raised to [`super::StoreOptions::min_lease_ttl_seconds`].
    pub ttl_seconds: i64,
    pub owner: LeaseOwner,
}

/// A lease as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseInfo {
    pub id: i64,
    /// Seconds granted.
    pub granted_seconds: i64,
    /// Whole seconds left.
    pub remaining_seconds: i64,
    /// Keys that hang on it, in order.
    pub keys: Vec<Bytes>,
}

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchEvent {
    pub kind: EventKind,
    /// The new version; for a deletion only `key` and `mod_revision` are set.
    pub kv: Arc<KeyValue>,
    /// The version before, when asked for, existing and not compacted away.
    pub prev: Option<Arc<KeyValue>>,
}

/// What to watch, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchFrom {
    pub start: Bytes,
    pub end: RangeEnd,
    /// The first revision wanted; `None` means whatever comes next. May lie in the future.
    pub from_revision: Option<i64>,
    /// Fill [`WatchEvent::prev`].
    pub prev_kv: bool,
}

impl WatchFrom {
    /// Watch every key with this prefix, from `from_revision` on.
    pub fn prefix(prefix: impl Into<Bytes>, from_revision: Option<i64>) -> Self {
        Self { start: prefix.into(), end: RangeEnd::Prefix, from_revision, prev_kv: false }
    }
}

/// All events of one revision that a watch asked for; never empty, never split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchBatch {
    pub revision: i64,
    pub events: Vec<WatchEvent>,
}
