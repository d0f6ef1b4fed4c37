//! The driver: sockets, TLS, connections, the collector. It decides only bounds and how to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::access::{Access, AccessError, write_private};
use super::api::Api;
use super::objects::Objects;
use super::status::Refusal;
use super::{collect, dispatch, object, tls};
use crate::idle::{Activity, FIRST_REQUEST};
use crate::store::Store;

/// Connections at once.
const MAX_CONNECTIONS: usize = 4_096;
/// How long a client may take to shake hands.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may be idle: longer than clients keep theirs, so that they close first and never race with us.
const IDLE_DEADLINE: Duration = Duration::from_secs(180);
/// How long requests may go on once the server is told to stop; watches end at once.
const STOP_DEADLINE: Duration = Duration::from_secs(2);
/// Namespaces that are always there.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Why the API could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("listen on {address}: {source}; choose another port")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("prepare objects: {0}")]
    Objects(#[from] Refusal),
}

/// A served API.
pub struct KubeApi {
    /// Where it listens.
    pub address: SocketAddr,
    /// `https://ADDRESS`.
    pub url: String,
    /// The kubeconfig written for it, 0600.
    pub kubeconfig: PathBuf,
    /// The authority's certificate, PEM.
    pub authority: String,
    api: Arc<Api>,
    tasks: Vec<JoinHandle<()>>,
}

/// Serves the Kubernetes API of a store over HTTPS. `dir` keeps the authority, the token and the kubeconfig; port 0 lets the system
/// choose one.
pub async fn serve(store: Store, dir: &Path, listen: SocketAddr) -> Result<KubeApi, ServeError> {
    let access = Access::open(dir)?;
    let identity = tls::prepare(dir, listen.ip())?;
    let listener = TcpListener::bind(listen).await.map_err(|source| ServeError::Listen { address: listen, source })?;
    let address = listener.local_addr().map_err(|source| ServeError::Listen { address: listen, source })?;
    let url = format!("https://{address}");
    let kubeconfig = dir.join("kubeconfig");
    write_private(&kubeconfig, tls::kubeconfig(&url, &identity.authority, access.token()).as_bytes())?;
    let api = Arc::new(Api::new(Objects::new(store), access, address.to_string())?);
    prepare_namespaces(&api).await?;
    let stopped = api.stopping.subscribe();
    let acceptor = TlsAcceptor::from(identity.server.clone());
    let tasks = vec![
        tokio::spawn(accept(api.clone(), listener, acceptor, stopped.clone())),
        tokio::spawn(collect::run(api.clone(), stopped)),
    ];
    Ok(KubeApi { address, url, kubeconfig, authority: identity.authority, api, tasks })
}

impl KubeApi {
    /// The token of the kubeconfig.
    pub fn token(&self) -> &str {
        self.api.access.token()
    }

    /// The state behind it, for counters and tests.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Stops: no new connections, watches end, requests have a moment to finish.
    pub async fn stop(self) {
        self.api.stopping.send_replace(true);
        for task in self.tasks {
            if tokio::time::timeout(STOP_DEADLINE * 2, task).await.is_err() {
                tracing::warn!("a task of the API did not stop in time");
            }
        }
    }
}

async fn prepare_namespaces(api: &Arc<Api>) -> Result<(), Refusal> {
    let Some(resource) = api.registry.served().find("", "v1", "namespaces") else { return Ok(()) };
    for name in NAMESPACES {
        if api.objects.get(&resource.key("", name))?.is_some() {
            continue;
        }
        let call = super::api::Call::server(api, resource.clone(), "", name);
        let object = serde_json::json!({"metadata": {"name": name}});
        super::write::create(&call, super::write::Edited { object, tracked: false }).await?;
    }
    tracing::debug!(revision = api.objects.revision(), time = %object::now(), "namespaces are there");
    Ok(())
}

async fn accept(api: Arc<Api>, listener: TcpListener, acceptor: TlsAcceptor, mut stop: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let socket = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => break,
        };
        while connections.try_join_next().is_some() {}
        match socket {
            Ok((socket, _)) => {
                let (api, acceptor, stop) = (api.clone(), acceptor.clone(), stop.clone());
                connections.spawn(async move {
                    let _permit = permit;
                    connection(api, socket, acceptor, stop).await;
                });
            }
            Err(error) => {
                // Out of file descriptors: existing connections must go on, so wait instead of spinning.
                tracing::warn!(error = %error, "accept connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_DEADLINE, finished).await.is_err() {
        connections.abort_all();
    }
}

async fn connection(api: Arc<Api>, socket: TcpStream, acceptor: TlsAcceptor, mut stop: watch::Receiver<bool>) {
    let _ = socket.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(socket)).await else {
        api.counters.handshake_failures.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let watches = Arc::new(AtomicUsize::new(0));
    let activity = Activity::begin();
    let asked = activity.clone();
    let service = service_fn(move |request| {
        let (api, watches, under_way) = (api.clone(), watches.clone(), asked.asked());
        async move { Ok::<_, std::convert::Infallible>(under_way.with(dispatch::answer(api, watches, request).await)) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_DEADLINE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1_000).keep_alive_interval(Duration::from_secs(30));
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(error = %error, "connection ended");
            }
        }
        () = async { tokio::select! {
            _ = stop.changed() => {}
            () = activity.until_idle(FIRST_REQUEST, IDLE_DEADLINE) => {}
        } } => {
            serving.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(STOP_DEADLINE, serving).await;
        }
    }
}
