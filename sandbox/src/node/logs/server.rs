//! Serves container logs over HTTP on the node's address: `/containerLogs/NAMESPACE/POD/CONTAINER`. It demands the bearer token of the
//! agent's kubeconfig, also serves `/healthz` (open) and `/metrics` (with the token), and changes nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::log_path;
use super::query::LogQuery;
use super::read::{Place, read_so_far};
use crate::node::process::record::{RunFolder, attempts};
use crate::node::shared::{Counters, Node};

/// Open log requests; each follower holds one.
const MOST_REQUESTS: usize = 128;
const LOOK_AGAIN: Duration = Duration::from_millis(200);

struct Served {
    node: Node,
    token: Option<String>,
    permits: Arc<Semaphore>,
}

/// The routes. Without a token everything but `/healthz` is refused.
pub fn router(node: Node, token: Option<String>) -> Router {
    let served = Served { node, token, permits: Arc::new(Semaphore::new(MOST_REQUESTS)) };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .with_state(Arc::new(served))
}

fn refuse(code: StatusCode, words: impl Into<String>) -> Response {
    (code, words.into()).into_response()
}

fn permitted(served: &Served, headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    match (given, &served.token) {
        (Some(given), Some(token)) => same(given.as_bytes(), token.as_bytes()),
        _ => false,
    }
}

/// Compares in time that does not depend on where they differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

async fn metrics(State(served): State<Arc<Served>>, headers: HeaderMap) -> Response {
    if !permitted(&served, &headers) {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "bearer token missing or wrong: use the node agent's kubeconfig token\n",
        );
    }
    render_metrics(&served.node.counters, served.node.writes.count()).into_response()
}

fn render_metrics(counters: &Counters, writes: u64) -> String {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    [
        ("cellnode_api_writes_total", writes),
        ("cellnode_container_starts_total", read(&counters.starts)),
        ("cellnode_container_exits_total", read(&counters.exits)),
        ("cellnode_entry_connections_total", read(&counters.entry_accepted)),
        ("cellnode_entry_overflow_total", read(&counters.entry_overflow)),
        ("cellnode_entry_unserved_total", read(&counters.entry_unserved)),
        ("cellnode_events_held_total", read(&counters.events_held)),
        ("cellnode_logs_overflow_total", read(&counters.logs_overflow)),
    ]
    .iter()
    .map(|(name, value)| format!("# TYPE {name} counter\n{name} {value}\n"))
    .collect()
}

async fn container_logs(
    State(served): State<Arc<Served>>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(parameters): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    if !permitted(&served, &headers) {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "bearer token missing or wrong: use the node agent's kubeconfig token\n",
        );
    }
    let query = match LogQuery::parse(&parameters, Timestamp::now().as_second()) {
        Ok(query) => query,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let Ok(permit) = served.permits.clone().try_acquire_owned() else {
        served.node.counters.logs_overflow.fetch_add(1, Ordering::Relaxed);
        return refuse(StatusCode::TOO_MANY_REQUESTS, "too many log requests are open on this node: close some\n");
    };
    let (path, folder, uid) = match find(&served.node, &namespace, &pod, &container, query.previous) {
        Ok(found) => found,
        Err(words) => return refuse(StatusCode::NOT_FOUND, words),
    };
    let reading = query.clone();
    let first = tokio::task::spawn_blocking({
        let path = path.clone();
        move || read_so_far(&path, &reading)
    });
    let (text, place) = match first.await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("read the log: {error}\n")),
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("read the log: {error}\n")),
    };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        let _permit = permit;
        send(text, place, query, (folder, uid), sender).await;
    });
    ([(header::CONTENT_TYPE, "text/plain")], Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

type Sender = mpsc::Sender<Result<Bytes, std::io::Error>>;

async fn send(text: Vec<u8>, mut place: Place, query: LogQuery, run: (RunFolder, String), sender: Sender) {
    let mut left = query.limit_bytes.unwrap_or(u64::MAX);
    let mut next = text;
    loop {
        let count = u64::try_from(next.len()).unwrap_or(u64::MAX).min(left);
        left -= count;
        next.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        if !next.is_empty() && sender.send(Ok(Bytes::from(std::mem::take(&mut next)))).await.is_err() {
            return;
        }
        if !query.follow || left == 0 {
            return;
        }
        let ended = run.0.exit().is_some() || !run.0.0.exists();
        next = match place.read_on(&query) {
            Ok(more) => more,
            Err(error) => {
                let _ = sender.send(Err(error)).await;
                return;
            }
        };
        if next.is_empty() {
            if ended {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = sender.closed() => return,
            }
        }
    }
}

/// The log of a container's newest run, or of the one before.
fn find(
    node: &Node,
    namespace: &str,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<(PathBuf, RunFolder, String), String> {
    let found = node
        .pods
        .get(namespace, pod)
        .filter(|pod| crate::controllers::pods::node(pod) == Some(node.settings.node.as_str()));
    let uid = found
        .and_then(|pod| pod.uid())
        .ok_or_else(|| format!("pod {namespace}/{pod} is not on node {}\n", node.settings.node))?;
    let state = &node.settings.state;
    let mut runs = attempts(state, &uid, container);
    let newest = runs.pop();
    let wanted = if previous { runs.pop() } else { newest };
    let attempt = wanted.ok_or_else(|| {
        let which = if previous { "previous terminated container" } else { "container" };
        format!("{which} {container} in pod {pod} not found\n")
    })?;
    Ok((log_path(state, &uid, container, attempt), RunFolder::of(state, &uid, container, attempt), uid))
}
