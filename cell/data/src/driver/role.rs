//! The data role: connects the directory and the store, serves, registers, re-reads heads while its lease is lapsed, drains at the end.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::{Member, Role};
use cell_runtime::directory::Registration;
use cell_runtime::{Admin, CancellationToken, Channels, Directory, DirectoryConfig, Readiness, listen};
use cell_store::RemoteStore;
use prometheus_client::registry::Registry;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::service::{DataServer, DataServerConfig};
use crate::machine::Limits;

/// How often heads are read serially while the lease is lapsed.
const RECHECK: Duration = Duration::from_secs(3);
/// How long draining may take.
const DRAIN: Duration = Duration::from_secs(6);

/// What `cell data` is told by its flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cell it serves.
    pub cell: String,
    /// The StorageCell its cell is on.
    pub storage_cell: String,
    /// Unique in the fleet and stable across restarts.
    pub member_id: String,
    /// What others dial.
    pub address: IpAddr,
    /// What is listened on.
    pub listen_address: IpAddr,
    /// 0: any free port, registered as found.
    pub grpc_port: u16,
    /// 0: any free port.
    pub admin_port: u16,
    /// Where etcd and the snapshot are.
    pub directory: DirectoryConfig,
    /// Listening beyond loopback without TLS was agreed to.
    pub plaintext: bool,
}

/// Why the role ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] listen::ListenError),
    /// The gRPC server failed.
    #[error("failed to serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// A port's address could not be read.
    #[error("failed to read the listening address: {0}")]
    Address(std::io::Error),
}

/// Serves until `shutdown`, then drains.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let grpc = SocketAddr::new(config.listen_address, config.grpc_port);
    let admin = SocketAddr::new(config.listen_address, config.admin_port);
    listen::check_plaintext(grpc, config.plaintext, "--grpc-port")?;
    let grpc = listen::bind(grpc, "--grpc-port").await?;
    let admin = listen::bind(admin, "--admin-port").await?;
    let grpc_port = grpc.local_addr().map_err(RunError::Address)?.port();
    let admin_port = admin.local_addr().map_err(RunError::Address)?.port();
    let address = SocketAddr::new(config.address, grpc_port).to_string();

    // The directory outlives the drain: hints are published and the registration withdrawn through it.
    let ending = CancellationToken::new();
    let directory = Directory::start(config.directory.clone(), ending.clone());
    let store = RemoteStore::of_storage_cell(&config.storage_cell, directory.clone(), Arc::new(Channels::default()));
    let mut registry = Registry::with_prefix("cellplane");
    let server = DataServer::new(
        DataServerConfig {
            cell: config.cell.clone(),
            member_id: config.member_id.clone(),
            address: address.clone(),
            limits: Limits::default(),
        },
        Arc::new(store),
        directory.clone(),
        &mut registry,
        shutdown.clone(),
    );
    let readiness = Readiness::not_ready("the directory was not read yet");
    tokio::spawn(Admin::new(readiness.clone(), registry).serve(admin, ending.clone()));
    let registration = directory.register(Member {
        id: config.member_id.clone(),
        role: Role::Data,
        cell: config.cell.clone(),
        storage_cell: config.storage_cell.clone(),
        incarnation: cell_runtime::unix_ms().cast_unsigned(),
        grpc_address: address,
        http_address: None,
        admin_address: SocketAddr::new(config.address, admin_port).to_string(),
        draining: false,
    });
    tracing::info!(cell = %config.cell, member = %config.member_id, grpc_port, "the data service serves");

    let stop = ending.clone();
    let serve = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(server.clone().into_service())
        .serve_with_incoming_shutdown(TcpIncoming::from(grpc).with_nodelay(Some(true)), stop.cancelled_owned());
    let served = {
        let end = async {
            tend(&server, &directory, &registration, &readiness, &shutdown).await;
            registration.set_draining();
            drained(&server).await;
            ending.cancel();
            // Streams that never end must not hold the end up.
            tokio::time::sleep(Duration::from_millis(300)).await;
        };
        tokio::pin!(serve, end);
        tokio::select! {
            served = &mut serve => served,
            () = &mut end => Ok(()),
        }
    };
    registration.withdraw().await;
    ending.cancel();
    served.map_err(RunError::from)
}

/// Until `shutdown`: ready once the directory was read; while the lease is lapsed, heads are read again and again.
async fn tend(
    server: &DataServer,
    directory: &Directory,
    registration: &Registration,
    readiness: &Readiness,
    shutdown: &CancellationToken,
) {
    let mut tick = tokio::time::interval(RECHECK);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            usable = directory.wait_usable(RECHECK), if !readiness.is_ready() => if usable { readiness.set_ready() },
            _ = tick.tick() => if !registration.is_registered() { server.recheck() },
        }
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
