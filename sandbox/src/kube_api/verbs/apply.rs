//! Server-side apply: PATCH with `application/apply-patch+yaml`.

use serde_json::{Value, json};

use super::Reply;
use crate::kube_api::admit;
use crate::kube_api::api::{Call, Door};
use crate::kube_api::kinds::Model;
use crate::kube_api::managed;
use crate::kube_api::object;
use crate::kube_api::schema;
use crate::kube_api::status::{FieldError, Reason, Refusal};
use crate::kube_api::write::{self, Edited};
use crate::kube_api::written;

/// Attempts when the object appears or vanishes in between.
const ATTEMPTS: usize = 4;

/// Applies a configuration; makes the object if there is none.
pub async fn apply(call: &Call<'_>, config: Value) -> Result<Reply, Refusal> {
    if call.query.get("fieldManager").is_empty() {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(Refusal::bad_option("PatchOptions", error));
    }
    let force = call.query.flag("force")?;
    if call.door == Door::Status && call.api.objects.get(&call.key(&call.target.name))?.is_none() {
        return Err(call.not_found(&call.target.name));
    }
    let config = checked(call, config)?;
    for _ in 0..ATTEMPTS {
        let edit = |current: &Value| {
            let mut current = current.clone();
            // A resource version in the configuration is a precondition, not a field.
            if !object::resource_version(&config).is_empty() {
                object::set_meta(&mut current, "resourceVersion", object::resource_version(&config).to_owned());
            }
            let applied =
                call.as_writer(|w| managed::apply(Some(&current), &config, w, call.resource.shape(), force))?;
            Ok(Edited { object: applied.object, tracked: true })
        };
        match write::change(call, &call.target.name, edit).await {
            Err(refusal) if refusal.reason == Reason::NotFound && call.door == Door::Main => {}
            other => return other.map(Reply::written),
        }
        if !object::resource_version(&config).is_empty() || !object::uid(&config).is_empty() {
            return Err(call.conflict(&call.target.name, "the object to apply to does not exist"));
        }
        if object::name(&config).is_empty() {
            let name = &call.target.name;
            let what =
                format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
            return Err(Refusal::bad_request(what));
        }
        let applied = call.as_writer(|w| managed::apply(None, &config, w, call.resource.shape(), force))?;
        match write::create(call, Edited { object: applied.object, tracked: true }).await {
            Err(refusal) if refusal.reason == Reason::AlreadyExists => {}
            other => return other.map(Reply::written),
        }
    }
    Err(call.conflict(&call.target.name, "the object kept appearing and vanishing: try again"))
}

/// The configuration with only what its door may own. Fields nobody knows are refused, as Kubernetes does: nobody could own them.
fn checked(call: &Call<'_>, mut config: Value) -> Result<Value, Refusal> {
    if !config.is_object() {
        return Err(Refusal::bad_request("an apply configuration must be a map"));
    }
    for (field, wanted) in [("apiVersion", call.resource.api_version()), ("kind", call.resource.kind.clone())] {
        let found = object::text(&config, &[field]);
        if found != wanted {
            return Err(Refusal::bad_request(format!(
                "{field} of the configuration is {found:?}, the request is for {wanted:?}"
            )));
        }
    }
    if !object::list(&config, &["metadata", "managedFields"]).is_empty() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    written::whole_numbers(&mut config);
    known_metadata(call, &config)?;
    fits_schema(call, &config)?;
    match object::name(&config) {
        // Only an object that is there already lends its name.
        "" => object::remove_meta(&mut config, "name"),
        name if name != call.target.name => {
            return Err(Refusal::bad_request(format!(
                "the name of the configuration ({name}) is not that of the request"
            )));
        }
        _ => {}
    }
    let found = object::namespace(&config);
    if !found.is_empty() && found != call.target.namespace {
        return Err(Refusal::bad_request("the namespace of the configuration is not that of the request"));
    }
    only_behind_this_door(call, &mut config);
    Ok(config)
}

/// Takes out of a configuration what its door may not own.
fn only_behind_this_door(call: &Call<'_>, config: &mut Value) {
    match call.door {
        Door::Main if call.resource.has("status") => {
            object::as_map(config).remove("status");
        }
        Door::Status => {
            object::as_map(config)
                .retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
            if call.resource.custom().is_some() {
                object::metadata(config)
                    .retain(|key, _| matches!(key.as_str(), "name" | "namespace" | "uid" | "resourceVersion"));
            } else if call.resource.kind == "Deployment" {
                object::remove_meta(config, "labels");
            }
        }
        Door::Main | Door::Server => {}
    }
}

/// Refuses fields that nobody knows, and values of other types than the schema's.
fn fits_schema(call: &Call<'_>, config: &Value) -> Result<(), Refusal> {
    let mut read = config.clone();
    if call.resource.custom().is_none() {
        written::read(&mut read);
        written::precise_times(object::as_map(&mut read)).map_err(|why| untyped(call, &why))?;
    }
    if let Some(why) = managed::duplicate(config, call.resource.shape()) {
        return Err(untyped(call, &why));
    }
    if let Model::Custom(custom) = &call.resource.model
        && let Some(why) = managed::typed::misfit(&custom.schema, config)
    {
        return Err(untyped(call, &why));
    }
    let mut known = read;
    keep_schema(call, &mut known)?;
    let mut unknown = Vec::new();
    admit::missing("", config, &known, &mut unknown);
    match unknown.first() {
        None => Ok(()),
        Some(field) => Err(untyped(call, &format!(".{field}: field not declared in schema"))),
    }
}

fn untyped(call: &Call<'_>, why: &str) -> Refusal {
    let (name, kind) = (&call.target.name, &call.resource.kind);
    let version = call.resource.api_version();
    let version = if call.resource.group.is_empty() { format!("/{version}") } else { version };
    let message = format!("failed to create typed patch object (/{name}; {version}, Kind={kind}): {why}");
    Refusal::new(Reason::Untyped, message)
}

/// Unknown fields and wrong types in metadata are refused. Nulls and what is empty stay: they are owned, though they are not written.
fn known_metadata(call: &Call<'_>, config: &Value) -> Result<(), Refusal> {
    let mut fitted = config.clone();
    admit::fit_metadata(&mut fitted).map_err(|refusal| untyped(call, &refusal.message))?;
    let mut unknown = Vec::new();
    admit::missing("metadata", &config["metadata"], &fitted["metadata"], &mut unknown);
    let empty = |field: &&String| {
        let found = field.split('.').try_fold(config, |v, key| v.get(key));
        found.is_some_and(|v| *v == json!({}) || *v == json!([]))
    };
    match unknown.iter().find(|field| !empty(field)) {
        None => Ok(()),
        Some(field) => Err(untyped(call, &format!(".{field}: field not declared in schema"))),
    }
}

/// Leaves what the schema knows.
fn keep_schema(call: &Call<'_>, config: &mut Value) -> Result<(), Refusal> {
    match &call.resource.model {
        Model::Custom(custom) => {
            schema::fill::prune(&custom.schema, config);
        }
        Model::BuiltIn(kind) => {
            let typed = (kind.typed)(config.clone()).map_err(|why| untyped(call, &why))?;
            keep_known(config, &typed);
        }
    }
    Ok(())
}

fn keep_known(config: &mut Value, typed: &Value) {
    match (config, typed) {
        (Value::Object(config), Value::Object(typed)) => {
            config.retain(|name, _| typed.contains_key(name));
            config.iter_mut().for_each(|(name, value)| keep_known(value, &typed[name]));
        }
        (Value::Array(config), Value::Array(typed)) => {
            config.iter_mut().zip(typed).for_each(|(value, typed)| keep_known(value, typed));
        }
        _ => {}
    }
}
