//! Reads request bodies and path ids: bounded in size and depth, unknown fields ignored, wrong ones named.

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::form::Form;
use crate::wire::lenient;

/// Largest body read, in bytes: ten embeds of the largest size fit many times.
pub const MAX_BODY_BYTES: usize = 256 * 1024;

/// A JSON object; an empty body is an empty object.
#[derive(Debug, Default)]
pub struct Body(pub Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if kind.starts_with("multipart/") {
            return Err(ApiError::bad(50_035, "attachments are not supported; send application/json without files"));
        }
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES)
            .await
            .map_err(|_| ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, 40_005, "Request entity too large"))?;
        parse(&bytes).map(Self)
    }
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
    fn what_is_no_json_object_is_refused_with_its_code() {
        assert!(parse(b"").unwrap().is_empty());
        assert_eq!(parse(b"{").unwrap_err().code(), 50_109);
        assert_eq!(parse(b"\xff").unwrap_err().code(), 50_109);
        assert_eq!(parse(b"[1]").unwrap_err().code(), 50_035);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(parse(deep.as_bytes()).unwrap_err().code(), 50_109);
    }
}
