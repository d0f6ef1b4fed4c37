//! Deleting many messages at once: one command, one entry of the log, one event.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::snowflake::{AHEAD_MS, timestamp_ms};
use cell_proto::v1::MessagesDeleted;
use cell_proto::v1::change::Kind;
use cell_runtime::policy::bits;
use serde_json::{Map, Value};

use super::access::ChannelAccess;
use super::auth::Caller;
use super::body::{Body, Ids};
use super::commands::stamp;
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;

const MAX_MESSAGES: usize = 100;
/// Older messages are deleted one by one.
const MAX_AGE_MS: i64 = 14 * 24 * 3_600_000;

/// The ids that may be messages. Those of no message count towards the bounds, and are ignored otherwise.
fn read(body: &Map<String, Value>, now_ms: i64) -> Result<Vec<i64>, ApiError> {
    let mut form = Form::default();
    let ids = form.ids(body, "messages", usize::MAX);
    if ids.is_none() && !body.contains_key("messages") {
        form.required("messages");
    }
    form.finish()?;
    let ids = ids.unwrap_or_default();
    if !(2..=MAX_MESSAGES).contains(&ids.len()) {
        let message = "Provided too few or too many messages to delete. Must provide at least 2 and at most 100 messages to delete.";
        return Err(ApiError::bad(50_016, message));
    }
    let mut seen = HashSet::new();
    if !ids.iter().all(|id| seen.insert(*id)) {
        let mut form = Form::default();
        form.add("messages", "SET_TYPE_ALREADY_CONTAINS_VALUE", "The set already contains this value");
        return Err(form.into_error());
    }
    if ids.iter().any(|id| timestamp_ms(*id) < now_ms - MAX_AGE_MS) {
        return Err(ApiError::bad(50_034, "You can only bulk delete messages that are under 14 days old."));
    }
    Ok(ids.into_iter().filter(|id| timestamp_ms(*id) <= now_ms + AHEAD_MS).collect())
}

/// POST /channels/{channel}/messages/bulk-delete
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
    Body(body): Body,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let message_ids = read(&body, cell_runtime::unix_ms())?;
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    let judge = |access: &ChannelAccess| access.need(bits::MANAGE_MESSAGES);
    judge(&access)?;
    if message_ids.is_empty() {
        return Ok(StatusCode::NO_CONTENT);
    }
    let change = MessagesDeleted { guild_id: access.hosted.id, channel_id, message_ids, ..MessagesDeleted::default() };
    let command = stamp(caller.user_id, Kind::MessagesDeleted(change), deadline);
    let committed = gateway.commit_judged(access, caller.user_id, command, judge).await;
    // Messages that are not there are no error; a channel that has just gone is.
    committed.map_err(|error| match error.code() {
        code if code == Missing::Message as u32 => ApiError::missing(Missing::Channel),
        _ => error,
    })?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use cell_proto::snowflake::first_of_ms;
    use serde_json::json;

    use super::*;

    const NOW_MS: i64 = 1_796_000_000_000;

    fn read_ids(ids: &[i64]) -> Result<Vec<i64>, ApiError> {
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        read(json!({ "messages": ids }).as_object().unwrap(), NOW_MS)
    }

    #[test]
    fn ids_are_counted_dated_and_told_apart() {
        let id = |ago_ms: i64| first_of_ms(NOW_MS - ago_ms);
        assert_eq!(read_ids(&[id(5), id(3)]).unwrap(), [id(5), id(3)]);
        assert_eq!(read_ids(&[id(5), id(-3_600_000)]).unwrap(), [id(5)], "no message has that id yet");
        let day = 86_400_000;
        assert!(read_ids(&[id(5), id(14 * day - 1)]).is_ok());
        let code = |ids: &[i64]| read_ids(ids).unwrap_err().code();
        assert_eq!(code(&[id(5), id(14 * day + 1)]), 50_034);
        assert_eq!(code(&[id(5)]), 50_016);
        assert_eq!(code(&(0..101).map(id).collect::<Vec<_>>()), 50_016);
        assert_eq!(code(&[id(5), id(5)]), 50_035);
        assert_eq!(read(&Map::new(), NOW_MS).unwrap_err().code(), 50_035);
        assert_eq!(read(json!({ "messages": ["x", "y"] }).as_object().unwrap(), NOW_MS).unwrap_err().code(), 50_035);
    }
}
