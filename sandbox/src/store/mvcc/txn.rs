//! Transactions: which branch is taken, and what its operations do. Conditions, nested ones too, are judged on the state before the
//! transaction; its reads see its own earlier writes.

use std::cmp::Ordering;
use std::sync::Arc;

use super::super::error::StoreError;
use super::super::types::{
    Compare, CompareOp, CompareTarget, Delete, DeleteResult, KeyValue, Op, OpResult, Put, PutLease, PutResult,
    PutValue, Range, RangeResult, Txn, TxnResult,
};
use super::Mvcc;

/// The branch taken, and those taken in the transactions nested in it, in order.
struct Path {
    succeeded: bool,
    nested: Vec<Path>,
}

impl Path {
    fn branch<'a>(&self, txn: &'a Txn) -> &'a [Op] {
        if self.succeeded { &txn.success } else { &txn.failure }
    }
}

impl Txn {
    /// Whether any branch could change anything.
    pub(crate) fn may_write(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| match op {
            Op::Range(_) => false,
            Op::Put(_) | Op::Delete(_) => true,
            Op::Txn(txn) => txn.may_write(),
        })
    }
}

impl Mvcc {
    /// Stages a transaction. Refused, it leaves nothing behind.
    pub(crate) fn stage_txn(&mut self, txn: &Txn) -> Result<TxnResult, StoreError> {
        self.check_txn(txn)?;
        let savepoint = self.undo.len();
        let path = self.decide(txn, i64::MAX);
        match self.run(txn, &path) {
            Ok(responses) => {
                let revision = self.seal();
                Ok(TxnResult { revision, succeeded: path.succeeded, responses })
            }
            Err(refused) => {
                self.undo_to(savepoint);
                Err(refused)
            }
        }
    }

    /// Runs a transaction that only reads, on what is published.
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<TxnResult, StoreError> {
        self.check_txn(txn)?;
        let path = self.decide(txn, self.visible);
        self.read_path(txn, &path)
    }

    fn read_path(&self, txn: &Txn, path: &Path) -> Result<TxnResult, StoreError> {
        let mut nested = path.nested.iter();
        let mut responses = Vec::new();
        for op in path.branch(txn) {
            match (op, nested.len()) {
                (Op::Range(range), _) => responses.push(OpResult::Range(self.range(range)?)),
                (Op::Txn(inner), _) => {
                    if let Some(path) = nested.next() {
                        responses.push(OpResult::Txn(self.read_path(inner, path)?));
                    }
                }
                (Op::Put(_) | Op::Delete(_), _) => {}
            }
        }
        Ok(TxnResult { revision: self.visible, succeeded: path.succeeded, responses })
    }

    fn decide(&self, txn: &Txn, at: i64) -> Path {
        let succeeded = txn.compares.iter().all(|compare| self.holds(compare, at));
        let branch = if succeeded { &txn.success } else { &txn.failure };
        let nested = branch.iter().filter_map(|op| match op {
            Op::Txn(inner) => Some(self.decide(inner, at)),
            _ => None,
        });
        Path { succeeded, nested: nested.collect() }
    }

    fn holds(&self, compare: &Compare, at: i64) -> bool {
        let Some(bounds) = compare.end.bounds(&compare.start) else { return compare_absent(compare) };
        let mut found = false;
        for versions in self.keys.range(bounds).map(|(_, versions)| versions) {
            let Some(kv) = super::live_at(versions, at) else { continue };
            found = true;
            if !compare_live(compare, kv) {
                return false;
            }
        }
        found || compare_absent(compare)
    }

    fn run(&mut self, txn: &Txn, path: &Path) -> Result<Vec<OpResult>, StoreError> {
        let mut nested = path.nested.iter();
        let mut responses = Vec::new();
        for op in path.branch(txn) {
            responses.push(match op {
                Op::Range(range) => OpResult::Range(self.staged_range(range)?),
                Op::Put(put) => OpResult::Put(self.put(put)?),
                Op::Delete(delete) => OpResult::Delete(self.delete(delete)),
                Op::Txn(inner) => {
                    let Some(path) = nested.next() else { continue };
                    let responses = self.run(inner, path)?;
                    OpResult::Txn(TxnResult { revision: self.running(), succeeded: path.succeeded, responses })
                }
            });
        }
        Ok(responses)
    }

    /// The revision as seen inside the transaction being staged.
    fn running(&self) -> i64 {
        if self.current.is_empty() { self.head } else { self.head + 1 }
    }

    fn staged_range(&self, range: &Range) -> Result<RangeResult, StoreError> {
        self.check_revision(range, self.head)?;
        self.read(range, self.running(), self.running())
    }

    fn put(&mut self, put: &Put) -> Result<PutResult, StoreError> {
        let prev = self.newest(&put.key).cloned();
        let value = match (&put.value, &prev) {
            (PutValue::Set(value), _) => value.clone(),
            (PutValue::Keep, Some(prev)) => prev.value.clone(),
            (PutValue::Keep, None) => return Err(StoreError::KeyNotFound),
        };
        let lease = match (put.lease, &prev) {
            (PutLease::None, _) => 0,
            (PutLease::Attach(id), _) if !self.leases.contains(id) => return Err(StoreError::LeaseNotFound { id }),
            (PutLease::Attach(id), _) => id,
            (PutLease::Keep, Some(prev)) => prev.lease,
            (PutLease::Keep, None) => return Err(StoreError::KeyNotFound),
        };
        let revision = self.head + 1;
        let kv = Arc::new(KeyValue {
            key: put.key.clone(),
            value,
            create_revision: prev.as_ref().map_or(revision, |prev| prev.create_revision),
            mod_revision: revision,
            version: prev.as_ref().map_or(1, |prev| prev.version + 1),
            lease,
        });
        let bytes = self.bytes + kv.weight();
        if bytes > self.limits.quota_bytes {
            return Err(StoreError::QuotaExceeded { bytes, max: self.limits.quota_bytes });
        }
        self.push(self.next_sub(), Arc::clone(&kv));
        Ok(PutResult { prev: prev.filter(|_| put.prev_kv), kv })
    }

    fn delete(&mut self, delete: &Delete) -> DeleteResult {
        let Some(bounds) = delete.end.bounds(&delete.start) else { return DeleteResult::default() };
        let live = self.keys.range(bounds).filter_map(|(_, versions)| super::live_at(versions, i64::MAX));
        let live: Vec<Arc<KeyValue>> = live.cloned().collect();
        for kv in &live {
            self.push_deletion(kv.key.clone());
        }
        DeleteResult { deleted: live.len(), prev: if delete.prev_kv { live } else { Vec::new() } }
    }
}

fn compare_absent(compare: &Compare) -> bool {
    match &compare.target {
        CompareTarget::Value(_) => false,
        CompareTarget::Version(expected)
        | CompareTarget::CreateRevision(expected)
        | CompareTarget::ModRevision(expected)
        | CompareTarget::Lease(expected) => satisfies(compare.op, 0.cmp(expected)),
    }
}

fn compare_live(compare: &Compare, kv: &KeyValue) -> bool {
    let ordering = match &compare.target {
        CompareTarget::Version(expected) => kv.version.cmp(expected),
        CompareTarget::CreateRevision(expected) => kv.create_revision.cmp(expected),
        CompareTarget::ModRevision(expected) => kv.mod_revision.cmp(expected),
        CompareTarget::Lease(expected) => kv.lease.cmp(expected),
        CompareTarget::Value(expected) => kv.value.cmp(expected),
    };
    satisfies(compare.op, ordering)
}

fn satisfies(op: CompareOp, ordering: Ordering) -> bool {
    match op {
        CompareOp::Equal => ordering == Ordering::Equal,
        CompareOp::NotEqual => ordering != Ordering::Equal,
        CompareOp::Greater => ordering == Ordering::Greater,
        CompareOp::Less => ordering == Ordering::Less,
    }
}
