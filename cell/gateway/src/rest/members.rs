//! Members: list, read, change, kick, give and take roles.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Member, MemberPut, MemberRemoved, MembersRequest};
use cell_runtime::policy::bits;
use serde_json::{Map, Value};

use super::access::GuildAccess;
use super::auth::Caller;
use super::body::{Body, Ids, Parameters};
use super::commands::stamp;
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::guilds::replica::user_id;
use crate::wire::objects;

/// GET /guilds/{guild}/members
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
    Parameters(parameters): Parameters,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let mut form = Form::default();
    let limit = form.integer(&parameters, "limit", 1..=1000).unwrap_or(1) as i32;
    let after_user_id = form.id(&parameters, "after").unwrap_or(0);
    form.finish()?;
    gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    let ask = MembersRequest { guild_id, after_user_id, limit, ..MembersRequest::default() };
    let reply = gateway.calls.members(ask, deadline).await.map_err(|error| ApiError::of_call(error, Missing::Guild))?;
    Ok(Json(reply.members.iter().map(objects::member).collect()))
}

async fn find(gateway: &Gateway, guild_id: i64, user_id: i64, deadline: Deadline) -> Result<Member, ApiError> {
    let ask = MembersRequest { guild_id, user_ids: vec![user_id], limit: 1, ..MembersRequest::default() };
    let reply = gateway.calls.members(ask, deadline).await.map_err(|error| ApiError::of_call(error, Missing::Guild))?;
    let member = reply.members.into_iter().find(|member| self::user_id(member) == user_id);
    member.ok_or_else(|| ApiError::missing(Missing::Member))
}

/// GET /guilds/{guild}/members/{user}
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, user_id]): Ids<2>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    Ok(Json(objects::member(&find(&gateway, guild_id, user_id, deadline).await?)))
}

/// GET /users/@me/guilds/{guild}/member
pub async fn own(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let access = gateway.guild_access(caller.user_id, guild_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    let member = access.hosted.read(|replica| replica.members.get(&caller.user_id).map(objects::member)).flatten();
    member.map(Json).ok_or_else(ApiError::no_access)
}

/// Whether the caller stands above another member: owners above all, else by the highest role.
fn outranks(access: &GuildAccess, caller_id: i64, other: &Member) -> bool {
    access
        .hosted
        .read(|replica| {
            let highest =
                |roles: &[i64]| roles.iter().filter_map(|id| replica.roles.get(id)).map(|role| role.position).max();
            let own = replica.members.get(&caller_id).map(|member| highest(&member.role_ids).unwrap_or(0));
            let others = highest(&other.role_ids).unwrap_or(0);
            user_id(other) != replica.guild.owner_id && (access.owner || own.is_some_and(|own| own > others))
        })
        .unwrap_or(false)
}

/// PATCH /guilds/{guild}/members/{user}
pub async fn update(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, user_id]): Ids<2>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    change(&gateway, caller, guild_id, user_id, &body).await
}

/// PATCH /guilds/{guild}/members/@me
pub async fn update_own(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    change(&gateway, caller, guild_id, caller.user_id, &body).await
}

async fn change(
    gateway: &Gateway,
    caller: Caller,
    guild_id: i64,
    user_id: i64,
    body: &Map<String, Value>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    let mut member = find(gateway, guild_id, user_id, deadline).await?;
    let own = user_id == caller.user_id;
    let mut form = Form::default();
    if body.contains_key("nick") {
        access.need(if own { bits::CHANGE_NICKNAME } else { bits::MANAGE_NICKNAMES })?;
        member.nick = form.text(body, "nick", 0..=32).unwrap_or_default();
    }
    if let Some(roles) = form.ids(body, "roles", 250) {
        access.need(bits::MANAGE_ROLES)?;
        member.role_ids = roles;
    }
    if let Some(until) = body.get("communication_disabled_until") {
        access.need(bits::MODERATE_MEMBERS)?;
        member.timed_out_until_ms = match until {
            Value::Null => 0,
            Value::String(text) => objects::parse_iso8601_ms(text).unwrap_or_else(|| {
                form.add("communication_disabled_until", "DATE_TIME_TYPE_PARSE", "Could not parse the time.");
                0
            }),
            _ => {
                form.add("communication_disabled_until", "BASE_TYPE_BAD_TYPE", "Could not interpret value as string.");
                0
            }
        };
    }
    form.finish()?;
    if !own && !outranks(&access, caller.user_id, &member) {
        return Err(ApiError::no_permission());
    }
    put(gateway, &access, caller.user_id, member.clone(), deadline).await?;
    Ok(Json(objects::member(&member)))
}

async fn put(
    gateway: &Gateway,
    access: &GuildAccess,
    actor_id: i64,
    member: Member,
    deadline: Deadline,
) -> Result<(), ApiError> {
    let change = MemberPut { guild_id: access.hosted.id, member: Some(member), ..MemberPut::default() };
    let command = stamp(actor_id, Kind::MemberPut(change), deadline);
    gateway.mutate(&access.hosted, &command, Missing::Member).await.map(|_| ())
}

/// DELETE /guilds/{guild}/members/{user}
pub async fn kick(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, user_id]): Ids<2>,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::KICK_MEMBERS)?;
    let member = find(&gateway, guild_id, user_id, deadline).await?;
    if !outranks(&access, caller.user_id, &member) {
        return Err(ApiError::no_permission());
    }
    let kind = Kind::MemberRemoved(MemberRemoved { guild_id, user_id });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Member).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// PUT /guilds/{guild}/members/{user}/roles/{role}
pub async fn give_role(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, user_id, role_id]): Ids<3>,
) -> Result<StatusCode, ApiError> {
    change_roles(&gateway, caller, [guild_id, user_id, role_id], |roles| {
        if !roles.contains(&role_id) {
            roles.push(role_id);
        }
    })
    .await
}

/// DELETE /guilds/{guild}/members/{user}/roles/{role}
pub async fn take_role(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, user_id, role_id]): Ids<3>,
) -> Result<StatusCode, ApiError> {
    change_roles(&gateway, caller, [guild_id, user_id, role_id], |roles| roles.retain(|id| *id != role_id)).await
}

async fn change_roles(
    gateway: &Gateway,
    caller: Caller,
    [guild_id, user_id, role_id]: [i64; 3],
    change: impl FnOnce(&mut Vec<i64>),
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::MANAGE_ROLES)?;
    let exists = access.hosted.read(|replica| replica.roles.contains_key(&role_id)) == Some(true);
    if !exists || role_id == guild_id {
        return Err(ApiError::missing(Missing::Role));
    }
    let mut member = find(gateway, guild_id, user_id, deadline).await?;
    let before = member.role_ids.clone();
    change(&mut member.role_ids);
    if member.role_ids != before {
        put(gateway, &access, caller.user_id, member, deadline).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}
