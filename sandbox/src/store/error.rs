//! Every reason the store has to refuse, each with the figures a caller needs to act on it.

use std::path::PathBuf;

/// Why a request was refused. Unless the variant says otherwise nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("revision {requested} has been compacted: the oldest that can be read is {compacted}")]
    Compacted { requested: i64, compacted: i64 },
    #[error("revision {requested} is in the future: the store is at {current}")]
    FutureRevision { requested: i64, current: i64 },
    #[error("key is empty: give one")]
    EmptyKey,
    #[error("key not found: keeping its value or lease needs an existing key")]
    KeyNotFound,
    #[error("one key is written twice in one transaction: merge the operations")]
    DuplicateKey,
    #[error("transaction has {operations} operations in one list, more than {max}: split it")]
    TooManyOperations { operations: usize, max: usize },
    #[error("transactions are nested deeper than {max}: flatten them")]
    NestedTooDeep { max: usize },
    #[error("request is {bytes} bytes, more than {max}: split it")]
    RequestTooLarge { bytes: u64, max: u64 },
    #[error("store holds {bytes} bytes, its quota is {max}: delete keys or compact")]
    QuotaExceeded { bytes: u64, max: u64 },
    #[error("lease {id} not found: it expired, was revoked or never was granted")]
    LeaseNotFound { id: i64 },
    #[error("lease {id} already exists: choose another id")]
    LeaseExists { id: i64 },
    #[error("lease id {id} belongs to the other API: the etcd API has positive ids, all others are negative")]
    LeaseIdOutOfRange { id: i64 },
    #[error("lease ttl of {ttl_seconds} s is too large: at most {max} s")]
    LeaseTtlTooLarge { ttl_seconds: i64, max: i64 },
    #[error("store has {max} leases, as many as it may: revoke some")]
    TooManyLeases { max: usize },
    #[error("store has {max} watches, as many as it may: cancel some")]
    TooManyWatches { max: usize },
    #[error("disk is full: free space in {}; reads go on", path.display())]
    DiskFull { path: PathBuf },
    #[error("store is read-only after a failed write ({reason}): restart it once the disk is sound; reads go on")]
    ReadOnly { reason: String },
    #[error("write was not durable in time: it may still become so")]
    Timeout,
    #[error("store is closed")]
    Closed,
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("store {} is in use by process {holder}: stop it or choose another directory", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error("store {} has format {found}, newer than {supported} known here: use the newer program", path.display())]
    NewerFormat { path: PathBuf, found: u64, supported: u64 },
    #[error("store {} is not one of ours: {reason}; choose another directory", path.display())]
    NotAStore { path: PathBuf, reason: String },
    #[error("store {} is damaged: {reason}; restore it from a copy or remove it", path.display())]
    Corrupt { path: PathBuf, reason: String },
    #[error("open store {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// Why a watch ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The watcher was so far behind that history it needs is gone: list anew, watch from the list's revision.
    #[error("watch fell behind: history before revision {compacted} is gone")]
    Compacted { compacted: i64 },
    #[error("store is closed")]
    Closed,
}
