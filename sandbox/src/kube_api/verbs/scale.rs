//! The `scale` subresource: replicas read and written through one small object.

use serde_json::{Value, json};

use super::Reply;
use crate::kube_api::api::Call;
use crate::kube_api::custom::ScalePaths;
use crate::kube_api::kinds::{Model, Resource};
use crate::kube_api::managed;
use crate::kube_api::object::{self, as_map, at};
use crate::kube_api::patch;
use crate::kube_api::status::{FieldError, Refusal};
use crate::kube_api::write::{self, Edited};

/// How the new scale is said.
pub enum Wish {
    Replace(Value),
    Merge(Value),
    Json(Value),
}

/// The scale of an object.
pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = &call.target.name;
    let found = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?;
    Ok(Reply::Plain { code: 200, body: of(&call.resource, &found.object) })
}

/// Changes the scale of an object.
pub async fn put(call: &Call<'_>, wish: Wish) -> Result<Reply, Refusal> {
    let paths = paths(&call.resource);
    if let Wish::Replace(scale) = &wish {
        replicas_of(scale)?;
    }
    let edit = |current: &Value| {
        let before = of(&call.resource, current);
        let wanted = match &wish {
            Wish::Replace(scale) => scale.clone(),
            Wish::Json(steps) => patch::json(&before, steps)?,
            Wish::Merge(fields) => {
                let mut scale = before.clone();
                patch::merge(&mut scale, fields);
                scale
            }
        };
        let replicas = replicas_of(&wanted)?;
        if !matches!(wish, Wish::Replace(_)) && wanted == before {
            return Ok(Edited { object: current.clone(), tracked: true });
        }
        // A custom resource's own schema says what it may be.
        if call.resource.custom().is_none() && !(0..=i64::from(i32::MAX)).contains(&replicas) {
            let error =
                FieldError::invalid("spec.replicas", &Value::from(replicas), "must be between 0 and 2147483647");
            return Err(Refusal::invalid("autoscaling", "Scale", &call.target.name, vec![error]));
        }
        let mut object = current.clone();
        let version = object::resource_version(&wanted);
        if !version.is_empty() {
            object::set_meta(&mut object, "resourceVersion", version.to_owned());
        }
        set(&mut object, &paths.spec_replicas, replicas.into());
        // Ownership passes through a scale: of what nobody owns nobody comes to own anything, and zero is not written in it.
        let owned = managed::owned(&object, &paths.spec_replicas);
        let tracked = !owned || replicas == 0;
        if tracked && owned {
            managed::disown(&mut object, &paths.spec_replicas);
        }
        Ok(Edited { object, tracked })
    };
    let written = write::change(call, &call.target.name, edit).await?;
    Ok(Reply::Plain { code: 200, body: of(&call.resource, &written.object) })
}

fn replicas_of(scale: &Value) -> Result<i64, Refusal> {
    let unreadable = || {
        let why = "cannot be handled as a Scale: spec.replicas is not a whole number";
        Refusal::unreadable(format!("Scale in version \"v1\" {why}"))
    };
    match at(scale, &["spec", "replicas"]) {
        None | Some(Value::Null) => Ok(0),
        Some(found) => found.as_i64().ok_or_else(unreadable),
    }
}

fn paths(resource: &Resource) -> ScalePaths {
    let own = |parts: &[&str]| parts.iter().map(|p| (*p).to_owned()).collect();
    match &resource.model {
        Model::Custom(custom) if custom.scale.is_some() => custom.scale.clone(),
        _ => None,
    }
    .unwrap_or_else(|| ScalePaths {
        spec_replicas: own(&["spec", "replicas"]),
        status_replicas: own(&["status", "replicas"]),
        selector: None,
    })
}

fn of(resource: &Resource, object: &Value) -> Value {
    let paths = paths(resource);
    let find = |path: &[String]| path.iter().try_fold(object, |v, key| v.get(key));
    let count = |path: &[String]| count(object, path);
    let selector = match &paths.selector {
        Some(path) => find(path).and_then(Value::as_str).unwrap_or_default().to_owned(),
        None => match_labels(object),
    };
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = at(object, &["metadata", field]) {
            metadata[field] = value.clone();
        }
    }
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {}, "status": {"replicas": count(&paths.status_replicas)}});
    // Zero is not written.
    if count(&paths.spec_replicas) != 0 {
        scale["spec"]["replicas"] = count(&paths.spec_replicas).into();
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

fn count(object: &Value, path: &[String]) -> i64 {
    path.iter().try_fold(object, |v, key| v.get(key)).and_then(Value::as_i64).unwrap_or_default()
}

fn match_labels(object: &Value) -> String {
    let labels = at(object, &["spec", "selector", "matchLabels"]).and_then(Value::as_object);
    let terms = labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()));
    terms.collect::<Vec<_>>().join(",")
}

fn set(object: &mut Value, path: &[String], value: Value) {
    match path.split_first() {
        None => *object = value,
        Some((first, rest)) => set(as_map(object).entry(first.clone()).or_insert(Value::Null), rest, value),
    }
}
