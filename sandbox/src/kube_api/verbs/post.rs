//! POST, PUT and the kinds of PATCH that are not server-side apply.

use serde_json::Value;

use super::Reply;
use crate::kube_api::api::Call;
use crate::kube_api::status::Refusal;
use crate::kube_api::write::{self, Edited};
use crate::kube_api::{object, patch, strategic, types};

/// Makes an object.
pub async fn create(call: &Call<'_>, object: Value) -> Result<Reply, Refusal> {
    write::create(call, Edited { object, tracked: false }).await.map(Reply::written)
}

/// Replaces an object.
pub async fn replace(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    if object::resource_version(&sent).is_empty() && call.resource.custom().is_some() {
        let error = crate::kube_api::status::FieldError::invalid(
            "metadata.resourceVersion",
            &Value::from(0),
            "must be specified for an update",
        );
        return Err(Refusal::invalid(&call.resource.group, &call.resource.kind, &call.target.name, vec![error]));
    }
    let (name, wanted) = (object::name(&sent), &call.target.name);
    if name != wanted {
        let what = format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
        return Err(Refusal::bad_request(what));
    }
    let edit = |_: &Value| Ok(Edited { object: sent.clone(), tracked: false });
    write::change(call, &call.target.name, edit).await.map(Reply::written)
}

/// Applies a JSON merge patch.
pub async fn merge_patch(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    if !sent.is_object() {
        return Err(Refusal::bad_request("a merge patch must be a map"));
    }
    let edit = |current: &Value| {
        let mut object = current.clone();
        patch::merge(&mut object, &sent);
        Ok(Edited { object, tracked: false })
    };
    write::change(call, &call.target.name, edit).await.map(Reply::written)
}

/// Applies a strategic merge patch.
pub async fn strategic_patch(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    let of = types::of_kind(&call.resource.stored_as.0, &call.resource.kind);
    let edit = |current: &Value| Ok(Edited { object: strategic::apply(current, &sent, of)?, tracked: false });
    write::change(call, &call.target.name, edit).await.map(Reply::written)
}

/// Applies a JSON patch.
pub async fn json_patch(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    let edit = |current: &Value| Ok(Edited { object: patch::json(current, &sent)?, tracked: false });
    write::change(call, &call.target.name, edit).await.map(Reply::written)
}
