//! The `scale` subresource: replicas read and written through one small object.

use serde_json::{Value, json};

use super::Reply;
use crate::kube_api::api::Call;
use crate::kube_api::custom::ScalePaths;
use crate::kube_api::kinds::{Model, Resource};
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
        let replicas = at(&wanted, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or_default();
        if !(0..=i64::from(i32::MAX)).contains(&replicas) {
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
        Ok(Edited { object, tracked: false })
    };
    let written = write::change(call, &call.target.name, edit).await?;
    Ok(Reply::Plain { code: 200, body: of(&call.resource, &written.object) })
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
    let count = |path: &[String]| find(path).and_then(Value::as_i64).unwrap_or_default();
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
        "spec": {"replicas": count(&paths.spec_replicas)}, "status": {"replicas": count(&paths.status_replicas)}});
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
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
