//! Errors as the client protocol writes them: always JSON with `code`, also for rate limits; libraries fail to read anything else.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cell_proto::v1::{Reason, Refusal};
use serde_json::{Value, json};

use super::limit::Limited;
use crate::calls::CallError;

/// An answer that is not what was asked for.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    code: u32,
    message: String,
    errors: Option<Value>,
    retry_after_seconds: Option<u64>,
    limited: Option<Box<Limited>>,
}

/// What was not found; the number is the protocol's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// A channel.
    Channel = 10_003,
    /// A guild.
    Guild = 10_004,
    /// An invite.
    Invite = 10_006,
    /// A member.
    Member = 10_007,
    /// A message.
    Message = 10_008,
    /// A role.
    Role = 10_011,
    /// A user.
    User = 10_013,
}

impl Missing {
    fn word(self) -> &'static str {
        match self {
            Self::Channel => "Channel",
            Self::Guild => "Guild",
            Self::Invite => "Invite",
            Self::Member => "Member",
            Self::Message => "Message",
            Self::Role => "Role",
            Self::User => "User",
        }
    }
}

impl ApiError {
    /// Any error.
    pub fn new(status: StatusCode, code: u32, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), errors: None, retry_after_seconds: None, limited: None }
    }

    /// No token, or not a valid one.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, 0, "401: Unauthorized")
    }

    /// The body is of a kind that is not read.
    pub fn not_json() -> Self {
        let message = "Expected \"Content-Type\" header to be one of {'application/json'}.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, 0, message)
    }

    /// The body is larger than any that is read.
    pub fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, 40_005, "Request entity too large")
    }

    /// The body did not come in time.
    pub fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, 0, "408: Request Timeout")
    }

    /// No such route.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, 0, "404: Not Found")
    }

    /// The route does not take this method.
    pub fn no_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, 0, "405: Method Not Allowed")
    }

    /// The thing is not there.
    pub fn missing(what: Missing) -> Self {
        Self::new(StatusCode::NOT_FOUND, what as u32, format!("Unknown {}", what.word()))
    }

    /// The caller cannot see it.
    pub fn no_access() -> Self {
        Self::new(StatusCode::FORBIDDEN, 50_001, "Missing Access")
    }

    /// The caller may not do it.
    pub fn no_permission() -> Self {
        Self::new(StatusCode::FORBIDDEN, 50_013, "Missing Permissions")
    }

    /// A refusal of the protocol's own kind, with status 400.
    pub fn bad(code: u32, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Fields are wrong; see [`super::form::Form`].
    pub fn form(errors: Value) -> Self {
        Self { errors: Some(errors), ..Self::bad(50_035, "Invalid Form Body") }
    }

    /// Nobody could serve it in time: nothing was done, the client may retry.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { retry_after_seconds: Some(1), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, 130_000, message) }
    }

    /// The volume under the data is full: this try did nothing, and nothing is written until somebody makes room. An earlier try of the
    /// same request, whose outcome was not known, may be committed.
    pub fn storage_full(retry_after_ms: u32) -> Self {
        let message = "the storage is full (StoreFull): writes are refused until its operators have made room; only an earlier try of this request may have been written";
        let seconds = u64::from(retry_after_ms).div_ceil(1000).max(1);
        Self { retry_after_seconds: Some(seconds), ..Self::new(StatusCode::INSUFFICIENT_STORAGE, 130_000, message) }
    }

    /// A rate limit.
    pub fn limited(limited: Limited) -> Self {
        let message = "You are being rate limited.";
        Self { limited: Some(Box::new(limited)), ..Self::new(StatusCode::TOO_MANY_REQUESTS, 0, message) }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The protocol's code.
    pub fn code(&self) -> u32 {
        self.code
    }

    /// What an owner's refusal means to the client; `missing` names what the request was about.
    pub fn of_call(error: CallError, missing: Missing) -> Self {
        match error {
            CallError::Refused(refusal) => Self::of_refusal(&refusal, missing),
            CallError::OutcomeUnknown => Self {
                retry_after_seconds: Some(1),
                ..Self::new(StatusCode::GATEWAY_TIMEOUT, 130_000, error.to_string())
            },
            CallError::TimedOut { .. } | CallError::TooManyHeld => Self::unavailable(error.to_string()),
        }
    }

    fn of_refusal(refusal: &Refusal, missing: Missing) -> Self {
        match refusal.why() {
            Reason::NotFound => Self::missing(missing),
            Reason::Forbidden => Self { message: refusal.message.clone(), ..Self::no_permission() },
            Reason::Invalid | Reason::AlreadyExists | Reason::Unsupported => Self::bad(50_035, refusal.message.clone()),
            Reason::StoreFull => Self::storage_full(refusal.retry_after_ms),
            Reason::TooLarge => Self::new(StatusCode::PAYLOAD_TOO_LARGE, 40_005, refusal.message.clone()),
            why => Self::unavailable(format!("the request was refused ({}); retry later", why.label())),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "message": self.message, "code": self.code });
        if let Some(errors) = self.errors {
            body["errors"] = errors;
        }
        if let Some(limited) = &self.limited {
            body["retry_after"] = limited.retry_after_seconds().into();
            body["global"] = limited.global.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        if let Some(limited) = self.limited {
            // Without Via, discord.py takes a 429 for a ban by a content network and gives up.
            headers.insert(header::VIA, HeaderValue::from_static("1.1 cellplane"));
            headers.insert(header::RETRY_AFTER, HeaderValue::from(limited.retry_after_seconds().ceil() as u64));
            let scope = if limited.global { "global" } else { "user" };
            headers.insert(HeaderName::from_static("x-ratelimit-scope"), HeaderValue::from_static(scope));
            if limited.global {
                headers.insert(HeaderName::from_static("x-ratelimit-global"), HeaderValue::from_static("true"));
            } else {
                limited.quota.write(headers);
            }
        } else if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
