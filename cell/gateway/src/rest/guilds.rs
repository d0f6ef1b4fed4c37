//! Guilds: create, read, change, delete, leave.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::snowflake;
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, Guild, GuildCreated, GuildDeleted, GuildUpdated, Member, MemberRemoved, Role};
use cell_runtime::policy::bits;
use serde_json::{Map, Value, json};

use super::auth::Caller;
use super::body::{Body, Ids};
use super::channels::{IsNew, read_channel};
use super::commands::{kind_of, stamp};
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::objects::{self, GuildParts};

const MAX_FIRST_CHANNELS: usize = 50;

/// POST /guilds
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let mut form = Form::default();
    let name = form.required_text(&body, "name", 2..=100);
    let description = form.text(&body, "description", 0..=120).unwrap_or_default();
    form.finish()?;
    let user = caller.user(&gateway, deadline).await?;
    // The low bits are random: gateways draw guild ids without asking anyone, and bots shard by the bits above.
    let guild_id = snowflake::first_of_ms(cell_runtime::unix_ms()) | i64::from(rand::random::<u32>() & 0x003F_FFFF);
    let everyone =
        Role { id: guild_id, name: "@everyone".into(), permissions: bits::DEFAULT_EVERYONE, ..Role::default() };
    let created = GuildCreated {
        guild: Some(Guild { id: guild_id, name, owner_id: caller.user_id, policy_version: 1, description }),
        roles: vec![everyone],
        channels: first_channels(&body, guild_id)?,
        owner: Some(Member { user: Some(user), ..Member::default() }),
    };
    let command = stamp(caller.user_id, Kind::GuildCreated(created), deadline);
    let committed = gateway
        .calls
        .submit(Unit::bucket(guild_id).log(), &command)
        .await
        .map_err(|error| ApiError::of_call(error, Missing::Guild))?;
    // Opening it also makes its owner start, which enters the guild into the user's list.
    gateway.announce_join(caller.user_id, guild_id);
    if let Err(error) = gateway.hub.open(guild_id) {
        // It is created: an answer which says that it is not would have the caller make another one. Its next request opens it.
        tracing::warn!(guild_id, %error, "a guild that was just created was not opened");
    }
    let Some((Kind::GuildCreated(created), _)) = kind_of(committed) else {
        return Err(ApiError::unavailable("the owner answered without the guild; list the guilds"));
    };
    created.channels.iter().for_each(|channel| gateway.hub.learn_channel(channel.id, guild_id));
    let base = created.guild.unwrap_or_default();
    let parts = GuildParts {
        guild: &base,
        roles: created.roles.iter().collect(),
        channels: created.channels.iter().collect(),
        members: created.owner.iter().collect(),
        member_count: 1,
    };
    Ok((StatusCode::CREATED, Json(objects::guild(&parts))))
}

/// The channels named in the body, or one called general.
fn first_channels(body: &Map<String, Value>, guild_id: i64) -> Result<Vec<Channel>, ApiError> {
    let base = Channel { guild_id, ..Channel::default() };
    let Some(list) = body.get("channels").and_then(Value::as_array).filter(|list| !list.is_empty()) else {
        return Ok(vec![Channel { name: "general".into(), ..base }]);
    };
    if list.len() > MAX_FIRST_CHANNELS {
        let mut form = Form::default();
        form.add("channels", "BASE_TYPE_MAX_LENGTH", &format!("Must be {MAX_FIRST_CHANNELS} or fewer in length."));
        return Err(form.into_error());
    }
    let empty = Map::new();
    // Parents are named by placeholder ids here; channels start without them.
    let one = |(position, value): (usize, &Value)| {
        let map = value.as_object().unwrap_or(&empty);
        let channel = read_channel(map, base.clone(), IsNew::Yes)?;
        Ok(Channel { position: position as i32, parent_id: 0, overwrites: Vec::new(), ..channel })
    };
    list.iter().enumerate().map(one).collect()
}

/// GET /guilds/{guild}
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let access = gateway.guild_access(caller.user_id, guild_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    let guild = access.hosted.read(|replica| {
        let mut value = objects::partial_guild(&replica.guild, replica.roles.values().map(objects::role));
        value["approximate_member_count"] = replica.member_count.into();
        value["approximate_presence_count"] = 0.into();
        value
    });
    guild.map(Json).ok_or_else(|| ApiError::missing(Missing::Guild))
}

/// PATCH /guilds/{guild}
pub async fn update(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let mut form = Form::default();
    let name = form.text(&body, "name", 2..=100);
    let description =
        body.contains_key("description").then(|| form.text(&body, "description", 0..=120).unwrap_or_default());
    let owner_id = form.id(&body, "owner_id");
    form.finish()?;
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::MANAGE_GUILD)?;
    let mut guild = access.hosted.read(|replica| replica.guild.clone()).unwrap_or_default();
    if let Some(owner_id) = owner_id.filter(|owner_id| *owner_id != guild.owner_id) {
        if !access.owner {
            return Err(ApiError::no_permission());
        }
        guild.owner_id = owner_id;
    }
    guild.name = name.unwrap_or(guild.name);
    guild.description = description.unwrap_or(guild.description);
    let kind = Kind::GuildUpdated(GuildUpdated { guild: Some(guild.clone()) });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Guild).await?;
    let roles = access.hosted.read(|replica| replica.roles.values().map(objects::role).collect::<Vec<_>>());
    Ok(Json(objects::partial_guild(&guild, roles.unwrap_or_default())))
}

/// DELETE /guilds/{guild}
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    if !access.owner {
        return Err(ApiError::no_permission());
    }
    let kind = Kind::GuildDeleted(GuildDeleted { guild_id });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Guild).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// DELETE /users/@me/guilds/{guild}
pub async fn leave(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    if access.owner {
        return Err(ApiError::bad(50_055, "Invalid Guild: the owner cannot leave; delete the guild or hand it over"));
    }
    let kind = Kind::MemberRemoved(MemberRemoved { guild_id, user_id: caller.user_id });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Guild).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The guild as it stands in a user's list.
pub fn in_list(guild: &Guild, user_id: i64, permissions: i64, member_count: i32) -> Value {
    json!({
        "id": guild.id.to_string(),
        "name": guild.name,
        "icon": null, "banner": null,
        "owner": guild.owner_id == user_id,
        "permissions": permissions.to_string(),
        "features": [],
        "approximate_member_count": member_count,
        "approximate_presence_count": 0,
    })
}
