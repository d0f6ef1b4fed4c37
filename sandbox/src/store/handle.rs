//! [`Store`]: what callers hold. Reads are answered here from memory; everything that changes the store goes to the writer and is
//! answered when it is durable. It never blocks a caller's thread on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};

use super::error::{OpenError, StoreError};
use super::journal::{DiskJournal, Found, Journal};
use super::mvcc::{Limits, Mvcc};
use super::options::StoreOptions;
use super::types::{KeyValue, LeaseGrant, LeaseInfo, LeaseOwner, Range, RangeResult, Txn, TxnResult, WatchFrom};
use super::watch::{Hub, Watch};
use super::writer::{Command, Writer};

/// A counter that only rises.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub commits: Counter,
    pub refused_writes: Counter,
    timeouts: Counter,
}

/// What the writer, the watches and every handle share.
pub(crate) struct Shared {
    pub state: RwLock<Mvcc>,
    pub hub: Hub,
    pub started: Instant,
    pub path: PathBuf,
    pub trouble: Mutex<Option<StoreError>>,
    pub counters: Counters,
    pub max_watches: usize,
    pub watch_queue: usize,
    closed: AtomicBool,
}

impl Shared {
    /// Milliseconds since the store was opened.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn publish(&self) {
        let mut state = self.state.write();
        let published = state.publish();
        self.hub.offer(&published, self.watch_queue);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        // Under the lock, so that a watch either sees the store closed or is in the hub to be told.
        let state = self.state.write();
        self.closed.store(true, Ordering::Release);
        self.hub.close();
        drop(state);
    }
}

struct Inner {
    shared: Arc<Shared>,
    /// `None` only while being dropped.
    commands: Option<mpsc::Sender<Command>>,
    /// Disconnected once the writer has ended and let go of the directory.
    writer: Mutex<Receiver<()>>,
    write_deadline: Duration,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer ends when nobody can send any more; once it has, the directory is free for the next one. A disk that hangs must
        // not hang whoever drops the store.
        self.commands = None;
        let _ = self.writer.lock().recv_timeout(self.write_deadline);
    }
}

/// Figures of a store for status pages and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStats {
    pub revision: i64,
    /// The oldest revision that can be read.
    pub compacted: i64,
    /// Keys with at least one version.
    pub keys: usize,
    /// Bytes of all versions held.
    pub bytes: u64,
    pub leases: usize,
    pub watches: usize,
    /// Times a watcher was too slow for its queue and had to catch up from history.
    pub watch_overflows: u64,
    /// Syncs of the disk for a group of writes.
    pub commits: u64,
    /// Writes refused because the disk failed.
    pub refused_writes: u64,
    /// Writes whose caller heard [`StoreError::Timeout`].
    pub timeouts: u64,
    /// Why the store cannot write now.
    pub trouble: Option<StoreError>,
}

/// Everything live at one revision.
pub(super) struct Live {
    pub revision: i64,
    /// (place within its revision, version).
    pub versions: Vec<(u32, Arc<KeyValue>)>,
    /// (id, seconds to live).
    pub leases: Vec<(i64, i64)>,
}

/// A store, shared by cloning. It closes when the last clone goes, or by [`Store::close`].
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the store in `dir`, or creates one. Blocks while it loads; needs no runtime.
    ///
    /// # Errors
    /// [`OpenError`]: in use by another process, of a newer format, damaged, or out of reach.
    pub fn open(dir: &Path, options: StoreOptions) -> Result<Self, OpenError> {
        let (journal, found) = DiskJournal::open(dir)?;
        Self::start(dir, Box::new(journal), found, options)
    }

    pub(crate) fn start(
        dir: &Path,
        journal: Box<dyn Journal>,
        found: Found,
        options: StoreOptions,
    ) -> Result<Self, OpenError> {
        let limits = Limits {
            quota_bytes: options.quota_bytes,
            max_request_bytes: options.max_request_bytes,
            max_txn_ops: options.max_txn_ops,
            min_lease_ttl_seconds: options.min_lease_ttl_seconds,
            max_leases: options.max_leases,
        };
        let state = Mvcc::restore(limits, found.compacted, found.leases, found.changes, 0)
            .map_err(|reason| OpenError::Corrupt { path: dir.to_owned(), reason })?;
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            hub: Hub::default(),
            started: Instant::now(),
            path: dir.to_owned(),
            trouble: Mutex::new(None),
            counters: Counters::default(),
            max_watches: options.max_watches,
            watch_queue: options.watch_queue,
            closed: AtomicBool::new(false),
        });
        let (commands, receiver) = mpsc::channel(options.write_queue);
        let write_deadline = options.write_deadline;
        let writer = spawn_writer(Writer::new(Arc::clone(&shared), journal, options), receiver)
            .map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
        let writer = Mutex::new(writer);
        Ok(Self { inner: Arc::new(Inner { shared, commands: Some(commands), writer, write_deadline }) })
    }

    /// The newest revision; everything up to it is durable.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.inner.shared.state.read().visible()
    }

    /// The oldest revision that can be read or watched from.
    #[must_use]
    pub fn compacted_revision(&self) -> i64 {
        self.inner.shared.state.read().compacted()
    }

    /// Reads keys.
    ///
    /// # Errors
    /// The revision is compacted or in the future.
    pub fn range(&self, range: &Range) -> Result<RangeResult, StoreError> {
        self.inner.shared.state.read().range(range)
    }

    /// Runs a transaction and answers once it is durable. One that can only read is answered from memory at once.
    ///
    /// # Errors
    /// Any [`StoreError`] but those of watches; nothing of a refused transaction remains.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResult, StoreError> {
        if !txn.may_write() {
            return self.inner.shared.state.read().read_txn(&txn);
        }
        self.ask(|reply| Command::Txn { txn, reply }).await
    }

    /// Watches a range from a revision on.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] or [`StoreError::TooManyWatches`].
    pub fn watch(&self, from: WatchFrom) -> Result<Watch, StoreError> {
        Watch::new(Arc::clone(&self.inner.shared), from)
    }

    /// Grants a lease; answers (id, granted seconds).
    ///
    /// # Errors
    /// The id is taken or belongs to the other API, the time is too long, or there are too many leases.
    pub async fn lease_grant(&self, grant: LeaseGrant) -> Result<(i64, i64), StoreError> {
        self.ask(|reply| Command::Grant { grant, reply }).await
    }

    /// Ends a lease and deletes its keys as one revision; answers the store's revision after it.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`].
    pub async fn lease_revoke(&self, id: i64) -> Result<i64, StoreError> {
        self.ask(|reply| Command::Revoke { id, reply }).await
    }

    /// Starts a lease's time to live anew; answers its seconds. Not durable: a restart starts every lease anew anyway.
    ///
    /// # Errors
    /// [`StoreError::LeaseNotFound`], also for one that has ended but whose keys are still being deleted.
    pub fn lease_keep_alive(&self, id: i64) -> Result<i64, StoreError> {
        let shared = &self.inner.shared;
        shared.state.write().keep_alive(id, shared.now_ms())
    }

    /// A lease as it stands, or `None` when there is none or it has ended.
    #[must_use]
    pub fn lease(&self, id: i64) -> Option<LeaseInfo> {
        let shared = &self.inner.shared;
        shared.state.read().lease(id, shared.now_ms())
    }

    /// The ids of all leases of one owner, in order.
    #[must_use]
    pub fn leases(&self, owner: LeaseOwner) -> Vec<i64> {
        let state = self.inner.shared.state.read();
        state.leases().map(|(id, _)| id).filter(|id| (*id > 0) == (owner == LeaseOwner::Etcd)).collect()
    }

    /// Forgets history before `revision`; answers the store's revision.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when that is done already, [`StoreError::FutureRevision`].
    pub async fn compact(&self, revision: i64) -> Result<i64, StoreError> {
        self.ask(|reply| Command::Compact { revision, reply }).await
    }

    /// Everything live at one revision.
    pub(super) fn live(&self) -> Live {
        let state = self.inner.shared.state.read();
        Live { revision: state.visible(), versions: state.live(), leases: state.leases().collect() }
    }

    /// The store's figures.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let shared = &self.inner.shared;
        let state = shared.state.read();
        StoreStats {
            revision: state.visible(),
            compacted: state.compacted(),
            keys: state.key_count(),
            bytes: state.bytes(),
            leases: state.leases().count(),
            watches: shared.hub.len(),
            watch_overflows: shared.hub.overflows.load(Ordering::Relaxed),
            commits: shared.counters.commits.get(),
            refused_writes: shared.counters.refused_writes.get(),
            timeouts: shared.counters.timeouts.get(),
            trouble: shared.trouble.lock().clone(),
        }
    }

    /// Finishes what is queued, ends every watch and frees the directory. Further writes are refused; reads go on from memory. Gives
    /// up waiting at the write deadline, when the disk hangs.
    pub async fn close(&self) {
        let Some(commands) = &self.inner.commands else { return };
        let (reply, closed) = oneshot::channel();
        let closing = async {
            // A closed channel means the writer has ended already, which is as good.
            if commands.send(Command::Close { reply }).await.is_ok() {
                let _ = closed.await;
            }
        };
        if tokio::time::timeout(self.inner.write_deadline, closing).await.is_err() {
            tracing::warn!("store did not close in time: the disk hangs");
        }
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        let Some(commands) = &self.inner.commands else { return Err(StoreError::Closed) };
        let (reply, answer) = oneshot::channel();
        let asked = async {
            commands.send(command(reply)).await.map_err(|_| StoreError::Closed)?;
            answer.await.map_err(|_| StoreError::Closed)?
        };
        tokio::time::timeout(self.inner.write_deadline, asked).await.unwrap_or_else(|_| {
            self.inner.shared.counters.timeouts.add(1);
            Err(StoreError::Timeout)
        })
    }
}

fn spawn_writer(writer: Writer, commands: mpsc::Receiver<Command>) -> std::io::Result<Receiver<()>> {
    let (ended, writer_ended) = channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
        runtime.block_on(writer.run(commands));
        drop(ended);
    })?;
    Ok(writer_ended)
}
