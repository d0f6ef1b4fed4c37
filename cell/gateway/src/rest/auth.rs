//! Who calls: the token in the Authorization header, and the rate over all routes.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use cell_proto::v1::User;
use cell_runtime::tokens::Bearer;
use parking_lot::Mutex;

use super::error::ApiError;
use super::limit::Quota;
use crate::calls::Deadline;
use crate::gateway::Gateway;

/// How the caller's rate over all routes stands once the request is admitted. The router tells it where the route has no bucket of its
/// own, so that each answer carries all five headers.
#[derive(Debug, Clone, Default)]
pub struct Standing(Arc<Mutex<Option<Quota>>>);

impl Standing {
    /// Writes the five headers unless they are there, or nobody was admitted.
    pub fn write(&self, headers: &mut HeaderMap, method: &str, route: &str) {
        if let Some(quota) = self.0.lock().take()
            && !headers.contains_key("x-ratelimit-limit")
        {
            quota.of_route(method, route).write(headers);
        }
    }
}

/// An authenticated caller within its rate.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Who.
    pub user_id: i64,
    /// Bot or person.
    pub bearer: Bearer,
}

impl FromRequestParts<Arc<Gateway>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, gateway: &Arc<Gateway>) -> Result<Self, ApiError> {
        let token = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let identity = token.and_then(|token| gateway.keys.verify(token).ok()).ok_or_else(ApiError::unauthorized)?;
        let admitted = gateway.rest_limits.lock().admit(identity.user_id, gateway.now_ms(), cell_runtime::unix_ms());
        let quota = admitted.map_err(ApiError::limited)?;
        if let Some(standing) = parts.extensions.get::<Standing>() {
            *standing.0.lock() = Some(quota);
        }
        Ok(Self { user_id: identity.user_id, bearer: identity.bearer })
    }
}

impl Caller {
    /// The caller's user; a token of a user that does not exist is not valid.
    ///
    /// # Errors
    /// 401, or 503 when nobody could tell.
    pub async fn user(&self, gateway: &Gateway, deadline: Deadline) -> Result<User, ApiError> {
        match gateway.user(self.user_id, deadline).await {
            Ok(Some(user)) => Ok(user),
            Ok(None) => Err(ApiError::unauthorized()),
            Err(error) => Err(ApiError::of_call(error, super::error::Missing::User)),
        }
    }
}
