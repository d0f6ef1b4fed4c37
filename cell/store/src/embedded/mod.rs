//! The embedded engine: fjall behind one writer thread. Operations run one after the other, so conditions are serial; a group of them
//! shares one sync, and nothing is answered before what it saw or wrote is on disk. It never answers from what a crash could lose.

mod disk;
mod format;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use self::disk::Disk;
use self::writer::{Job, Writer};
use crate::engine::{execute, untangled};
use crate::{Reply, Request, Store, StoreError};

/// Requests waiting for the writer; more are refused. At one sync per group of 256 this is well under a second of work.
const QUEUE: usize = 4096;

/// Where and how to store.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The folder of this store alone; made when absent.
    pub data_dir: PathBuf,
    /// The StorageCell's name, told to whoever asks.
    pub storage_cell: String,
    /// Writes are refused when less than this is free on the volume, in bytes.
    pub reserve_bytes: u64,
}

/// A store on this machine's disk.
pub struct EmbeddedStore {
    jobs: Option<mpsc::Sender<Job>>,
    disk: Arc<Disk>,
    thread: Option<JoinHandle<()>>,
    storage_cell: String,
}

impl EmbeddedStore {
    /// Opens or creates the store; recovers after a crash.
    ///
    /// # Errors
    /// [`StoreError::NewerVersion`] and [`StoreError::Open`], both naming the folder.
    pub fn open(config: EmbeddedConfig) -> Result<Self, StoreError> {
        format::check(&config.data_dir)?;
        let disk = Arc::new(Disk::open(&config.data_dir)?);
        let untangled = untangled(&*disk)?;
        if !untangled.is_empty() {
            tracing::info!(changes = untangled.len(), "range tombstones that overlapped are laid side by side");
            disk.commit(untangled)?;
            disk.sync()?;
        }
        let (jobs, receiver) = mpsc::channel(QUEUE);
        let writer = Writer::new(disk.clone(), config.data_dir.clone(), config.reserve_bytes);
        let thread = std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run(receiver));
        let thread = thread.map_err(|error| StoreError::Open {
            path: config.data_dir.display().to_string(),
            message: format!("failed to start the writer thread: {error}"),
        })?;
        Ok(Self { jobs: Some(jobs), disk, thread: Some(thread), storage_cell: config.storage_cell })
    }

    /// Whether a write failed, or the writer thread ended, in a way that only reopening mends: the process should end and be started
    /// again.
    pub fn is_broken(&self) -> bool {
        self.disk.is_broken() || self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Requests waiting for the writer.
    pub fn queued(&self) -> usize {
        self.jobs.as_ref().map_or(0, |jobs| QUEUE - jobs.capacity())
    }

    /// Finishes what is queued and closes the files.
    pub fn close(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread ended badly");
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.finish();
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        // Table reads do not decide anything and may run beside the writer.
        if matches!(request, Request::ReadRows(_) | Request::ScanRows(_)) {
            let disk = self.disk.clone();
            let now_s = cell_runtime::unix_ms() / 1000;
            let read = tokio::task::spawn_blocking(move || execute(&*disk, request, now_s));
            let (reply, _) = read.await.map_err(|error| StoreError::Unavailable(error.to_string()))??;
            return Ok(reply);
        }
        let (answer, receiver) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(|| StoreError::Unavailable("the store is closed".to_owned()))?;
        jobs.try_send(Job { request, answer })
            .map_err(|_| StoreError::Unavailable("the store's queue is full or closed; retry".to_owned()))?;
        let reply = receiver
            .await
            .map_err(|_| StoreError::UnknownOutcome("the store closed before it answered".to_owned()))??;
        Ok(match reply {
            Reply::Describe(described) => {
                Reply::Describe(cell_proto::v1::DescribeReply { storage_cell: self.storage_cell.clone(), ..described })
            }
            reply => reply,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use cell_proto::v1::{CellWrite, RowMutation, WriteRequest};

    use super::*;
    use crate::engine::{Kv, Scan, Space};

    fn open(folder: &tempfile::TempDir) -> EmbeddedStore {
        let data_dir = folder.path().join("data");
        EmbeddedStore::open(EmbeddedConfig { data_dir, storage_cell: "main".into(), reserve_bytes: 0 }).unwrap()
    }

    fn put(key: u32) -> RowMutation {
        let cells = vec![CellWrite { column: "v".into(), value: b"x".into() }];
        let clustering = key.to_be_bytes().to_vec();
        RowMutation { table: "t".into(), partition: b"p".to_vec(), clustering, cells, ..RowMutation::default() }
    }

    fn count(store: &EmbeddedStore, space: Space) -> usize {
        let mut count = 0;
        let scan = Scan { space, from: vec![], to: vec![0xff], reverse: false };
        store
            .disk
            .scan(scan, &mut |_, _| {
                count += 1;
                Ok(true)
            })
            .unwrap();
        count
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_purge_hides_leaves_the_disk_even_when_the_store_ends_right_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        for turn in 1..=2 {
            let ids: Vec<u32> = (0..9_000).collect();
            for some in ids.chunks(1_000) {
                let mutations = some.iter().copied().map(put).collect();
                store.write(WriteRequest { timestamp_us: turn * 10, mutations, ttl_seconds: 0 }).await.unwrap();
            }
            assert_eq!(count(&store, Space::Rows), 9_000);
            let all = RowMutation { clustering: vec![], cells: vec![], range_end: vec![0xff; 5], ..put(0) };
            store
                .write(WriteRequest { timestamp_us: turn * 10 + 1, mutations: vec![all], ttl_seconds: 0 })
                .await
                .unwrap();
            if turn == 2 {
                store.close();
                store = open(&folder);
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            while count(&store, Space::Rows) + count(&store, Space::Sweeps) > 0 {
                assert!(Instant::now() < deadline, "{} rows are left", count(&store, Space::Rows));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        store.close();
    }
}
