//! Stands in for the node agent where only the operator is measured: every Pod is Running and Ready soon after it was made. The cells' real
//! processes run in the benchmark's own process.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;

/// Goes on until it is dropped.
pub async fn declare_ready(client: Client, namespace: &str) {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    loop {
        for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
                continue;
            }
            let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            let patch = Patch::Merge(&status);
            // A Pod that was deleted meanwhile is not there to be patched.
            let _gone = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
