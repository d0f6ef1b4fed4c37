//! The disk under the store: an embedded log-structured database that holds every version by revision, and the leases.
//!
//! It decides what a restart finds. A batch is there wholly or not at all, and is there for good once `append` has answered. It never
//! looks into keys and never keeps state beside what it was given.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::error::OpenError;
use super::mvcc::{CompactionPlan, LeaseWrite, Revision};
use super::record;
use super::types::KeyValue;

/// Why a batch did not become durable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// Worth another attempt with a fresh start of the database.
    #[error("disk is full")]
    Full,
    /// The database gave up in the background; worth another attempt with a fresh start.
    #[error("database stopped: {0}")]
    Stopped(String),
    /// What the disk holds is unknown; only a restart may look.
    #[error("write failed: {0}")]
    Failed(String),
}

/// What a store is kept in.
pub(crate) trait Journal: Send {
    /// Makes revisions and lease changes durable, together.
    fn append(&mut self, revisions: &[Arc<Revision>], leases: &[LeaseWrite]) -> Result<(), JournalError>;
    /// Makes a compaction durable.
    fn compact(&mut self, plan: &CompactionPlan) -> Result<(), JournalError>;
    /// Starts the database anew after a failure and takes back whatever of the failed batch may have reached the disk: its callers
    /// were told that it failed.
    fn recover(&mut self, newest: i64, leases: &[(i64, i64)]) -> Result<(), JournalError>;
}

/// What a restart found.
pub(crate) struct Found {
    pub compacted: i64,
    /// (id, seconds to live).
    pub leases: Vec<(i64, i64)>,
    /// (place within the revision, version), in order.
    pub changes: Vec<(u32, KeyValue)>,
}

/// The lock of a store's directory, held while this lives.
struct DirectoryLock {
    _file: File,
}

/// The journal on a real disk.
pub(crate) struct DiskJournal {
    path: PathBuf,
    /// `None` between a failure and a successful recovery.
    database: Option<(Database, Keyspace)>,
    _lock: DirectoryLock,
}

/// A process that was just killed holds its lock until the kernel has taken it down.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_RETRY: Duration = Duration::from_millis(20);

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_TEXT: &str = "cellplane sandbox store";
const LOCK_FILE: &str = "LOCK";
const DATA: &str = "data";
const DATA_UNFINISHED: &str = "data.unfinished";

impl DiskJournal {
    /// Opens or creates the store in `dir`, alone.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Found), OpenError> {
        let io = |source| OpenError::Io { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(io)?;
        let lock = lock(dir)?;
        check_format(dir)?;
        if !dir.join(DATA).exists() {
            create(dir).map_err(|error| open_error(dir, error))?;
        }
        let (database, keyspace) = open_database(&dir.join(DATA)).map_err(|error| open_error(dir, error))?;
        let found = load(dir, &keyspace)?;
        Ok((Self { path: dir.to_owned(), database: Some((database, keyspace)), _lock: lock }, found))
    }

    /// Makes `revision` the oldest one that can be read, and with it the one the store begins at.
    pub(crate) fn begin_at(&mut self, revision: i64) -> Result<(), JournalError> {
        let (database, keyspace) = self.database()?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(keyspace, record::COMPACTED_KEY, revision.to_be_bytes());
        batch.commit().map_err(journal_error)
    }

    fn database(&self) -> Result<&(Database, Keyspace), JournalError> {
        self.database.as_ref().ok_or_else(|| JournalError::Stopped("not yet started again".to_owned()))
    }
}

impl Journal for DiskJournal {
    fn append(&mut self, revisions: &[Arc<Revision>], leases: &[LeaseWrite]) -> Result<(), JournalError> {
        let (database, keyspace) = self.database()?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        for change in revisions.iter().flat_map(|revision| &revision.changes) {
            let key = record::version_key(change.kv.mod_revision, change.sub);
            batch.insert(keyspace, key, record::write_version(&change.kv));
        }
        for lease in leases {
            match lease {
                LeaseWrite::Put { id, ttl_seconds } => {
                    batch.insert(keyspace, record::lease_key(*id), ttl_seconds.to_be_bytes());
                }
                LeaseWrite::Remove { id } => batch.remove(keyspace, record::lease_key(*id)),
            }
        }
        batch.commit().map_err(journal_error)
    }

    fn compact(&mut self, plan: &CompactionPlan) -> Result<(), JournalError> {
        let (database, keyspace) = self.database()?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncData));
        batch.insert(keyspace, record::COMPACTED_KEY, plan.revision.to_be_bytes());
        for (revision, sub) in &plan.removed {
            batch.remove(keyspace, record::version_key(*revision, *sub));
        }
        batch.commit().map_err(journal_error)
    }

    fn recover(&mut self, newest: i64, leases: &[(i64, i64)]) -> Result<(), JournalError> {
        self.database = None;
        let (database, keyspace) = open_database(&self.path.join(DATA)).map_err(journal_error)?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
        let beyond = record::version_key(newest.saturating_add(1), 0)..vec![record::VERSION_PREFIX[0] + 1];
        for item in keyspace.range(beyond) {
            batch.remove(&keyspace, item.key().map_err(journal_error)?);
        }
        for item in keyspace.prefix(record::LEASE_PREFIX) {
            batch.remove(&keyspace, item.key().map_err(journal_error)?);
        }
        batch.commit().map_err(journal_error)?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
        for (id, ttl_seconds) in leases {
            batch.insert(&keyspace, record::lease_key(*id), ttl_seconds.to_be_bytes());
        }
        batch.commit().map_err(journal_error)?;
        self.database = Some((database, keyspace));
        Ok(())
    }
}

fn open_database(path: &Path) -> fjall::Result<(Database, Keyspace)> {
    journal_mend::mend(path)?;
    // The state lives in memory, so the database is only ever written, and read once at start: small caches, one worker.
    let database = Database::builder(path)
        .cache_size(1 << 20)
        .worker_threads(1)
        .max_cached_files(Some(64))
        .max_journaling_size(64 * 1024 * 1024)
        .open()?;
    let keyspace =
        database.keyspace("store", || KeyspaceCreateOptions::default().max_memtable_size(16 * 1024 * 1024))?;
    Ok((database, keyspace))
}

/// Creates the database beside its place and moves it there whole: a crash in between leaves nothing that could not be opened.
fn create(dir: &Path) -> fjall::Result<()> {
    let unfinished = dir.join(DATA_UNFINISHED);
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    let (database, keyspace) = open_database(&unfinished)?;
    database.persist(PersistMode::SyncAll)?;
    drop((keyspace, database));
    fs::rename(&unfinished, dir.join(DATA))?;
    Ok(File::open(dir)?.sync_all()?)
}

fn load(dir: &Path, keyspace: &Keyspace) -> Result<Found, OpenError> {
    let corrupt = |reason: String| OpenError::Corrupt { path: dir.to_owned(), reason };
    let failed = |error| open_error(dir, error);
    let compacted = match keyspace.get(record::COMPACTED_KEY).map_err(failed)? {
        Some(bytes) => record::read_number(&bytes).map_err(corrupt)?,
        None => 0,
    };
    let mut leases = Vec::new();
    for item in keyspace.prefix(record::LEASE_PREFIX) {
        let (key, value) = item.into_inner().map_err(failed)?;
        leases.push((record::read_lease_key(&key).map_err(corrupt)?, record::read_number(&value).map_err(corrupt)?));
    }
    let mut changes = Vec::new();
    for item in keyspace.prefix(record::VERSION_PREFIX) {
        let (key, value) = item.into_inner().map_err(failed)?;
        let (revision, sub) = record::read_version_key(&key).map_err(corrupt)?;
        changes.push((sub, record::read_version(revision, &value).map_err(corrupt)?));
    }
    Ok(Found { compacted, leases, changes })
}

fn lock(dir: &Path) -> Result<DirectoryLock, OpenError> {
    let path = dir.join(LOCK_FILE);
    let io = |source| OpenError::Io { path: path.clone(), source };
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
    let patient_until = Instant::now() + LOCK_PATIENCE;
    while let Err(error) = file.try_lock() {
        match error {
            fs::TryLockError::Error(source) => return Err(io(source)),
            fs::TryLockError::WouldBlock if Instant::now() < patient_until => thread::sleep(LOCK_RETRY),
            fs::TryLockError::WouldBlock => {
                let mut holder = String::new();
                let named = file.read_to_string(&mut holder).is_ok_and(|read| read > 0);
                let holder = if named { holder.trim().to_owned() } else { "unknown".to_owned() };
                return Err(OpenError::Locked { path: dir.to_owned(), holder });
            }
        }
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(io)?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(io)?;
    Ok(DirectoryLock { _file: file })
}

/// Refuses a directory that is not a store, or one of a newer format; marks a new one.
fn check_format(dir: &Path) -> Result<(), OpenError> {
    let not_ours = |reason: &str| OpenError::NotAStore { path: dir.to_owned(), reason: reason.to_owned() };
    let io = |source| OpenError::Io { path: dir.to_owned(), source };
    match fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => {
            let number = text.trim().strip_prefix(FORMAT_TEXT).and_then(|rest| rest.trim().parse::<u64>().ok());
            match number {
                Some(found) if found > record::FORMAT => {
                    Err(OpenError::NewerFormat { path: dir.to_owned(), found, supported: record::FORMAT })
                }
                Some(_) => Ok(()),
                None => Err(not_ours("its FORMAT file cannot be read")),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for entry in fs::read_dir(dir).map_err(io)? {
                let name = entry.map_err(io)?.file_name();
                if name != LOCK_FILE && name != "FORMAT.new" {
                    return Err(not_ours("it has files but no FORMAT file"));
                }
            }
            mark_format(dir).map_err(io)
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(not_ours("its FORMAT file cannot be read")),
        Err(error) => Err(io(error)),
    }
}

fn mark_format(dir: &Path) -> io::Result<()> {
    let unfinished = dir.join("FORMAT.new");
    let mut file = File::create(&unfinished)?;
    file.write_all(format!("{FORMAT_TEXT} {}\n", record::FORMAT).as_bytes())?;
    file.sync_all()?;
    fs::rename(unfinished, dir.join(FORMAT_FILE))?;
    File::open(dir)?.sync_all()
}

fn open_error(dir: &Path, error: fjall::Error) -> OpenError {
    let path = dir.to_owned();
    match error {
        fjall::Error::Io(source) if source.kind() == io::ErrorKind::InvalidData => {
            OpenError::Corrupt { path, reason: source.to_string() }
        }
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => OpenError::Io { path, source },
        fjall::Error::Locked => OpenError::Locked { path, holder: "unknown".to_owned() },
        other => OpenError::Corrupt { path, reason: other.to_string() },
    }
}

fn journal_error(error: fjall::Error) -> JournalError {
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) => match io.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero => JournalError::Full,
            _ => JournalError::Failed(io.to_string()),
        },
        fjall::Error::Poisoned | fjall::Error::Locked => JournalError::Stopped(error.to_string()),
        other => JournalError::Failed(other.to_string()),
    }
}
