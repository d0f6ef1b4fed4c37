//! The directory client: keeps this process's view of etcd fresh, registers it, publishes hints, and falls back on a snapshot on disk
//! when etcd is away. It promises nothing: heads decide.

mod register;
mod sync;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use cell_proto::directory::{Keys, RouteHint};
use cell_proto::v1::Route;
use etcd_client::{Client, Compare, CompareOp, ConnectOptions, GetOptions, PutOptions, Txn, TxnOp};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use register::Registration;
pub use view::{MAX_ROUTES, SNAPSHOT_VERSION, Snapshot, View};

/// How long one request to etcd may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Where the directory is.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// host:port of each etcd member.
    pub endpoints: Vec<String>,
    /// The fleet's prefix.
    pub prefix: String,
    /// Where the snapshot goes; none for tools that need none.
    pub state_dir: Option<PathBuf>,
}

/// Why a request to the directory failed. Hints only: callers go on without.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// etcd did not answer in time or refused the connection.
    #[error("failed to reach etcd at {endpoints}: {message}")]
    Unavailable {
        /// The endpoints tried.
        endpoints: String,
        /// etcd's or the transport's words.
        message: String,
    },
    /// A value under the prefix is not what this version writes.
    #[error("failed to read {key}: {message}")]
    Malformed {
        /// The key.
        key: String,
        /// What is wrong.
        message: String,
    },
}

/// A handle on the directory; clones share it.
#[derive(Clone)]
pub struct Directory(Arc<Inner>);

struct Inner {
    config: DirectoryConfig,
    keys: Keys,
    view: ArcSwap<View>,
    /// Serialises changes of `view`.
    change: Mutex<()>,
    changed: watch::Sender<u64>,
    synced: AtomicBool,
}

impl Directory {
    /// Loads the snapshot and keeps the view fresh until `shutdown`. Returns at once; [`Directory::wait_usable`] waits for etcd.
    pub fn start(config: DirectoryConfig, shutdown: CancellationToken) -> Self {
        let view = sync::read_snapshot(config.state_dir.as_deref()).map(View::from_snapshot).unwrap_or_default();
        let directory = Self::with_view(config, view);
        tokio::spawn(sync::run(directory.clone(), shutdown));
        directory
    }

    /// A directory with a fixed view that talks to no etcd: for tests and for tools that are told where to go.
    pub fn with_view(config: DirectoryConfig, view: View) -> Self {
        Self(Arc::new(Inner {
            keys: Keys::new(&config.prefix),
            config,
            view: ArcSwap::from_pointee(view),
            change: Mutex::new(()),
            changed: watch::Sender::new(0),
            synced: AtomicBool::new(false),
        }))
    }

    /// The view as of now.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.0.view.load()
    }

    /// The fleet's keys.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Fires after every change of the view.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Whether the view follows etcd right now (else it is the last known one).
    pub fn is_synced(&self) -> bool {
        self.0.synced.load(Ordering::Acquire)
    }

    /// Waits until etcd has been read once, or there is a snapshot to go on with; false at the deadline.
    pub async fn wait_usable(&self, deadline: Duration) -> bool {
        let mut changes = self.changes();
        let usable = || self.is_synced() || self.view().members().next().is_some();
        tokio::time::timeout(deadline, async { while !usable() && changes.changed().await.is_ok() {} }).await.is_ok()
            && usable()
    }

    /// Waits until the view satisfies `condition`; false at the deadline.
    pub async fn wait_for(&self, deadline: Duration, condition: impl Fn(&View) -> bool) -> bool {
        let mut changes = self.changes();
        tokio::time::timeout(deadline, async { while !condition(&self.view()) && changes.changed().await.is_ok() {} })
            .await
            .is_ok()
            && condition(&self.view())
    }

    /// Takes over what a redirect said. In memory only: the owner publishes hints.
    pub fn correct(&self, route: &Route) {
        if route.log.is_empty() || route.cell.is_empty() {
            return;
        }
        let owner = |address: &str| {
            let view = self.view();
            view.members()
                .find(|member| member.grpc_address == address)
                .map(|member| member.id.clone())
                .unwrap_or_default()
        };
        let hint = RouteHint {
            cell: route.cell.clone(),
            term: route.term,
            data_owner: owner(&route.data_address),
            guild_owner: owner(&route.guild_address),
            merged: false,
        };
        self.change(|view| view.set_route(&route.log, hint));
    }

    /// Changes the view and tells everyone who waits for changes.
    pub fn change(&self, change: impl FnOnce(&mut View)) {
        {
            let _one_at_a_time = self.0.change.lock();
            let mut view = View::clone(&self.view());
            change(&mut view);
            self.0.view.store(Arc::new(view));
        }
        self.0.changed.send_modify(|version| *version += 1);
    }

    /// A connected client, each call a new connection: callers keep it.
    ///
    /// # Errors
    /// [`DirectoryError::Unavailable`].
    pub async fn connect(&self) -> Result<Client, DirectoryError> {
        // No HTTP/2 pings: etcd closes connections that ping more often than every 5 s. The watch and the lease each have a beat of
        // their own that must be answered.
        let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(2)).with_timeout(REQUEST_TIMEOUT);
        Client::connect(&self.0.config.endpoints, Some(options)).await.map_err(|error| self.unavailable(error))
    }

    fn unavailable(&self, error: impl std::fmt::Display) -> DirectoryError {
        DirectoryError::Unavailable { endpoints: self.0.config.endpoints.join(","), message: error.to_string() }
    }

    /// Publishes the hint of a log unless etcd has one with a higher term. Also corrects the own view. Losing it is harmless.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub async fn publish_route(&self, log: &str, hint: &RouteHint) -> Result<(), DirectoryError> {
        self.change(|view| view.set_route(log, hint.clone()));
        let key = self.keys().route(log);
        let value = serde_json::to_vec(hint)
            .map_err(|error| DirectoryError::Malformed { key: key.clone(), message: error.to_string() })?;
        let work = async {
            let mut client = self.connect().await?;
            // A few rounds: another writer of the same hint is rare, and the higher term ends the race.
            for _ in 0..4 {
                let found = client.get(key.as_str(), None).await.map_err(|error| self.unavailable(error))?;
                let current = found.kvs().first();
                let known: Option<RouteHint> = current.and_then(|pair| serde_json::from_slice(pair.value()).ok());
                if known.as_ref().is_some_and(|known| known.term > hint.term || known == hint) {
                    return Ok(());
                }
                let revision = current.map_or(0, etcd_client::KeyValue::mod_revision);
                let txn = Txn::new()
                    .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, revision)])
                    .and_then([TxnOp::put(key.as_str(), value.clone(), None)]);
                if client.txn(txn).await.map_err(|error| self.unavailable(error))?.succeeded() {
                    return Ok(());
                }
            }
            Ok(())
        };
        tokio::time::timeout(REQUEST_TIMEOUT, work).await.map_err(|error| self.unavailable(error))?
    }

    /// Reads one key.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, DirectoryError> {
        let work = async {
            let found =
                self.connect().await?.get(key, None::<GetOptions>).await.map_err(|error| self.unavailable(error))?;
            Ok(found.kvs().first().map(|pair| pair.value().to_vec()))
        };
        tokio::time::timeout(REQUEST_TIMEOUT, work).await.map_err(|error| self.unavailable(error))?
    }

    /// Writes one key, under a registration's lease if given.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub async fn put(&self, key: &str, value: Vec<u8>, under: Option<&Registration>) -> Result<(), DirectoryError> {
        let options = under.and_then(Registration::lease).map(|lease| PutOptions::new().with_lease(lease));
        let work = async {
            self.connect().await?.put(key, value, options).await.map_err(|error| self.unavailable(error))?;
            Ok(())
        };
        tokio::time::timeout(REQUEST_TIMEOUT, work).await.map_err(|error| self.unavailable(error))?
    }
}

#[cfg(test)]
mod tests;
