//! What happens to an object between the client and the store: fitted, defaulted, judged, and given the parts only the server sets.
//! It neither reads nor writes the store.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::built_in::{self, BuiltIn};
use super::custom::{self, Nulls};
use super::kinds::{Model, Resource};
use super::object::{self, at, child, list, text};
use super::registry::{Served, name_conflict};
use super::schema::join;
use super::status::Refusal;
use super::{defaults, judge as faults, written};

/// The finalizer that keeps a definition until its objects are gone.
pub const DEFINITION_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Fits and defaults `new` in place; the paths of fields nobody knows are returned.
pub fn fit(resource: &Resource, new: &mut Value, nulls: Nulls) -> Result<Vec<String>, Refusal> {
    match &resource.model {
        Model::Custom(custom) => {
            fit_metadata(new)?;
            written::whole_numbers(new);
            Ok(custom.fill(new, nulls))
        }
        Model::BuiltIn(kind) => {
            written::read(new);
            defaults::fill(resource, new);
            let before = new.clone();
            *new = typed(resource, kind, before.clone())?;
            super::quantities::settle(new);
            // The typed form has a selector always; one that nobody sent is missed by the judge.
            if at(&before, &["spec", "selector"]).is_none() && resource.group == "apps" {
                child(new, "spec").remove("selector");
            }
            let definition = resource.is("apiextensions.k8s.io", "customresourcedefinitions");
            if definition {
                written::whole_numbers(new);
            }
            let mut unknown = Vec::new();
            missing("", &before, new, &mut unknown);
            if !definition {
                written::write(resource, new);
            }
            Ok(unknown)
        }
    }
}

fn typed(resource: &Resource, kind: &BuiltIn, object: Value) -> Result<Value, Refusal> {
    // Both faces of Event are stored as the core one.
    let stored =
        built_in::KINDS.iter().find(|k| k.kind == kind.kind && k.group == resource.stored_as.0).unwrap_or(kind);
    let times = object.as_object().map_or(Ok(()), written::precise_times);
    times.and_then(|()| (stored.typed)(object)).map_err(|why| {
        let (kind, version) = (kind.kind, kind.version);
        Refusal::unreadable(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
    })
}

/// Reads what a client sent as a whole, before anything else is done with it; the paths of fields nobody knows are returned.
pub fn read(resource: &Resource, sent: &Value) -> Result<Vec<String>, Refusal> {
    let mut sent = super::present::store(resource, sent.clone());
    match &resource.model {
        Model::Custom(custom) => {
            fit_metadata(&mut sent)?;
            Ok(custom.fill(&mut sent, Nulls::Drop))
        }
        Model::BuiltIn(kind) => {
            written::read(&mut sent);
            let known = typed(resource, kind, sent.clone())?;
            if resource.is("", "secrets") {
                object::as_map(&mut sent).remove("stringData");
            }
            let mut unknown = Vec::new();
            missing("", &sent, &known, &mut unknown);
            Ok(unknown)
        }
    }
}

/// Judges what was fitted; what did not change since `old` may be excused.
pub fn judge(resource: &Resource, new: &Value, old: Option<&Value>) -> Result<(), Refusal> {
    let mut errors = faults::metadata(resource, new);
    match &resource.model {
        Model::Custom(custom) => errors.extend(custom.judge(new, old)),
        Model::BuiltIn(_) => errors.extend(faults::object(resource, new, old)),
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Refusal::invalid(&resource.group, &resource.kind, object::name(new), errors))
    }
}

/// Metadata has one form in every kind: unknown fields and nulls go, wrong types are errors.
pub fn fit_metadata(object: &mut Value) -> Result<(), Refusal> {
    let mut metadata = Value::Object(std::mem::take(object::metadata(object)));
    written::read(&mut metadata);
    let typed: ObjectMeta =
        serde_json::from_value(metadata).map_err(|e| Refusal::unreadable(format!("metadata cannot be read: {e}")))?;
    let mut fitted = serde_json::to_value(typed).map_err(Refusal::internal)?;
    written::write_metadata(&mut fitted);
    object::as_map(object).insert("metadata".into(), fitted);
    Ok(())
}

/// Fields of `before` that `after` no longer has.
pub fn missing(path: &str, before: &Value, after: &Value, out: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (name, value) in before.iter().filter(|(_, v)| !v.is_null()) {
                match after.get(name) {
                    Some(found) => missing(&join(path, name), value, found, out),
                    None => out.push(join(path, name)),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (i, (b, a)) in before.iter().zip(after).enumerate() {
                missing(&format!("{path}[{i}]"), b, a, out);
            }
        }
        _ => {}
    }
}

/// What the server itself puts into a new object, before it is judged.
pub fn begin(resource: &Resource, object: &mut Value, now: Timestamp) {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields", "resourceVersion"] {
        object::remove_meta(object, field);
    }
    object::set_meta(object, "uid", uuid::Uuid::new_v4().to_string());
    object::set_meta(object, "creationTimestamp", object::rfc3339(now));
    if resource.counts_generations() {
        object::set_meta(object, "generation", 1);
    } else {
        object::remove_meta(object, "generation");
    }
    if !resource.namespaced {
        object::remove_meta(object, "namespace");
    }
    // A Node registers with its status; every other kind's status starts empty and has its own door.
    if resource.has("status") && !resource.is("", "nodes") {
        object::as_map(object).remove("status");
    }
    begin_kind(resource, object);
}

fn begin_kind(resource: &Resource, object: &mut Value) {
    let status = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => {
            let name = object::name(object).to_owned();
            child(object, "spec").insert("finalizers".into(), json!(["kubernetes"]));
            let labels = object::as_map(object::metadata(object).entry("labels").or_insert_with(|| json!({})));
            labels.insert("kubernetes.io/metadata.name".into(), name.into());
            json!({"phase": "Active"})
        }
        ("", "Pod") => json!({"phase": "Pending"}),
        ("", "PersistentVolumeClaim" | "PersistentVolume") => json!({"phase": "Pending"}),
        ("", "Service") => json!({"loadBalancer": {}}),
        ("policy", "PodDisruptionBudget") => {
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
        }
        ("apps", "StatefulSet") => json!({"replicas": 0, "availableReplicas": 0}),
        ("apps", "ReplicaSet") => json!({"replicas": 0}),
        ("batch", "Job") => {
            super::jobs::begin(object);
            json!({})
        }
        ("apps", "Deployment") => json!({}),
        ("apiextensions.k8s.io", _) => {
            let mut finalizers: Vec<String> = object::finalizers(object).into_iter().map(str::to_owned).collect();
            if !finalizers.iter().any(|f| f == DEFINITION_FINALIZER) {
                finalizers.push(DEFINITION_FINALIZER.into());
            }
            object::set_finalizers(object, finalizers);
            return;
        }
        _ => return,
    };
    object::as_map(object).insert("status".into(), status);
}

/// The status of a definition: its names and whether it is served. Its schemas are compiled here, so errors reach the client.
pub fn settle_definition(definition: &mut Value, served: &Served, now: Timestamp) -> Result<(), Refusal> {
    custom::resources(definition).map_err(|errors| {
        Refusal::invalid("apiextensions.k8s.io", "CustomResourceDefinition", object::name(definition), errors)
    })?;
    let names = at(definition, &["spec", "names"]).cloned().unwrap_or(Value::Null);
    let storage = list(definition, &["spec", "versions"])
        .iter()
        .find(|v| v.get("storage").and_then(Value::as_bool).unwrap_or_default())
        .map(|v| text(v, &["name"]).to_owned());
    let mut stored: Vec<Value> = list(definition, &["status", "storedVersions"]).to_vec();
    if let Some(storage) = storage.map(Value::from).filter(|s| !stored.contains(s)) {
        stored.push(storage);
    }
    let conflict = name_conflict(definition, served);
    let (accepted, served_now) = match &conflict {
        None => (
            ("True", "NoConflicts", "no conflicts found".to_owned()),
            ("True", "InitialNamesAccepted", "the initial names have been accepted"),
        ),
        Some(name) => (
            ("False", "NameConflict", format!("\"{name}\" is already in use")),
            ("False", "NotAccepted", "not all names are accepted"),
        ),
    };
    let time = object::rfc3339(now);
    let conditions = vec![
        condition(definition, "NamesAccepted", accepted.0, accepted.1, &accepted.2, &time),
        condition(definition, "Established", served_now.0, served_now.1, served_now.2, &time),
    ];
    let status = child(definition, "status");
    status.insert("acceptedNames".into(), if conflict.is_none() { names } else { json!({"plural": "", "kind": ""}) });
    status.insert("storedVersions".into(), stored.into());
    status.insert("conditions".into(), conditions.into());
    Ok(())
}

fn condition(object: &Value, kind: &str, status: &str, reason: &str, message: &str, time: &str) -> Value {
    let before = list(object, &["status", "conditions"]).iter().find(|c| text(c, &["type"]) == kind);
    let since = before.filter(|c| text(c, &["status"]) == status).map_or(time, |c| text(c, &["lastTransitionTime"]));
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
}

/// Raises `metadata.generation` when more than metadata and a separate status changed.
pub fn count_generation(resource: &Resource, new: &mut Value, old: &Value) {
    if !resource.counts_generations() {
        return;
    }
    let body = |object: &Value| {
        let mut copy = object.clone();
        let map = object::as_map(&mut copy);
        map.remove("metadata");
        if resource.has("status") || resource.custom().is_none() {
            map.remove("status");
        }
        copy
    };
    // A Deployment's annotations are handed down to its ReplicaSets, so they count there.
    let noted = |object: &Value| {
        resource.is("apps", "deployments").then(|| at(object, &["metadata", "annotations"]).cloned()).flatten()
    };
    let changed = body(new) != body(old) || noted(new) != noted(old);
    let next = object::generation(old) + i64::from(changed);
    if next > 0 {
        object::set_meta(new, "generation", next);
    }
}
