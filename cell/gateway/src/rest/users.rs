//! Users and applications: who the caller is, its guilds, other users.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cell_proto::v1::User;
use futures::StreamExt;
use serde_json::{Value, json};

use super::auth::Caller;
use super::body::{Ids, Parameters};
use super::error::{ApiError, Missing};
use super::form::Form;
use super::guilds::in_list;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::wire::objects;

/// Guilds opened at the same time to answer one list.
const CONCURRENT_GUILDS: usize = 8;

/// GET /users/@me
pub async fn me(State(gateway): State<Arc<Gateway>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let user = caller.user(&gateway, Deadline::after(COMMAND_TIMEOUT)).await?;
    Ok(Json(objects::own_user(&user)))
}

/// GET /users/{user}
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    _caller: Caller,
    Ids([user_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    match gateway.user(user_id, Deadline::after(COMMAND_TIMEOUT)).await {
        Ok(Some(user)) => Ok(Json(objects::user(&user))),
        Ok(None) => Err(ApiError::missing(Missing::User)),
        Err(error) => Err(ApiError::of_call(error, Missing::User)),
    }
}

/// GET /users/@me/guilds
pub async fn guilds(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Parameters(parameters): Parameters,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let mut form = Form::default();
    let limit = form.integer(&parameters, "limit", 1..=200).unwrap_or(200) as usize;
    let [before, after] = ["before", "after"].map(|key| form.id(&parameters, key));
    form.finish()?;
    let all =
        gateway.user_guilds(caller.user_id, deadline).await.map_err(|error| ApiError::of_call(error, Missing::User))?;
    let wanted: Vec<i64> = all
        .into_iter()
        .filter(|id| before.is_none_or(|before| *id < before) && after.is_none_or(|after| *id > after))
        .collect();
    let page: Vec<i64> = if before.is_some() && after.is_none() {
        wanted[wanted.len().saturating_sub(limit)..].to_vec()
    } else {
        wanted.into_iter().take(limit).collect()
    };
    let listed = futures::stream::iter(page)
        .map(|guild_id| listed(&gateway, caller.user_id, guild_id, deadline))
        .buffered(CONCURRENT_GUILDS)
        .filter_map(std::future::ready)
        .collect::<Vec<_>>()
        .await;
    Ok(Json(Value::Array(listed)))
}

/// A guild the caller has left meanwhile, or whose owner does not answer, is not listed.
async fn listed(gateway: &Gateway, user_id: i64, guild_id: i64, deadline: Deadline) -> Option<Value> {
    let access = gateway.guild_access(user_id, guild_id, deadline).await.ok()?;
    access.hosted.read(|replica| in_list(&replica.guild, user_id, access.permissions, replica.member_count))
}

fn application(user: &User) -> Value {
    json!({
        "id": user.id.to_string(),
        "name": user.name,
        "icon": null,
        "description": "",
        "summary": "",
        "rpc_origins": [],
        "bot_public": true,
        "bot_require_code_grant": false,
        "bot": objects::user(user),
        "terms_of_service_url": null,
        "privacy_policy_url": null,
        "owner": objects::user(user),
        "verify_key": "",
        "team": null,
        "flags": 0,
        "tags": [],
        "interactions_endpoint_url": null,
        "role_connections_verification_url": null,
        "hook": true,
        "redirect_uris": [],
        "integration_types_config": {},
        "approximate_guild_count": 0,
    })
}

/// GET /oauth2/applications/@me and /applications/@me
pub async fn own_application(State(gateway): State<Arc<Gateway>>, caller: Caller) -> Result<Json<Value>, ApiError> {
    let user = caller.user(&gateway, Deadline::after(COMMAND_TIMEOUT)).await?;
    Ok(Json(application(&user)))
}

/// POST /users/@me/channels: direct messages do not exist here yet.
pub async fn open_direct_message(_caller: Caller) -> ApiError {
    ApiError::bad(50_007, "Cannot send messages to this user: direct messages are not supported by this version")
}
