//! What a transaction may look like: sizes, depth, keys, and no key written twice. It looks at the request only, never at the state.

use std::collections::BTreeSet;

use super::super::error::StoreError;
use super::super::types::{CompareTarget, Delete, Op, PutValue, Txn};
use super::Mvcc;

/// Deeper nesting would only burn stack.
const MAX_DEPTH: usize = 16;

/// What one list of operations, with everything nested in it, writes.
#[derive(Default)]
struct Writes<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Vec<&'a Delete>,
}

impl<'a> Writes<'a> {
    fn put(&mut self, key: &'a [u8]) -> Result<(), StoreError> {
        if self.deletes(key) || !self.puts.insert(key) {
            return Err(StoreError::DuplicateKey);
        }
        Ok(())
    }

    fn deletes(&self, key: &[u8]) -> bool {
        self.deletes.iter().any(|delete| delete.end.contains(&delete.start, key))
    }
}

impl Mvcc {
    pub(super) fn check_txn(&self, txn: &Txn) -> Result<(), StoreError> {
        check_shape(txn, self.limits.max_txn_ops, 0)?;
        let bytes = txn_bytes(txn);
        if bytes > self.limits.max_request_bytes {
            return Err(StoreError::RequestTooLarge { bytes, max: self.limits.max_request_bytes });
        }
        writes(&txn.success)?;
        writes(&txn.failure)?;
        Ok(())
    }
}

fn check_shape(txn: &Txn, max: usize, depth: usize) -> Result<(), StoreError> {
    if depth > MAX_DEPTH {
        return Err(StoreError::NestedTooDeep { max: MAX_DEPTH });
    }
    let operations = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if operations > max {
        return Err(StoreError::TooManyOperations { operations, max });
    }
    if txn.compares.iter().any(|compare| compare.start.is_empty()) {
        return Err(StoreError::EmptyKey);
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Txn(inner) => check_shape(inner, max, depth + 1)?,
            Op::Range(range) if range.start.is_empty() => return Err(StoreError::EmptyKey),
            Op::Put(put) if put.key.is_empty() => return Err(StoreError::EmptyKey),
            Op::Delete(delete) if delete.start.is_empty() => return Err(StoreError::EmptyKey),
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => {}
        }
    }
    Ok(())
}

fn txn_bytes(txn: &Txn) -> u64 {
    let compares = txn.compares.iter().map(|compare| match &compare.target {
        CompareTarget::Value(value) => compare.start.len() + value.len(),
        _ => compare.start.len(),
    });
    let ops = txn.success.iter().chain(&txn.failure).map(|op| match op {
        Op::Range(range) => range.start.len() as u64,
        Op::Delete(delete) => delete.start.len() as u64,
        Op::Put(put) => match &put.value {
            PutValue::Set(value) => (put.key.len() + value.len()) as u64,
            PutValue::Keep => put.key.len() as u64,
        },
        Op::Txn(inner) => txn_bytes(inner),
    });
    compares.map(|bytes| bytes as u64).sum::<u64>() + ops.sum::<u64>()
}

/// The writes of one list; refused if a key is put twice, or deleted and put. The two branches of a nested transaction exclude each
/// other, so they may write the same keys. As in etcd, a nested transaction may delete what one before it put.
fn writes(ops: &[Op]) -> Result<Writes<'_>, StoreError> {
    let mut all = Writes::default();
    for op in ops {
        if let Op::Delete(delete) = op {
            all.deletes.push(delete);
        }
    }
    for op in ops {
        let Op::Txn(inner) = op else { continue };
        let (then, otherwise) = (writes(&inner.success)?, writes(&inner.failure)?);
        for key in &then.puts {
            all.put(key)?;
        }
        for key in otherwise.puts.difference(&then.puts) {
            all.put(key)?;
        }
        all.deletes.extend(then.deletes);
        all.deletes.extend(otherwise.deletes);
    }
    for op in ops {
        if let Op::Put(put) = op {
            all.put(&put.key)?;
        }
    }
    Ok(all)
}
