//! The sandbox inside a test or another program: its API on a loopback port, with a client. It decides nothing but the order in which
//! parts start and stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use crate::server::{ServerError, client};
use crate::store::{Store, StoreOptions};
use crate::{controllers, kube_api};

/// A running API.
pub struct Embedded {
    kube: kube_api::serve::KubeApi,
    store: Store,
    client: kube::Client,
    stop: CancellationToken,
    controllers: Option<tokio::task::JoinHandle<()>>,
}

impl Embedded {
    /// Serves the Kubernetes API from `dir`, which holds everything: start again from it and everything is there. Controllers of
    /// built-in kinds do not run; see [`Embedded::run_controllers`].
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn start(dir: &Path) -> Result<Self, ServerError> {
        // An error means a provider is installed already, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        std::fs::create_dir_all(dir).map_err(|source| ServerError::StateDir { path: dir.to_owned(), source })?;
        let path = dir.join("store");
        let opened = tokio::task::spawn_blocking(move || Store::open(&path, StoreOptions::sandbox())).await;
        let store = opened.map_err(|_| ServerError::Stopped)??;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let kube = kube_api::serve::serve(store.clone(), dir, address).await?;
        let client = client(&kube.kubeconfig).await?;
        Ok(Self { kube, store, client, stop: CancellationToken::new(), controllers: None })
    }

    /// Runs the controllers of StatefulSets, Deployments, Jobs, Services and Nodes, and the scheduler. Pods need node agents to run.
    pub fn run_controllers(&mut self, options: controllers::Options) {
        if self.controllers.is_none() {
            let stopped = self.stop.clone().cancelled_owned();
            self.controllers = Some(tokio::spawn(controllers::run_with(self.client.clone(), options, stopped)));
        }
    }

    /// A client that may do everything.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// A kubeconfig for kubectl and other programs, 0600.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kube.kubeconfig.clone()
    }

    /// Ends every watch and frees the directory.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Some(controllers) = self.controllers {
            let _ = controllers.await;
        }
        self.kube.stop().await;
        self.store.close().await;
    }
}
