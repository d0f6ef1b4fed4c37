//! POST, PUT and the kinds of PATCH that are not server-side apply.

use serde_json::Value;

use super::Reply;
use crate::kube_api::api::{Call, Door};
use crate::kube_api::status::{Reason, Refusal};
use crate::kube_api::write::{self, Edited};
use crate::kube_api::{admit, object, patch, strategic, types};

/// Makes an object.
pub async fn create(call: &Call<'_>, object: Value) -> Result<Reply, Refusal> {
    let warnings = read(call, &object)?;
    let made = write::create(call, Edited { object, tracked: false }).await;
    made.map(Reply::written).map_err(|refusal| refusal.warning(&warnings))
}

/// What was sent as a whole must be readable before anything else matters; what nobody knows in it is warned of whatever comes of it.
fn read(call: &Call<'_>, sent: &Value) -> Result<Vec<String>, Refusal> {
    let kind = object::text(sent, &["kind"]);
    if !kind.is_empty() && kind != call.resource.kind {
        return Ok(Vec::new());
    }
    write::weigh_unknown(call, admit::read(&call.resource, sent)?)
}

/// Built-in kinds that are not replaced without saying which version; every custom resource is one as well.
const NEED_A_VERSION: [(&str, &str); 3] = [
    ("policy", "poddisruptionbudgets"),
    ("coordination.k8s.io", "leases"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
];
/// Kinds whose PUT makes what is not there.
const MADE_BY_PUT: [(&str, &str); 7] = [
    ("", "services"),
    ("", "endpoints"),
    ("", "events"),
    ("coordination.k8s.io", "leases"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("scheduling.k8s.io", "priorityclasses"),
];

/// Replaces an object.
pub async fn replace(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    let warnings = read(call, &sent)?;
    replace_read(call, sent).await.map_err(|refusal| refusal.warning(&warnings))
}

async fn replace_read(call: &Call<'_>, sent: Value) -> Result<Reply, Refusal> {
    let (group, plural) = (call.resource.group.as_str(), call.resource.plural.as_str());
    let named = call.resource.custom().is_some() || NEED_A_VERSION.contains(&(group, plural));
    let stored = call.api.objects.get(&call.key(&call.target.name))?;
    // Another object of the same name is the first thing to tell.
    let same = stored.is_some_and(|stored| [object::uid(&stored.object), ""].contains(&object::uid(&sent)));
    if object::resource_version(&sent).is_empty() && named && same {
        let error = crate::kube_api::status::FieldError::invalid(
            "metadata.resourceVersion",
            &Value::from(0),
            "must be specified for an update",
        );
        return Err(Refusal::invalid(&call.resource.group, &call.resource.plural, &call.target.name, vec![error]));
    }
    let (name, wanted) = (object::name(&sent), &call.target.name);
    if name != wanted {
        let what = format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
        return Err(Refusal::bad_request(what));
    }
    let edit = |_: &Value| Ok(Edited { object: sent.clone(), tracked: false });
    let makes = call.door == Door::Main && MADE_BY_PUT.iter().any(|(group, plural)| call.resource.is(group, plural));
    match write::change(call, wanted, edit).await {
        Err(refusal) if refusal.reason == Reason::NotFound && makes => match object::uid(&sent) {
            "" => {
                let mut object = sent.clone();
                object::remove_meta(&mut object, "resourceVersion");
                write::create(call, Edited { object, tracked: false }).await.map(Reply::written)
            }
            uid => Err(call
                .conflict(wanted, &format!("Precondition failed: UID in precondition: {uid}, UID in object meta: "))),
        },
        other => other.map(Reply::written),
    }
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
