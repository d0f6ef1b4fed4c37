//! The API against an in-process server over HTTPS: raw requests where the answer matters to the letter, kube-rs where its runtime does.

mod access;
mod custom;
mod deletion;
mod differential;
mod jobs;
mod kubectl;
mod objects;
mod parity;
mod pods;
mod runtime;
mod watches;

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::kube_api::serve::{KubeApi, serve};
use crate::store::{Store, StoreOptions};

/// How long a condition may take to come true.
const DEADLINE: Duration = Duration::from_secs(20);

pub struct Sandbox {
    pub dir: tempfile::TempDir,
    pub store: Store,
    pub kube: KubeApi,
    pub client: Client,
}

/// An answer to a raw request.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub headers: HeaderMap,
}

impl Answer {
    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{} {}", self.code, self.body);
        self.body
    }

    #[track_caller]
    pub fn refused(self, code: u16, reason: &str) -> Value {
        assert_eq!((self.code, self.reason()), (code, reason), "{}", self.body);
        assert_eq!(self.body["kind"], "Status");
        self.body
    }
}

impl Sandbox {
    pub async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), StoreOptions::sandbox()).await
    }

    pub async fn start_in(dir: tempfile::TempDir, options: StoreOptions) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let path = dir.path().join("store");
        let store = tokio::task::spawn_blocking(move || Store::open(&path, options)).await.unwrap().unwrap();
        let kube = serve(store.clone(), dir.path(), "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let client = client(kube.kubeconfig.clone()).await;
        Self { dir, store, kube, client }
    }

    /// Another client with its own connections.
    pub async fn another_client(&self) -> Client {
        client(self.kube.kubeconfig.clone()).await
    }

    pub async fn stop(self) -> tempfile::TempDir {
        self.kube.stop().await;
        self.store.close().await;
        self.dir
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "", Vec::new()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, "application/json", body.to_string().into_bytes()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PUT, path, "application/json", body.to_string().into_bytes()).await
    }

    pub async fn merge(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PATCH, path, "application/merge-patch+json", body.to_string().into_bytes()).await
    }

    pub async fn apply(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PATCH, path, "application/apply-patch+yaml", body.to_string().into_bytes()).await
    }

    pub async fn delete(&self, path: &str, options: Value) -> Answer {
        self.send(Method::DELETE, path, "application/json", options.to_string().into_bytes()).await
    }

    pub async fn send(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        self.request(request.body(body).unwrap()).await
    }

    pub async fn request(&self, request: Request<Vec<u8>>) -> Answer {
        send(&self.client, request).await
    }

    /// Waits until a path answers with something for which the condition holds.
    pub async fn until(&self, path: &str, what: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let ends = tokio::time::Instant::now() + DEADLINE;
        loop {
            let answer = self.get(path).await;
            if holds(&answer) {
                return answer;
            }
            assert!(tokio::time::Instant::now() < ends, "{what}: still {} {}", answer.code, answer.body);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_gone(&self, path: &str) {
        self.until(path, "object is gone", |a| a.code == 404).await;
    }
}

/// Sends a raw request.
pub async fn send(client: &Client, request: Request<Vec<u8>>) -> Answer {
    let (parts, body) = request.into_parts();
    let response = client.send(Request::from_parts(parts, body.into())).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = tokio::time::timeout(DEADLINE, body.collect()).await.expect("body in time").unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
    Answer { code: parts.status.as_u16(), body, headers: parts.headers }
}

async fn client(kubeconfig: PathBuf) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    // A retried request would hide what was answered.
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// A ConfigMap.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": value}})
}

/// A Pod.
pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "x:1"}]}})
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const WIDGETS: &str = "/apis/example.dev/v1/namespaces/default/widgets";
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The definition of Widget.
pub fn widgets() -> Value {
    let subresources = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    let columns = json!([
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}]);
    let schema = json!({"type": "object",
        "x-kubernetes-validations": [{"rule": "self.metadata.name.size() <= 20", "message": "name is too long"}],
        "properties": {"spec": widget_spec(), "status": widget_status()}});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": subresources,
        "selectableFields": [{"jsonPath": ".spec.color"}], "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": schema}});
    let names = json!({"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.dev"},
        "spec": {"group": "example.dev", "scope": "Namespaced", "names": names, "versions": [version]}})
}

fn widget_spec() -> Value {
    let port = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"type": "integer"}}});
    json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 100},
        "replicas": {"type": "integer", "default": 2},
        "color": {"type": "string", "default": "red"},
        "id": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "id cannot change"}]},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": port}}})
}

fn widget_status() -> Value {
    let condition = json!({"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}, "status": {"type": "string"}}});
    json!({"type": "object", "properties": {"replicas": {"type": "integer"},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": condition}}})
}

/// A Widget.
pub fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}
