//! Refusals and failures of the API as problem details: the reason's label, the field, the remedy.

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use cell_api::problem::{CONTENT_TYPE, Problem};
use http::{StatusCode, header};
use serde::de::DeserializeOwned;

use crate::directory::LinkError;
use crate::error::ReconcileError;

/// A refusal or failure.
#[derive(Debug)]
pub(super) struct ApiError(Box<Problem>);

impl ApiError {
    pub(super) fn new(status: u16, reason: &str, title: &str, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(status, reason, title, detail)))
    }

    pub(super) fn field(self, field: &str, message: impl Into<String>) -> Self {
        Self(Box::new(self.0.field(field, message)))
    }

    pub(super) fn next(self, command: impl Into<String>) -> Self {
        Self(Box::new(self.0.next(command)))
    }

    /// A field of the request is at fault.
    pub(super) fn invalid(field: &str, message: &str) -> Self {
        Self::new(400, "Invalid", "invalid request", format!("{field}: {message}")).field(field, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self.0).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, CONTENT_TYPE)], body).into_response()
    }
}

impl From<LinkError> for ApiError {
    fn from(error: LinkError) -> Self {
        Self::new(503, "DirectoryUnavailable", "the directory is not available", error.to_string())
    }
}

impl From<ReconcileError> for ApiError {
    fn from(error: ReconcileError) -> Self {
        match error {
            ReconcileError::Directory(error) => error.into(),
            ReconcileError::Rpc { .. } => Self::new(503, "Waiting", "a cell does not answer", error.to_string()),
            ReconcileError::Request { ref source, .. } => {
                let status = match &**source {
                    kube::Error::Api(status) if (400..500).contains(&status.code) => status.code,
                    _ => 503,
                };
                Self::new(status, "RequestFailed", "Kubernetes refused or did not answer", error.to_string())
            }
            ReconcileError::Encode { .. } => Self::new(500, "Internal", "encoding failed", error.to_string()),
        }
    }
}

/// A JSON body whose faults are answered as problem details.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = axum::body::Bytes::from_request(request, state).await.map_err(|rejection| {
            ApiError::new(rejection.status().as_u16(), "Invalid", "unreadable body", rejection.body_text())
        })?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| ApiError::new(400, "Invalid", "invalid request body", error.to_string()))
    }
}
