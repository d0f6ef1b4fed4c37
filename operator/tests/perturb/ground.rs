//! One control plane under all runs of a test: its APIs, the kinds, and somebody who plays the kubelet in every namespace. A sandbox, or
//! the real servers that CELLPLANE_HARNESS_KUBECONFIG and CELLPLANE_HARNESS_ETCD (host:port) name; these must have no nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cell_runtime::CancellationToken;
use cell_sandbox::server::{Options, Ready, run};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::wire::LATE_MS;

/// How long anything is waited for.
pub const LIMIT: Duration = Duration::from_secs(240);

pub struct Ground {
    /// Nothing is ever done to its requests.
    pub user: Client,
    /// host:port of etcd.
    pub etcd: String,
    /// Before the number of each stage: a real server keeps the namespaces of earlier processes.
    prefix: String,
    stop: CancellationToken,
    _state: tempfile::TempDir,
}

/// In memory where there is such a folder: a run is thousands of small writes.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir()) } else { tempfile::tempdir() }
        .unwrap()
}

impl Ground {
    pub async fn start() -> Self {
        let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
        cell_runtime::telemetry::init(cell_runtime::telemetry::LogFormat::Text);
        let state = folder();
        let stop = CancellationToken::new();
        let real = std::env::var("CELLPLANE_HARNESS_KUBECONFIG").ok();
        let is_real = real.is_some();
        let (kubeconfig, etcd) = match real {
            Some(kubeconfig) => {
                let etcd =
                    std::env::var("CELLPLANE_HARNESS_ETCD").expect("CELLPLANE_HARNESS_ETCD beside the kubeconfig");
                (PathBuf::from(kubeconfig), etcd)
            }
            None => {
                let ready = sandbox(state.path(), &stop).await;
                (ready.kubeconfig, ready.etcd.trim_start_matches("http://").to_owned())
            }
        };
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let user = Client::try_from(config).unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(user.clone());
        for definition in cell_crds::all() {
            let created = definitions.create(&PostParams::default(), &definition).await;
            // A real server may have them already.
            assert!(created.is_ok() || is_real, "{created:?}");
        }
        let prefix = if is_real { format!("stage-{}-", std::process::id()) } else { "stage-".to_owned() };
        tokio::spawn(kubelet(user.clone(), prefix.clone(), stop.clone()));
        tokio::spawn(clock(stop.clone()));
        Self { user, etcd, prefix, stop, _state: state }
    }

    /// A namespace of its own for one fleet; answers its name.
    pub async fn namespace(&self, number: u32) -> String {
        let name = format!("{}{number}", self.prefix);
        let namespaces: Api<Namespace> = Api::all(self.user.clone());
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
        name
    }
}

async fn sandbox(state: &Path, stop: &CancellationToken) -> Ready {
    let (tell, told) = tokio::sync::oneshot::channel();
    let options = Options {
        state_dir: state.to_owned(),
        listen_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        etcd_port: 0,
        kubernetes_port: 0,
        controllers: true,
    };
    let announce = move |ready: &Ready| drop(tell.send(ready.clone()));
    let stopped = stop.clone();
    tokio::spawn(async move { run(options, announce, stopped.cancelled_owned()).await.unwrap() });
    tokio::time::timeout(LIMIT, told).await.unwrap().unwrap()
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Every Pod of a stage is Running and Ready soon after it was made, and gone soon after it was deleted.
async fn kubelet(client: Client, prefix: String, stop: CancellationToken) {
    let all: Api<Pod> = Api::all(client.clone());
    let mut pods = watcher(all, Config::default()).default_backoff().applied_objects().boxed();
    while let Some(pod) = pods.next().await {
        if stop.is_cancelled() {
            return;
        }
        let Ok(pod) = pod else { continue };
        if !pod.namespace().is_some_and(|namespace| namespace.starts_with(&prefix)) {
            continue;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            // This one, not its successor of the same name.
            let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
            let params = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
            let _gone_already = pods.delete(&pod.name_any(), &params).await;
        } else if pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Running") {
            let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            let patch = Patch::Merge(&status);
            let _deleted_meanwhile = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
        }
    }
}

/// Notes how late timers are.
async fn clock(stop: CancellationToken) {
    const TICK: Duration = Duration::from_millis(50);
    while !stop.is_cancelled() {
        let started = Instant::now();
        tokio::time::sleep(TICK).await;
        let late = started.elapsed().saturating_sub(TICK).as_millis();
        LATE_MS.fetch_max(u64::try_from(late).unwrap_or_default(), Ordering::Relaxed);
    }
}
