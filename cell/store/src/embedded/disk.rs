//! fjall as the engine sees it: seven keyspaces, atomic batches, one sync per group.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use crate::StoreError;
use crate::engine::{Change, Kv, Scan, Space, Visit};

/// What a keyspace holds in memory before it is written out; seven of them, each at most twice this while one is being written.
const MEMTABLE_BYTES: u64 = 16 << 20;

pub(super) struct Disk {
    database: Database,
    keyspaces: HashMap<Space, Keyspace>,
    broken: AtomicBool,
}

impl Disk {
    pub(super) fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let failed = |error: fjall::Error| StoreError::Open {
            path: data_dir.display().to_string(),
            message: match error {
                fjall::Error::Locked => "another process has it open; stop that one first".to_owned(),
                error => error.to_string(),
            },
        };
        let path = data_dir.join("fjall");
        journal_mend::mend(&path).map_err(|error| failed(error.into()))?;
        let database = Database::builder(path)
            .cache_size(64 << 20)
            .max_journaling_size(256 << 20)
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let mut keyspaces = HashMap::new();
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        for (space, name) in Space::ALL {
            let keyspace = database.keyspace(name, options).map_err(failed)?;
            keyspaces.insert(space, keyspace);
        }
        Ok(Self { database, keyspaces, broken: AtomicBool::new(false) })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    fn keyspace(&self, space: Space) -> Result<&Keyspace, StoreError> {
        self.keyspaces.get(&space).ok_or_else(|| StoreError::Damaged(format!("keyspace {space:?} is missing")))
    }

    /// Makes changes together; they are on disk only after [`Disk::sync`].
    pub(super) fn commit(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for (space, key, value) in changes {
            let keyspace = self.keyspace(space)?;
            match value {
                Some(value) => batch.insert(keyspace, key, value),
                None => batch.remove(keyspace, key),
            }
        }
        batch.commit().map_err(|error| self.break_off(&error))
    }

    pub(super) fn sync(&self) -> Result<(), StoreError> {
        self.database.persist(PersistMode::SyncData).map_err(|error| self.break_off(&error))
    }

    /// After a failed write or sync nothing is known about what is on disk; only reopening tells.
    fn break_off(&self, error: &fjall::Error) -> StoreError {
        self.broken.store(true, Ordering::Release);
        tracing::error!(%error, "a write to disk failed; the store stops and must be started again");
        StoreError::UnknownOutcome(format!("a write to disk failed: {error}"))
    }
}

fn unreadable(error: &fjall::Error) -> StoreError {
    StoreError::Damaged(format!("failed to read: {error}"))
}

impl Kv for Disk {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.keyspace(space)?.get(key).map_err(|error| unreadable(&error))?;
        Ok(found.map(|value| value.to_vec()))
    }

    fn scan(&self, scan: Scan, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if scan.from >= scan.to {
            return Ok(());
        }
        let mut range = self.keyspace(scan.space)?.range(scan.from..scan.to);
        loop {
            let next = if scan.reverse { range.next_back() } else { range.next() };
            let Some(guard) = next else { return Ok(()) };
            let (key, value) = guard.into_inner().map_err(|error| unreadable(&error))?;
            if !visit(&key, &value)? {
                return Ok(());
            }
        }
    }
}
