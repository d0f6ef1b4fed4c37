//! Start and end of a guild node: directory, listeners, registration, service; at the end its guilds go to others before the process does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::{Member, Role};
use cell_proto::v1::guild_service_server::GuildServiceServer;
use cell_runtime::directory::Registration;
use cell_runtime::listen::{self, ListenError};
use cell_runtime::{Admin, CancellationToken, Channels, Directory, DirectoryConfig, Readiness};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

use super::ask::Envelope;
use super::config::Config;
use super::load;
use super::node::{Decision, Node, NodeParts};
use super::service::Service;
use crate::machine::Input;

/// How long the first view of the directory may take before the node says that it waits.
const DIRECTORY_WAIT: Duration = Duration::from_secs(30);
/// How often guilds are checked against the directory even when nothing changed.
const RECHECK_PERIOD: Duration = Duration::from_secs(5);
/// Changes of the directory come in bursts.
const RECHECK_PAUSE: Duration = Duration::from_millis(200);
/// How long links may take to end once the guilds are handed over.
const LINK_GRACE: Duration = Duration::from_secs(2);

/// Why a guild node could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The gRPC server ended.
    #[error("failed to serve gRPC: {0}")]
    Serve(#[from] tonic::transport::Error),
    /// The system would not say which port it gave.
    #[error("failed to read the address of a listener: {0}")]
    Address(std::io::Error),
}

/// Runs a guild node until `shutdown` is cancelled, then drains it.
///
/// # Errors
/// [`RunError`] when a port cannot be opened or the server fails.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let listen_ip = config.listen_address.unwrap_or(config.address);
    let (grpc, admin) = (SocketAddr::new(listen_ip, config.grpc_port), SocketAddr::new(listen_ip, config.admin_port));
    listen::check_plaintext(grpc, config.plaintext, "--grpc-port")?;
    let grpc = listen::bind(grpc, "--grpc-port").await?;
    let admin = listen::bind(admin, "--admin-port").await?;
    // The directory and the services outlive the signal: a drain needs both.
    let end = CancellationToken::new();
    let _ends_everything = end.clone().drop_guard();
    let directory = Directory::start(
        DirectoryConfig {
            endpoints: config.etcd_endpoints.clone(),
            prefix: config.etcd_prefix.clone(),
            state_dir: Some(config.state_dir.clone()),
        },
        end.clone(),
    );
    let incarnation = u64::try_from(cell_runtime::clock::unix_us()).unwrap_or(0);
    let node = Node::new(NodeParts {
        member_id: config.member_id.clone(),
        incarnation,
        limits: config.limits,
        guild_limit: config.guild_limit,
        directory: directory.clone(),
        channels: Arc::new(Channels::default()),
    });
    let member = member(&config, incarnation, &grpc, &admin)?;
    let readiness = Readiness::not_ready("the directory has not been read yet");
    let mut registry = Registry::with_prefix("cellplane");
    node.metrics.register(&mut registry);
    tokio::spawn(Admin::new(readiness.clone(), registry).serve(admin, end.clone()));
    let mut server = tokio::spawn(serve(node.clone(), grpc, end.clone()));
    tokio::select! {
        usable = directory.wait_usable(DIRECTORY_WAIT) => {
            if !usable {
                tracing::warn!("etcd is away and there is no snapshot of the directory; going on without");
            }
        }
        () = shutdown.cancelled() => return Ok(()),
    }
    let registration = Arc::new(directory.register(member));
    tokio::spawn(load::report(node.clone(), registration.clone(), end.clone()));
    tokio::spawn(recheck(node.clone(), end.clone()));
    readiness.set_ready();
    tracing::info!(cell = config.cell, member_id = config.member_id, "guild node ready");
    tokio::select! {
        () = shutdown.cancelled() => {}
        // A node that serves nothing must not stay registered; a restart serves again.
        ended = &mut server => return ended.unwrap_or(Ok(())),
    }
    readiness.set_not_ready("draining");
    drain(&node, &registration, config.drain_grace).await;
    end.cancel();
    registration.withdraw().await;
    match tokio::time::timeout(LINK_GRACE, server).await {
        Ok(Ok(outcome)) => outcome,
        // Links that do not end are cut with the process.
        Ok(Err(_)) | Err(_) => Ok(()),
    }
}

fn member(config: &Config, incarnation: u64, grpc: &TcpListener, admin: &TcpListener) -> Result<Member, RunError> {
    let address = |listener: &TcpListener| {
        let port = listener.local_addr().map_err(RunError::Address)?.port();
        Ok::<_, RunError>(SocketAddr::new(config.address, port).to_string())
    };
    Ok(Member {
        id: config.member_id.clone(),
        role: Role::Guild,
        cell: config.cell.clone(),
        storage_cell: config.storage_cell.clone(),
        incarnation,
        grpc_address: address(grpc)?,
        http_address: None,
        admin_address: address(admin)?,
        draining: false,
    })
}

/// Serves gRPC until `end`.
pub(super) async fn serve(node: Arc<Node>, listener: TcpListener, end: CancellationToken) -> Result<(), RunError> {
    let service = GuildServiceServer::new(Service(node))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .initial_stream_window_size(Some(1 << 20))
        .initial_connection_window_size(Some(8 << 20))
        .add_service(service)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), async move { end.cancelled().await })
        .await?;
    Ok(())
}

/// Gives up guilds that belong elsewhere by now.
pub(super) async fn recheck(node: Arc<Node>, end: CancellationToken) {
    let mut changes = node.directory.changes();
    loop {
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(RECHECK_PAUSE).await;
                changes.mark_unchanged();
            }
            () = tokio::time::sleep(RECHECK_PERIOD) => {}
            () = end.cancelled() => return,
        }
        for (guild_id, handle) in node.registry.all() {
            if !handle.shared.owner.load(Ordering::Acquire) {
                continue;
            }
            if let Decision::Elsewhere(route) = node.decide(guild_id, "") {
                let given_up = Envelope::Input(Input::Yield(Some(route)));
                if handle.mailbox.try_send(given_up).is_err() {
                    tracing::debug!(guild_id, "the guild's mailbox is full; it is checked again later");
                }
            }
        }
    }
}

/// Hands every guild over: the gateways are told where each goes.
async fn drain(node: &Arc<Node>, registration: &Registration, grace: Duration) {
    let deadline = Instant::now() + grace;
    node.set_draining();
    registration.set_draining();
    // Others must see the draining first, else the routes told would lead back here.
    let member_id = node.member_id.clone();
    let seen = |view: &cell_runtime::View| view.member(&member_id).is_none_or(|member| member.draining);
    if !node.directory.wait_for(Duration::from_secs(2).min(grace), seen).await {
        tracing::warn!("the directory does not show this node as draining; handing over all the same");
    }
    for (guild_id, handle) in node.registry.all() {
        let route = match node.decide(guild_id, "") {
            Decision::Elsewhere(route) => Some(route),
            Decision::Here(_) | Decision::Unknown => None,
        };
        if tokio::time::timeout_at(deadline, handle.mailbox.send(Envelope::Drain(route))).await.is_err() {
            tracing::warn!(guild_id, "the guild was not handed over in time; the next claim takes it");
        }
    }
    while node.registry.len() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
