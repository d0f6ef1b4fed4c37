//! The wire in front of the Kubernetes API: one port for each life of an operator. Watches pass event by event.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::StreamExt;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::effect::{self, Asked};
use super::mutant::{Bug, Twist};
use super::truth;
use super::wire::{Gate, Life};

const MOST: usize = 64 * 1024 * 1024;

/// Serves a life until the runtime ends; the life is over long before.
pub async fn serve(life: Arc<Life>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().fallback(handle).with_state(life);
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn handle(State(life): State<Arc<Life>>, request: Request) -> Response {
    // By itself, so that a request that was sent goes on when its sender is gone, as on a network.
    let answered = tokio::spawn(answer(life, request)).await;
    match answered {
        Ok(Some(response)) => response,
        // Its sender is dead, or gave up.
        _ => std::future::pending().await,
    }
}

fn status(code: u16) -> Response {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        504 => "Timeout",
        _ => "ServiceUnavailable",
    };
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": "the harness says no"});
    plain(code, &body)
}

fn plain(code: u16, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

async fn answer(life: Arc<Life>, request: Request) -> Option<Response> {
    let under_way = life.enter();
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, MOST).await.ok()?;
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let asked = effect::asked(parts.uri.path(), &query);
    for name in ["host", "content-length", "connection"] {
        parts.headers.remove(name);
    }
    parts.uri = parts.uri.path_and_query().cloned().map(http::Uri::from).unwrap_or_default();
    let Some(asked) = asked else { return forward(&life, parts, body).await };
    if asked.plural == "leases" {
        drop(under_way);
        return lease(&life, parts, body).await;
    }
    if asked.watches {
        drop(under_way);
        return watch(&life, parts, asked).await;
    }
    let Some(effect) = effect::of_kubernetes(&parts.method, &asked, &body) else {
        return read(&life, parts, body, &asked, &query).await;
    };
    if asked.subresource == "status" && is_figure(&life, &asked, &body).await {
        drop(under_way);
        return if life.is_dead() { None } else { forward(&life, parts, body).await };
    }
    let (gate, nth) = life.before(&effect).await;
    match gate {
        Gate::Go => {}
        Gate::Answer(code) => return Some(status(code)),
        Gate::Never => return None,
    }
    let response = change(&life, parts, body, &asked, &effect).await?;
    match life.after(&effect, nth).await {
        Gate::Go => Some(response),
        Gate::Answer(code) => Some(status(code)),
        Gate::Never => None,
    }
}

async fn forward(life: &Life, parts: http::request::Parts, body: Bytes) -> Option<Response> {
    let request = http::Request::from_parts(parts, body.to_vec().into());
    let answered = life.wire.user.send(request).await;
    let Ok(response) = answered else { return Some(status(503)) };
    let (mut head, body) = response.into_parts();
    for name in ["connection", "transfer-encoding", "content-length"] {
        head.headers.remove(name);
    }
    Some(Response::from_parts(head, Body::new(body)))
}

/// Whether a status is only brought up to date in its figures: that may happen at any time.
async fn is_figure(life: &Life, asked: &Asked, body: &Bytes) -> bool {
    if !matches!(asked.plural.as_str(), "fleets" | "cells" | "storagecells") {
        return false;
    }
    let live = super::stage::object(&life.wire.user, &life.wire.namespace, &asked.plural, &asked.name).await;
    let written: Value = serde_json::from_slice(body).unwrap_or_default();
    live.is_some_and(|live| {
        let generation = |status: &Value| status["observedGeneration"].clone();
        let (live, written) = (&live["status"], &written["status"]);
        generation(live) == generation(written) && super::snapshot::same_but_figures(live, written)
    })
}

/// The Lease: never part of a plan's effects, but frozen as a whole.
async fn lease(life: &Life, parts: http::request::Parts, body: Bytes) -> Option<Response> {
    let changes = parts.method != Method::GET;
    if life.is_dead() {
        return None;
    }
    if life.wire.is_frozen(life.number) {
        if life.wire.mutant.bug == Bug::IgnoresItsLease && changes {
            return Some(plain(200, &serde_json::from_slice(&body).unwrap()));
        }
        return None;
    }
    let response = forward(life, parts, body).await?;
    if changes && response.status().is_success() {
        life.renew();
    }
    Some(response)
}

async fn read(life: &Life, parts: http::request::Parts, body: Bytes, asked: &Asked, query: &str) -> Option<Response> {
    if life.is_dead() {
        return None;
    }
    let wire = &life.wire;
    let kept = query.split('&').filter(|pair| !pair.starts_with("resourceVersion") && !pair.starts_with("timeout"));
    let accept = parts.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let question = format!("{} {} {accept}", parts.uri.path(), kept.collect::<Vec<_>>().join("&"));
    let is_read = parts.method == Method::GET;
    if is_read && let Some(old) = wire.old_answer(&asked.plural, &question) {
        let mut response = Response::new(Body::from(old.clone()));
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
        delete_by(life, asked, &old, true).await;
        let missing = serde_json::from_slice::<Value>(&old).is_ok_and(|old| old["kind"] == "Status");
        *response.status_mut() = if missing { StatusCode::NOT_FOUND } else { StatusCode::OK };
        return Some(response);
    }
    let (mut head, body) = forward(life, parts, body).await?.into_parts();
    let mut body = to_bytes(body, MOST).await.ok()?;
    if is_read && (head.status.is_success() || head.status == StatusCode::NOT_FOUND) {
        wire.remember(&question, &body);
        if let Ok(mut value) = serde_json::from_slice::<Value>(&body)
            && wire.mutant.answer(asked, &mut value)
        {
            body = Bytes::from(value.to_string());
        }
    }
    head.headers.remove("content-length");
    Some(Response::from_parts(head, Body::from(body)))
}

/// A planted bug: what a list does not hold is deleted.
async fn delete_by(life: &Life, asked: &Asked, list: &Bytes, old: bool) {
    if !life.wire.mutant.deletes_by(asked, old) {
        return;
    }
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let known: Vec<&str> =
        list["items"].as_array().into_iter().flatten().filter_map(|one| one["metadata"]["name"].as_str()).collect();
    let sets = super::stage::objects(&life.wire.user, &life.wire.namespace, "statefulsets").await;
    for set in sets {
        let name = set["metadata"]["name"].as_str().unwrap_or_default();
        if !name.ends_with("-store") && !known.iter().any(|cell| name.starts_with(&format!("{cell}-"))) {
            let api = super::stage::api(&life.wire.user, &life.wire.namespace, "statefulsets");
            if api.delete(name, &Default::default()).await.is_ok() {
                life.wire.note(format!("deleted statefulsets/{name}"));
            }
        }
    }
}

/// A request that changes something, sent to the server and its outcome noted.
async fn change(
    life: &Life,
    parts: http::request::Parts,
    body: Bytes,
    asked: &Asked,
    effect: &str,
) -> Option<Response> {
    let wire = &life.wire;
    let mut body = hurry(asked, body);
    if wire.mutant.bug != Bug::None && !body.is_empty() {
        let there = super::stage::object(&wire.user, &wire.namespace, &asked.plural, &asked.name).await;
        let mut value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let live = there.clone().unwrap_or_default();
        match wire.mutant.request(life.number, effect, there.is_some(), &live, &mut value) {
            Twist::Pass => body = Bytes::from(value.to_string()),
            Twist::Swallow => return Some(plain(200, &there.unwrap_or(value))),
        }
    }
    if asked.subresource == "status"
        && wire.checks_standing()
        && let Some(lie) = truth::lie(&wire.user, &wire.namespace, asked, &body).await
    {
        wire.violate(format!("{effect}: {lie}"));
    }
    if asked.subresource == "status" && std::env::var_os("CELLPLANE_HARNESS_SAY").is_some() {
        let live = super::stage::object(&wire.user, &wire.namespace, &asked.plural, &asked.name).await;
        println!(
            "{} {effect}: {}\n  was {}",
            wire.namespace,
            String::from_utf8_lossy(&body),
            live.unwrap_or_default()["status"]
        );
    }
    let method = parts.method.clone();
    let response = forward(life, parts, body).await?;
    let named = effect.split_once(' ').map_or(effect, |(_, named)| named);
    match (method, response.status()) {
        (Method::DELETE, code) if code.is_success() => wire.note(format!("deleted {named}")),
        (_, StatusCode::CREATED) => wire.note(format!("created {named}")),
        _ => {}
    }
    // Taken apart here, so that what comes after the server's answer comes after all of it.
    let (head, body) = response.into_parts();
    let body = to_bytes(body, MOST).await.ok()?;
    Some(Response::from_parts(head, Body::from(body)))
}

/// A Move that the operator makes of itself holds for half a minute; a run cannot wait that long.
fn hurry(asked: &Asked, body: Bytes) -> Bytes {
    if asked.plural != "moves" || !asked.subresource.is_empty() {
        return body;
    }
    let Ok(mut one) = serde_json::from_slice::<Value>(&body) else { return body };
    if one["spec"]["rollbackWindowSeconds"] != 30 {
        return body;
    }
    one["spec"]["rollbackWindowSeconds"] = json!(1);
    Bytes::from(one.to_string())
}

/// A watch: its events pass one by one, wait, or are told as the last of each object.
async fn watch(life: &Arc<Life>, parts: http::request::Parts, asked: Asked) -> Option<Response> {
    if life.is_dead() {
        return None;
    }
    let cut = life.wire.cut();
    let mut gone = life.wire.gone();
    gone.mark_unchanged();
    let response = forward(life, parts, Bytes::new()).await?;
    if !response.status().is_success() {
        return Some(response);
    }
    let (head, body) = response.into_parts();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(64);
    let life = life.clone();
    tokio::spawn(async move {
        let pump = pump(&life, &asked, body, &sender);
        tokio::select! {
            () = pump => {}
            () = sender.closed() => {}
            () = cut.cancelled() => {}
            _ = gone.changed() => {
                let error = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "reason": "Expired", "code": 410, "message": "too old resource version"}});
                let _closed = sender.send(Ok(Bytes::from(format!("{error}\n")))).await;
            }
        }
    });
    Some(Response::from_parts(head, Body::from_stream(ReceiverStream::new(receiver))))
}

async fn pump(life: &Life, asked: &Asked, body: Body, sender: &mpsc::Sender<Result<Bytes, std::io::Error>>) {
    let mut upstream = body.into_data_stream();
    let (mut text, mut held, mut collapses) = (Vec::<u8>::new(), VecDeque::<Value>::new(), false);
    loop {
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            held.push_back(serde_json::from_slice(&line).unwrap_or_default());
        }
        let wait = life.wire.hold(&asked.plural);
        collapses |= wait.is_some_and(|(_, collapses)| collapses);
        if wait.is_none() {
            if collapses {
                held = last_of_each(held);
                collapses = false;
            }
            for event in held.drain(..) {
                life.wire.mutant.told(&asked.plural, &event);
                if sender.send(Ok(Bytes::from(format!("{event}\n")))).await.is_err() {
                    return;
                }
            }
        }
        let until = wait.map_or_else(|| Instant::now() + Duration::from_secs(3_600), |(until, _)| until);
        tokio::select! {
            piece = upstream.next() => match piece {
                Some(Ok(piece)) => text.extend_from_slice(&piece),
                _ => return,
            },
            () = tokio::time::sleep_until(until.into()) => {}
        }
    }
}

/// As a cache that was refreshed late would tell it. Bookmarks come last: they speak of everything before them.
fn last_of_each(events: VecDeque<Value>) -> VecDeque<Value> {
    let key = |event: &Value| event["object"]["metadata"]["uid"].as_str().map(str::to_owned);
    let mut kept = VecDeque::new();
    for (index, event) in events.iter().enumerate() {
        let later = events.iter().skip(index + 1).any(|later| key(later).is_some() && key(later) == key(event));
        if !later {
            kept.push_back(event.clone());
        }
    }
    kept
}
