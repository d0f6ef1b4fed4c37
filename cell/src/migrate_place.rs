//! The flags of a storage migration's coordinator and workers.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::ensure;
use cell_data::cql::StoreSet;
use cell_migrate::service::{self, CoordinatorConfig, Place, Stores, WorkerConfig};
use cell_runtime::{CancellationToken, DirectoryConfig};
use clap::Args;

/// What both are told.
#[derive(Args)]
pub struct PlaceFlags {
    /// Names the run.
    #[arg(long)]
    run_id: String,
    /// Name of the StorageMigration.
    #[arg(long)]
    migration: String,
    /// Folder with one file for each CQL StorageCell, `<name>.json`.
    #[arg(long)]
    storage_dir: Option<PathBuf>,
    /// Unique in the fleet and stable across restarts: the Pod's name.
    #[arg(long, env = "POD_NAME")]
    member_id: String,
    /// Address that others dial.
    #[arg(long, env = "POD_IP")]
    address: IpAddr,
    /// Address to listen on; --address when not given.
    #[arg(long)]
    listen_address: Option<IpAddr>,
    /// Port of the gRPC services; 0 takes any free one.
    #[arg(long, default_value_t = 9000)]
    grpc_port: u16,
    /// Port of /livez, /readyz and /metrics; 0 takes any free one.
    #[arg(long, default_value_t = 9090)]
    admin_port: u16,
    /// host:port of each member of the fleet's etcd.
    #[arg(long, value_delimiter = ',', required = true)]
    etcd_endpoints: Vec<String>,
    /// Prefix of the fleet's keys.
    #[arg(long)]
    etcd_prefix: String,
    /// Allow listening beyond loopback without TLS.
    #[arg(long)]
    plaintext: bool,
}

impl PlaceFlags {
    fn place(self, state_dir: Option<PathBuf>) -> anyhow::Result<Place> {
        ensure!(!self.run_id.is_empty(), "--run-id is empty; it names what the ledger belongs to");
        ensure!(!self.member_id.is_empty(), "--member-id (POD_NAME) is empty; name this process");
        ensure!(
            self.etcd_prefix.len() > 1,
            "--etcd-prefix {:?} is too short; it must name the fleet",
            self.etcd_prefix
        );
        Ok(Place {
            migration: self.migration,
            run_id: self.run_id,
            member_id: self.member_id,
            address: self.address,
            listen_address: self.listen_address.unwrap_or(self.address),
            grpc_port: self.grpc_port,
            admin_port: self.admin_port,
            directory: DirectoryConfig { endpoints: self.etcd_endpoints, prefix: self.etcd_prefix, state_dir },
            plaintext: self.plaintext,
        })
    }
}

/// Of the coordinator.
#[derive(Args)]
pub struct CoordinatorFlags {
    #[command(flatten)]
    place: PlaceFlags,
    /// Folder of the ledger and of the directory's snapshot.
    #[arg(long)]
    state_dir: PathBuf,
    /// StorageCell that is read.
    #[arg(long)]
    source: String,
    /// StorageCell that is written.
    #[arg(long)]
    target: String,
    /// Bucket units, b0000 to b4095; all when not given.
    #[arg(long, value_delimiter = ',')]
    units: Vec<String>,
}

/// Of a worker.
#[derive(Args)]
pub struct WorkerFlags {
    #[command(flatten)]
    place: PlaceFlags,
    /// Folder of the directory's snapshot.
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// Ranges at work at once.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    ranges: u16,
}

/// Runs the coordinator.
pub async fn run_coordinator(flags: CoordinatorFlags, shutdown: CancellationToken) -> anyhow::Result<()> {
    let CoordinatorFlags { place, state_dir, source, target, units } = flags;
    ensure!(source != target, "--source and --target are both {source}; a migration needs two StorageCells");
    let place = place.place(Some(state_dir.clone()))?;
    Ok(service::run_coordinator(CoordinatorConfig { place, state_dir, source, target, units }, shutdown).await?)
}

/// Runs a worker.
pub async fn run_worker(flags: WorkerFlags, shutdown: CancellationToken) -> anyhow::Result<()> {
    let WorkerFlags { place, state_dir, ranges } = flags;
    let storage_dir = place.storage_dir.clone();
    let config = WorkerConfig { place: place.place(state_dir)?, ranges };
    let stores = move |directory, channels| -> Arc<Stores> {
        let set = StoreSet::new(directory, channels, storage_dir);
        Arc::new(move |name: &str| set.get(name))
    };
    Ok(service::run_worker(config, stores, shutdown).await?)
}
