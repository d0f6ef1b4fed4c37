//! Starts a gateway, serves until told to stop, then drains: refuses new connections, tells clients to reconnect, paced and jittered,
//! within its grace.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::Role;
use cell_proto::v1::gateway_peer_server::GatewayPeerServer;
use cell_runtime::CancellationToken;
use cell_runtime::listen::ListenError;
use cell_runtime::role::{self, RoleError};
use cell_runtime::tokens::{TokenError, TokenKeys};
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
    /// A port or the gRPC server.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// The token keys.
    #[error(transparent)]
    Keys(#[from] TokenError),
    /// A task of the gateway panicked.
    #[error("failed to run the gateway's own task: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl From<ListenError> for RunError {
    fn from(error: ListenError) -> Self {
        Self::Role(error.into())
    }
}

/// How often leases of sessions are looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The open ports that a gateway serves itself.
pub struct Listeners {
    /// REST and websockets.
    pub http: TcpListener,
    /// Other gateways.
    pub grpc: TcpListener,
}

/// Runs a gateway until `shutdown`, then drains.
///
/// # Errors
/// [`RunError`].
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let keys = TokenKeys::read(&config.token_keys_dir)?;
    let http = config.role.listen(config.http_port, "--http-port").await?;
    let http_address = config.role.reached_at(&http, "--http-port")?;
    let mut opened = config.role.open(Role::Gateway).await?;
    opened.member.http_address = Some(http_address);
    let end = opened.end.clone();
    let gateway = Gateway::new(config, opened.directory.clone(), keys, opened.member.incarnation, end.clone());
    let mut registry = Registry::with_prefix("cellplane");
    gateway.metrics.register(&mut registry);
    let (process, grpc) = opened.start(registry);
    let mut served = tokio::spawn(serve(gateway.clone(), Listeners { http, grpc }, end));
    if !process.wait_for_directory(&shutdown).await {
        return Ok(());
    }
    let registered = process.register();
    tokio::select! {
        () = shutdown.cancelled() => {}
        // A gateway that serves nothing must not stay registered.
        ended = &mut served => return ended?,
    }
    registered.set_draining();
    drain(&gateway).await;
    gateway.hub.links.close();
    registered.finish().await;
    served.await?
}

/// Serves clients and other gateways until `end`.
///
/// # Errors
/// [`RunError`].
pub async fn serve(gateway: Arc<Gateway>, listeners: Listeners, end: CancellationToken) -> Result<(), RunError> {
    let peer = GatewayPeerServer::new(Peer(gateway.clone())).max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES);
    let services = role::grpc_server().add_service(peer);
    let background = async {
        tokio::join!(sweep(&gateway, &end), gateway.clone().check_guild_lists(end.clone()));
    };
    let http = crate::http::serve(gateway.clone(), listeners.http, router(gateway.clone()));
    let grpc = role::serve_grpc(services, listeners.grpc, end.clone());
    let (grpc, (), ()) = tokio::join!(grpc, http, background);
    Ok(grpc.map_err(RoleError::from)?)
}

async fn sweep(gateway: &Gateway, end: &CancellationToken) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    loop {
        tokio::select! {
            _ = every.tick() => gateway.sweep_sessions(),
            () = end.cancelled() => return,
        }
    }
}

/// At first everything goes on, until the entry has forgotten this gateway: a client told to connect again before that may come back here.
/// Then each connection picks its own moment in the window, until all are gone or the grace is over. Then no request is taken any more,
/// and those under way are answered.
async fn drain(gateway: &Gateway) {
    tokio::time::sleep(gateway.config.linger).await;
    let deadline = Instant::now() + gateway.config.grace;
    tracing::info!(connections = gateway.metrics.connections.get(), "draining");
    gateway.drain.cancel();
    let mut look = tokio::time::interval(Duration::from_millis(50));
    while gateway.metrics.connections.get() > 0 && Instant::now() < deadline {
        look.tick().await;
    }
    gateway.http_closes.cancel();
    gateway.http_closed.cancelled().await;
    tracing::info!(connections = gateway.metrics.connections.get(), "drained");
}
