//! Invites: create, list, read, accept, delete. A code names its guild in its first characters, so a bare one finds its log.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_request::Query as Read;
use cell_proto::v1::{Invite, InviteDeleted, InvitePut, InviteQuery, Member, MemberPut, query_reply};
use cell_runtime::policy::bits;
use serde_json::Value;

use super::auth::Caller;
use super::body::{Body, Ids};
use super::commands::{kind_of, stamp};
use super::error::{ApiError, Missing};
use super::form::Form;
use crate::calls::{COMMAND_TIMEOUT, Deadline};
use crate::gateway::Gateway;
use crate::guilds::hosted::{Hosted, Unknown};
use crate::wire::objects;

/// Whom requests without a token are counted for: no user has this id.
const ANYBODY: i64 = 0;
/// Characters of a code that name the guild.
const GUILD_PART: usize = 11;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The guild a code names; `None` for what cannot be a code.
pub fn guild_of_code(code: &str) -> Option<i64> {
    if code.len() <= GUILD_PART || code.len() > 64 || !code.is_ascii() {
        return None;
    }
    let digit = |byte: u8| ALPHABET.iter().position(|other| *other == byte).map(|at| at as i64);
    let fold = |sum: i64, byte: u8| sum.checked_mul(62)?.checked_add(digit(byte)?);
    let guild_id = code.bytes().take(GUILD_PART).try_fold(0_i64, fold)?;
    let rest_is_sane = code.bytes().skip(GUILD_PART).all(|byte| digit(byte).is_some() || byte == b'-');
    (guild_id > 0 && rest_is_sane).then_some(guild_id)
}

/// POST /channels/{channel}/invites
pub async fn create(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([channel_id]): Ids<1>,
    Body(body): Body,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let mut form = Form::default();
    let max_age_seconds = form.integer(&body, "max_age", 0..=604_800).unwrap_or(86_400) as i32;
    let max_uses = form.integer(&body, "max_uses", 0..=100).unwrap_or(0) as i32;
    form.finish()?;
    let access = gateway.channel_access(caller.user_id, channel_id, deadline).await?;
    access.need(bits::CREATE_INSTANT_INVITE)?;
    let invite = Invite {
        guild_id: access.hosted.id,
        channel_id,
        inviter_id: caller.user_id,
        max_age_seconds,
        max_uses,
        ..Invite::default()
    };
    let command = stamp(caller.user_id, Kind::InvitePut(InvitePut { invite: Some(invite) }), deadline);
    let committed = gateway.mutate(&access.hosted, &command, Missing::Channel).await?;
    match kind_of(committed) {
        Some((Kind::InvitePut(InvitePut { invite: Some(invite) }), _)) => {
            Ok(Json(answer(&gateway, &access.hosted, &invite)))
        }
        _ => Err(ApiError::unavailable("the owner answered without the invite; retry")),
    }
}

fn answer(gateway: &Gateway, hosted: &Hosted, invite: &Invite) -> Value {
    let told = hosted.read(|replica| {
        let channel = replica.channels.get(&invite.channel_id);
        objects::invite(invite, Some(&replica.guild), channel, replica.member_count)
    });
    let mut value = told.unwrap_or_else(|| objects::invite(invite, None, None, 0));
    if let Some(inviter) = gateway.users.get(invite.inviter_id) {
        value["inviter"] = objects::user(&inviter);
    }
    value
}

/// Reads an invite, with its guild opened.
async fn find(gateway: &Gateway, code: &str, deadline: Deadline) -> Result<(Arc<Hosted>, Invite), ApiError> {
    let unknown = || ApiError::missing(Missing::Invite);
    let guild_id = guild_of_code(code).ok_or_else(unknown)?;
    let query = Read::Invite(InviteQuery { guild_id, code: code.to_owned() });
    let reply = gateway
        .calls
        .query(gateway.calls.log_of_guild(guild_id), query, deadline)
        .await
        .map_err(|error| ApiError::of_call(error, Missing::Invite))?;
    let Some(query_reply::Answer::Invite(invite)) = reply.answer else {
        return Err(unknown());
    };
    let expires_ms = invite.created_at_ms + i64::from(invite.max_age_seconds) * 1000;
    let expired = invite.max_age_seconds > 0 && cell_runtime::unix_ms() > expires_ms;
    let used_up = invite.max_uses > 0 && invite.uses >= invite.max_uses;
    if invite.code != code || expired || used_up {
        return Err(unknown());
    }
    let hosted = gateway.open_guild(guild_id)?;
    if !hosted.wait_for(deadline.at, |_| true).await {
        let gone = hosted.is_gone();
        return Err(if gone {
            unknown()
        } else {
            ApiError::unavailable("the guild's owner did not answer in time; retry")
        });
    }
    Ok((hosted, invite))
}

/// GET /invites/{code}; needs no token. Who has none shares the rate of one user with all others.
pub async fn get(
    State(gateway): State<Arc<Gateway>>,
    caller: Result<Caller, ApiError>,
    Path(code): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if let Err(error) = caller {
        if error.status() == StatusCode::TOO_MANY_REQUESTS {
            return Err(error);
        }
        let admitted = gateway.rest_limits.lock().admit(ANYBODY, gateway.now_ms(), cell_runtime::unix_ms());
        admitted.map_err(ApiError::limited)?;
    }
    let (hosted, invite) = find(&gateway, &code, Deadline::after(COMMAND_TIMEOUT)).await?;
    Ok(Json(answer(&gateway, &hosted, &invite)))
}

/// GET /guilds/{guild}/invites
pub async fn list(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Ids([guild_id]): Ids<1>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let access = gateway.guild_access(caller.user_id, guild_id, deadline).await?;
    access.need(bits::MANAGE_GUILD)?;
    let invites = gateway
        .calls
        .invites(gateway.log_of(&access.hosted), guild_id, deadline)
        .await
        .map_err(|error| ApiError::of_call(error, Missing::Guild))?;
    Ok(Json(invites.iter().map(|invite| answer(&gateway, &access.hosted, invite)).collect()))
}

/// POST /invites/{code}: the caller joins. Who is a member already changes nothing.
pub async fn accept(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Path(code): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let (hosted, invite) = find(&gateway, &code, deadline).await?;
    match hosted.member(caller.user_id, deadline.at).await {
        Ok(_) => return Ok(Json(answer(&gateway, &hosted, &invite))),
        Err(Unknown::NotMember) => {}
        Err(Unknown::NoGuild) => return Err(ApiError::missing(Missing::Invite)),
        Err(Unknown::Unreachable) => {
            return Err(ApiError::unavailable("the guild's owner did not answer in time; retry"));
        }
    }
    let user = caller.user(&gateway, deadline).await?;
    let change = MemberPut {
        guild_id: hosted.id,
        member: Some(Member { user: Some(user), ..Member::default() }),
        joined: true,
        invite_code: code,
        ..MemberPut::default()
    };
    let command = stamp(caller.user_id, Kind::MemberPut(change), deadline);
    gateway.mutate(&hosted, &command, Missing::Invite).await?;
    gateway.announce_join(caller.user_id, hosted.id);
    Ok(Json(answer(&gateway, &hosted, &invite)))
}

/// DELETE /invites/{code}
pub async fn delete(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Path(code): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let deadline = Deadline::after(COMMAND_TIMEOUT);
    let (hosted, invite) = find(&gateway, &code, deadline).await?;
    let access = gateway.guild_access(caller.user_id, hosted.id, deadline).await?;
    if invite.inviter_id != caller.user_id && access.need(bits::MANAGE_GUILD).is_err() {
        access.need(bits::MANAGE_CHANNELS)?;
    }
    let kind = Kind::InviteDeleted(InviteDeleted { guild_id: hosted.id, code });
    gateway.mutate(&hosted, &stamp(caller.user_id, kind, deadline), Missing::Invite).await?;
    Ok(Json(answer(&gateway, &hosted, &invite)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(guild_id: i64) -> String {
        let mut digits = [b'0'; GUILD_PART];
        let mut rest = guild_id;
        for digit in digits.iter_mut().rev() {
            *digit = ALPHABET[(rest % 62) as usize];
            rest /= 62;
        }
        String::from_utf8(digits.to_vec()).unwrap() + "abc123"
    }

    #[test]
    fn a_code_names_its_guild_and_garbage_names_none() {
        for guild_id in [1, 61, 62, 1_234_567_890_123, i64::MAX] {
            assert_eq!(guild_of_code(&code_of(guild_id)), Some(guild_id));
        }
        for garbage in
            ["", "abc", "discord-api", "zzzzzzzzzzzzzzzzzzzz", "éééééééééééé", &"0".repeat(17), &"a".repeat(65)]
        {
            assert_eq!(guild_of_code(garbage), None, "{garbage}");
        }
    }
}
