//! The Pod's own doors: binding to a node, eviction within budgets, and the log, which the node's agent holds.

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::Reply;
use super::delete::{self, Options};
use crate::kube_api::api::Call;
use crate::kube_api::object::{self, at, list, text};
use crate::kube_api::objects::prefix;
use crate::kube_api::selectors::label_selector_matches;
use crate::kube_api::status::{Cause, Reason, Refusal};
use crate::kube_api::write::{self, Edited};

/// How long the node's agent may take to accept a connection and to begin its answer.
const AGENT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// POST pods/NAME/binding.
pub async fn bind(call: &Call<'_>, sent: &Value) -> Result<Reply, Refusal> {
    let node = text(sent, &["target", "name"]).to_owned();
    if node.is_empty() || !matches!(text(sent, &["target", "kind"]), "" | "Node") {
        return Err(Refusal::bad_request("target must name a Node"));
    }
    let edit = |current: &Value| {
        let bound = text(current, &["spec", "nodeName"]);
        if object::deleting(current) {
            return Err(call.conflict(&call.target.name, "the pod is being deleted, cannot be assigned to a host"));
        }
        if !bound.is_empty() {
            return Err(call.conflict(&call.target.name, &format!("pod is already assigned to node \"{bound}\"")));
        }
        let mut object = current.clone();
        object::child(&mut object, "spec").insert("nodeName".into(), node.clone().into());
        let mut conditions: Vec<Value> = list(current, &["status", "conditions"])
            .iter()
            .filter(|c| text(c, &["type"]) != "PodScheduled")
            .cloned()
            .collect();
        conditions
            .push(json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": object::rfc3339(call.time)}));
        object::child(&mut object, "status").insert("conditions".into(), conditions.into());
        Ok(Edited { object, tracked: false })
    };
    write::change(call, &call.target.name, edit).await?;
    Ok(Reply::Plain { code: 201, body: success() })
}

/// POST pods/NAME/eviction.
pub async fn evict(call: &Call<'_>, sent: &Value) -> Result<Reply, Refusal> {
    let name = &call.target.name;
    let named = object::name(sent);
    if !named.is_empty() && named != name.as_str() {
        return Err(Refusal::bad_request("name in URL does not match name in Eviction object"));
    }
    let namespace = object::namespace(sent);
    if !namespace.is_empty() && namespace != call.target.namespace.as_str() {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(why));
    }
    let (options, dry_run) = Options::parse(sent.get("deleteOptions"), &call.query)?;
    let _one_at_a_time = call.api.evictions.lock().await;
    let pod = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?.object;
    let counts =
        !object::deleting(&pod) && !matches!(text(&pod, &["status", "phase"]), "Succeeded" | "Failed" | "Pending");
    if counts {
        weigh_budgets(call, &pod)?;
    }
    if !dry_run && !call.dry_run {
        delete::remove(call, name, &options).await?;
    }
    Ok(Reply::Plain { code: 201, body: success() })
}

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

fn weigh_budgets(call: &Call<'_>, pod: &Value) -> Result<(), Refusal> {
    let namespace = &call.target.namespace;
    let budgets = call.api.objects.all(&prefix("policy", "poddisruptionbudgets", namespace))?.items;
    let matching: Vec<Value> = budgets
        .into_iter()
        .map(|b| b.object)
        .filter(|b| label_selector_matches(b.get("spec").and_then(|s| s.get("selector")).unwrap_or(&Value::Null), pod))
        .collect();
    if matching.len() > 1 {
        return Err(Refusal::internal(
            "this pod has more than one PodDisruptionBudget, which the eviction subresource does not support",
        ));
    }
    let Some(budget) = matching.first() else { return Ok(()) };
    let (healthy, needed, expected) = standing(call, budget)?;
    let own = i64::from(ready(pod));
    if own == 0 || healthy - own >= needed {
        return Ok(());
    }
    let message = format!(
        "The disruption budget {} needs {needed} healthy pods and has {healthy} currently",
        object::name(budget)
    );
    tracing::debug!(expected, "eviction refused by a budget");
    let cause = Cause { reason: "DisruptionBudget", message, field: String::new() };
    // It does not say when to try again: that is up to the Pods.
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    Err(Refusal::new(Reason::TooManyRequests, message).because(vec![cause]))
}

/// Healthy Pods, healthy Pods needed, and Pods expected, of a budget.
fn standing(call: &Call<'_>, budget: &Value) -> Result<(i64, i64, i64), Refusal> {
    let namespace = &call.target.namespace;
    let selector = at(budget, &["spec", "selector"]).cloned().unwrap_or(Value::Null);
    let pods: Vec<Value> =
        call.api.objects.all(&prefix("", "pods", namespace))?.items.into_iter().map(|p| p.object).collect();
    let pods: Vec<&Value> = pods.iter().filter(|p| label_selector_matches(&selector, p)).collect();
    let healthy = pods.iter().filter(|p| ready(p) && !object::deleting(p)).count();
    let expected = expected(call, &pods)?;
    let share = |value: &Value| -> i64 {
        match value {
            Value::String(text) => {
                let percent: i64 = text.trim_end_matches('%').parse().unwrap_or_default();
                (expected * percent + 99) / 100
            }
            other => other.as_i64().unwrap_or_default(),
        }
    };
    let needed = match (at(budget, &["spec", "minAvailable"]), at(budget, &["spec", "maxUnavailable"])) {
        (Some(least), _) => share(least),
        (None, Some(most)) => (expected - share(most)).max(0),
        (None, None) => (expected - 1).max(0),
    };
    Ok((i64::try_from(healthy).unwrap_or(i64::MAX), needed, expected))
}

/// Pods there should be: the replicas of the controllers that own them; a Pod without one counts for itself.
fn expected(call: &Call<'_>, pods: &[&Value]) -> Result<i64, Refusal> {
    let mut seen = std::collections::BTreeSet::new();
    let mut total = 0;
    for pod in pods {
        let owner = list(pod, &["metadata", "ownerReferences"])
            .iter()
            .find(|o| o.get("controller") == Some(&Value::Bool(true)));
        let Some(owner) = owner else {
            total += 1;
            continue;
        };
        let (kind, name, uid) = (text(owner, &["kind"]), text(owner, &["name"]), text(owner, &["uid"]));
        if !seen.insert(uid.to_owned()) {
            continue;
        }
        let group = text(owner, &["apiVersion"]).split_once('/').map_or("", |(g, _)| g);
        let resource = call.api.registry.served().find_kind(group, kind);
        let found = match resource {
            Some(resource) => call.api.objects.get(&resource.key(&call.target.namespace, name))?,
            None => None,
        };
        total += found.and_then(|f| at(&f.object, &["spec", "replicas"]).and_then(Value::as_i64)).unwrap_or(1);
    }
    Ok(total)
}

fn ready(pod: &Value) -> bool {
    list(pod, &["status", "conditions"]).iter().any(|c| text(c, &["type"]) == "Ready" && text(c, &["status"]) == "True")
}

/// GET pods/NAME/log, answered by the agent of the Pod's node.
pub async fn log(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = &call.target.name;
    let pod = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?.object;
    let container = chosen_container(call, &pod)?;
    let node = text(&pod, &["spec", "nodeName"]);
    if node.is_empty() {
        return Err(Refusal::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let address = agent_address(call, node)?;
    let mut query = Vec::new();
    for key in ["follow", "tailLines", "previous", "timestamps", "sinceSeconds", "limitBytes"] {
        let value = call.query.get(key);
        if !value.is_empty() {
            if !value.chars().all(|c| c.is_ascii_alphanumeric()) {
                return Err(Refusal::bad_request(format!(
                    "query parameter {key}={value:?} must be a number or a truth value"
                )));
            }
            query.push(format!("{key}={value}"));
        }
    }
    let path = format!("/containerLogs/{}/{name}/{container}?{}", call.target.namespace, query.join("&"));
    let answer = tokio::time::timeout(AGENT_DEADLINE, ask_agent(&address, &path, call.api.access.token()))
        .await
        .map_err(|_| format!("no answer within {} s", AGENT_DEADLINE.as_secs()))
        .and_then(|r| r);
    match answer {
        Ok(response) => pass_on(response).await,
        Err(why) => Err(Refusal::internal(format!("log of pod {name}: the agent of node {node} at {address}: {why}"))),
    }
}

fn chosen_container(call: &Call<'_>, pod: &Value) -> Result<String, Refusal> {
    let mut known: Vec<&str> = list(pod, &["spec", "containers"]).iter().map(|c| text(c, &["name"])).collect();
    let main = known.len();
    known.extend(list(pod, &["spec", "initContainers"]).iter().map(|c| text(c, &["name"])));
    let wanted = call.query.get("container");
    let name = &call.target.name;
    if wanted.is_empty() {
        return match known.first() {
            Some(only) if main == 1 => Ok((*only).to_owned()),
            _ => Err(Refusal::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                known.join(" ")
            ))),
        };
    }
    if known.contains(&wanted) {
        Ok(wanted.to_owned())
    } else {
        Err(Refusal::bad_request(format!("container {wanted} is not valid for pod {name}")))
    }
}

fn agent_address(call: &Call<'_>, node: &str) -> Result<String, Refusal> {
    let mut key = prefix("", "nodes", "");
    key.extend_from_slice(node.as_bytes());
    let node_object = call.api.objects.get(&key)?.ok_or_else(|| Refusal::not_found("", "nodes", node))?.object;
    let host = list(&node_object, &["status", "addresses"])
        .iter()
        .find(|a| text(a, &["type"]) == "InternalIP")
        .map(|a| text(a, &["address"]).to_owned());
    let port = at(&node_object, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_i64);
    match (host, port) {
        (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err(Refusal::new(Reason::ServiceUnavailable, format!("node {node} has not said where its agent listens"))),
    }
}

async fn ask_agent(address: &str, path: &str, token: &str) -> Result<Response<hyper::body::Incoming>, String> {
    let socket = TcpStream::connect(address).await.map_err(|e| format!("connect: {e}"))?;
    let io = hyper_util::rt::TokioIo::new(socket);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(|e| format!("handshake: {e}"))?;
    tokio::spawn(async move {
        // The end of the connection is seen by the reader of its body.
        let _ = connection.await;
    });
    let request = Request::builder()
        .uri(path)
        .header(http::header::HOST, address)
        .header(http::header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Body::empty())
        .map_err(|e| format!("request: {e}"))?;
    sender.send_request(request).await.map_err(|e| format!("send: {e}"))
}

async fn pass_on(response: Response<hyper::body::Incoming>) -> Result<Reply, Refusal> {
    const EXPLAINED: usize = 4096;
    if response.status().is_success() {
        let mut out = Response::new(Body::new(response.into_body()));
        out.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
        return Ok(Reply::Raw(out));
    }
    let code = response.status();
    let limited = http_body_util::Limited::new(response.into_body(), EXPLAINED);
    let bytes = limited.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let message = String::from_utf8_lossy(&bytes).trim().to_owned();
    Err(match code {
        StatusCode::NOT_FOUND => Refusal::new(Reason::NotFound, message),
        StatusCode::BAD_REQUEST => Refusal::bad_request(message),
        _ => Refusal::internal(format!("the node's agent answered {code}: {message}")),
    })
}
