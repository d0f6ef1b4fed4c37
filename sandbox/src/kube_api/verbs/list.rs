//! GET of a collection: selectors, consistent pages, resource versions. Pages of one list all show the revision of the first.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::Reply;
use crate::kube_api::api::Call;
use crate::kube_api::objects::{Stored, too_large};
use crate::kube_api::present;
use crate::kube_api::selectors::Selector;
use crate::kube_api::status::{Fault, FieldError, Refusal};

/// Keys read from the store in one go.
const CHUNK: usize = 500;

/// Where the next page begins.
#[derive(serde::Serialize, serde::Deserialize)]
struct Continue {
    revision: i64,
    start: String,
}

/// The selector of a call.
pub fn selector(call: &Call<'_>) -> Result<Selector, Refusal> {
    Selector::parse(call.query.get("labelSelector"), call.query.get("fieldSelector"), &call.resource.selectable)
}

/// A list.
pub async fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let selector = selector(call)?;
    let limit = usize::try_from(call.query.number("limit")?.unwrap_or_default())
        .map_err(|_| Refusal::bad_request("limit must not be negative"))?;
    let (revision, start) = starting_point(call)?;
    let found = collect(call, &selector, revision, start, limit).await?;
    let mut metadata = json!({"resourceVersion": found.revision.to_string()});
    // One name is looked up, not walked to: nothing can follow.
    if let Some(start) = found.next.filter(|_| selector.only_name().is_none()) {
        let token = Continue { revision: found.revision, start };
        metadata["continue"] = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).map_err(Refusal::internal)?).into();
        if selector.is_everything() {
            let prefix = call.resource.prefix(&call.target.namespace);
            let left = call.api.objects.count_from(&prefix, token.start.as_bytes(), token.revision)?;
            metadata["remainingItemCount"] = left.into();
        }
    }
    let items: Vec<Value> = found.items.into_iter().map(|s| present::show(&call.resource, s.object)).collect();
    Ok(Reply::List(json!({"kind": format!("{}List", call.resource.kind), "apiVersion": call.resource.api_version(),
        "metadata": metadata, "items": items})))
}

/// What a walk through a collection found.
pub struct Found {
    pub items: Vec<Stored>,
    pub revision: i64,
    next: Option<String>,
}

/// Everything selected, newest state.
pub async fn everything(call: &Call<'_>, selector: &Selector) -> Result<Found, Refusal> {
    collect(call, selector, None, None, 0).await
}

async fn collect(
    call: &Call<'_>,
    selector: &Selector,
    revision: Option<i64>,
    start: Option<Vec<u8>>,
    limit: usize,
) -> Result<Found, Refusal> {
    let prefix = call.resource.prefix(&call.target.namespace);
    let mut found = Found { items: Vec::new(), revision: revision.unwrap_or_default(), next: None };
    let (mut at, mut start) = (revision, start);
    loop {
        let chunk = if limit == 0 { CHUNK } else { CHUNK.min(limit.saturating_mul(2).max(1)) };
        let page = call.api.objects.page(&prefix, start.as_deref(), at, chunk)?;
        // Later chunks read the revision of the first, so that the list is of one moment.
        at = Some(page.revision);
        found.revision = page.revision;
        let mut last: Option<Vec<u8>> = None;
        for stored in page.items {
            if limit > 0 && found.items.len() == limit {
                found.next = Some(String::from_utf8_lossy(&stored.key).into_owned());
                return Ok(found);
            }
            last = Some(stored.key.to_vec());
            let object = present::show(&call.resource, stored.object);
            if selector.matches(&object) {
                found.items.push(Stored { object, ..stored });
            }
        }
        match last {
            Some(mut key) if page.more => {
                key.push(0);
                start = Some(key);
                // A long list lets shorter requests through.
                tokio::task::yield_now().await;
            }
            _ => return Ok(found),
        }
    }
}

type Start = (Option<i64>, Option<Vec<u8>>);

fn starting_point(call: &Call<'_>) -> Result<Start, Refusal> {
    let token = call.query.get("continue");
    let (version, matching) = (call.query.get("resourceVersion"), call.query.get("resourceVersionMatch"));
    if !token.is_empty() {
        if !matching.is_empty() {
            return Err(forbidden("resourceVersionMatch is forbidden for continue"));
        }
        if !matches!(version, "" | "0") {
            return Err(Refusal::bad_request("specifying resource version is not allowed when using continue"));
        }
        return resume(call, token).map(|(revision, start)| (Some(revision), Some(start)));
    }
    if version.is_empty() {
        return if matching.is_empty() {
            Ok((None, None))
        } else {
            Err(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"))
        };
    }
    let revision = call.query.number("resourceVersion")?.unwrap_or_default();
    let current = call.api.objects.revision();
    if revision > current {
        return Err(too_large(revision, current));
    }
    match matching {
        "" | "NotOlderThan" => Ok((None, None)),
        "Exact" if revision > 0 => Ok((Some(revision), None)),
        "Exact" => Err(forbidden("resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"")),
        other => Err(Refusal::bad_request(format!("resourceVersionMatch {other:?} must be Exact or NotOlderThan"))),
    }
}

/// 422 for a resource version match that does not go with the rest.
pub fn forbidden(why: &str) -> Refusal {
    Refusal::bad_option("ListOptions", FieldError::new(Fault::Forbidden, "resourceVersionMatch", None, why))
}

fn resume(call: &Call<'_>, token: &str) -> Result<(i64, Vec<u8>), Refusal> {
    let bad = || Refusal::bad_request("continue key is not valid: list again from the start");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
    let token: Continue = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    let start = token.start.into_bytes();
    if !start.starts_with(&call.resource.prefix(&call.target.namespace)) || token.revision <= 0 {
        return Err(bad());
    }
    Ok((token.revision, start))
}
