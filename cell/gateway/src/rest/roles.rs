//! Roles: list, create, change, delete.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Role, RoleDeleted, RolePut};
use cell_runtime::policy::bits;
use serde_json::{Map, Value};

use super::access::GuildAccess;
use super::auth::Caller;
use super::body::{Body, Ids};
use super::commands::{kind_of, stamp};
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::objects;

/// GET /guilds/{guild}/roles
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let access = gateway.guild_access(caller.user_id, guild_id, Deadline::after(COMMAND_TIMEOUT)).await?;
    let roles = access.hosted.read(|replica| replica.roles.values().map(objects::role).collect());
    roles.map(Json).ok_or_else(|| ApiError::missing(Missing::Guild))
}

fn read(body: &Map<String, Value>, base: Role) -> Result<Role, ApiError> {
    let mut form = Form::default();
    let mut role = base;
    if let Some(name) = form.text(body, "name", 1..=100) {
        role.name = name;
    }
    if let Some(permissions) = form.integer(body, "permissions", 0..=i64::MAX) {
        role.permissions = permissions & bits::ALL;
    }
    if let Some(color) = form.integer(body, "color", 0..=0x00FF_FFFF) {
        role.color = color as i32;
    }
    if let Some(Value::Object(colors)) = body.get("colors")
        && let Some(color) = form.integer(colors, "primary_color", 0..=0x00FF_FFFF)
    {
        role.color = color as i32;
    }
    role.hoist = form.boolean(body, "hoist").unwrap_or(role.hoist);
    role.mentionable = form.boolean(body, "mentionable").unwrap_or(role.mentionable);
    form.finish()?;
    Ok(role)
}

/// Nobody gives what they do not have.
fn check_grant(access: &GuildAccess, before: i64, after: i64) -> Result<(), ApiError> {
    access.need(bits::MANAGE_ROLES)?;
    let added = after & !before;
    access.need(added)
}

/// POST /guilds/{guild}/roles
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    let everyone = access.hosted.read(|replica| replica.roles.get(&guild_id).map_or(0, |role| role.permissions));
    let base = Role { name: "new role".into(), permissions: everyone.unwrap_or(0), position: 1, ..Role::default() };
    let role = read(&body, base)?;
    check_grant(&access, everyone.unwrap_or(0), role.permissions)?;
    let kind = Kind::RolePut(RolePut { guild_id, role: Some(role), created: true });
    let committed = gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Guild).await?;
    match kind_of(committed) {
        Some((Kind::RolePut(RolePut { role: Some(role), .. }), _)) => Ok(Json(objects::role(&role))),
        _ => Err(ApiError::unavailable("the owner answered without the role; list the roles")),
    }
}

/// PATCH /guilds/{guild}/roles/{role}
pub async fn update(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, role_id]): Ids<2>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    let base = access.hosted.read(|replica| replica.roles.get(&role_id).cloned()).flatten();
    let base = base.ok_or_else(|| ApiError::missing(Missing::Role))?;
    let role = read(&body, base.clone())?;
    check_grant(&access, base.permissions, role.permissions)?;
    let kind = Kind::RolePut(RolePut { guild_id, role: Some(role.clone()), created: false });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Role).await?;
    Ok(Json(objects::role(&role)))
}

/// DELETE /guilds/{guild}/roles/{role}
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id, role_id]): Ids<2>,
) -> Result<StatusCode, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::MANAGE_ROLES)?;
    if role_id == guild_id {
        return Err(ApiError::bad(50_028, "Invalid Role: @everyone cannot be deleted"));
    }
    if access.hosted.read(|replica| replica.roles.contains_key(&role_id)) != Some(true) {
        return Err(ApiError::missing(Missing::Role));
    }
    let kind = Kind::RoleDeleted(RoleDeleted { guild_id, role_id });
    gateway.mutate(&access.hosted, &stamp(caller.user_id, kind, deadline), Missing::Role).await?;
    Ok(StatusCode::NO_CONTENT)
}
