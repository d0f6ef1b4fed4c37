//! The driver: a TLS listener, one upstream client, and what the plan says in between. It decides only bounds.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::plan::{Asked, Fate, Plan};
use super::rule::Fault;
use super::stale::{Answer, Memory};
use super::{control, events};
use crate::idle::{Activity, FIRST_REQUEST};
use crate::kube_api::access::{Access, AccessError, write_private};
use crate::kube_api::request::{Query, Route, route};
use crate::kube_api::tls;

/// Connections at once.
const MAX_CONNECTIONS: usize = 2_048;
/// The largest body of a request.
const MAX_BODY: usize = 8 * 1024 * 1024;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may stay without a request.
const IDLE_DEADLINE: Duration = Duration::from_secs(180);

/// Why the proxy cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("kubeconfig {path}: {reason}")]
    Kubeconfig { path: String, reason: String },
    #[error("listen-address {0} is not a loopback address: the proxy serves this machine only")]
    NotLoopback(SocketAddr),
    #[error("listen on {address}: {source}; choose another --port")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("make state-dir {path}: {source}", path = path.display())]
    StateDir { path: PathBuf, source: std::io::Error },
}

/// What all connections share.
pub struct Faults {
    /// The rules.
    pub plan: Mutex<Plan>,
    /// Changes whenever the rules do.
    pub changed: watch::Sender<u64>,
    memory: Mutex<Memory>,
    upstream: kube::Client,
    /// The upstream's own bearer token; none when a client certificate speaks for everybody.
    upstream_token: Option<String>,
    access: Access,
}

impl Faults {
    /// Waits while a rule freezes this.
    pub(super) async fn thaw(&self, asked: &Asked) {
        let mut changed = self.changed.subscribe();
        while self.plan.lock().frozen(asked) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// A serving proxy.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    /// For its clients, 0600.
    pub kubeconfig: PathBuf,
    faults: Arc<Faults>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// The rules, for programs that hold the proxy themselves.
    pub fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Cuts every connection and stops.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.serving.await;
    }
}

/// Serves the API server of `upstream` (a kubeconfig) with faults. `dir` keeps the proxy's own authority, token and kubeconfig; the same
/// `seed` gives the same faults.
///
/// # Errors
/// [`ProxyError`].
pub async fn serve(upstream: &Path, dir: &Path, listen: SocketAddr, seed: u64) -> Result<Proxy, ProxyError> {
    if !listen.ip().is_loopback() {
        return Err(ProxyError::NotLoopback(listen));
    }
    std::fs::create_dir_all(dir).map_err(|source| ProxyError::StateDir { path: dir.to_owned(), source })?;
    let (client, upstream_token) = connect(upstream).await?;
    let access = Access::open(dir)?;
    let identity = tls::prepare(dir, listen.ip())?;
    let listener = TcpListener::bind(listen).await.map_err(|source| ProxyError::Listen { address: listen, source })?;
    let address = listener.local_addr().map_err(|source| ProxyError::Listen { address: listen, source })?;
    let kubeconfig = dir.join("kubeconfig");
    let text = tls::kubeconfig(&format!("https://{address}"), &identity.authority, access.token());
    write_private(&kubeconfig, text.as_bytes())?;
    let faults = Arc::new(Faults {
        plan: Mutex::new(Plan::new(seed)),
        changed: watch::channel(0).0,
        memory: Mutex::new(Memory::default()),
        upstream: client,
        upstream_token,
        access,
    });
    let stop = CancellationToken::new();
    let acceptor = TlsAcceptor::from(identity.server);
    let serving = tokio::spawn(accept(faults.clone(), listener, acceptor, stop.clone()));
    Ok(Proxy { address, kubeconfig, faults, stop, serving })
}

async fn connect(path: &Path) -> Result<(kube::Client, Option<String>), ProxyError> {
    let failed = |error: &dyn std::fmt::Display| ProxyError::Kubeconfig {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let read = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(&error))?;
    config.default_retry = false;
    config.read_timeout = None;
    let token = bearer(&config.auth_info);
    if token.is_some() {
        // The header is set here, so that clients with tokens of their own can speak for themselves.
        config.auth_info = AuthInfo::default();
    }
    Ok((kube::Client::try_from(config).map_err(|error| failed(&error))?, token))
}

fn bearer(auth: &AuthInfo) -> Option<String> {
    let given = serde_json::to_value(auth).ok().and_then(|auth| auth.get("token")?.as_str().map(str::to_owned));
    let in_file = || std::fs::read_to_string(auth.token_file.as_ref()?).ok().map(|text| text.trim().to_owned());
    given.or_else(in_file).filter(|token| !token.is_empty())
}

async fn accept(faults: Arc<Faults>, listener: TcpListener, acceptor: TlsAcceptor, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        while connections.try_join_next().is_some() {}
        match socket {
            Ok((socket, _)) => {
                let (faults, acceptor, stop) = (faults.clone(), acceptor.clone(), stop.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    connection(faults, socket, acceptor, stop).await;
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "accept connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    connections.shutdown().await;
}

async fn connection(faults: Arc<Faults>, socket: TcpStream, acceptor: TlsAcceptor, stop: CancellationToken) {
    let _ = socket.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(socket)).await else { return };
    let cut = CancellationToken::new();
    let cutting = cut.clone();
    let activity = Activity::begin();
    let asked = activity.clone();
    let service = service_fn(move |request| {
        let (faults, cut, under_way) = (faults.clone(), cutting.clone(), asked.asked());
        async move { Ok::<_, std::convert::Infallible>(under_way.with(answer(&faults, request, cut).await)) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1_000);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = serving => {}
        () = cut.cancelled() => {}
        () = stop.cancelled() => {}
        () = activity.until_idle(FIRST_REQUEST, IDLE_DEADLINE) => {}
    }
}

async fn answer(faults: &Arc<Faults>, request: Request<Incoming>, cut: CancellationToken) -> Response<Body> {
    let token = bearer_of(&request);
    let own = token.as_deref() == Some(faults.access.token());
    if !own && (faults.upstream_token.is_none() || token.is_none()) {
        return status(401, "Unauthorized", "Unauthorized");
    }
    if own && request.uri().path() == control::PATH {
        return control::answer(faults, request).await;
    }
    let asked = asked(&request);
    faults.thaw(&asked).await;
    let (wait, fate) = faults.plan.lock().request(&asked);
    if wait > 0 {
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
    match fate {
        Fate::Strike(Fault::Refuse(code)) => refusal(code),
        Fate::Strike(Fault::Cut) => {
            cut.cancel();
            std::future::pending().await
        }
        Fate::Strike(Fault::Lose(code)) => {
            let _ = pass(faults, request, &asked, own, &cut).await;
            refusal(code)
        }
        Fate::Strike(Fault::CutAfter) => {
            let _ = pass(faults, request, &asked, own, &cut).await;
            cut.cancel();
            std::future::pending().await
        }
        Fate::Strike(Fault::Stale) if reads(&asked) => {
            let earlier = faults.memory.lock().oldest(&question(&request));
            match earlier {
                Some(earlier) => remembered(&earlier),
                None => pass(faults, request, &asked, own, &cut).await,
            }
        }
        _ => pass(faults, request, &asked, own, &cut).await,
    }
}

fn bearer_of(request: &Request<Incoming>) -> Option<String> {
    let value = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(|token| token.trim().to_owned())
}

fn reads(asked: &Asked) -> bool {
    matches!(asked.verb.as_str(), "get" | "list") && !asked.resource.ends_with("/log")
}

/// What a request asks, in the words of rules.
fn asked(request: &Request<Incoming>) -> Asked {
    let agent = request.headers().get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let Route::Resource(target) = route(request.uri().path()) else {
        return Asked { verb: "get".into(), agent, ..Asked::default() };
    };
    let watching = Query::parse(request.uri().query().unwrap_or_default()).flag("watch").unwrap_or_default();
    let verb = match (request.method().as_str(), target.name.is_empty()) {
        ("GET", true) if watching => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        _ => "get",
    };
    let sub = if target.subresource.is_empty() { String::new() } else { format!("/{}", target.subresource) };
    Asked {
        verb: verb.into(),
        group: target.group,
        resource: format!("{}{sub}", target.plural),
        namespace: target.namespace,
        name: target.name,
        agent,
    }
}

/// What makes two reads the same question.
fn question(request: &Request<Incoming>) -> String {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let query = request.uri().query().unwrap_or_default();
    let kept = query.split('&').filter(|pair| !pair.starts_with("resourceVersion") && !pair.starts_with("timeout"));
    format!("{} {} {accept}", request.uri().path(), kept.collect::<Vec<_>>().join("&"))
}

/// The upstream's answer.
async fn pass(
    faults: &Arc<Faults>,
    request: Request<Incoming>,
    asked: &Asked,
    own: bool,
    cut: &CancellationToken,
) -> Response<Body> {
    let question = question(&request);
    let reads = request.method() == Method::GET && reads(asked);
    let (mut parts, body) = request.into_parts();
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return status(413, "RequestEntityTooLarge", &error.to_string()),
    };
    parts.headers.remove(ACCEPT_ENCODING);
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove(http::header::HOST);
    parts.version = http::Version::default();
    // Events and answers are taken apart here, which needs JSON; every client of Kubernetes reads it.
    if parts
        .headers
        .get(ACCEPT)
        .is_some_and(|accept| accept.as_bytes().starts_with(b"application/vnd.kubernetes.protobuf"))
    {
        parts.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    }
    if own {
        parts.headers.remove(AUTHORIZATION);
        let header = faults.upstream_token.as_ref().and_then(|token| format!("Bearer {token}").parse().ok());
        header.into_iter().for_each(|value| drop(parts.headers.insert(AUTHORIZATION, value)));
    }
    parts.uri = parts.uri.path_and_query().cloned().map(http::Uri::from).unwrap_or_default();
    let upstream = match faults.upstream.send(Request::from_parts(parts, body.to_vec().into())).await {
        Ok(answer) => answer,
        Err(error) => return status(503, "ServiceUnavailable", &format!("the server behind the proxy: {error}")),
    };
    let (mut head, body) = upstream.into_parts();
    for name in ["connection", "transfer-encoding", "content-length"] {
        head.headers.remove(name);
    }
    if asked.verb == "watch" && head.status.is_success() {
        return Response::from_parts(head, events::through(faults.clone(), asked.clone(), body, cut.clone()));
    }
    if !reads || !head.status.is_success() {
        return Response::from_parts(head, Body::new(body));
    }
    let Ok(whole) = body.collect().await else {
        return status(503, "ServiceUnavailable", "the server behind the proxy cut its answer short");
    };
    let whole = whole.to_bytes();
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    faults.memory.lock().keep(&question, Answer { kind, body: whole.clone() });
    Response::from_parts(head, Body::from(whole))
}

fn remembered(answer: &Answer) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body.clone()));
    if let Ok(kind) = HeaderValue::from_str(&answer.kind) {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}

fn refusal(code: u16) -> Response<Body> {
    let (reason, message) = match code {
        409 => {
            ("Conflict", "the object has been modified; please apply your changes to the latest version and try again")
        }
        429 => ("TooManyRequests", "too many requests, please try again later"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "the server was unable to return a response in the time allotted"),
        _ => ("InternalError", "an error on the server has prevented the request from succeeding"),
    };
    status(code, reason, message)
}

/// A `Status` as Kubernetes sends it.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let mut body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": message});
    if code == 429 {
        body["details"] = json!({"retryAfterSeconds": 1});
    }
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if code == 429 {
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(1));
    }
    response
}
