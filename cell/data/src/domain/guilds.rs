//! Structural changes of a guild: its objects exist, fit the limits, come from the guild's present owner, and raise the policy version
//! exactly where they change who may do or see what.

use std::collections::HashMap;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    ChannelPut, Guild, GuildClaimed, GuildCreated, GuildUpdated, Invite, InvitePut, Member, MemberPut, Merge, Reason,
    Refusal, RolePut, Split,
};
use prost::Message as _;

use super::Ids;
use super::ids::invite_code;
use super::judge::Asked;
use super::limits::{self, invalid};
use super::messages::uses;
use super::state::{Cells, Need, State, number};
use super::tables::{self, BODY, GUILD_OBJECTS, id_key, invite_key, kind, object_key};

pub(super) fn member_row(guild_id: i64, user_id: i64) -> Need {
    Need::Row { table: GUILD_OBJECTS, partition: id_key(guild_id), clustering: object_key(kind::MEMBER, user_id) }
}

pub(super) fn invite_row(guild_id: i64, code: &str) -> Need {
    // An over-long code must not become an over-long key; codes have 17 characters.
    let code: String = code.chars().take(64).collect();
    Need::Row { table: GUILD_OBJECTS, partition: id_key(guild_id), clustering: invite_key(&code) }
}

/// An invite from its row.
pub fn invite_of(cells: &Cells) -> Option<Invite> {
    let invite = Invite::decode(cells.get(BODY)?.as_slice()).ok()?;
    Some(Invite { uses: uses(cells), ..invite })
}

/// A guild from its row.
pub fn guild_row_of(cells: &Cells) -> Option<Guild> {
    let guild = Guild::decode(cells.get(BODY)?.as_slice()).ok()?;
    Some(Guild { policy_version: number(cells, tables::POLICY).unwrap_or(0), ..guild })
}

fn not_found(what: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("no such {what}"))
}

fn guild(state: &State, guild_id: i64) -> Result<Guild, Refusal> {
    let cells = state.object(guild_id, &object_key(kind::GUILD, 0));
    cells.and_then(guild_row_of).ok_or_else(|| not_found("guild"))
}

/// The guild exists and the command was judged by its present policy.
pub(super) fn check_policy(state: &State, asked: &Asked<'_>, guild_id: i64) -> Result<(), Refusal> {
    let guild = guild(state, guild_id)?;
    if asked.policy_version != 0 && asked.policy_version < guild.policy_version {
        let message =
            format!("judged by policy version {}, the guild has {}", asked.policy_version, guild.policy_version);
        return Err(Refusal::new(Reason::StalePolicy, message).retry_after_ms(20));
    }
    Ok(())
}

fn guild_term(state: &State, guild_id: i64) -> u64 {
    state.object(guild_id, &object_key(kind::TERM, 0)).and_then(|cells| number(cells, tables::TERM)).unwrap_or(0)
}

fn check_guild_term(state: &State, asked: &Asked<'_>, guild_id: i64) -> Result<(), Refusal> {
    let term = guild_term(state, guild_id);
    if asked.guild_term >= term {
        return Ok(());
    }
    let message = format!("the sender's guild term is {}, the guild was claimed at {term}", asked.guild_term);
    Err(Refusal::new(Reason::StaleGuildTerm, message))
}

/// The change as committed, and the policy version it raises the guild to (0: not raised).
pub(super) fn judge(state: &State, asked: &Asked<'_>, kind: &Kind, ids: &mut Ids) -> Result<(Kind, u64), Refusal> {
    match kind {
        Kind::GuildCreated(created) => return Ok((created_guild(state, created, ids)?, 1)),
        Kind::GuildClaimed(claimed) => return Ok((claimed_guild(state, claimed)?, 0)),
        Kind::Split(split) => return Ok((split_out(state, *split)?, 0)),
        Kind::Merge(merge) => return Ok((merged(state, *merge)?, 0)),
        _ => {}
    }
    let guild_id = super::guild_of(kind).ok_or_else(|| invalid("guild id is missing"))?;
    let guild = guild(state, guild_id)?;
    check_guild_term(state, asked, guild_id)?;
    check_policy(state, asked, guild_id)?;
    let (kind, raises) = structural(state, asked, kind, &guild, ids)?;
    Ok((kind, if raises { guild.policy_version + 1 } else { 0 }))
}

fn structural(
    state: &State,
    asked: &Asked<'_>,
    kind: &Kind,
    guild: &Guild,
    ids: &mut Ids,
) -> Result<(Kind, bool), Refusal> {
    let exists = |kind: u8, id: i64, what: &str| match state.object(guild.id, &object_key(kind, id)) {
        Some(_) => Ok(()),
        None => Err(not_found(what)),
    };
    match kind {
        Kind::GuildUpdated(updated) => {
            let new = updated.guild.as_ref().ok_or_else(|| invalid("guild is missing"))?;
            limits::guild(new)?;
            let new = Guild { policy_version: 0, ..new.clone() };
            let raises = new.owner_id != guild.owner_id;
            Ok((Kind::GuildUpdated(GuildUpdated { guild: Some(new) }), raises))
        }
        Kind::GuildDeleted(_) => Ok((kind.clone(), false)),
        Kind::ChannelPut(put) => Ok((channel_put(state, put, ids)?, true)),
        Kind::ChannelDeleted(gone) => exists(kind::CHANNEL, gone.channel_id, "channel").map(|()| (kind.clone(), true)),
        Kind::RolePut(put) => Ok((role_put(state, put, ids)?, true)),
        Kind::RoleDeleted(gone) if gone.role_id == guild.id => Err(invalid("the guild's first role cannot be deleted")),
        Kind::RoleDeleted(gone) => exists(kind::ROLE, gone.role_id, "role").map(|()| (kind.clone(), true)),
        Kind::MemberPut(put) => member_put(state, put, guild, *ids),
        Kind::MemberRemoved(gone) => match state.row(&member_row(guild.id, gone.user_id)) {
            Some(_) if gone.user_id == guild.owner_id => Err(invalid("the guild's owner cannot leave it")),
            Some(_) => Ok((kind.clone(), true)),
            None => Err(not_found("member")),
        },
        Kind::InvitePut(put) => Ok((invite_put(state, asked, put, *ids)?, false)),
        Kind::InviteDeleted(gone) => match state.row(&invite_row(guild.id, &gone.code)) {
            Some(_) => Ok((kind.clone(), false)),
            None => Err(not_found("invite")),
        },
        _ => Err(invalid("not a structural change")),
    }
}

fn created_guild(state: &State, created: &GuildCreated, ids: &mut Ids) -> Result<Kind, Refusal> {
    let mut created = created.clone();
    let guild = created.guild.as_mut().ok_or_else(|| invalid("guild is missing"))?;
    limits::guild(guild)?;
    guild.policy_version = 1;
    let guild_id = guild.id;
    if state.object(guild_id, &object_key(kind::GUILD, 0)).is_some() {
        return Err(Refusal::new(Reason::AlreadyExists, "a guild with this id exists"));
    }
    if created.roles.len() > limits::MAX_ROLES || created.channels.len() > limits::MAX_CHANNELS {
        return Err(invalid("too many roles or channels"));
    }
    if !created.roles.iter().any(|role| role.id == guild_id) {
        return Err(invalid("roles must hold the guild's first role, whose id is the guild's"));
    }
    for role in &mut created.roles {
        limits::role(role)?;
        if role.id == 0 {
            role.id = ids.draw();
        }
    }
    // The ids given for channels only tell which is whose parent; real ones are assigned.
    let mut assigned = HashMap::new();
    for channel in &mut created.channels {
        limits::channel(channel)?;
        channel.guild_id = guild_id;
        let given = channel.id;
        channel.id = ids.draw_in_bucket_of(guild_id).ok_or_else(|| invalid("no channel id is free"))?;
        assigned.insert(given, channel.id);
    }
    for channel in created.channels.iter_mut().filter(|channel| channel.parent_id != 0) {
        let parent = assigned.get(&channel.parent_id).ok_or_else(|| invalid("channel.parent_id names no channel"))?;
        channel.parent_id = *parent;
    }
    let owner = created.owner.as_mut().ok_or_else(|| invalid("owner is missing"))?;
    limits::member(owner)?;
    if owner.joined_at_ms == 0 {
        owner.joined_at_ms = ids.unix_ms;
    }
    Ok(Kind::GuildCreated(created))
}

fn claimed_guild(state: &State, claimed: &GuildClaimed) -> Result<Kind, Refusal> {
    guild(state, claimed.guild_id)?;
    let term = guild_term(state, claimed.guild_id);
    if claimed.guild_term <= term {
        let message = format!("guild term {} is not above the last claim's, {term}", claimed.guild_term);
        return Err(Refusal::new(Reason::StaleGuildTerm, message));
    }
    Ok(Kind::GuildClaimed(claimed.clone()))
}

fn split_out(state: &State, split: Split) -> Result<Kind, Refusal> {
    guild(state, split.guild_id)?;
    match state.split(split.guild_id) {
        None => Ok(Kind::Split(split)),
        Some(_) => Err(Refusal::new(Reason::AlreadyExists, "the guild is split out already")),
    }
}

fn merged(state: &State, merge: Merge) -> Result<Kind, Refusal> {
    match state.split(merge.guild_id) {
        None => Err(Refusal::new(Reason::AlreadyExists, "the guild is in its bucket already")),
        Some(term) if merge.sealed_term > term => Ok(Kind::Merge(merge)),
        Some(term) => {
            let message = format!("the seal's term {} is not above the split's, {term}", merge.sealed_term);
            Err(Refusal::new(Reason::StaleTerm, message))
        }
    }
}

fn channel_put(state: &State, put: &ChannelPut, ids: &mut Ids) -> Result<Kind, Refusal> {
    let mut put = put.clone();
    let channel = put.channel.as_mut().ok_or_else(|| invalid("channel is missing"))?;
    limits::channel(channel)?;
    if channel.parent_id != 0 && state.object(channel.guild_id, &object_key(kind::CHANNEL, channel.parent_id)).is_none()
    {
        return Err(invalid("channel.parent_id names no channel"));
    }
    if put.created {
        if state.count(channel.guild_id, kind::CHANNEL) >= limits::MAX_CHANNELS {
            return Err(Refusal::new(
                Reason::TooLarge,
                format!("a guild has at most {} channels", limits::MAX_CHANNELS),
            ));
        }
        if channel.id != 0 {
            return Err(invalid("channel.id is assigned by the log's owner and must be 0"));
        }
        let guild_id = channel.guild_id;
        channel.id = ids.draw_in_bucket_of(guild_id).ok_or_else(|| invalid("no channel id is free"))?;
    } else if state.object(channel.guild_id, &object_key(kind::CHANNEL, channel.id)).is_none() {
        return Err(not_found("channel"));
    }
    Ok(Kind::ChannelPut(put))
}

fn role_put(state: &State, put: &RolePut, ids: &mut Ids) -> Result<Kind, Refusal> {
    let mut put = put.clone();
    let role = put.role.as_mut().ok_or_else(|| invalid("role is missing"))?;
    limits::role(role)?;
    if put.created {
        if state.count(put.guild_id, kind::ROLE) >= limits::MAX_ROLES {
            return Err(Refusal::new(Reason::TooLarge, format!("a guild has at most {} roles", limits::MAX_ROLES)));
        }
        if role.id != 0 {
            return Err(invalid("role.id is assigned by the log's owner and must be 0"));
        }
        role.id = ids.draw();
    } else if state.object(put.guild_id, &object_key(kind::ROLE, role.id)).is_none() {
        return Err(not_found("role"));
    }
    Ok(Kind::RolePut(put))
}

fn member_put(state: &State, put: &MemberPut, guild: &Guild, ids: Ids) -> Result<(Kind, bool), Refusal> {
    let mut put = put.clone();
    let member = put.member.as_mut().ok_or_else(|| invalid("member is missing"))?;
    limits::member(member)?;
    let user_id = member.user.as_ref().map_or(0, |user| user.id);
    let role_exists =
        |role: &i64| *role == guild.id || state.object(guild.id, &object_key(kind::ROLE, *role)).is_some();
    if !member.role_ids.iter().all(role_exists) {
        return Err(invalid("member.role_ids names a role that does not exist"));
    }
    let known = state.row(&member_row(guild.id, user_id)).and_then(|cells| cells.get(BODY));
    let known = known.and_then(|body| Member::decode(body.as_slice()).ok());
    if !put.joined {
        let known = known.ok_or_else(|| not_found("member"))?;
        let raises = known.role_ids != member.role_ids || known.timed_out_until_ms != member.timed_out_until_ms;
        member.joined_at_ms = known.joined_at_ms;
        put.invite_code.clear();
        return Ok((Kind::MemberPut(put), raises));
    }
    if known.is_some() {
        return Err(Refusal::new(Reason::AlreadyExists, "the user is a member already"));
    }
    if member.joined_at_ms == 0 {
        member.joined_at_ms = ids.unix_ms;
    }
    if !put.invite_code.is_empty() {
        let invite = state.row(&invite_row(guild.id, &put.invite_code)).and_then(invite_of);
        let invite = invite.ok_or_else(|| not_found("invite"))?;
        let expires_ms = invite.created_at_ms + i64::from(invite.max_age_seconds) * 1000;
        if (invite.max_age_seconds != 0 && ids.unix_ms >= expires_ms)
            || (invite.max_uses != 0 && invite.uses >= invite.max_uses)
        {
            return Err(Refusal::new(Reason::NotFound, "the invite has expired or is used up"));
        }
        put.invite_uses = invite.uses.saturating_add(1);
    }
    Ok((Kind::MemberPut(put), false))
}

fn invite_put(state: &State, asked: &Asked<'_>, put: &InvitePut, ids: Ids) -> Result<Kind, Refusal> {
    let mut invite = put.invite.clone().ok_or_else(|| invalid("invite is missing"))?;
    if state.object(invite.guild_id, &object_key(kind::CHANNEL, invite.channel_id)).is_none() {
        return Err(not_found("channel"));
    }
    if !(0..=604_800).contains(&invite.max_age_seconds) || !(0..=100).contains(&invite.max_uses) {
        return Err(invalid("invite.max_age_seconds must be 0–604800 and invite.max_uses 0–100"));
    }
    if !invite.code.is_empty() {
        return Err(invalid("invite.code is made by the log's owner and must be empty"));
    }
    invite.code = invite_code(invite.guild_id, asked.operation_id);
    invite.uses = 0;
    if invite.created_at_ms == 0 {
        invite.created_at_ms = ids.unix_ms;
    }
    Ok(Kind::InvitePut(InvitePut { invite: Some(invite) }))
}
