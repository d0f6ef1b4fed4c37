//! The store under both APIs of the sandbox: one multi-version, revisioned key space on disk, with transactions, leases and watches.
//!
//! It decides what a revision holds, what is durable and who may still read history. It never knows what a key means: the etcd API
//! keeps its keys under [`ETCD_PREFIX`] and the Kubernetes API under [`KUBE_PREFIX`], both on the same revisions.
//!
//! `mvcc` is the pure machine (no clock, no I/O), `journal` the disk, `writer` the one thread that changes anything, `watch` the
//! delivery of changes, `handle` the [`Store`] that callers hold, `backup` a whole store in
//! one file.

pub mod backup;
mod error;
mod handle;
mod journal;
mod mvcc;
mod options;
mod record;
mod types;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{OpenError, StoreError, WatchEnd};
pub use handle::{Store, StoreStats};
pub use options::{AutoCompaction, StoreOptions};
pub use types::{
    Compare, CompareOp, CompareTarget, Delete, DeleteResult, EventKind, KeyValue, LeaseGrant, LeaseInfo, LeaseOwner,
    Op, OpResult, Put, PutLease, PutResult, PutValue, Range, RangeEnd, RangeResult, Txn, TxnResult, WatchBatch,
    WatchEvent, WatchFrom,
};
pub use watch::{Watch, WatchProgress};

/// Every key of the etcd API lies under this prefix, which its clients never see.
pub const ETCD_PREFIX: &[u8] = b"e/";
/// Every key of the Kubernetes API lies under this prefix, which the etcd API never shows.
pub const KUBE_PREFIX: &[u8] = b"k/";
