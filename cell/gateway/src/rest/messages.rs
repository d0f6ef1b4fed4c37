//! Messages: create, read, list, edit, delete, and typing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_request::Query as Read;
use cell_proto::v1::{
    Member, Message, MessageCreated, MessageDeleted, MessageEdited, MessagePageQuery, MessageQuery, QueryReply, Typing,
    User, query_reply,
};
use cell_runtime::policy::bits;
use serde_json::{Map, Value};

use super::access::ChannelAccess;
use super::auth::Caller;
use super::body::{Body, Ids, Parameters};
use super::commands::{kind_of, operation_id_of_nonce, stamp};
use super::error::{ApiError, Missing};
use super::form::Form;
use super::limit::Slow;
use super::mentions::{self, Allowed};
use super::message_input::{Edit, NewMessage};
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::objects::{self, Names};

/// Mentioned users looked up for one answer, and how long that may take.
const MAX_LOOKED_UP: usize = 25;
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Names for messages in answers.
struct AnswerNames<'a> {
    gateway: &'a Gateway,
    access: &'a ChannelAccess,
}

impl Names for AnswerNames<'_> {
    fn user(&self, user_id: i64) -> Option<User> {
        self.gateway.users.get(user_id)
    }

    fn member(&self, user_id: i64) -> Option<Member> {
        self.access.hosted.read(|replica| replica.members.get(&user_id).cloned()).flatten()
    }
}

fn answer(gateway: &Gateway, access: &ChannelAccess, message: &Message) -> Value {
    objects::message(message, &AnswerNames { gateway, access })
}

/// Learns the names of mentioned users that are not known here, a bounded number; the rest stays unnamed.
async fn learn_mentioned(gateway: &Gateway, messages: &[Message]) {
    let mentioned: BTreeSet<i64> =
        messages.iter().flat_map(|message| message.mention_user_ids.iter().copied()).collect();
    let unknown = mentioned.into_iter().filter(|user_id| gateway.users.get(*user_id).is_none()).take(MAX_LOOKED_UP);
    let deadline = Deadline::after(LOOK_UP_TIMEOUT);
    let looked_up = futures::future::join_all(unknown.map(|user_id| gateway.user(user_id, deadline))).await;
    let failed = looked_up.iter().filter(|found| found.is_err()).count();
    if failed > 0 {
        tracing::debug!(failed, "mentioned users were not looked up in time");
    }
}

/// POST /channels/{channel}/messages
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let input = NewMessage::read(&body)?;
    let key = (caller.user_id, channel_id);
    let quota = gateway
        .rest_limits
        .lock()
        .admit_message(key, gateway.now_ms(), cell_runtime::unix_ms())
        .map_err(ApiError::limited)?;
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    check_channel(&access)?;
    judge_send(&access, &input)?;
    check_reply(&gateway, &access, &input, deadline).await?;
    admit_slow(&gateway, &access, key)?;
    let author = caller.user(&gateway, deadline).await?;
    let message = compose(&access, author, &input, &body);
    learn_mentioned(&gateway, std::slice::from_ref(&message)).await;
    let kind = Kind::MessageCreated(MessageCreated { message: Some(message) });
    let mut command = stamp(caller.user_id, kind, deadline);
    if input.enforce_nonce {
        command.operation_id = operation_id_of_nonce(caller.user_id, channel_id, &input.nonce);
    }
    let judge = |access: &ChannelAccess| judge_send(access, &input);
    let committed = gateway.commit_judged(access.clone(), caller.user_id, command, judge).await?;
    let Some((Kind::MessageCreated(MessageCreated { message: Some(message) }), _)) = kind_of(committed) else {
        return Err(ApiError::unavailable("the owner answered without the message; read the channel"));
    };
    let mut headers = HeaderMap::new();
    quota.write(&mut headers);
    Ok((headers, Json(answer(&gateway, &access, &message))).into_response())
}

fn check_channel(access: &ChannelAccess) -> Result<(), ApiError> {
    if matches!(access.channel.r#type, 0 | 2 | 5) {
        return Ok(());
    }
    Err(ApiError::bad(50_008, "Cannot send messages in a non-text channel"))
}

fn judge_send(access: &ChannelAccess, input: &NewMessage) -> Result<(), ApiError> {
    access.need(bits::SEND_MESSAGES)?;
    if input.tts {
        access.need(bits::SEND_TTS_MESSAGES)?;
    }
    if !input.embeds_json.is_empty() {
        access.need(bits::EMBED_LINKS)?;
    }
    if input.reply_to != 0 {
        access.need(bits::READ_MESSAGE_HISTORY)?;
    }
    Ok(())
}

fn admit_slow(gateway: &Gateway, access: &ChannelAccess, key: (i64, i64)) -> Result<(), ApiError> {
    let seconds = access.channel.rate_limit_per_user_seconds;
    if seconds <= 0 || access.may(bits::MANAGE_MESSAGES) || access.may(bits::MANAGE_CHANNELS) {
        return Ok(());
    }
    let every_ms = u64::from(seconds.unsigned_abs()) * 1000;
    gateway.rest_limits.lock().admit_slow(key, every_ms, gateway.now_ms()).map_err(|Slow(wait_ms)| {
        let message = format!("This action cannot be performed due to slowmode rate limit; retry in {wait_ms} ms.");
        ApiError::bad(20_016, message)
    })
}

async fn check_reply(
    gateway: &Gateway,
    access: &ChannelAccess,
    input: &NewMessage,
    deadline: Deadline,
) -> Result<(), ApiError> {
    if input.reply_to == 0 || !input.reply_must_exist {
        return Ok(());
    }
    match read(gateway, access, input.reply_to, deadline).await {
        Err(error) if error.status() == StatusCode::NOT_FOUND => {
            let mut form = Form::default();
            form.add("message_reference", "REPLIES_UNKNOWN_MESSAGE", "Unknown message");
            Err(form.into_error())
        }
        result => result.map(|_| ()),
    }
}

fn compose(access: &ChannelAccess, author: User, input: &NewMessage, body: &Map<String, Value>) -> Message {
    let mentioned = mentions::read(&input.content, &Allowed::read(body), access.may(bits::MENTION_EVERYONE));
    Message {
        channel_id: access.channel.id,
        guild_id: access.hosted.id,
        author: Some(author),
        content: input.content.clone(),
        r#type: if input.reply_to == 0 { 0 } else { 19 },
        tts: input.tts,
        nonce: input.nonce.clone(),
        nonce_is_integer: input.nonce_is_integer,
        reference_message_id: input.reply_to,
        embeds_json: input.embeds_json.clone(),
        mention_user_ids: mentioned.users,
        mention_role_ids: mentioned.roles,
        mention_everyone: mentioned.everyone,
        flags: input.flags,
        ..Message::default()
    }
}

/// Reads what is no older than what sessions here were told of the guild: a client joins a read to the events it gets.
async fn read_current(
    gateway: &Gateway,
    access: &ChannelAccess,
    query: Read,
    deadline: Deadline,
    missing: Missing,
) -> Result<QueryReply, ApiError> {
    let (log, known) = (gateway.log_of(&access.hosted), access.hosted.position());
    let reply = gateway.calls.query_since(log, query, known, deadline).await;
    reply.map_err(|error| ApiError::of_call(error, missing))
}

async fn read(
    gateway: &Gateway,
    access: &ChannelAccess,
    message_id: i64,
    deadline: Deadline,
) -> Result<Message, ApiError> {
    let query = Read::Message(MessageQuery { channel_id: access.channel.id, message_id });
    let reply = read_current(gateway, access, query, deadline, Missing::Message).await?;
    match reply.answer {
        Some(query_reply::Answer::Message(message)) if message.id == message_id => Ok(message),
        _ => Err(ApiError::missing(Missing::Message)),
    }
}

/// GET /channels/{channel}/messages/{message}
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id, message_id]): Ids<2>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    access.need(bits::READ_MESSAGE_HISTORY)?;
    let message = read(&gateway, &access, message_id, deadline).await?;
    learn_mentioned(&gateway, std::slice::from_ref(&message)).await;
    Ok(Json(answer(&gateway, &access, &message)))
}

/// GET /channels/{channel}/messages
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
    Parameters(parameters): Parameters,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let page = page(channel_id, &parameters)?;
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    // Who may not read the history sees an empty one.
    if !access.may(bits::READ_MESSAGE_HISTORY) {
        return Ok(Json(Value::Array(Vec::new())));
    }
    let reply = read_current(&gateway, &access, Read::MessagePage(page), deadline, Missing::Channel).await?;
    let Some(query_reply::Answer::MessagePage(found)) = reply.answer else {
        return Err(ApiError::unavailable("the owner answered without a page; retry later"));
    };
    learn_mentioned(&gateway, &found.messages).await;
    Ok(Json(found.messages.iter().map(|message| answer(&gateway, &access, message)).collect()))
}

fn page(channel_id: i64, parameters: &Map<String, Value>) -> Result<MessagePageQuery, ApiError> {
    let mut form = Form::default();
    let limit = form.integer(parameters, "limit", 1..=100).unwrap_or(50);
    let [around, before, after] = ["around", "before", "after"].map(|key| form.id(parameters, key));
    form.finish()?;
    let mut page = MessagePageQuery { channel_id, limit: limit as i32, ..MessagePageQuery::default() };
    // Only one counts; `after` 0 means from the beginning, which an id of 1 says as well.
    match (around, before, after) {
        (Some(id), _, _) => page.around = id,
        (_, Some(id), _) => page.before = id,
        (_, _, Some(id)) => page.after = id.max(1),
        _ => {}
    }
    Ok(page)
}

/// PATCH /channels/{channel}/messages/{message}
pub async fn edit(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id, message_id]): Ids<2>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let input = Edit::read(&body)?;
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    let mut message = read(&gateway, &access, message_id, deadline).await?;
    if message.author.as_ref().is_none_or(|author| author.id != caller.user_id) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, 50_005, "Cannot edit a message authored by another user"));
    }
    // The log's entry has no way to say that the text stays, so it says the text.
    message.content = input.content.unwrap_or(message.content);
    let embeds_set = input.embeds_json.is_some();
    message.embeds_json = input.embeds_json.unwrap_or(message.embeds_json);
    if message.content.trim().is_empty() && message.embeds_json.is_empty() {
        return Err(ApiError::bad(50_006, "Cannot send an empty message"));
    }
    let change = MessageEdited {
        guild_id: access.hosted.id,
        channel_id,
        message_id,
        content: message.content.clone(),
        edited_timestamp_ms: 0,
        embeds_json: if embeds_set { message.embeds_json.clone() } else { String::new() },
        embeds_set,
    };
    let command = stamp(caller.user_id, Kind::MessageEdited(change), deadline);
    let committed = gateway.commit_judged(access.clone(), caller.user_id, command, |_| Ok(())).await?;
    if let Some((Kind::MessageEdited(change), entry)) = kind_of(committed) {
        let at_ms = change.edited_timestamp_ms;
        message.edited_timestamp_ms = if at_ms == 0 { entry.timestamp_us / 1000 } else { at_ms };
    }
    Ok(Json(answer(&gateway, &access, &message)))
}

/// DELETE /channels/{channel}/messages/{message}
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id, message_id]): Ids<2>,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    let message = read(&gateway, &access, message_id, deadline).await?;
    let own = message.author.as_ref().is_some_and(|author| author.id == caller.user_id);
    let change = MessageDeleted { guild_id: access.hosted.id, channel_id, message_id };
    let command = stamp(caller.user_id, Kind::MessageDeleted(change), deadline);
    let judge = |access: &ChannelAccess| if own { Ok(()) } else { access.need(bits::MANAGE_MESSAGES) };
    gateway.commit_judged(access, caller.user_id, command, judge).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// POST /channels/{channel}/typing
pub async fn typing(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
) -> Result<StatusCode, ApiError> {
    let access = gateway.channel_access(caller.user_id, channel_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    access.need(bits::SEND_MESSAGES)?;
    access.hosted.send_typing(Typing {
        guild_id: access.hosted.id,
        channel_id,
        user_id: caller.user_id,
        at_ms: cell_runtime::unix_ms(),
    });
    Ok(StatusCode::NO_CONTENT)
}
