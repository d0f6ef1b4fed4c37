//! The data role: connects the directory and the store, serves, registers, re-reads heads while its lease is lapsed, drains at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::Role;
use cell_runtime::directory::Registration;
use cell_runtime::role::{self, RoleConfig, RoleError};
use cell_runtime::{CancellationToken, Channels, Directory};
use cell_store::StoreError;
use prometheus_client::registry::Registry;

use super::service::{DataServer, DataServerConfig};
use super::stores::Stores;
use crate::cql::StoreSet;
use crate::machine::Limits;

/// How often heads are read serially while the lease is lapsed.
const RECHECK: Duration = Duration::from_secs(3);
/// How long draining may take.
const DRAIN: Duration = Duration::from_secs(6);

/// What `cell data` is told by its flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// What every role is told.
    pub role: RoleConfig,
    /// Folder with one file for each CQL StorageCell; none: all stores are found by the directory.
    pub storage_dir: Option<PathBuf>,
}

/// Why the role ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What ends any role.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// There can be no such store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Serves until `shutdown`, then drains.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let role = config.role;
    let opened = role.open(Role::Data).await.map_err(RoleError::from)?;
    let directory = opened.directory.clone();
    let stores = stores(&role.storage_cell, directory.clone(), config.storage_dir)?;
    let mut registry = Registry::with_prefix("cellplane");
    let server = DataServer::with_stores(
        DataServerConfig {
            cell: role.cell.clone(),
            member_id: role.member_id.clone(),
            address: opened.member.grpc_address.clone(),
            limits: Limits::default(),
        },
        stores,
        directory,
        &mut registry,
        shutdown.clone(),
    );
    let (process, grpc) = opened.start(registry);
    let services = role::grpc_server().add_service(server.clone().into_service());
    let mut served = tokio::spawn(role::serve_grpc(services, grpc, process.end.clone()));
    if !process.wait_for_directory(&shutdown).await {
        return Ok(());
    }
    let registered = process.register();
    tokio::select! {
        () = tend(&server, &registered.registration) => {}
        () = shutdown.cancelled() => {}
        // A data service that serves nothing must not stay registered.
        ended = &mut served => return Ok(ended.unwrap_or(Ok(())).map_err(RoleError::from)?),
    }
    registered.set_draining();
    drained(&server).await;
    registered.finish().await;
    Ok(served.await.unwrap_or(Ok(())).map_err(RoleError::from)?)
}

/// The own StorageCell's store, and how others are found.
fn stores(own: &str, directory: Directory, storage_dir: Option<PathBuf>) -> Result<Stores, StoreError> {
    let set = StoreSet::new(directory, Arc::new(Channels::default()), storage_dir);
    Ok(Stores::new(own, set.get(own)?, Arc::new(move |name: &str| set.get(name))))
}

/// While the lease is lapsed, heads are read again and again; copies are looked after all the time.
async fn tend(server: &DataServer, registration: &Registration) {
    let mut tick = tokio::time::interval(RECHECK);
    loop {
        tick.tick().await;
        if !registration.is_registered() {
            server.recheck();
        }
        server.tend_copies();
    }
}

async fn drained(server: &DataServer) {
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let wait = async {
        while server.open_logs() > 0 {
            tick.tick().await;
        }
    };
    if tokio::time::timeout(DRAIN, wait).await.is_err() {
        tracing::warn!(logs = server.open_logs(), "some logs were not drained; their next owners apply what is left");
    }
}
