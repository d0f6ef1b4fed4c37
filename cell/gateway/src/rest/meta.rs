//! Where to connect: `/gateway` and `/gateway/bot`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::auth::Caller;
use super::error::{ApiError, Missing};
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;

/// Guilds of one shard that are recommended.
const GUILDS_PER_SHARD: usize = 1000;

/// GET /gateway; needs no token.
pub async fn gateway(State(gateway): State<Arc<Gateway>>) -> Json<Value> {
    Json(json!({ "url": gateway.config.websocket_url() }))
}

/// GET /gateway/bot
pub async fn gateway_bot(State(gateway): State<Arc<Gateway>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let guilds = gateway
        .user_guilds(caller.user_id, Deadline::after(COMMAND_TIMEOUT))
        .await
        .map_err(|error| ApiError::of_call(error, Missing::User))?;
    let limits = gateway.config.limits.starts;
    let (remaining, reset_after_ms) = gateway.starts.lock().remaining(caller.user_id, gateway.now_ms());
    Ok(Json(json!({
        "url": gateway.config.websocket_url(),
        "shards": guilds.len().div_ceil(GUILDS_PER_SHARD).max(1),
        "session_start_limit": {
            "total": limits.daily,
            "remaining": remaining,
            "reset_after": reset_after_ms,
            "max_concurrency": limits.max_concurrency,
        },
    })))
}
