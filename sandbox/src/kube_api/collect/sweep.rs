//! Emptying namespaces and definitions that are being deleted, and dropping Events past their time. It deletes content only of what is
//! already marked for deletion.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::graph::Key;
use crate::kube_api::admit::DEFINITION_FINALIZER;
use crate::kube_api::api::{Api, Call};
use crate::kube_api::object::{self, text};
use crate::kube_api::objects::prefix;
use crate::kube_api::status::{Reason, Refusal};
use crate::kube_api::verbs::delete::{Options, remove};
use crate::kube_api::write::{Edited, change};

/// How long an Event is kept after it last happened, in seconds.
pub const EVENT_SECONDS: i64 = 3600;

/// A server's own call on the object stored at a key, if its resource is served.
pub fn call_for<'a>(api: &'a Arc<Api>, key: &Key) -> Option<Call<'a>> {
    let resource =
        api.registry.served().all().iter().find(|r| r.stored_as == (key.group.clone(), key.plural.clone())).cloned()?;
    Some(Call::server(api, resource, &key.namespace, &key.name))
}

/// Whether a changed object may let a deletion of its container go on.
pub fn concerns(key: &Key, object: &Value) -> bool {
    object::deleting(object) && matches!(key.plural.as_str(), "namespaces" | "customresourcedefinitions")
}

/// One full sweep.
pub async fn everything(api: &Arc<Api>) -> Result<(), Refusal> {
    for stored in api.objects.all(&prefix("", "namespaces", ""))?.items {
        if object::deleting(&stored.object) {
            namespace(api, object::name(&stored.object)).await?;
        }
    }
    for stored in api.objects.all(&prefix("apiextensions.k8s.io", "customresourcedefinitions", ""))?.items {
        if object::deleting(&stored.object) {
            definition(api, &stored.object).await?;
        }
    }
    events(api, object::now()).await
}

async fn namespace(api: &Arc<Api>, name: &str) -> Result<(), Refusal> {
    let served = api.registry.served();
    let mut left = 0;
    for resource in served.all().iter().filter(|r| r.namespaced && r.group == r.stored_as.0) {
        left += clear(api, Call::server(api, resource.clone(), name, ""), name).await?;
    }
    if left > 0 {
        return Ok(());
    }
    let key = Key { plural: "namespaces".into(), name: name.to_owned(), ..Key::default() };
    let Some(call) = call_for(api, &key) else { return Ok(()) };
    ignore_gone(
        change(&call, name, |current| {
            let mut object = current.clone();
            object::child(&mut object, "spec").remove("finalizers");
            Ok(Edited { object, tracked: true })
        })
        .await
        .map(|_| ()),
    )
}

async fn definition(api: &Arc<Api>, definition: &Value) -> Result<(), Refusal> {
    let group = text(definition, &["spec", "group"]);
    let plural = text(definition, &["spec", "names", "plural"]);
    let resource = api.registry.served().all().iter().find(|r| r.is(group, plural) && r.custom().is_some()).cloned();
    if let Some(resource) = resource
        && clear(api, Call::server(api, resource, "", ""), "").await? > 0
    {
        return Ok(());
    }
    let key = Key {
        group: "apiextensions.k8s.io".into(),
        plural: "customresourcedefinitions".into(),
        name: object::name(definition).to_owned(),
        ..Key::default()
    };
    let Some(call) = call_for(api, &key) else { return Ok(()) };
    ignore_gone(
        change(&call, &key.name, |current| {
            let mut object = current.clone();
            let kept = object::finalizers(current)
                .into_iter()
                .filter(|f| *f != DEFINITION_FINALIZER)
                .map(str::to_owned)
                .collect();
            object::set_finalizers(&mut object, kept);
            Ok(Edited { object, tracked: true })
        })
        .await
        .map(|_| ()),
    )
}

/// Deletes every object of a collection; answers how many are still there.
async fn clear(api: &Arc<Api>, call: Call<'_>, namespace: &str) -> Result<usize, Refusal> {
    let prefix = call.resource.prefix(namespace);
    for stored in api.objects.all(&prefix)?.items {
        if !object::deleting(&stored.object) {
            let one = Call::server(
                api,
                call.resource.clone(),
                object::namespace(&stored.object),
                object::name(&stored.object),
            );
            ignore_gone(remove(&one, object::name(&stored.object), &Options::default()).await.map(|_| ()))?;
        }
    }
    api.objects.count(&prefix)
}

/// Drops Events that last happened more than an hour before `now`.
pub async fn events(api: &Arc<Api>, now: Timestamp) -> Result<(), Refusal> {
    let oldest = object::rfc3339(object::plus_seconds(now, -EVENT_SECONDS));
    for stored in api.objects.all(&prefix("", "events", ""))?.items {
        if last_seen(&stored.object) < oldest.as_str() {
            let key = Key::parse(&stored.key);
            let Some(call) = call_for(api, &key) else { return Ok(()) };
            ignore_gone(remove(&call, &key.name, &Options::default()).await.map(|_| ()))?;
        }
    }
    Ok(())
}

/// When an Event last happened; all its times are RFC 3339 in UTC, so they compare as text.
pub fn last_seen(event: &Value) -> &str {
    let times = [
        text(event, &["series", "lastObservedTime"]),
        text(event, &["lastTimestamp"]),
        text(event, &["eventTime"]),
        text(event, &["metadata", "creationTimestamp"]),
    ];
    times.into_iter().max().unwrap_or_default()
}

fn ignore_gone(done: Result<(), Refusal>) -> Result<(), Refusal> {
    match done {
        Err(refusal) if matches!(refusal.reason, Reason::NotFound | Reason::Conflict) => Ok(()),
        other => other,
    }
}
