//! How far a person has read a channel. Only forward: marking as unread, and counts of mentions, are refused rather than ignored.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::snowflake::{AHEAD_MS, timestamp_ms};
use cell_proto::v1::ReadState;
use cell_runtime::tokens::Bearer;
use serde_json::{Map, Value, json};

use super::auth::Caller;
use super::body::{Body, Ids};
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::lenient;

fn check(body: &Map<String, Value>, message_id: i64) -> Result<(), ApiError> {
    let mut form = Form::default();
    if form.boolean(body, "manual") == Some(true) {
        form.add("manual", "NOT_SUPPORTED", "Read states only go forward here: marking as unread is not supported.");
    }
    if lenient::present(body, "mention_count").is_some() {
        form.add("mention_count", "NOT_SUPPORTED", "Mentions are not counted here.");
    }
    if timestamp_ms(message_id) > cell_runtime::unix_ms() + AHEAD_MS {
        form.add("message_id", "NUMBER_TYPE_MAX", "No message has such an id yet.");
    }
    form.finish()
}

/// POST /channels/{channel}/messages/{message}/ack
pub async fn acknowledge(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id, message_id]): Ids<2>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    if caller.bearer == Bearer::Bot {
        return Err(ApiError::new(StatusCode::FORBIDDEN, 20_001, "Bots cannot use this endpoint"));
    }
    check(&body, message_id)?;
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    // Whoever sees the channel has read in it.
    gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    let state = ReadState { channel_id, last_message_id: message_id };
    let advanced = gateway.advance_read_state(caller.user_id, state, deadline).await;
    advanced.map_err(|error| ApiError::of_call(error, Missing::Channel))?;
    Ok(Json(json!({ "token": null })))
}
