//! Serves container logs on the node's address as a kubelet does: `/containerLogs/NAMESPACE/POD/CONTAINER`. Also `/healthz` (open) and
//! `/metrics`. It changes nothing; who may read is judged by `access`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::access::{Access, Caller};
use super::log_path;
use super::query::LogQuery;
use super::read::{Piece, Place};
use crate::node::process::record::{RunFolder, attempts};
use crate::node::shared::{Counters, Node};

/// Open log requests; each follower holds one.
const MOST_REQUESTS: usize = 128;
const LOOK_AGAIN: Duration = Duration::from_millis(200);

struct Served {
    node: Node,
    access: Access,
    permits: Arc<Semaphore>,
}

/// The routes. Without a token and without a certificate everything but `/healthz` is refused.
pub fn router(node: Node, token: Option<String>) -> Router {
    let served = Served { node, access: Access::new(token), permits: Arc::new(Semaphore::new(MOST_REQUESTS)) };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics))
        .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
        .with_state(Arc::new(served))
}

fn refuse(code: StatusCode, words: impl Into<String>) -> Response {
    (code, words.into()).into_response()
}

async fn metrics(
    State(served): State<Arc<Served>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if let Err((code, words)) = served.access.judge(&served.node, &caller, &headers).await {
        return refuse(code, words);
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
        ("cellnode_log_connections_overflow_total", read(&counters.log_connections_overflow)),
    ]
    .iter()
    .map(|(name, value)| format!("# TYPE {name} counter\n{name} {value}\n"))
    .collect()
}

async fn container_logs(
    State(served): State<Arc<Served>>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(parameters): Query<HashMap<String, String>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if let Err((code, words)) = served.access.judge(&served.node, &caller, &headers).await {
        return refuse(code, words);
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
    let place = match tokio::task::spawn_blocking(move || Place::of(&path, &reading)).await {
        Ok(Ok(place)) => place,
        Ok(Err(error)) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("read the log: {error}\n")),
        Err(error) => return refuse(StatusCode::INTERNAL_SERVER_ERROR, format!("read the log: {error}\n")),
    };
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    tokio::spawn(async move {
        let _permit = permit;
        send(place, query, (folder, uid), sender).await;
    });
    ([(header::CONTENT_TYPE, "text/plain")], Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

type Sender = mpsc::Sender<Result<Bytes, std::io::Error>>;

async fn send(mut place: Place, query: LogQuery, run: (RunFolder, String), sender: Sender) {
    let mut left = query.limit_bytes.unwrap_or(u64::MAX);
    loop {
        // Looked at before the log: what a run wrote before its end is read in any case.
        let ended = run.0.exit().is_some() || !run.0.0.exists();
        let reading = query.clone();
        let read = tokio::task::spawn_blocking(move || {
            let piece = place.read_on(&reading);
            (piece, place)
        });
        let Ok((piece, after)) = read.await else { return };
        place = after;
        let Piece { mut shown, more } = match piece {
            Ok(piece) => piece,
            Err(error) => {
                let _ = sender.send(Err(error)).await;
                return;
            }
        };
        let count = u64::try_from(shown.len()).unwrap_or(u64::MAX).min(left);
        left -= count;
        shown.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        if !shown.is_empty() && sender.send(Ok(Bytes::from(shown))).await.is_err() {
            return;
        }
        if left == 0 || (!more && (ended || !query.follow)) {
            return;
        }
        if !more {
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
    let found = found.ok_or_else(|| format!("pod {namespace}/{pod} is not on node {}\n", node.settings.node))?;
    let uid = found.uid().ok_or_else(|| format!("pod {namespace}/{pod} has no UID\n"))?;
    // The name becomes part of a path.
    let spec = found.spec.as_ref();
    let named = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    if !named.into_iter().any(|one| one.name == container) {
        return Err(format!("container {container} is not valid for pod {pod}\n"));
    }
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
