//! A whole store in one file: everything live at one revision, and the leases. History is not in it, and a restored store is at a later
//! revision than any it ever had, so that no client takes an old view for a new one: it is told to list anew.
//!
//! The file is checked to its last byte before anything is put in its place; a restore that fails leaves the store as it was.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::error::OpenError;
use super::handle::{Live, Store};
use super::journal::{DiskJournal, Journal, JournalError};
use super::mvcc::{Change, LeaseWrite, Revision};
use super::record;
use super::types::KeyValue;

const MAGIC: &[u8] = b"cellplane sandbox backup 1\n";
/// How far a restored store jumps ahead: more than any store writes between a backup and its restore.
const JUMP: i64 = 1_000_000_000;
/// Versions made durable in one go while restoring.
const BATCH: usize = 1_000;
/// No record is longer; a damaged length must not ask for all memory.
const MAX_RECORD: u32 = 64 * 1024 * 1024;

/// What a backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupInfo {
    /// The revision it was taken at.
    pub revision: i64,
    /// Live keys.
    pub keys: u64,
    /// Leases.
    pub leases: u64,
}

/// Why a backup could not be made, read or restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("backup: {0}")]
    Io(#[from] io::Error),
    #[error("not a backup of a sandbox, or one of a newer program: {0}")]
    Damaged(String),
    #[error("store {} exists: give --overwrite to replace everything in it", path.display())]
    Exists { path: PathBuf },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("write restored store: {0}")]
    Write(String),
}

impl From<JournalError> for BackupError {
    fn from(error: JournalError) -> Self {
        Self::Write(error.to_string())
    }
}

/// Writes and sums up what it wrote.
struct Summing<'a> {
    out: &'a mut dyn Write,
    sum: Sha256,
}

impl Summing<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.out.write_all(bytes)
    }
}

impl Store {
    /// Writes everything live now, as of one revision, while the store goes on. Blocks on `out`.
    ///
    /// # Errors
    /// What `out` says.
    pub fn backup(&self, out: &mut dyn Write) -> Result<BackupInfo, BackupError> {
        let Live { revision, versions, leases } = self.live();
        let info = BackupInfo { revision, keys: versions.len() as u64, leases: leases.len() as u64 };
        let mut out = Summing { out, sum: Sha256::new() };
        out.put(MAGIC)?;
        for number in [revision.to_be_bytes(), info.leases.to_be_bytes(), info.keys.to_be_bytes()] {
            out.put(&number)?;
        }
        for (id, ttl_seconds) in leases {
            out.put(&id.to_be_bytes())?;
            out.put(&ttl_seconds.to_be_bytes())?;
        }
        for (sub, version) in versions {
            let record = record::write_version(&version);
            out.put(&version.mod_revision.to_be_bytes())?;
            out.put(&sub.to_be_bytes())?;
            out.put(&u32::try_from(record.len()).unwrap_or(u32::MAX).to_be_bytes())?;
            out.put(&record)?;
        }
        let sum = out.sum.finalize();
        out.out.write_all(&sum)?;
        out.out.flush()?;
        Ok(info)
    }
}

/// Reads and sums up what it read.
struct Reader<'a> {
    from: &'a mut dyn Read,
    sum: Sha256,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BackupError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.from.read_exact(bytes).map_err(cut_short)?;
        self.sum.update(&*bytes);
        Ok(())
    }
}

fn cut_short(error: io::Error) -> BackupError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => BackupError::Damaged("it is cut short".to_owned()),
        _ => BackupError::Io(error),
    }
}

/// Reads a backup to its last byte, handing every part to `lease` and `version`.
fn read(
    from: &mut dyn Read,
    lease: &mut dyn FnMut(i64, i64) -> Result<(), BackupError>,
    version: &mut dyn FnMut(u32, KeyValue) -> Result<(), BackupError>,
) -> Result<BackupInfo, BackupError> {
    let mut from = Reader { from, sum: Sha256::new() };
    let mut magic = vec![0; MAGIC.len()];
    from.fill(&mut magic)?;
    if magic != MAGIC {
        return Err(BackupError::Damaged("its first line is another".to_owned()));
    }
    let info = BackupInfo {
        revision: i64::from_be_bytes(from.take()?),
        leases: u64::from_be_bytes(from.take()?),
        keys: u64::from_be_bytes(from.take()?),
    };
    for _ in 0..info.leases {
        lease(i64::from_be_bytes(from.take()?), i64::from_be_bytes(from.take()?))?;
    }
    let mut record = Vec::new();
    for _ in 0..info.keys {
        let revision = i64::from_be_bytes(from.take()?);
        let sub = u32::from_be_bytes(from.take()?);
        let length = u32::from_be_bytes(from.take()?);
        if length > MAX_RECORD || !(1..=info.revision).contains(&revision) {
            return Err(BackupError::Damaged("a record has figures that cannot be".to_owned()));
        }
        record.resize(length as usize, 0);
        from.fill(&mut record)?;
        version(sub, record::read_version(revision, &record).map_err(BackupError::Damaged)?)?;
    }
    let expected = from.sum.clone().finalize();
    let mut found = [0; 32];
    from.from.read_exact(&mut found).map_err(cut_short)?;
    if expected.as_slice() != found || from.from.read(&mut [0])? > 0 {
        return Err(BackupError::Damaged("its checksum does not fit".to_owned()));
    }
    Ok(info)
}

/// Checks a backup to its last byte.
///
/// # Errors
/// [`BackupError::Damaged`] says what does not fit.
pub fn check(from: &mut dyn Read) -> Result<BackupInfo, BackupError> {
    read(from, &mut |_, _| Ok(()), &mut |_, _| Ok(()))
}

/// Makes the store in `dir` be what the backup holds. Blocks.
///
/// # Errors
/// [`BackupError::Exists`] when there is a store and `overwrite` is not set, [`OpenError::Locked`] when one is in use,
/// [`BackupError::Damaged`]; whatever the error, the store is as it was.
pub fn restore(dir: &Path, from: &mut dyn Read, overwrite: bool) -> Result<BackupInfo, BackupError> {
    let beside = |suffix: &str| {
        let mut name = dir.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        dir.with_file_name(name)
    };
    let (unfinished, replaced) = (beside(".restoring"), beside(".replaced"));
    let present = dir.join("FORMAT").exists();
    if present && !overwrite {
        return Err(BackupError::Exists { path: dir.to_owned() });
    }
    // Opening it proves that nobody uses it and that it is a store, not something else that would be removed.
    let held = if dir.exists() { Some(DiskJournal::open(dir)?) } else { None };
    remove(&unfinished)?;
    let info = fill(&unfinished, from)?;
    remove(&replaced)?;
    if held.is_some() {
        fs::rename(dir, &replaced)?;
    }
    fs::rename(&unfinished, dir)?;
    if let Some(parent) = dir.parent() {
        File::open(parent)?.sync_all()?;
    }
    drop(held);
    remove(&replaced)?;
    Ok(info)
}

fn remove(folder: &Path) -> io::Result<()> {
    if folder.exists() { fs::remove_dir_all(folder) } else { Ok(()) }
}

/// Writes the backup as a new store in `dir`.
fn fill(dir: &Path, from: &mut dyn Read) -> Result<BackupInfo, BackupError> {
    let (journal, _) = DiskJournal::open(dir)?;
    let journal = std::cell::RefCell::new(journal);
    let mut waiting: Vec<Arc<Revision>> = Vec::with_capacity(BATCH);
    let mut lease = |id, ttl_seconds| {
        let write = LeaseWrite::Put { id, ttl_seconds };
        journal.borrow_mut().append(&[], &[write]).map_err(BackupError::from)
    };
    let mut version = |sub, kv: KeyValue| {
        let revision = kv.mod_revision;
        let change = Change { sub, kv: Arc::new(kv), prev: None };
        waiting.push(Arc::new(Revision { revision, changes: vec![change] }));
        if waiting.len() >= BATCH {
            journal.borrow_mut().append(&waiting, &[])?;
            waiting.clear();
        }
        Ok(())
    };
    let info = read(from, &mut lease, &mut version)?;
    let mut journal = journal.into_inner();
    journal.append(&waiting, &[])?;
    journal.begin_at(info.revision.saturating_add(JUMP))?;
    Ok(info)
}
