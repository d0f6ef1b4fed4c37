//! Reads: `get`, `describe`, `events`, `logs`, `status`, `locate`. They change nothing.

pub mod columns;
pub mod describe;
pub mod events;
pub mod get;
pub mod locate;
pub mod logs;
pub mod status;

use kube::Api;
use kube::api::{DynamicObject, ListParams};
use serde_json::Value;

use crate::connect::{Connection, within};
use crate::exit::CommandError;
use crate::kinds::Kind;

/// Most objects asked for at once; more are fetched page by page.
const PAGE: u32 = 500;

/// All objects of a kind in the namespace; of Pods, those of the fleet.
pub(in crate::commands) async fn list(connection: &Connection, kind: Kind) -> Result<Vec<Value>, CommandError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(connection.client.clone(), &connection.namespace, &kind.resource());
    let mut parameters = ListParams::default().limit(PAGE);
    if kind == Kind::Pods {
        parameters = parameters.labels("app.kubernetes.io/name=cellplane");
    }
    let mut objects = Vec::new();
    loop {
        let page = within(api.list(&parameters)).await?;
        for object in page.items {
            objects.push(plain(object, kind)?);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => break,
        }
    }
    objects.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    Ok(objects)
}

/// One object.
pub(in crate::commands) async fn one(connection: &Connection, kind: Kind, given: &str) -> Result<Value, CommandError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(connection.client.clone(), &connection.namespace, &kind.resource());
    let name = kind.object_name(given);
    match within(api.get_opt(&name)).await? {
        Some(object) => plain(object, kind),
        None => Err(CommandError::Failed(anyhow::anyhow!(
            "{} {name:?} not found in namespace {:?}; see cellctl get {}",
            kind.singular(),
            connection.namespace,
            kind.plural()
        ))),
    }
}

/// The object as kubectl would print it: type set, without managed fields.
fn plain(object: DynamicObject, kind: Kind) -> Result<Value, CommandError> {
    let mut value = serde_json::to_value(object).map_err(|error| anyhow::Error::from(error).context("read object"))?;
    let resource = kind.resource();
    value["apiVersion"] = resource.api_version.into();
    value["kind"] = resource.kind.into();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Ok(value)
}

pub(in crate::commands) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
