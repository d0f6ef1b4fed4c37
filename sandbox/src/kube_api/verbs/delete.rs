//! DELETE of an object and of a collection: preconditions, finalizers, grace, propagation. What owned objects become of is decided in
//! `collect`; here an owner is only marked.

use serde_json::{Value, json};

use super::Reply;
use super::list::{everything, selector};
use crate::kube_api::api::Call;
use crate::kube_api::objects::Stored;
use crate::kube_api::request::Query;
use crate::kube_api::status::{Fault, FieldError, Reason, Refusal};
use crate::kube_api::write::{after, finished};
use crate::kube_api::{object, present};

/// Keeps an owner until its dependents are gone.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Keeps an owner until its dependents are freed of it.
pub const ORPHAN: &str = "orphan";
const ATTEMPTS: usize = 24;
/// Core kinds of which a deletion answers the object itself.
const SHOWN: [&str; 5] = ["pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims"];
/// Objects of a collection deleted side by side, so that the store can make them durable together.
const AT_ONCE: usize = 64;

/// What becomes of dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub grace_seconds: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<Propagation>,
}

impl Options {
    /// From the body alone, or, without one, from the query.
    pub fn parse(body: Option<&Value>, query: &Query) -> Result<(Self, bool), Refusal> {
        let (empty, none) = (Value::Null, Query::default());
        let query = if body.is_some() { &none } else { query };
        let body = body.unwrap_or(&empty);
        let word = |path: &[&str]| Some(object::text(body, path)).filter(|s| !s.is_empty()).map(str::to_owned);
        let grace_seconds = match body.get("gracePeriodSeconds").and_then(Value::as_i64) {
            Some(seconds) => Some(seconds),
            None => query.number("gracePeriodSeconds")?,
        };
        if grace_seconds.is_some_and(|s| s < 0) {
            return Err(Refusal::bad_request("gracePeriodSeconds must not be negative"));
        }
        let policy = word(&["propagationPolicy"]).unwrap_or_else(|| query.get("propagationPolicy").to_owned());
        let orphan = match body.get("orphanDependents").and_then(Value::as_bool) {
            Some(orphan) => Some(orphan),
            None if query.get("orphanDependents").is_empty() => None,
            None => Some(query.flag("orphanDependents")?),
        };
        let propagation = match (policy.as_str(), orphan) {
            ("", None) => None,
            ("", Some(true)) | ("Orphan", None) => Some(Propagation::Orphan),
            ("", Some(false)) | ("Background", None) => Some(Propagation::Background),
            ("Foreground", None) => Some(Propagation::Foreground),
            (_, Some(_)) => {
                return Err(Refusal::bad_request("orphanDependents and propagationPolicy exclude each other"));
            }
            (other, None) => {
                let detail = "supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"";
                let error = FieldError::new(Fault::NotSupported, "propagationPolicy", Some(&other.into()), detail);
                return Err(Refusal::bad_option("DeleteOptions", error));
            }
        };
        let wanted = object::list(body, &["dryRun"]);
        if let Some(other) = wanted.iter().find(|value| *value != "All") {
            // Whoever wanted to try only must not be taken at less than their word.
            let error = FieldError::new(Fault::NotSupported, "dryRun", Some(other), "supported values: \"All\"");
            return Err(Refusal::bad_option("DeleteOptions", error));
        }
        let dry_run = !wanted.is_empty();
        let options = Self {
            grace_seconds,
            uid: word(&["preconditions", "uid"]),
            resource_version: word(&["preconditions", "resourceVersion"]),
            propagation,
        };
        Ok((options, dry_run))
    }
}

/// What a deletion did.
pub enum Deleted {
    /// The object is gone.
    Gone(Value),
    /// The object is marked, and waits for finalizers, grace or its content.
    Marked(Value),
}

/// Deletes the object the call names.
pub async fn delete(call: &Call<'_>, options: &Options) -> Result<Reply, Refusal> {
    match remove(call, &call.target.name, &by_default(call, options)).await? {
        Deleted::Marked(object) => Ok(Reply::ok(object)),
        Deleted::Gone(mut object)
            if call.resource.group.is_empty() && SHOWN.contains(&call.resource.plural.as_str()) =>
        {
            // Only a Pod is marked on its way out.
            if !call.resource.is("", "pods") {
                object::remove_meta(&mut object, "deletionTimestamp");
                object::remove_meta(&mut object, "deletionGracePeriodSeconds");
            }
            Ok(Reply::ok(object))
        }
        Deleted::Gone(object) => {
            let mut details =
                json!({"name": call.target.name, "kind": call.resource.plural, "uid": object::uid(&object)});
            if !call.resource.group.is_empty() {
                details["group"] = call.resource.group.as_str().into();
            }
            let body =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Ok(Reply::Plain { code: 200, body })
        }
    }
}

/// What a client that says nothing means: Jobs leave their Pods behind, as they always did in this version of their API.
fn by_default(call: &Call<'_>, options: &Options) -> Options {
    let mut options = options.clone();
    if call.resource.is("batch", "jobs") {
        options.propagation.get_or_insert(Propagation::Orphan);
    }
    options
}

/// Deletes everything selected; answers what it found.
pub async fn delete_collection(call: &Call<'_>, options: &Options) -> Result<Reply, Refusal> {
    let found = everything(call, &selector(call)?).await?;
    let mut items = Vec::new();
    let options = by_default(call, options);
    for chunk in found.items.chunks(AT_ONCE) {
        let removals = chunk.iter().map(|stored| remove_listed(call, stored, &options));
        for done in futures::future::join_all(removals).await {
            items.extend(done?);
        }
    }
    Ok(Reply::List(json!({"kind": format!("{}List", call.resource.kind), "apiVersion": call.resource.api_version(),
        "metadata": {"resourceVersion": call.api.objects.revision().to_string()}, "items": items})))
}

/// Deletes one object of a collection; none if it was gone already, which is what was asked for.
async fn remove_listed(call: &Call<'_>, stored: &Stored, options: &Options) -> Result<Option<Value>, Refusal> {
    let mut one = Call {
        api: call.api,
        resource: call.resource.clone(),
        target: call.target.clone(),
        query: Query::default(),
        manager: call.manager.clone(),
        ..*call
    };
    one.target.namespace = object::namespace(&stored.object).to_owned();
    match remove(&one, object::name(&stored.object), options).await {
        Ok(_) => Ok(Some(stored.object.clone())),
        Err(refusal) if refusal.reason == Reason::NotFound => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Deletes or marks one object.
pub async fn remove(call: &Call<'_>, name: &str, options: &Options) -> Result<Deleted, Refusal> {
    if call.resource.is("", "namespaces") && matches!(name, "default" | "kube-system" | "kube-public") {
        let message = format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted");
        return Err(Refusal::new(Reason::Forbidden, message).about("", "namespaces", name));
    }
    for _ in 0..ATTEMPTS {
        let current = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?;
        check_preconditions(call, name, &current, options)?;
        let mut new = current.object.clone();
        mark(call, &mut new, options);
        if finished(&new) {
            if call.dry_run {
                return Ok(Deleted::Gone(present::show(&call.resource, new)));
            }
            if let Some(revision) = call.api.objects.delete(&current.key, current.revision).await? {
                after(call)?;
                object::set_meta(&mut new, "resourceVersion", revision.to_string());
                return Ok(Deleted::Gone(present::show(&call.resource, new)));
            }
            continue;
        }
        if new == current.object || call.dry_run {
            return Ok(Deleted::Marked(present::show(&call.resource, new)));
        }
        if let Some(stored) = call.api.objects.replace(&current.key, &new, current.revision).await? {
            after(call)?;
            return Ok(Deleted::Marked(present::show(&call.resource, stored.object)));
        }
    }
    Err(call.conflict(name, "the object kept changing: try again"))
}

fn check_preconditions(call: &Call<'_>, name: &str, current: &Stored, options: &Options) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::conflict(&call.resource.group, &call.resource.kind, name, &why));
    let found = object::uid(&current.object);
    if let Some(uid) = options.uid.as_deref().filter(|u| *u != found) {
        return refuse(format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been deleted \
             and then recreated"
        ));
    }
    let found = object::resource_version(&current.object);
    if let Some(version) = options.resource_version.as_deref().filter(|v| *v != found) {
        return refuse(format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({found}). The \
             object might have been modified"
        ));
    }
    Ok(())
}

/// Sets what a deletion sets on the object.
fn mark(call: &Call<'_>, new: &mut Value, options: &Options) {
    if let Some(propagation) = options.propagation {
        let mut finalizers: Vec<String> = object::finalizers(new)
            .into_iter()
            .filter(|f| *f != FOREGROUND && *f != ORPHAN)
            .map(str::to_owned)
            .collect();
        match propagation {
            Propagation::Background => {}
            Propagation::Foreground => finalizers.push(FOREGROUND.into()),
            Propagation::Orphan => finalizers.push(ORPHAN.into()),
        }
        object::set_finalizers(new, finalizers);
    }
    let grace = grace(call, new, options);
    let before = object::at(new, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    let first = !object::deleting(new);
    // A second deletion may only shorten the wait.
    if first || before.is_some_and(|b| grace < b) {
        let at = object::plus_seconds(call.time, grace);
        object::set_meta(new, "deletionTimestamp", object::rfc3339(at));
        object::set_meta(new, "deletionGracePeriodSeconds", grace);
        let generation = object::generation(new);
        if first && generation > 0 {
            object::set_meta(new, "generation", generation + 1);
        }
    }
    if call.resource.is("", "namespaces") {
        object::child(new, "status").insert("phase".into(), "Terminating".into());
    }
}

/// Seconds the object stays for its node to stop it; only bound, unfinished Pods have any.
fn grace(call: &Call<'_>, pod: &Value, options: &Options) -> i64 {
    let bound = call.resource.is("", "pods") && !object::text(pod, &["spec", "nodeName"]).is_empty();
    if !bound || matches!(object::text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return 0;
    }
    let own = object::at(pod, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(30);
    options.grace_seconds.unwrap_or(own).max(0)
}
