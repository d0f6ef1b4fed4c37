//! Channels: list, create, read, change, delete.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, ChannelDeleted, ChannelPut, Overwrite};
use cell_runtime::policy::bits;
use serde_json::{Map, Value};

use super::auth::Caller;
use super::body::{Body, Ids};
use super::commands::{kind_of, stamp};
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::{lenient, objects};

/// Kinds of channels that can be made: text, voice, category.
const KINDS: [i64; 3] = [0, 2, 4];
const MAX_OVERWRITES: usize = 1000;

/// GET /guilds/{guild}/channels
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let access = gateway.guild_access(caller.user_id, guild_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    let now_ms = cell_runtime::unix_ms();
    let channels = access.hosted.read(|replica| {
        let hidden = replica.hidden_from(caller.user_id, now_ms);
        let seen = replica.channels.values().filter(|channel| hidden.binary_search(&channel.id).is_err());
        seen.map(objects::channel).collect()
    });
    channels.map(Json).ok_or_else(|| ApiError::missing(Missing::Guild))
}

/// GET /channels/{channel}
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let access = gateway.channel_access(caller.user_id, channel_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    Ok(Json(objects::channel(&access.channel)))
}

/// Reads the fields of a channel over what it has.
pub fn read_channel(body: &Map<String, Value>, base: Channel, is_new: IsNew) -> Result<Channel, ApiError> {
    let mut form = Form::default();
    let mut channel = base;
    if is_new == IsNew::Yes {
        channel.name = form.required_text(body, "name", 1..=100);
        channel.r#type = form.integer(body, "type", 0..=255).unwrap_or(0) as i32;
        if !KINDS.contains(&i64::from(channel.r#type)) {
            form.add("type", "BASE_TYPE_CHOICES", "Value must be one of (0, 2, 4).");
        }
    } else if let Some(name) = form.text(body, "name", 1..=100) {
        channel.name = name;
    }
    if channel.r#type == 0 {
        channel.name = channel.name.to_lowercase().split_whitespace().collect::<Vec<_>>().join("-");
    }
    if body.contains_key("topic") {
        channel.topic = form.text(body, "topic", 0..=1024).unwrap_or_default();
    }
    if let Some(position) = form.integer(body, "position", 0..=10_000) {
        channel.position = position as i32;
    }
    if body.contains_key("parent_id") {
        channel.parent_id = form.id(body, "parent_id").unwrap_or(0);
    }
    if let Some(seconds) = form.integer(body, "rate_limit_per_user", 0..=21_600) {
        channel.rate_limit_per_user_seconds = seconds as i32;
    }
    if let Some(nsfw) = form.boolean(body, "nsfw") {
        channel.nsfw = nsfw;
    }
    if let Some(overwrites) = read_overwrites(&mut form, body) {
        channel.overwrites = overwrites;
    }
    form.finish()?;
    Ok(channel)
}

/// Whether a channel or role is being made or changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsNew {
    /// Being made.
    Yes,
    /// Being changed.
    No,
}

fn read_overwrites(form: &mut Form, body: &Map<String, Value>) -> Option<Vec<Overwrite>> {
    let Some(list) = lenient::present(body, "permission_overwrites")?.as_array() else {
        form.add("permission_overwrites", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType");
        return None;
    };
    if list.len() > MAX_OVERWRITES {
        form.add(
            "permission_overwrites",
            "BASE_TYPE_MAX_LENGTH",
            &format!("Must be {MAX_OVERWRITES} or fewer in length."),
        );
        return None;
    }
    let mut overwrites = Vec::with_capacity(list.len());
    for (index, value) in list.iter().enumerate() {
        match read_overwrite(value) {
            Some(overwrite) => overwrites.push(overwrite),
            None => {
                form.add(&format!("permission_overwrites.{index}"), "DICT_TYPE_CONVERT", "Not a permission overwrite.")
            }
        }
    }
    Some(overwrites)
}

fn read_overwrite(value: &Value) -> Option<Overwrite> {
    let map = value.as_object()?;
    let kind = match map.get("type")? {
        Value::String(word) if word == "role" => 0,
        Value::String(word) if word == "member" => 1,
        other => lenient::integer(other).filter(|kind| (0..=1).contains(kind))? as i32,
    };
    let set = |key: &str| match lenient::present(map, key) {
        None => Some(0),
        Some(value) => lenient::integer(value).filter(|set| *set >= 0).map(|set| set & bits::ALL),
    };
    Some(Overwrite { id: map.get("id").and_then(lenient::id)?, r#type: kind, allow: set("allow")?, deny: set("deny")? })
}

/// POST /guilds/{guild}/channels
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let channel = read_channel(&body, Channel { guild_id, ..Channel::default() }, IsNew::Yes)?;
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::MANAGE_CHANNELS)?;
    let kind = Kind::ChannelPut(ChannelPut { channel: Some(channel), created: true });
    let command = stamp(caller.user_id, kind, deadline);
    let committed = gateway.mutate(&access.hosted, &command, Missing::Guild).await?;
    match kind_of(committed) {
        Some((Kind::ChannelPut(ChannelPut { channel: Some(channel), .. }), _)) => {
            gateway.hub.learn_channel(channel.id, guild_id);
            Ok((StatusCode::CREATED, Json(objects::channel(&channel))))
        }
        _ => Err(ApiError::unavailable("the owner answered without the channel; list the channels")),
    }
}

/// PATCH /channels/{channel}
pub async fn update(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    access.need(bits::MANAGE_CHANNELS)?;
    if body.contains_key("permission_overwrites") {
        access.need(bits::MANAGE_ROLES)?;
    }
    let channel = read_channel(&body, access.channel.clone(), IsNew::No)?;
    let kind = Kind::ChannelPut(ChannelPut { channel: Some(channel.clone()), created: false });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Channel).await?;
    Ok(Json(objects::channel(&channel)))
}

/// DELETE /channels/{channel}
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    access.need(bits::MANAGE_CHANNELS)?;
    let kind = Kind::ChannelDeleted(ChannelDeleted { guild_id: access.hosted.id, channel_id });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Channel).await?;
    Ok(Json(objects::channel(&access.channel)))
}
