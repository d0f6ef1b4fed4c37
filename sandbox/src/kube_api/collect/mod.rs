//! The collector: removes what lost its owner, finishes foreground and orphaning deletions, empties namespaces and definitions that
//! are being deleted, and drops old Events. `graph` decides, this driver watches and acts. It deletes only with the UID it looked at.

pub mod graph;
pub mod sweep;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::api::Api;
use super::object::{self, Owner};
use super::objects::decode;
use super::status::{Reason, Refusal};
use crate::store::{EventKind, KUBE_PREFIX, Watch, WatchEnd};
use graph::{Action, Graph, Key};

/// How long after a change the collector looks again at everything, should it have missed something.
const RESYNC: Duration = Duration::from_secs(60);

/// Runs until told to stop.
pub async fn run(api: Arc<Api>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        tokio::select! {
            ended = round(&api) => {
                if let Err(refusal) = ended {
                    tracing::warn!(error = %refusal, "collect garbage: starting anew");
                }
            }
            _ = stop.changed() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
            _ = stop.changed() => return,
        }
    }
}

/// Reads everything, then follows changes until the watch ends or the next full look is due.
async fn round(api: &Arc<Api>) -> Result<(), Refusal> {
    let mut graph = Graph::default();
    let objects = api.objects.clone();
    let read = tokio::task::spawn_blocking(move || objects.all(KUBE_PREFIX)).await;
    let page = read.map_err(|_| Refusal::internal("reading all objects was interrupted"))??;
    for stored in page.items {
        graph.put(Key::parse(&stored.key), &stored.object, |key, owner| resolvable(api, key, owner));
    }
    let mut watch = api.objects.watch(KUBE_PREFIX, page.revision)?;
    graph.settle_all();
    sweep::everything(api).await?;
    let due = tokio::time::Instant::now() + RESYNC;
    loop {
        act(api, &mut graph).await?;
        match tokio::time::timeout_at(due, follow(api, &mut graph, &mut watch)).await {
            Ok(Ok(())) => {}
            Ok(Err(WatchEnd::Compacted { .. })) | Err(_) => return Ok(()),
            Ok(Err(WatchEnd::Closed)) => return Err(Refusal::new(Reason::ServiceUnavailable, "the store is closed")),
        }
    }
}

/// Whether an owner reference is one this server can judge.
fn resolvable(api: &Api, key: &Key, owner: &Owner) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let kind = api.registry.served().find_kind(group, &owner.kind);
    kind.is_some_and(|owner| !owner.namespaced || !key.namespace.is_empty())
}

async fn follow(api: &Arc<Api>, graph: &mut Graph, watch: &mut Watch) -> Result<(), WatchEnd> {
    let batch = watch.next().await?;
    let mut emptied = false;
    for event in &batch.events {
        let key = Key::parse(&event.kv.key);
        match event.kind {
            EventKind::Delete => {
                graph.gone(&key);
                emptied |= api.terminating(&key.namespace, &key.group, &key.plural);
            }
            EventKind::Put => {
                if let Ok(stored) = decode(&event.kv) {
                    emptied |= sweep::concerns(&key, &stored.object);
                    graph.put(key, &stored.object, |key, owner| resolvable(api, key, owner));
                }
            }
        }
    }
    if emptied && let Err(refusal) = sweep::everything(api).await {
        tracing::warn!(error = %refusal, "empty what is being deleted");
    }
    Ok(())
}

/// Does what the graph asks for; what fails is asked for again at the next full look.
async fn act(api: &Arc<Api>, graph: &mut Graph) -> Result<(), Refusal> {
    while let Some(action) = graph.next_action() {
        let done = match &action {
            Action::Delete { key, uid, foreground } => delete(api, key, uid, *foreground).await,
            Action::DropOwners { key, uid, owners } => drop_owners(api, key, uid, owners).await,
            Action::DropFinalizer { key, uid, finalizer } => drop_finalizer(api, key, uid, finalizer).await,
        };
        match done {
            Ok(()) => {}
            Err(refusal) if matches!(refusal.reason, Reason::NotFound | Reason::Conflict) => {}
            Err(refusal) => tracing::warn!(error = %refusal, action = ?action, "collect garbage"),
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn delete(api: &Arc<Api>, key: &Key, uid: &str, foreground: bool) -> Result<(), Refusal> {
    use super::verbs::delete::{Options, Propagation, remove};
    let Some(call) = sweep::call_for(api, key) else { return Ok(()) };
    let propagation = if foreground { Propagation::Foreground } else { Propagation::Background };
    let options = Options { uid: Some(uid.to_owned()), propagation: Some(propagation), ..Options::default() };
    remove(&call, &key.name, &options).await.map(|_| ())
}

async fn drop_owners(api: &Arc<Api>, key: &Key, uid: &str, owners: &[String]) -> Result<(), Refusal> {
    edit(api, key, uid, |object| {
        let kept: Vec<Value> = object::list(object, &["metadata", "ownerReferences"])
            .iter()
            .filter(|o| !owners.iter().any(|gone| gone == object::text(o, &["uid"])))
            .cloned()
            .collect();
        if kept.is_empty() {
            object::remove_meta(object, "ownerReferences");
        } else {
            object::set_meta(object, "ownerReferences", kept);
        }
    })
    .await
}

async fn drop_finalizer(api: &Arc<Api>, key: &Key, uid: &str, finalizer: &str) -> Result<(), Refusal> {
    edit(api, key, uid, |object| {
        let kept = object::finalizers(object).into_iter().filter(|f| *f != finalizer).map(str::to_owned).collect();
        object::set_finalizers(object, kept);
    })
    .await
}

async fn edit(api: &Arc<Api>, key: &Key, uid: &str, change: impl Fn(&mut Value)) -> Result<(), Refusal> {
    use super::write::{Edited, change as write};
    let Some(call) = sweep::call_for(api, key) else { return Ok(()) };
    write(&call, &key.name, |current| {
        if object::uid(current) != uid {
            return Err(call.not_found(&key.name));
        }
        let mut object = current.clone();
        change(&mut object);
        Ok(Edited { object, tracked: true })
    })
    .await
    .map(|_| ())
}
