//! A storage migration between two StorageCells: the coordinator, which serves leases and keeps the ledger, and the workers, which keep
//! nothing.

mod coordinator;
mod remote;
mod wire;
mod worker_role;

pub use coordinator::{Coordinator, CoordinatorConfig, open_desk, run as run_coordinator};
pub use remote::RemoteDesk;
pub use worker_role::{StoreTables, Stores, WorkerConfig, run as run_worker};

use std::net::IpAddr;

use cell_runtime::DirectoryConfig;
use cell_runtime::listen::ListenError;

use crate::desk::DeskError;

/// What coordinator and worker are told of themselves.
#[derive(Clone, Debug)]
pub struct Place {
    /// The migration: the cell they are registered under.
    pub migration: String,
    /// Names the run.
    pub run_id: String,
    /// Unique in the fleet and stable across restarts.
    pub member_id: String,
    /// What others dial.
    pub address: IpAddr,
    /// What is listened on.
    pub listen_address: IpAddr,
    /// 0: any free port.
    pub grpc_port: u16,
    /// 0: any free port.
    pub admin_port: u16,
    /// Where etcd and the snapshot are.
    pub directory: DirectoryConfig,
    /// Listening beyond loopback without TLS was agreed to.
    pub plaintext: bool,
}

/// Why one of them ended.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The ledger.
    #[error(transparent)]
    Desk(#[from] DeskError),
    /// The gRPC server failed.
    #[error("failed to serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// A port's address could not be read.
    #[error("failed to read the listening address: {0}")]
    Address(std::io::Error),
    /// A folder could not be made.
    #[error("failed to make {0}: {1}")]
    Folder(std::path::PathBuf, std::io::Error),
    /// A unit's name.
    #[error("--units: {0}")]
    Unit(String),
}
