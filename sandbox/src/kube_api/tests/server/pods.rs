//! The Pod's own doors: binding, grace, eviction, logs.

use http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{PODS, Sandbox, pod};

async fn bound(s: &Sandbox, name: &str, node: &str) -> Value {
    s.post(PODS, pod(name)).await.ok();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    s.post(&format!("{PODS}/{name}/binding"), binding).await.ok();
    s.get(&format!("{PODS}/{name}")).await.ok()
}

fn ready() -> Value {
    json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}

#[tokio::test]
async fn a_pod_is_bound_once_and_its_spec_stays() {
    let s = Sandbox::start().await;
    let found = bound(&s, "p", "n1").await;
    assert_eq!(found["spec"]["nodeName"], "n1");
    assert_eq!(found["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(
        (found["spec"]["restartPolicy"].as_str(), found["spec"]["terminationGracePeriodSeconds"].as_i64()),
        (Some("Always"), Some(30))
    );
    let again = json!({"target": {"kind": "Node", "name": "n2"}});
    s.post(&format!("{PODS}/p/binding"), again).await.refused(409, "Conflict");
    s.merge(&format!("{PODS}/p"), json!({"spec": {"nodeName": "n2"}})).await.refused(422, "Invalid");
    s.merge(&format!("{PODS}/p"), json!({"metadata": {"labels": {"a": "b"}}})).await.ok();
    s.stop().await;
}

#[tokio::test]
async fn a_bound_pod_waits_for_its_agent_and_an_unbound_one_does_not() {
    let s = Sandbox::start().await;
    bound(&s, "p", "n1").await;
    let path = format!("{PODS}/p");
    let marked = s.delete(&path, json!({})).await.ok();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = s.delete(&path, json!({"gracePeriodSeconds": 5})).await.ok();
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = s.delete(&path, json!({"gracePeriodSeconds": 60})).await.ok();
    assert_eq!(longer, shorter);
    s.merge(&format!("{path}/status"), ready()).await.ok();
    s.delete(&path, json!({"gracePeriodSeconds": 0, "preconditions": {"uid": marked["metadata"]["uid"]}})).await.ok();
    s.get(&path).await.refused(404, "NotFound");
    s.post(PODS, pod("q")).await.ok();
    s.delete(&format!("{PODS}/q"), json!({})).await.ok();
    s.get(&format!("{PODS}/q")).await.refused(404, "NotFound");
    s.stop().await;
}

#[tokio::test]
async fn eviction_keeps_to_the_budget() {
    let s = Sandbox::start().await;
    for name in ["a", "b"] {
        bound(&s, name, "n1").await;
        s.merge(&format!("{PODS}/{name}/status"), ready()).await.ok();
    }
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    s.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget).await.ok();
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let mut odd = eviction("a");
    odd["deleteOptions"] = json!({"dryRun": ["Bogus"]});
    s.post(&format!("{PODS}/a/eviction"), odd).await.refused(422, "Invalid");
    let mut elsewhere = eviction("a");
    elsewhere["metadata"]["namespace"] = json!("other");
    s.post(&format!("{PODS}/a/eviction"), elsewhere).await.refused(400, "BadRequest");
    assert!(s.get(&format!("{PODS}/a")).await.ok()["metadata"]["deletionTimestamp"].is_null(), "neither evicts");
    s.post(&format!("{PODS}/a/eviction"), eviction("a")).await.ok();
    assert!(s.get(&format!("{PODS}/a")).await.ok()["metadata"]["deletionTimestamp"].is_string());
    let refused = s.post(&format!("{PODS}/b/eviction"), eviction("b")).await;
    assert!(!refused.headers.contains_key("retry-after"), "when to try again is up to the Pods");
    let status = refused.refused(429, "TooManyRequests");
    assert_eq!(status["details"]["causes"][0]["reason"], "DisruptionBudget");
    s.stop().await;
}

/// An agent that answers every request with what it was asked.
async fn agent() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                let token = request.headers()["authorization"].to_str().unwrap().len();
                let missing = request.uri().path().ends_with("/gone");
                let text = format!("{} {token}", request.uri());
                let code = if missing { 404 } else { 200 };
                Ok::<_, std::convert::Infallible>(
                    Response::builder().status(code).body(axum::body::Body::from(text)).unwrap(),
                )
            });
            let io = hyper_util::rt::TokioIo::new(socket);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    address
}

#[tokio::test]
async fn logs_come_from_the_agent_of_the_node() {
    let s = Sandbox::start().await;
    let agent = agent().await;
    let log = format!("{PODS}/p/log");
    s.post(PODS, pod("p")).await.ok();
    s.get(&log).await.refused(400, "BadRequest");
    s.delete(&format!("{PODS}/p"), json!({})).await.ok();
    bound(&s, "p", "n1").await;
    s.get(&log).await.refused(404, "NotFound");
    s.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.ok();
    s.get(&log).await.refused(503, "ServiceUnavailable");
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": agent.ip().to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": agent.port()}}}});
    s.merge("/api/v1/nodes/n1/status", status).await.ok();
    let text = s.get(&format!("{log}?tailLines=5&follow=false")).await.ok();
    let header = "Bearer ".len() + s.kube.token().len();
    assert_eq!(text, json!(format!("/containerLogs/default/p/main?follow=false&tailLines=5 {header}")));
    s.get(&format!("{log}?container=nope")).await.refused(400, "BadRequest");
    s.get(&format!("{log}?tailLines=5%26x")).await.refused(400, "BadRequest");
    s.send(Method::POST, &format!("{PODS}/p/exec?command=ls"), "", Vec::new()).await.refused(501, "NotImplemented");
    s.stop().await;
}
