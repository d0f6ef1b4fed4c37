//! Reads request bodies and path ids: bounded in size and depth, unknown fields ignored, wrong ones named.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use futures::StreamExt;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::form::Form;
use crate::gateway::Gateway;
use crate::wire::lenient;

/// Largest body read, in bytes: ten embeds of the largest size fit many times.
pub const MAX_BODY_BYTES: usize = 256 * 1024;

/// What is too large is thrown away up to here before it is refused: a connection that closes on unread bytes is reset, and the refusal
/// is not heard.
const MAX_DRAINED_BYTES: usize = 16 * 1024 * 1024;

/// A JSON object; an empty body is an empty object.
#[derive(Debug, Default)]
pub struct Body(pub Map<String, Value>);

impl FromRequest<Arc<Gateway>> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, gateway: &Arc<Gateway>) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or("").to_owned());
        if kind.as_deref().is_some_and(|kind| kind.starts_with("multipart/")) {
            return Err(ApiError::bad(50_035, "attachments are not supported; send application/json without files"));
        }
        let read = read(request.into_body());
        let Ok(read) = tokio::time::timeout(gateway.config.limits.http_body_timeout, read).await else {
            gateway.metrics.slow_senders.inc();
            return Err(ApiError::too_slow());
        };
        let bytes = read.ok_or_else(ApiError::too_large)?;
        // Some libraries name a kind where there is no body at all.
        if !bytes.is_empty() && kind.as_deref().is_some_and(|kind| !is_json(kind)) {
            return Err(ApiError::not_json());
        }
        parse(&bytes).map(Self)
    }
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
}

/// The whole body; none when it is too large or breaks off.
async fn read(body: axum::body::Body) -> Option<Vec<u8>> {
    let mut stream = body.into_data_stream();
    let (mut bytes, mut count) = (Vec::new(), 0);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.ok()?;
        count += chunk.len();
        if count <= MAX_BODY_BYTES {
            bytes.extend_from_slice(&chunk);
        } else {
            bytes.clear();
        }
        if count > MAX_DRAINED_BYTES {
            break;
        }
    }
    (count <= MAX_BODY_BYTES).then_some(bytes)
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    // serde_json refuses nesting beyond 128 levels.
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => {
            let mut form = Form::default();
            form.add("", "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
            Err(form.into_error())
        }
        Err(_) => Err(ApiError::bad(50_109, "The request body contains invalid JSON.")),
    }
}

/// The query string's parameters, to be read as a body's fields are.
pub struct Parameters(pub Map<String, Value>);

impl<S: Send + Sync> FromRequestParts<S> for Parameters {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let read = Query::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Query(pairs) = read.map_err(|_| ApiError::bad(50_035, "the query string is not valid"))?;
        Ok(Self(pairs.into_iter().map(|(key, text)| (key, Value::String(text))).collect()))
    }
}

/// The ids in the path, in order.
pub struct Ids<const N: usize>(pub [i64; N]);

impl<S: Send + Sync, const N: usize> FromRequestParts<S> for Ids<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(pairs) =
            Path::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(|_| ApiError::no_route())?;
        let mut ids = [0; N];
        let mut form = Form::default();
        for (slot, (name, text)) in ids.iter_mut().zip(pairs) {
            match lenient::id_of_text(&text) {
                Some(id) => *slot = id,
                None => form.not_snowflake(&name, &text),
            }
        }
        form.finish()?;
        Ok(Self(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_kind() {
        assert!(is_json("application/json; charset=utf-8") && is_json("Application/JSON"));
        assert!(is_json("application/problem+json"));
        assert!(!is_json("text/plain") && !is_json("") && !is_json("application/x-www-form-urlencoded"));
    }

    #[test]
    fn what_is_no_json_object_is_refused_with_its_code() {
        assert!(parse(b"").unwrap().is_empty());
        assert_eq!(parse(b"{").unwrap_err().code(), 50_109);
        assert_eq!(parse(b"\xff").unwrap_err().code(), 50_109);
        assert_eq!(parse(b"[1]").unwrap_err().code(), 50_035);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(parse(deep.as_bytes()).unwrap_err().code(), 50_109);
    }
}
