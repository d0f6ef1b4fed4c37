//! The bounds of a store. Each has a reason beside it; none is taken from the environment.

use std::time::Duration;

/// When history is dropped without anybody asking. Whichever bound is passed first compacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoCompaction {
    /// Keep at most this many revisions of history.
    pub keep_revisions: i64,
    /// Keep history at most this long. Kubernetes' API server compacts its etcd every five minutes.
    pub keep_for: Duration,
    /// Keep at most this many bytes of history in memory.
    pub keep_bytes: u64,
}

/// How a store is bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// `None` keeps all history until [`super::Store::compact`].
    pub auto_compaction: Option<AutoCompaction>,
    /// Bytes of all versions held; the state lives in memory.
    pub quota_bytes: u64,
    /// Bytes of keys and values in one transaction; etcd's default.
    pub max_request_bytes: u64,
    /// Operations in one list of a transaction; etcd's default.
    pub max_txn_ops: usize,
    /// Shorter leases are raised to this; etcd's is 2 s with its default timing.
    pub min_lease_ttl_seconds: i64,
    pub max_leases: usize,
    pub max_watches: usize,
    /// Revisions queued for one watcher before it must catch up from history.
    pub watch_queue: usize,
    /// Commands waiting for the writer before callers wait for a place.
    pub write_queue: usize,
    /// Commands made durable by one sync.
    pub group_commit: usize,
    /// How long a caller waits for durability before it hears [`super::StoreError::Timeout`].
    pub write_deadline: Duration,
}

impl StoreOptions {
    /// The bounds the sandbox runs with.
    #[must_use]
    pub fn sandbox() -> Self {
        Self {
            auto_compaction: Some(AutoCompaction {
                keep_revisions: 50_000,
                keep_for: Duration::from_secs(300),
                keep_bytes: 64 * 1024 * 1024,
            }),
            quota_bytes: 1024 * 1024 * 1024,
            max_request_bytes: 1536 * 1024,
            max_txn_ops: 128,
            min_lease_ttl_seconds: 2,
            max_leases: 100_000,
            max_watches: 20_000,
            watch_queue: 256,
            write_queue: 1024,
            group_commit: 256,
            write_deadline: Duration::from_secs(10),
        }
    }
}
