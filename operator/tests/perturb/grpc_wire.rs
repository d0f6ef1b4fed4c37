//! The wire in front of etcd and of the cells: every call passes it, and those with an effect are named, counted and struck.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use etcd_client::proto::{PbTxnRequest, PbTxnResponse};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use prost::Message;
use tonic::transport::Channel;
use tower::ServiceExt;

use super::effect;
use super::wire::{Gate, Life};

const MOST: usize = 64 * 1024 * 1024;

/// The life that sends: cells are asked by whichever life is the newest.
pub type Sender = Arc<Mutex<Option<Arc<Life>>>>;

#[derive(Clone)]
struct Wired {
    upstream: Channel,
    sender: Sender,
}

/// Serves what is at `upstream` (host:port); answers its own host:port.
pub async fn serve(upstream: &str, sender: Sender) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let upstream = Channel::from_shared(format!("http://{upstream}")).unwrap().connect_lazy();
    let router = axum::Router::new().fallback(handle).with_state(Wired { upstream, sender });
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::from(router));
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn handle(State(wired): State<Wired>, request: Request) -> Response {
    match tokio::spawn(answer(wired, request)).await {
        Ok(Some(response)) => response,
        _ => std::future::pending().await,
    }
}

fn unavailable() -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert("content-type", http::HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", http::HeaderValue::from_static("14"));
    headers.insert("grpc-message", http::HeaderValue::from_static("the harness says no"));
    response
}

async fn forward(wired: &Wired, parts: http::request::Parts, body: Body) -> Response {
    let request = http::Request::from_parts(parts, tonic::body::Body::new(body));
    match wired.upstream.clone().oneshot(request).await {
        Ok(response) => response.map(Body::new),
        Err(_) => unavailable(),
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(message);
    Bytes::from(frame)
}

async fn answer(wired: Wired, request: Request) -> Option<Response> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Some(life) = wired.sender.lock().clone() else { return Some(forward(&wired, parts, body).await) };
    let is_txn = path == "/etcdserverpb.KV/Txn";
    if !is_txn && path.starts_with("/etcdserverpb") {
        // Reads, watches and leases.
        return Some(forward(&wired, parts, body).await);
    }
    let mut body = to_bytes(body, MOST).await.ok()?;
    let wire = &life.wire;
    let effect = if is_txn {
        let mut txn = PbTxnRequest::decode(body.get(5..)?).ok()?;
        if wire.mutant.transaction(&mut txn, &format!("{}fencing", wire.prefix)) {
            body = framed(&txn.encode_to_vec());
        }
        effect::of_etcd(&txn, &wire.prefix)
    } else {
        effect::of_cell(&path)
    };
    let Some(effect) = effect else { return Some(forward(&wired, parts, Body::from(body)).await) };
    let under_way = life.enter();
    let (gate, nth) = life.before(&effect).await;
    match gate {
        Gate::Go => {}
        Gate::Answer(_) => return Some(unavailable()),
        Gate::Never => return None,
    }
    let (head, body) = forward(&wired, parts, Body::from(body)).await.into_parts();
    let whole = body.collect().await.ok()?;
    let trailers = whole.trailers().cloned();
    let bytes = whole.to_bytes();
    if is_txn
        && let Some(done) = bytes.get(5..).and_then(|message| PbTxnResponse::decode(message).ok())
        && done.succeeded
    {
        wire.wrote_etcd(life.number, done.header.map(|header| header.revision).unwrap_or_default());
    }
    drop(under_way);
    match life.after(&effect, nth).await {
        Gate::Go => {
            let body = Full::new(bytes).with_trailers(async move { trailers.map(Ok) });
            Some(Response::from_parts(head, Body::new(body)))
        }
        Gate::Answer(_) => Some(unavailable()),
        Gate::Never => None,
    }
}
