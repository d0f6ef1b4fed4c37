//! The store role: opens the engine, serves it, registers in the directory, and ends when told or when the disk failed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::{Member, Role};
use cell_runtime::{Admin, CancellationToken, Directory, DirectoryConfig, Readiness, listen};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::{EmbeddedConfig, EmbeddedStore, StoreError, StoreServer};

/// What `cell store` is told by its flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// The StorageCell this store is the engine of.
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
    /// The store's own folder.
    pub data_dir: PathBuf,
    /// Writes are refused when less is free on the volume, in bytes.
    pub reserve_bytes: u64,
    /// Listening beyond loopback without TLS was agreed to.
    pub plaintext: bool,
}

/// Why the role ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] listen::ListenError),
    /// The data folder could not be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The gRPC server failed.
    #[error("failed to serve: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// A port's address could not be read.
    #[error("failed to read the listening address: {0}")]
    Address(std::io::Error),
    /// A write to disk failed; a restart recovers what was acknowledged.
    #[error("a write to disk failed; check the volume, then start the store again")]
    Broken,
}

/// Serves until `shutdown`.
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

    let store = Arc::new(EmbeddedStore::open(EmbeddedConfig {
        data_dir: config.data_dir.clone(),
        storage_cell: config.storage_cell.clone(),
        reserve_bytes: config.reserve_bytes,
    })?);
    let mut registry = Registry::with_prefix("cellplane");
    let queued = Gauge::<i64>::default();
    registry.register("store_queued", "Requests waiting for the writer thread", queued.clone());
    let server = StoreServer::new(store.clone(), &mut registry);
    let readiness = Readiness::not_ready("starting");
    tokio::spawn(Admin::new(readiness.clone(), registry).serve(admin, shutdown.clone()));

    let directory = Directory::start(config.directory.clone(), shutdown.clone());
    let registration = directory.register(Member {
        id: config.member_id.clone(),
        role: Role::Store,
        cell: config.storage_cell.clone(),
        storage_cell: config.storage_cell.clone(),
        incarnation: cell_runtime::unix_ms().cast_unsigned(),
        grpc_address: SocketAddr::new(config.address, grpc_port).to_string(),
        http_address: None,
        admin_address: SocketAddr::new(config.address, admin_port).to_string(),
        draining: false,
    });
    readiness.set_ready();
    tracing::info!(storage_cell = %config.storage_cell, member = %config.member_id, grpc_port, "the store serves");

    let ending = shutdown.child_token();
    let watch = watch(store.clone(), queued, ending.clone());
    let serve = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(server.into_service())
        .serve_with_incoming_shutdown(
            TcpIncoming::from(grpc).with_nodelay(Some(true)),
            ending.clone().cancelled_owned(),
        );
    // Links that never end must not hold the end up: what is queued is finished by the store itself.
    let bounded = async {
        tokio::pin!(serve);
        tokio::select! {
            result = &mut serve => result,
            () = async { ending.cancelled().await; tokio::time::sleep(Duration::from_secs(2)).await } => Ok(()),
        }
    };
    let (served, broken) = tokio::join!(bounded, watch);
    registration.withdraw().await;
    served?;
    if broken { Err(RunError::Broken) } else { Ok(()) }
}

/// Shows the queue and ends the role when the disk failed; answers whether it did.
async fn watch(store: Arc<EmbeddedStore>, queued: Gauge, ending: CancellationToken) -> bool {
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            () = ending.cancelled() => return store.is_broken(),
            _ = tick.tick() => {
                queued.set(i64::try_from(store.queued()).unwrap_or(i64::MAX));
                if store.is_broken() {
                    ending.cancel();
                }
            }
        }
    }
}
