//! GET of one object.

use super::Reply;
use crate::kube_api::api::Call;
use crate::kube_api::objects::too_large;
use crate::kube_api::present;
use crate::kube_api::status::Refusal;

/// One object, in its newest state.
pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    if let Some(revision) = call.query.number("resourceVersion")? {
        let current = call.api.objects.revision();
        if revision > current {
            return Err(too_large(revision, current));
        }
    }
    let name = &call.target.name;
    let found = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?;
    Ok(Reply::ok(present::show(&call.resource, found.object)))
}
