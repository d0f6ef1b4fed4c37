//! The log server's connections: TLS for everybody, plain HTTP only from this machine. It says of each request whom the client's
//! certificate named, and judges nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::access::Caller;
use super::certificate::subject;
use crate::idle::{Activity, FIRST_REQUEST};
use crate::node::shared::Node;

/// Connections at once; those beyond are closed, and counted.
const MOST_CONNECTIONS: usize = 512;
/// How long a client may take to say something, and to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(120);
/// The first byte of TLS: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves for ever; connections end with it.
pub async fn serve(listener: TcpListener, router: Router, tls: ServerConfig, node: Node) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((socket, from)) => {
                let Ok(permit) = permits.clone().try_acquire_owned() else {
                    node.counters.log_connections_overflow.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let (router, acceptor) = (router.clone(), acceptor.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    connection(socket, from, router, acceptor).await;
                });
            }
            Err(error) => {
                // Out of file descriptors: open connections must go on, so wait instead of spinning.
                tracing::warn!(error = %error, "accept a log connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(socket: TcpStream, from: SocketAddr, router: Router, acceptor: TlsAcceptor) {
    let mut first = [0_u8];
    let spoke = tokio::time::timeout(HANDSHAKE, socket.peek(&mut first)).await;
    if !matches!(spoke, Ok(Ok(1))) {
        return;
    }
    if first[0] != TLS_HANDSHAKE {
        // A token must not cross a network in the open.
        if from.ip().to_canonical().is_loopback() {
            talk(socket, router, Caller::default()).await;
        }
        return;
    }
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(socket)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let caller = Caller(shown.and_then(|certificate| subject(certificate)));
            talk(stream, router, caller).await;
        }
        Ok(Err(error)) => tracing::debug!(error = %error, from = %from, "a log client did not shake hands"),
        Err(_) => {}
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, router: Router, caller: Caller) {
    let activity = Activity::begin();
    let asked = activity.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        let (router, under_way) = (router.clone(), asked.asked());
        async move { router.oneshot(request.map(Body::new)).await.map(|answer| under_way.with(answer)) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = serving => {
            if let Err(error) = ended {
                tracing::debug!(error = %error, "a log connection ended");
            }
        }
        () = activity.until_idle(FIRST_REQUEST, IDLE) => {}
    }
}
