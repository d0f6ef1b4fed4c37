//! One sandbox under all runs of a test: its APIs, the kinds, and somebody who plays the kubelet in every namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cell_runtime::CancellationToken;
use cell_sandbox::server::{Options, Ready, run};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
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
        let (tell, told) = tokio::sync::oneshot::channel();
        let options = Options {
            state_dir: state.path().to_owned(),
            listen_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            etcd_port: 0,
            kubernetes_port: 0,
            controllers: true,
        };
        let announce = move |ready: &Ready| drop(tell.send(ready.clone()));
        let stopped = stop.clone();
        tokio::spawn(async move { run(options, announce, stopped.cancelled_owned()).await.unwrap() });
        let ready = tokio::time::timeout(LIMIT, told).await.unwrap().unwrap();
        let read = Kubeconfig::read_from(&ready.kubeconfig).unwrap();
        let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let user = Client::try_from(config).unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(user.clone());
        for definition in cell_crds::all() {
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        tokio::spawn(kubelet(user.clone(), stop.clone()));
        tokio::spawn(clock(stop.clone()));
        Self { user, etcd: ready.etcd.trim_start_matches("http://").to_owned(), stop, _state: state }
    }

    /// A namespace of its own for one fleet.
    pub async fn namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.user.clone());
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        namespaces.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await.unwrap();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Every Pod is Running and Ready soon after it was made, and gone soon after it was deleted.
async fn kubelet(client: Client, stop: CancellationToken) {
    let all: Api<Pod> = Api::all(client.clone());
    let mut pods = watcher(all, Config::default()).default_backoff().applied_objects().boxed();
    while let Some(pod) = pods.next().await {
        if stop.is_cancelled() {
            return;
        }
        let Ok(pod) = pod else { continue };
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
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
