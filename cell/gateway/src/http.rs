//! The HTTP port: accepts connections, bounded in number, gives each so long to send a head, and closes so that the last answer arrives.
//! What is answered is the router's matter.

mod stream;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::calls::COMMAND_TIMEOUT;
use crate::gateway::Gateway;
pub use stream::ClientStream;

/// Bytes of a request's head: some libraries send long tokens and user agents, none sends more.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Pause after the system refused to accept: it is out of files, and a few may be given back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long requests that are under way at the end may take: what a command and the read before it may.
const FINISH: Duration = COMMAND_TIMEOUT.saturating_add(Duration::from_secs(2));

/// Serves clients until `http_closes`, and returns when those that had asked something are answered, boundedly. Upgraded connections
/// are not its own any more.
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener, router: Router) {
    let _closed = gateway.http_closed.clone().drop_guard();
    let most = gateway.config.limits.max_http_connections;
    let permits = Arc::new(Semaphore::new(most));
    accept(&gateway, &listener, &router, &permits).await;
    drop(listener);
    let idle = permits.acquire_many(u32::try_from(most).unwrap_or(u32::MAX));
    if tokio::time::timeout(FINISH, idle).await.is_err() {
        tracing::warn!(connections = most - permits.available_permits(), "requests are cut: they took too long");
    }
}

async fn accept(gateway: &Arc<Gateway>, listener: &TcpListener, router: &Router, permits: &Arc<Semaphore>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gateway.http_closes.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => match permits.clone().try_acquire_owned() {
                Ok(permit) => {
                    tokio::spawn(connection(gateway.clone(), stream, router.clone(), permit));
                }
                Err(_) => {
                    gateway.metrics.refused_connections.inc();
                }
            },
            Err(error) => {
                tracing::warn!(%error, "failed to accept a client; is the limit of open files too low?");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(gateway: Arc<Gateway>, stream: TcpStream, router: Router, _permit: OwnedSemaphorePermit) {
    if stream.set_nodelay(true).is_err() {
        // It is gone already.
        return;
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(gateway.config.limits.http_head_timeout)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(ClientStream::new(stream)), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = gateway.http_closes.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(FINISH, connection).await {
                Ok(served) => served,
                Err(_) => return,
            }
        }
    };
    match served {
        Err(error) if error.is_timeout() => gateway.metrics.slow_senders.inc(),
        Err(error) => {
            tracing::debug!(%error, "a client's connection broke");
            0
        }
        Ok(()) => 0,
    };
}
