//! The pure machine: keys and their versions, revisions, leases. Time and limits are handed in; it touches no disk and never waits.
//!
//! A change is *staged* first: it has its revision and later commands see it, but no reader does. When the driver has made the staged
//! changes durable it *publishes* them, all at once; when it could not, it *rolls back*, and nothing remains of them.

mod check;
mod compact;
mod lease;
mod txn;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use super::error::StoreError;
use super::types::{EventKind, KeyValue, Range, RangeResult};
pub(crate) use compact::CompactionPlan;
use lease::Leases;

/// One version of a key, with its place within its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// The order of this change among those of its revision.
    pub sub: u32,
    pub kv: Arc<KeyValue>,
    /// The live version it replaced, if any and known.
    pub prev: Option<Arc<KeyValue>>,
}

impl Change {
    pub(crate) fn kind(&self) -> EventKind {
        if self.kv.version == 0 { EventKind::Delete } else { EventKind::Put }
    }
}

/// Everything one revision changed, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    pub revision: i64,
    pub changes: Vec<Change>,
}

/// A change of the lease table that must become durable with the revisions staged beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseWrite {
    Put { id: i64, ttl_seconds: i64 },
    Remove { id: i64 },
}

/// What a transaction may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub quota_bytes: u64,
    pub max_request_bytes: u64,
    pub max_txn_ops: usize,
    pub min_lease_ttl_seconds: i64,
    pub max_leases: usize,
}

#[derive(Debug, Clone)]
struct Version {
    sub: u32,
    kv: Arc<KeyValue>,
}

enum Undo {
    Change(Bytes),
    Lease { id: i64, previous: Option<lease::Lease> },
}

/// The state of a store.
pub(crate) struct Mvcc {
    /// Versions of each key, oldest first; the last one may be a deletion.
    keys: BTreeMap<Bytes, Vec<Version>>,
    /// Published revisions from `compacted` on.
    history: BTreeMap<i64, Arc<Revision>>,
    /// The newest revision, staged ones included.
    head: i64,
    /// The newest revision readers see.
    visible: i64,
    /// History before this revision is gone.
    compacted: i64,
    bytes: u64,
    history_bytes: u64,
    leases: Leases,
    undo: Vec<Undo>,
    staged: Vec<Arc<Revision>>,
    staged_leases: Vec<LeaseWrite>,
    /// Changes of the transaction that is being staged.
    current: Vec<Change>,
    /// (time, revision) marks for compaction by age, oldest first.
    marks: VecDeque<(u64, i64)>,
    limits: Limits,
}

/// The revision of an empty store, as in etcd.
const FIRST_REVISION: i64 = 1;

impl Mvcc {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            keys: BTreeMap::new(),
            history: BTreeMap::new(),
            head: FIRST_REVISION,
            visible: FIRST_REVISION,
            compacted: 0,
            bytes: 0,
            history_bytes: 0,
            leases: Leases::default(),
            undo: Vec::new(),
            staged: Vec::new(),
            staged_leases: Vec::new(),
            current: Vec::new(),
            marks: VecDeque::new(),
            limits,
        }
    }

    /// Rebuilds the state from what was durable: leases with their full time to live, then every version kept, in order.
    ///
    /// # Errors
    /// A sentence naming what does not fit together.
    pub(crate) fn restore(
        limits: Limits,
        compacted: i64,
        leases: impl IntoIterator<Item = (i64, i64)>,
        changes: impl IntoIterator<Item = (u32, KeyValue)>,
        now_ms: u64,
    ) -> Result<Self, String> {
        let mut state = Self::new(limits);
        state.compacted = compacted;
        state.head = compacted.max(FIRST_REVISION);
        for (id, ttl_seconds) in leases {
            state.leases.insert(id, ttl_seconds, now_ms);
        }
        for (sub, kv) in changes {
            state.restore_change(sub, kv);
        }
        state.seal();
        state.check_contiguous()?;
        state.publish();
        Ok(state)
    }

    fn restore_change(&mut self, sub: u32, kv: KeyValue) {
        let revision = kv.mod_revision;
        let started = self.current.last().map(|change| change.kv.mod_revision);
        if started.is_some_and(|started| started != revision) {
            self.seal();
        }
        // A version can hang on a lease that was revoked later; the table then ignores the attachment, and the later versions of the
        // key, which the revocation deleted, follow.
        self.push(sub, Arc::new(kv));
    }

    fn check_contiguous(&self) -> Result<(), String> {
        let mut expected = self.compacted.max(FIRST_REVISION);
        for revision in &self.staged {
            if revision.revision <= expected {
                continue;
            }
            if revision.revision != expected + 1 {
                return Err(format!("revisions {} to {} are missing", expected + 1, revision.revision - 1));
            }
            expected = revision.revision;
        }
        Ok(())
    }

    /// The newest revision that is durable and readable.
    pub(crate) fn visible(&self) -> i64 {
        self.visible
    }

    /// The oldest revision that can still be read.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Bytes of all versions held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keys that have at least one version.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Reads published keys.
    pub(crate) fn range(&self, range: &Range) -> Result<RangeResult, StoreError> {
        self.read(range, self.visible, self.visible)
    }

    /// The newest live version of every key readers see, with its place within its revision.
    pub(crate) fn live(&self) -> Vec<(u32, Arc<KeyValue>)> {
        let newest = self.keys.values().filter_map(|versions| live_at(versions, self.visible).zip(Some(versions)));
        let place = |kv: &Arc<KeyValue>, versions: &[Version]| {
            versions.iter().find(|version| Arc::ptr_eq(&version.kv, kv)).map_or(0, |version| version.sub)
        };
        newest.map(|(kv, versions)| (place(kv, versions), Arc::clone(kv))).collect()
    }

    /// The published history from `from` on.
    pub(crate) fn history(&self, from: i64) -> impl Iterator<Item = &Arc<Revision>> {
        self.history.range(from..).map(|(_, revision)| revision)
    }

    fn check_revision(&self, range: &Range, newest: i64) -> Result<(), StoreError> {
        match range.revision {
            Some(requested) if requested > newest => Err(StoreError::FutureRevision { requested, current: newest }),
            Some(requested) if requested < self.compacted => {
                Err(StoreError::Compacted { requested, compacted: self.compacted })
            }
            _ => Ok(()),
        }
    }

    fn read(&self, range: &Range, newest: i64, revision: i64) -> Result<RangeResult, StoreError> {
        self.check_revision(range, newest)?;
        let at = range.revision.unwrap_or(newest);
        let mut result = RangeResult { revision, ..RangeResult::default() };
        let Some(bounds) = range.end.bounds(&range.start) else { return Ok(result) };
        for versions in self.keys.range(bounds).map(|(_, versions)| versions) {
            let Some(kv) = live_at(versions, at) else { continue };
            result.count += 1;
            if range.count_only {
                continue;
            }
            if range.limit > 0 && result.kvs.len() >= range.limit {
                result.more = true;
                continue;
            }
            result.kvs.push(if range.keys_only { without_value(kv) } else { Arc::clone(kv) });
        }
        Ok(result)
    }

    /// The newest live version of a key, staged ones included.
    fn newest(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.keys.get(key).and_then(|versions| live_at(versions, i64::MAX))
    }

    /// Adds a version to the transaction being staged.
    fn push(&mut self, sub: u32, kv: Arc<KeyValue>) {
        let prev = self.newest(&kv.key).cloned();
        if let Some(prev) = &prev {
            self.leases.detach(prev.lease, &prev.key);
        }
        if kv.version != 0 {
            self.leases.attach(kv.lease, &kv.key);
        }
        self.bytes += kv.weight();
        self.undo.push(Undo::Change(kv.key.clone()));
        self.keys.entry(kv.key.clone()).or_default().push(Version { sub, kv: Arc::clone(&kv) });
        self.current.push(Change { sub, kv, prev });
    }

    /// Ends the transaction being staged: its changes, if any, become one revision. Returns the newest revision.
    fn seal(&mut self) -> i64 {
        if let Some(first) = self.current.first() {
            let revision = first.kv.mod_revision;
            self.head = self.head.max(revision);
            self.staged.push(Arc::new(Revision { revision, changes: std::mem::take(&mut self.current) }));
        }
        self.head
    }

    /// What must be made durable before [`Mvcc::publish`].
    pub(crate) fn staged(&self) -> (&[Arc<Revision>], &[LeaseWrite]) {
        (&self.staged, &self.staged_leases)
    }

    /// Shows everything staged to readers; returns it for the watchers.
    pub(crate) fn publish(&mut self) -> Vec<Arc<Revision>> {
        self.undo.clear();
        self.staged_leases.clear();
        self.visible = self.head;
        let published = std::mem::take(&mut self.staged);
        for revision in &published {
            if revision.revision >= self.compacted {
                self.history_bytes += revision_weight(revision);
                self.history.insert(revision.revision, Arc::clone(revision));
            }
        }
        published
    }

    /// Forgets everything staged.
    pub(crate) fn roll_back(&mut self) {
        self.undo_to(0);
        self.staged.clear();
        self.staged_leases.clear();
        self.head = self.visible;
    }

    fn undo_to(&mut self, savepoint: usize) {
        while self.undo.len() > savepoint {
            match self.undo.pop() {
                Some(Undo::Change(key)) => self.undo_change(&key),
                Some(Undo::Lease { id, previous }) => self.leases.put_back(id, previous),
                None => return,
            }
        }
        self.current.clear();
    }

    fn undo_change(&mut self, key: &Bytes) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        if let Some(version) = versions.pop() {
            self.bytes -= version.kv.weight();
            self.leases.detach(version.kv.lease, key);
        }
        if let Some(kv) = live_at(versions, i64::MAX) {
            self.leases.attach(kv.lease, key);
        }
        if versions.is_empty() {
            self.keys.remove(key);
        }
    }
}

/// The version a reader at revision `at` sees, unless the key did not exist then.
fn live_at(versions: &[Version], at: i64) -> Option<&Arc<KeyValue>> {
    let newer = versions.iter().rev().take_while(|version| version.kv.mod_revision > at).count();
    let version = versions.len().checked_sub(newer + 1).and_then(|index| versions.get(index))?;
    (version.kv.version != 0).then_some(&version.kv)
}

fn without_value(kv: &KeyValue) -> Arc<KeyValue> {
    Arc::new(KeyValue { value: Bytes::new(), ..kv.clone() })
}

fn revision_weight(revision: &Revision) -> u64 {
    revision.changes.iter().map(|change| change.kv.weight()).sum()
}
