//! Watching: order, selectors, bookmarks, initial events, and the end of history.

use futures::AsyncBufReadExt;
use http::Request;
use serde_json::{Value, json};

use super::{CONFIG_MAPS, DEADLINE, PODS, Sandbox, config_map, pod};
use crate::store::StoreOptions;

pub struct Events {
    lines: Box<dyn futures::Stream<Item = std::io::Result<String>> + Unpin + Send>,
}

impl Events {
    async fn open(s: &Sandbox, path: &str) -> Self {
        Self::open_as(&s.client, path, "application/json").await
    }

    pub async fn open_as(client: &kube::Client, path: &str, accept: &str) -> Self {
        let request = Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
        let lines = client.request_stream(request).await.unwrap().lines();
        Self { lines: Box::new(Box::pin(lines)) }
    }

    pub async fn next(&mut self) -> Option<Value> {
        use futures::StreamExt;
        let line = tokio::time::timeout(DEADLINE, self.lines.next()).await.expect("an event in time");
        line.map(|l| serde_json::from_str(&l.unwrap()).unwrap())
    }

    async fn short(&mut self) -> String {
        let event = self.next().await.unwrap_or_else(|| json!({"type": "END"}));
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap_or_default()).trim().to_owned()
    }
}

#[tokio::test]
async fn a_watch_goes_on_where_the_list_ended() {
    let s = Sandbox::start().await;
    s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    let version = s.get(CONFIG_MAPS).await.ok()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    s.post(CONFIG_MAPS, config_map("b", "1")).await.ok();
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?watch=true&resourceVersion={version}")).await;
    assert_eq!(events.short().await, "ADDED b");
    s.merge(&format!("{CONFIG_MAPS}/a"), json!({"data": {"key": "2"}})).await.ok();
    let modified = events.next().await.unwrap();
    assert_eq!((modified["type"].as_str(), modified["object"]["data"]["key"].as_str()), (Some("MODIFIED"), Some("2")));
    s.delete(&format!("{CONFIG_MAPS}/a"), json!({})).await.ok();
    let deleted = events.next().await.unwrap();
    assert_eq!((deleted["type"].as_str(), deleted["object"]["data"]["key"].as_str()), (Some("DELETED"), Some("2")));
    let at: i64 = deleted["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert_eq!(at, s.store.revision());
    s.stop().await;
}

#[tokio::test]
async fn crossing_a_selector_adds_and_deletes() {
    let s = Sandbox::start().await;
    s.post(PODS, pod("in")).await.ok();
    let mut events = Events::open(&s, &format!("{PODS}?watch=true&labelSelector=app%3Dweb")).await;
    assert_eq!(events.short().await, "ADDED in");
    s.merge(&format!("{PODS}/in"), json!({"metadata": {"labels": {"app": "db"}}})).await.ok();
    assert_eq!(events.short().await, "DELETED in");
    s.merge(&format!("{PODS}/in"), json!({"metadata": {"labels": {"x": "y"}}})).await.ok();
    s.merge(&format!("{PODS}/in"), json!({"metadata": {"labels": {"app": "web"}}})).await.ok();
    assert_eq!(events.short().await, "ADDED in");
    s.merge(&format!("{PODS}/in"), json!({"metadata": {"labels": {"x": "z"}}})).await.ok();
    assert_eq!(events.short().await, "MODIFIED in");
    s.stop().await;
}

#[tokio::test]
async fn initial_events_end_with_their_bookmark() {
    let s = Sandbox::start().await;
    s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    s.post(CONFIG_MAPS, config_map("b", "1")).await.ok();
    let query = "watch=true&sendInitialEvents=true&allowWatchBookmarks=true";
    s.get(&format!("{CONFIG_MAPS}?{query}")).await.refused(422, "Invalid");
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?{query}&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(events.short().await, "ADDED a");
    assert_eq!(events.short().await, "ADDED b");
    let mark = events.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(mark["object"]["metadata"]["resourceVersion"], s.store.revision().to_string());
    s.post(CONFIG_MAPS, config_map("c", "1")).await.ok();
    assert_eq!(events.short().await, "ADDED c");
    s.stop().await;
}

#[tokio::test]
async fn a_version_whose_history_is_gone_ends_with_410() {
    let s = Sandbox::start().await;
    let old = s.post(CONFIG_MAPS, config_map("a", "1")).await.ok()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    for i in 0..3 {
        s.merge(&format!("{CONFIG_MAPS}/a"), json!({"data": {"key": i.to_string()}})).await.ok();
    }
    s.store.compact(s.store.revision()).await.unwrap();
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?watch=true&resourceVersion={old}")).await;
    let error = events.next().await.unwrap();
    assert_eq!(
        (error["type"].as_str(), error["object"]["code"].as_i64(), error["object"]["reason"].as_str()),
        (Some("ERROR"), Some(410), Some("Expired"))
    );
    assert!(events.next().await.is_none());
    s.stop().await;
}

#[tokio::test]
async fn a_version_of_the_future_ends_with_an_error() {
    let s = Sandbox::start().await;
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?watch=true&resourceVersion=999999")).await;
    let error = events.next().await.unwrap();
    assert_eq!((error["type"].as_str(), error["object"]["code"].as_i64()), (Some("ERROR"), Some(504)));
    s.stop().await;
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark_possible_before() {
    let s = Sandbox::start().await;
    let mut events =
        Events::open(&s, &format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    let mut kinds = Vec::new();
    while let Some(event) = events.next().await {
        kinds.push(event["type"].as_str().unwrap().to_owned());
    }
    assert!(kinds.iter().all(|k| k == "BOOKMARK" || k == "ADDED"), "{kinds:?}");
    s.stop().await;
}

#[tokio::test]
async fn watched_tables_name_their_columns_once() {
    let s = Sandbox::start().await;
    s.post(PODS, pod("a")).await.ok();
    s.post(PODS, pod("b")).await.ok();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut events = Events::open_as(&s.client, &format!("{PODS}?watch=true"), accept).await;
    let (one, two) = (events.next().await.unwrap(), events.next().await.unwrap());
    assert!(one["object"]["columnDefinitions"].is_array() && two["object"]["columnDefinitions"].is_null());
    assert_eq!(two["object"]["rows"][0]["cells"][0], "b");
    s.stop().await;
}

#[tokio::test]
async fn one_connection_may_not_hold_endless_watches() {
    let s = Sandbox::start().await;
    let connection = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut held = Vec::new();
    let refusal = loop {
        match s.kube.api().open_watch(&connection) {
            Ok(permit) => held.push(permit),
            Err(refusal) => break refusal,
        }
        assert!(held.len() < 100_000, "a bound exists");
    };
    assert_eq!(refusal.reason.code(), 429);
    assert!(refusal.details.retry_after.is_some());
    drop(held);
    assert_eq!(connection.load(std::sync::atomic::Ordering::Relaxed), 0);
    s.stop().await;
}

#[tokio::test]
async fn a_slow_watcher_misses_nothing() {
    let options = StoreOptions { watch_queue: 4, ..StoreOptions::sandbox() };
    let s = Sandbox::start_in(tempfile::tempdir().unwrap(), options).await;
    let version = s.store.revision();
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?watch=true&resourceVersion={version}")).await;
    for i in 0..100 {
        s.post(CONFIG_MAPS, config_map(&format!("c{i}"), "1")).await.ok();
    }
    for i in 0..100 {
        assert_eq!(events.short().await, format!("ADDED c{i}"));
    }
    s.stop().await;
}

#[tokio::test]
async fn stopping_ends_watches() {
    let s = Sandbox::start().await;
    let mut events = Events::open(&s, &format!("{CONFIG_MAPS}?watch=true")).await;
    let (ended, _) = tokio::join!(events.next(), s.stop());
    assert!(ended.is_none());
}
