//! The store role: opens the engine, serves it, registers in the directory, and ends when told or when the disk failed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::Role;
use cell_runtime::CancellationToken;
use cell_runtime::listen::ListenError;
use cell_runtime::role::{self, RoleConfig, RoleError};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::{EmbeddedConfig, EmbeddedStore, StoreError, StoreServer};

/// What `cell store` is told by its flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// What every role is told; its cell is the StorageCell.
    pub role: RoleConfig,
    /// The store's own folder.
    pub data_dir: PathBuf,
    /// Writes are refused when less is free on the volume, in bytes.
    pub reserve_bytes: u64,
}

/// Why the role ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port or the gRPC server.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// The data folder could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A write to disk failed; a restart recovers what was acknowledged.
    #[error("a write to disk failed; check the volume, then start the store again")]
    Broken,
}

impl From<ListenError> for RunError {
    fn from(error: ListenError) -> Self {
        Self::Role(error.into())
    }
}

/// Serves until `shutdown`.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let opened = config.role.open(Role::Store).await?;
    let store = Arc::new(EmbeddedStore::open(EmbeddedConfig {
        data_dir: config.data_dir,
        storage_cell: config.role.storage_cell,
        reserve_bytes: config.reserve_bytes,
    })?);
    let mut registry = Registry::with_prefix("cellplane");
    let queued = Gauge::<i64>::default();
    registry.register("store_queued", "Requests waiting for the writer thread", queued.clone());
    let services = role::grpc_server().add_service(StoreServer::new(store.clone(), &mut registry).into_service());
    let (process, grpc) = opened.start(registry);
    // It needs nothing of the directory, and others need it: it does not wait for a first view.
    let mut served = tokio::spawn(role::serve_grpc(services, grpc, process.end.clone()));
    let registered = process.register();
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = watch(&store, &queued) => {}
        ended = &mut served => return ended.unwrap_or(Ok(())).map_err(|error| RoleError::from(error).into()),
    }
    registered.set_draining();
    // Links that never end are cut: what is queued is finished by the store itself.
    registered.finish().await;
    served.await.unwrap_or(Ok(())).map_err(RoleError::from)?;
    if store.is_broken() { Err(RunError::Broken) } else { Ok(()) }
}

/// Shows the queue; ends when the disk failed.
async fn watch(store: &EmbeddedStore, queued: &Gauge) {
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    while !store.is_broken() {
        tick.tick().await;
        queued.set(i64::try_from(store.queued()).unwrap_or(i64::MAX));
    }
}
