//! Watching a collection: events from a resource version on, initial events, bookmarks, selector transitions. A watch that lost its
//! history ends with a 410 `ERROR` event; it never skips silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream::{self, Stream};
use http::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Reply;
use super::list::{everything, forbidden, selector};
use crate::kube_api::api::{Api, Call, WatchPermit};
use crate::kube_api::kinds::Resource;
use crate::kube_api::objects::{decode, too_large};
use crate::kube_api::present;
use crate::kube_api::selectors::Selector;
use crate::kube_api::status::Refusal;
use crate::kube_api::tables::{Format, Renderer};
use crate::store::{EventKind, Watch, WatchEnd, WatchEvent};

/// How often a quiet watch says how far it has come.
const BOOKMARK_EVERY: Duration = Duration::from_secs(20);
/// How long a watch lasts if the client does not say; and at most.
const DEFAULT_SECONDS: i64 = 1800;
const MAX_SECONDS: i64 = 6 * 3600;
/// Annotation of the bookmark that ends the initial events.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Starts a watch.
pub async fn watch(
    call: &Call<'_>,
    api: &Arc<Api>,
    connection: &Arc<AtomicUsize>,
    format: Format,
) -> Result<Reply, Refusal> {
    let permit = api.open_watch(connection)?;
    let mut selector = selector(call)?;
    if !call.target.name.is_empty() {
        let both = format!("metadata.name={}", call.target.name);
        selector = Selector::parse(call.query.get("labelSelector"), &both, &[])?;
    }
    let bookmarks = call.query.flag("allowWatchBookmarks")?;
    let seconds = call.query.number("timeoutSeconds")?.filter(|s| *s > 0).unwrap_or(DEFAULT_SECONDS).min(MAX_SECONDS);
    let prefix = call.resource.prefix(&call.target.namespace);
    let mut lines = Lines {
        resource: call.resource.clone(),
        selector,
        renderer: Renderer::new(call.resource.clone(), format),
        out: Vec::new(),
    };
    let version = call.query.number("resourceVersion")?.unwrap_or_default();
    let asked = match call.query.get("sendInitialEvents") {
        "" => None,
        _ => Some(call.query.flag("sendInitialEvents")?),
    };
    check_initial(call, asked)?;
    let current = call.api.objects.revision();
    let start = if version > current {
        lines.error(&too_large(version, current));
        None
    } else {
        let initial = asked.unwrap_or(version == 0);
        let from = if initial {
            initial_events(call, &mut lines, asked, bookmarks).await?
        } else if version == 0 {
            current
        } else {
            version
        };
        match call.api.objects.watch(&prefix, from) {
            Ok(watch) => Some(watch),
            Err(refusal) => {
                lines.error(&refusal);
                None
            }
        }
    };
    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let now = Instant::now();
    let state = State {
        api: api.clone(),
        stopping: api.stopping.subscribe(),
        ends: now + seconds,
        next_mark: now + BOOKMARK_EVERY,
        bookmarks,
        watch: start,
        lines,
        last_mark: 0,
        _permit: permit,
    };
    let body = Body::from_stream(events(state));
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json;stream=watch"));
    Ok(Reply::Raw(response))
}

fn check_initial(call: &Call<'_>, asked: Option<bool>) -> Result<(), Refusal> {
    let matching = call.query.get("resourceVersionMatch");
    match asked {
        Some(true) if matching != "NotOlderThan" => {
            Err(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
        }
        None if !matching.is_empty() => {
            Err(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
        }
        _ => Ok(()),
    }
}

/// Writes everything there is as ADDED; answers the revision it was read at.
async fn initial_events(
    call: &Call<'_>,
    lines: &mut Lines,
    asked: Option<bool>,
    bookmarks: bool,
) -> Result<i64, Refusal> {
    let found = everything(call, &lines.selector).await?;
    for stored in found.items {
        lines.event("ADDED", stored.object);
    }
    if asked == Some(true) && bookmarks {
        lines.bookmark(found.revision, true);
    }
    Ok(found.revision)
}

struct State {
    api: Arc<Api>,
    stopping: tokio::sync::watch::Receiver<bool>,
    ends: Instant,
    next_mark: Instant,
    bookmarks: bool,
    watch: Option<Watch>,
    lines: Lines,
    last_mark: i64,
    _permit: WatchPermit,
}

fn events(state: State) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    stream::unfold(state, |mut state| async move {
        loop {
            if !state.lines.out.is_empty() {
                let bytes = Bytes::from(std::mem::take(&mut state.lines.out));
                return Some((Ok(bytes), state));
            }
            state.step().await?;
        }
    })
}

impl State {
    /// Waits for something to write; none once the watch is over.
    async fn step(&mut self) -> Option<()> {
        let watch = self.watch.as_mut()?;
        let wake = self.next_mark.min(self.ends);
        tokio::select! {
            batch = watch.next() => match batch {
                Ok(batch) => batch.events.iter().for_each(|e| self.lines.change(e, batch.revision)),
                Err(WatchEnd::Compacted { compacted }) => {
                    self.api.counters.watches_overrun.fetch_add(1, Ordering::Relaxed);
                    self.lines.error(&Refusal::expired(format!("too old resource version: the oldest is {compacted}")));
                    self.watch = None;
                }
                Err(WatchEnd::Closed) => self.watch = None,
            },
            _ = self.stopping.changed() => self.watch = None,
            () = tokio::time::sleep_until(wake) => {
                let progress = watch.progress();
                if self.bookmarks && progress > self.last_mark {
                    self.lines.bookmark(progress, false);
                    self.last_mark = progress;
                }
                self.next_mark += BOOKMARK_EVERY;
                if Instant::now() >= self.ends || !self.still_served() {
                    self.watch = None;
                }
            }
        }
        Some(())
    }

    fn still_served(&self) -> bool {
        let resource = &self.lines.resource;
        self.api.registry.served().find(&resource.group, &resource.version, &resource.plural).is_some()
    }
}

struct Lines {
    resource: Arc<Resource>,
    selector: Selector,
    renderer: Renderer,
    out: Vec<u8>,
}

impl Lines {
    fn change(&mut self, event: &WatchEvent, revision: i64) {
        let shown = |object: Value| present::show(&self.resource, object);
        let before = event.prev.as_ref().and_then(|kv| decode(kv).ok()).map(|s| shown(s.object));
        let selected_before = before.as_ref().map(|o| self.selector.matches(o));
        match event.kind {
            EventKind::Delete => {
                if let Some(object) = before.filter(|_| selected_before == Some(true)) {
                    self.event("DELETED", at_revision(object, revision));
                } else if selected_before.is_none() {
                    self.event("DELETED", at_revision(self.bare(&event.kv.key), revision));
                }
            }
            EventKind::Put => {
                let Ok(stored) = decode(&event.kv) else { return };
                let object = shown(stored.object);
                let created = event.kv.version == 1;
                match (self.selector.matches(&object), selected_before) {
                    (true, _) if created => self.event("ADDED", object),
                    (true, Some(false)) => self.event("ADDED", object),
                    (true, _) => self.event("MODIFIED", object),
                    (false, Some(true)) => {
                        if let Some(before) = before {
                            self.event("DELETED", at_revision(before, revision));
                        }
                    }
                    // What it was is forgotten: a DELETED too many is harmless, one too few is not.
                    (false, None) if !created => self.event("DELETED", at_revision(object, revision)),
                    (false, _) => {}
                }
            }
        }
    }

    /// An object of which only the key is known.
    fn bare(&self, key: &[u8]) -> Value {
        let text = String::from_utf8_lossy(key).into_owned();
        let mut parts = text.rsplit('/');
        let name = parts.next().unwrap_or_default();
        let namespace = parts.next().filter(|_| self.resource.namespaced).unwrap_or_default();
        let mut metadata = json!({"name": name});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        present::show(&self.resource, json!({"metadata": metadata}))
    }

    fn event(&mut self, kind: &str, object: Value) {
        let object = self.renderer.one(object);
        self.line(&json!({"type": kind, "object": object}));
    }

    fn bookmark(&mut self, revision: i64, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({INITIAL_END: "true"});
        }
        let object = self.renderer.bookmark(
            json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata}),
        );
        self.line(&json!({"type": "BOOKMARK", "object": object}));
    }

    fn error(&mut self, refusal: &Refusal) {
        self.line(&json!({"type": "ERROR", "object": refusal.to_status()}));
    }

    fn line(&mut self, value: &Value) {
        // Writing JSON into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.out, value);
        self.out.push(b'\n');
    }
}

fn at_revision(mut object: Value, revision: i64) -> Value {
    crate::kube_api::object::set_meta(&mut object, "resourceVersion", revision.to_string());
    object
}
