//! Start and end of a guild node: directory, listeners, registration, service; at the end its guilds go to others before the process does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::Role;
use cell_proto::v1::guild_service_server::GuildServiceServer;
use cell_runtime::role::{self, RoleError};
use cell_runtime::{CancellationToken, Channels};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::ask::Envelope;
use super::config::Config;
use super::load;
use super::node::{Decision, Node, NodeParts};
use super::service::Service;
use crate::machine::Input;

/// How often guilds are checked against the directory even when nothing changed.
const RECHECK_PERIOD: Duration = Duration::from_secs(5);
/// Changes of the directory come in bursts.
const RECHECK_PAUSE: Duration = Duration::from_millis(200);

/// Runs a guild node until `shutdown` is cancelled, then drains it.
///
/// # Errors
/// [`RoleError`] when a port cannot be opened or the server fails.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RoleError> {
    let opened = config.role.open(Role::Guild).await?;
    let node = Node::new(NodeParts {
        member_id: config.role.member_id,
        incarnation: opened.member.incarnation,
        limits: config.limits,
        guild_limit: config.guild_limit,
        directory: opened.directory.clone(),
        channels: Arc::new(Channels::default()),
    });
    let mut registry = Registry::with_prefix("cellplane");
    node.metrics.register(&mut registry);
    let (process, grpc) = opened.start(registry);
    let end = process.end.clone();
    let mut served = tokio::spawn(serve(node.clone(), grpc, end.clone()));
    if !process.wait_for_directory(&shutdown).await {
        return Ok(());
    }
    let registered = process.register();
    tokio::spawn(load::report(node.clone(), registered.registration.clone(), end.clone()));
    tokio::spawn(recheck(node.clone(), end));
    tokio::select! {
        () = shutdown.cancelled() => {}
        // A node that serves nothing must not stay registered; a restart serves again.
        ended = &mut served => return Ok(ended.unwrap_or(Ok(()))?),
    }
    node.set_draining();
    registered.set_draining();
    drain(&node, config.drain_grace).await;
    registered.finish().await;
    Ok(served.await.unwrap_or(Ok(()))?)
}

/// Serves gRPC until `end`.
pub(super) async fn serve(
    node: Arc<Node>,
    listener: TcpListener,
    end: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = GuildServiceServer::new(Service(node))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    role::serve_grpc(role::grpc_server().add_service(service), listener, end).await
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
async fn drain(node: &Arc<Node>, grace: Duration) {
    let deadline = Instant::now() + grace;
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
