//! Which ports and which Pods, as sentences.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::json;

use super::ports::{backends, entry_ports};

fn service(name: &str, created: &str, node_port: u16) -> Arc<Service> {
    let body = json!({
        "metadata": { "name": name, "namespace": "n", "creationTimestamp": created },
        "spec": {
            "type": "NodePort",
            "selector": { "role": "gateway" },
            "ports": [{ "port": 80, "targetPort": "http", "nodePort": node_port }],
        },
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

fn pod(ip: &str, ready: bool, leaving: bool) -> Arc<Pod> {
    let mut body = json!({
        "metadata": { "name": ip, "namespace": "n", "labels": { "role": "gateway" } },
        "spec": { "containers": [{ "name": "g", "ports": [{ "name": "http", "containerPort": 8080 }] }] },
        "status": { "podIP": ip, "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
    });
    if leaving {
        body["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    Arc::new(serde_json::from_value(body).unwrap())
}

#[test]
fn only_ready_pods_that_stay_are_behind_a_port() {
    let ports = entry_ports(&[service("a", "2026-01-01T00:00:00Z", 30080)]);
    let all = [
        pod("127.1.2.9", true, false),
        pod("127.1.1.9", true, false),
        pod("127.1.1.8", false, false),
        pod("127.1.1.7", true, true),
    ];
    let found: Vec<_> = backends(&ports[&30080], &all).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["127.1.1.9:8080", "127.1.2.9:8080"]);
}

#[test]
fn of_two_services_with_one_port_the_older_keeps_it() {
    let older = service("z", "2026-01-01T00:00:00Z", 30080);
    let newer = service("a", "2026-01-02T00:00:00Z", 30080);
    let ports = entry_ports(&[newer, older]);
    assert_eq!(ports[&30080].service.metadata.name.as_deref(), Some("z"));
}

#[test]
fn cluster_ip_services_open_nothing() {
    let mut one = (*service("a", "2026-01-01T00:00:00Z", 30080)).clone();
    one.spec.as_mut().unwrap().type_ = Some("ClusterIP".into());
    assert!(entry_ports(&[Arc::new(one)]).is_empty());
}
