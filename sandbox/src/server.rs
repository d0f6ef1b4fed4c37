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

async fn client(kubeconfig: &std::path::Path) -> Result<kube::Client, ServerError> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn options(dir: &std::path::Path) -> Options {
        let address = IpAddr::from([127, 0, 0, 1]);
        Options {
            state_dir: dir.to_owned(),
            listen_address: address,
            etcd_port: 0,
            kubernetes_port: 0,
            controllers: false,
        }
    }

    async fn started(options: Options) -> (Ready, CancellationToken, tokio::task::JoinHandle<Result<(), ServerError>>) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (tell, told) = mpsc::channel();
        let stop = CancellationToken::new();
        let announce = move |ready: &Ready| tell.send(ready.clone()).unwrap_or_default();
        let running = tokio::spawn(run(options, announce, stop.clone().cancelled_owned()));
        let ready = tokio::task::spawn_blocking(move || told.recv_timeout(std::time::Duration::from_secs(20)));
        (ready.await.unwrap().unwrap(), stop, running)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn both_apis_answer_over_one_store_and_a_second_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (ready, stop, running) = started(Options { controllers: true, ..options(dir.path()) }).await;
        let mut etcd = etcd_client::Client::connect([&ready.etcd], None).await.unwrap();
        etcd.put("a", "b", None).await.unwrap();
        let kube = client(&ready.kubeconfig).await.unwrap();
        assert_eq!(kube.apiserver_version().await.unwrap().minor, "33");
        let second = run(options(dir.path()), |_| {}, std::future::pending()).await.unwrap_err();
        assert!(second.to_string().contains("in use by process"), "{second}");
        let port: u16 = ready.etcd.rsplit(':').next().unwrap().parse().unwrap();
        let other = tempfile::tempdir().unwrap();
        let taken = run(Options { etcd_port: port, ..options(other.path()) }, |_| {}, std::future::pending())
            .await
            .unwrap_err();
        assert!(taken.to_string().contains("--etcd-port"), "{taken}");
        stop.cancel();
        running.await.unwrap().unwrap();
        let (_, stop, running) = started(options(dir.path())).await;
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn only_loopback_addresses_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let open = Options { listen_address: IpAddr::from([0, 0, 0, 0]), ..options(dir.path()) };
        assert!(matches!(run(open, |_| {}, std::future::pending()).await, Err(ServerError::NotLoopback(_))));
    }
}
