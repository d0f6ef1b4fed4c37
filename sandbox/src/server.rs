//! The sandbox process as a whole: the store, both APIs over it, the controllers, and an orderly end. It decides only order and ports;
//! everything else is decided in the parts.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::store::{OpenError, Store, StoreOptions};
use crate::{controllers, etcd, kube_api};

/// What `cell-sandbox serve` is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Holds the store, the authority, the token and the kubeconfig; made if absent.
    pub state_dir: PathBuf,
    /// A loopback address.
    pub listen_address: IpAddr,
    /// 0 lets the system choose.
    pub etcd_port: u16,
    /// 0 lets the system choose.
    pub kubernetes_port: u16,
    /// Run the StatefulSet, Deployment and other controllers.
    pub controllers: bool,
}

/// Why the sandbox could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listen-address {0} is not a loopback address: the sandbox serves this machine only")]
    NotLoopback(IpAddr),
    #[error("make state-dir {path}: {source}", path = path.display())]
    StateDir { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("etcd API: listen on {address}: {source}; choose another --etcd-port")]
    EtcdPort { address: SocketAddr, source: std::io::Error },
    #[error("etcd API: {0}")]
    Etcd(#[from] etcd::ServeError),
    #[error("kubernetes API: {0}")]
    Kubernetes(#[from] kube_api::serve::ServeError),
    #[error("controllers: read kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("controllers: make client: {0}")]
    Client(#[from] kube::Error),
    #[error("open store: the worker was stopped")]
    Stopped,
}

/// Where everything is, once it is served.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Ready {
    pub ready: bool,
    /// `http://ADDRESS:PORT`
    pub etcd: String,
    /// `https://ADDRESS:PORT`
    pub kubernetes: String,
    pub kubeconfig: PathBuf,
}

/// Serves until `stop` completes; `ready` is called once everything answers.
///
/// # Errors
/// [`ServerError`] when a part cannot start, or the etcd API fails while running.
pub async fn run(
    options: Options,
    ready: impl FnOnce(&Ready),
    stop: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    if !options.listen_address.is_loopback() {
        return Err(ServerError::NotLoopback(options.listen_address));
    }
    let path = options.state_dir.clone();
    std::fs::create_dir_all(&path).map_err(|source| ServerError::StateDir { path: path.clone(), source })?;
    let dir = path.canonicalize().map_err(|source| ServerError::StateDir { path, source })?;
    let store_dir = dir.join("store");
    let opened = tokio::task::spawn_blocking(move || Store::open(&store_dir, StoreOptions::sandbox())).await;
    let store = opened.map_err(|_| ServerError::Stopped)??;

    let address = SocketAddr::new(options.listen_address, options.etcd_port);
    let listener = TcpListener::bind(address).await.map_err(|source| ServerError::EtcdPort { address, source })?;
    let etcd_address = listener.local_addr().map_err(|source| ServerError::EtcdPort { address, source })?;
    let kubernetes = SocketAddr::new(options.listen_address, options.kubernetes_port);
    let kube = kube_api::serve::serve(store.clone(), &dir, kubernetes).await?;

    let shutdown = CancellationToken::new();
    let mut etcd = tokio::spawn(etcd::serve(store.clone(), listener, shutdown.clone()));
    let workers = if options.controllers {
        let client = client(&kube.kubeconfig).await?;
        Some(tokio::spawn(controllers::run(client, shutdown.clone().cancelled_owned())))
    } else {
        None
    };
    let told = Ready {
        ready: true,
        etcd: format!("http://{etcd_address}"),
        kubernetes: kube.url.clone(),
        kubeconfig: kube.kubeconfig.clone(),
    };
    tracing::info!(etcd = told.etcd, kubernetes = told.kubernetes, "sandbox is ready");
    ready(&told);
    let failed = tokio::select! {
        () = stop => None,
        ended = &mut etcd => Some(ended),
    };
    shutdown.cancel();
    if let Some(workers) = workers {
        let _ = workers.await;
    }
    kube.stop().await;
    let ended = match failed {
        Some(ended) => ended,
        None => etcd.await,
    };
    store.close().await;
    tracing::info!("sandbox stopped");
    ended.unwrap_or(Ok(())).map_err(ServerError::from)
}

/// A client of the API that a kubeconfig names.
pub(crate) async fn client(kubeconfig: &std::path::Path) -> Result<kube::Client, ServerError> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

#[cfg(test)]
mod tests;
