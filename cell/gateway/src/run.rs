//! Starts a gateway, serves until told to stop, then drains: refuses new connections, tells clients to reconnect, paced and jittered,
//! within its grace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::{Member, Role};
use cell_proto::v1::gateway_peer_server::GatewayPeerServer;
use cell_runtime::listen::ListenError;
use cell_runtime::tokens::{TokenError, TokenKeys};
use cell_runtime::{Admin, CancellationToken, Directory, DirectoryConfig, Readiness, listen};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::config::Config;
use crate::gateway::Gateway;
use crate::rest::router::router;
use crate::socket::peer::Peer;

/// Why a gateway did not start or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The token keys.
    #[error(transparent)]
    Keys(#[from] TokenError),
    /// gRPC.
    #[error("failed to serve gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// HTTP.
    #[error("failed to serve HTTP: {0}")]
    Http(#[from] std::io::Error),
}

/// How often leases of sessions are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The open ports of a gateway.
pub struct Listeners {
    /// REST and websockets.
    pub http: TcpListener,
    /// Other gateways.
    pub grpc: TcpListener,
    /// Health and metrics.
    pub admin: TcpListener,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, ListenError> {
        let open = async |port: u16, flag: &'static str| {
            let address = SocketAddr::new(config.listen_address, port);
            listen::check_plaintext(address, config.plaintext, flag)?;
            listen::bind(address, flag).await
        };
        Ok(Self {
            http: open(config.http_port, "--http-port").await?,
            grpc: open(config.grpc_port, "--grpc-port").await?,
            admin: open(config.admin_port, "--admin-port").await?,
        })
    }
}

/// Runs a gateway until `shutdown`, then drains.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let keys = TokenKeys::read(&config.token_keys_dir)?;
    let listeners = Listeners::bind(&config).await?;
    let stop = CancellationToken::new();
    let directory_config = DirectoryConfig {
        endpoints: config.etcd_endpoints.clone(),
        prefix: config.etcd_prefix.clone(),
        state_dir: Some(config.state_dir.clone()),
    };
    let directory = Directory::start(directory_config, stop.clone());
    let incarnation = rand::random();
    let member = member_of(&config, &listeners, incarnation)?;
    let gateway = Gateway::new(config, directory.clone(), keys, incarnation, stop.clone());
    let readiness = Readiness::not_ready("the directory has not been read yet");
    let mut served = tokio::spawn(serve(gateway.clone(), listeners, readiness.clone(), stop.clone()));
    let ready = async { while !directory.wait_usable(Duration::from_secs(5)).await {} };
    tokio::select! {
        () = ready => {}
        () = shutdown.cancelled() => {}
    }
    readiness.set_ready();
    let registration = directory.register(member);
    tracing::info!(member = %gateway.config.member_id, cell = %gateway.config.cell, "the gateway serves");
    tokio::select! {
        () = shutdown.cancelled() => {}
        // A gateway that serves nothing must not stay registered.
        ended = &mut served => return ended.unwrap_or_else(|error| Err(std::io::Error::other(error).into())),
    }
    registration.set_draining();
    readiness.set_not_ready("draining");
    drain(&gateway).await;
    stop.cancel();
    gateway.hub.links.close();
    registration.withdraw().await;
    match served.await {
        Ok(result) => result,
        Err(error) => Err(std::io::Error::other(error).into()),
    }
}

fn member_of(config: &Config, listeners: &Listeners, incarnation: u64) -> Result<Member, RunError> {
    let at = |listener: &TcpListener| {
        Ok::<_, std::io::Error>(SocketAddr::new(config.address, listener.local_addr()?.port()).to_string())
    };
    Ok(Member {
        id: config.member_id.clone(),
        role: Role::Gateway,
        cell: config.cell.clone(),
        storage_cell: config.storage_cell.clone(),
        incarnation,
        grpc_address: at(&listeners.grpc)?,
        http_address: Some(at(&listeners.http)?),
        admin_address: at(&listeners.admin)?,
        draining: false,
    })
}

/// Serves all three ports until `stop`.
///
/// # Errors
/// [`RunError`].
pub async fn serve(
    gateway: Arc<Gateway>,
    listeners: Listeners,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let mut registry = Registry::with_prefix("cellplane");
    gateway.metrics.register(&mut registry);
    let admin = tokio::spawn(Admin::new(readiness, registry).serve(listeners.admin, stop.clone()));
    let sweeper = tokio::spawn(sweep(gateway.clone(), stop.clone()));
    let lists = tokio::spawn(gateway.clone().check_guild_lists(stop.clone()));
    let peer = GatewayPeerServer::new(Peer(gateway.clone())).max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES);
    let incoming = tonic::transport::server::TcpIncoming::from(listeners.grpc).with_nodelay(Some(true));
    let grpc_stop = stop.clone();
    let grpc = tokio::spawn(async move {
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(10)))
            .max_concurrent_streams(Some(100_000))
            .add_service(peer);
        tokio::select! {
            result = server.serve_with_incoming(incoming) => result,
            () = grpc_stop.cancelled() => Ok(()),
        }
    });
    let http = axum::serve(listeners.http, router(gateway));
    tokio::select! {
        result = http.into_future() => result?,
        () = stop.cancelled() => {}
    }
    for task in [sweeper, lists] {
        task.abort();
    }
    admin.abort();
    match grpc.await {
        Ok(result) => Ok(result?),
        Err(error) => Err(std::io::Error::other(error).into()),
    }
}

async fn sweep(gateway: Arc<Gateway>, stop: CancellationToken) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            _ = every.tick() => gateway.sweep_sessions(),
            () = stop.cancelled() => return,
        }
    }
}

/// Each connection picks its own moment in the window; this waits until all are gone, or the grace is over.
async fn drain(gateway: &Gateway) {
    let deadline = Instant::now() + gateway.config.grace;
    tracing::info!(connections = gateway.metrics.connections.get(), "draining");
    gateway.drain.cancel();
    let mut look = tokio::time::interval(Duration::from_millis(50));
    while gateway.metrics.connections.get() > 0 && Instant::now() < deadline {
        look.tick().await;
    }
    tracing::info!(connections = gateway.metrics.connections.get(), "drained");
}
