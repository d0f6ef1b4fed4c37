//! Judging one command against what is known: what it needs to know, and the change as it would be committed, or the refusal.

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, Reason, Refusal, Route};

use super::limits::invalid;
use super::state::{Need, State};
use super::tables::{self, id_key};
use super::{Ids, guilds, limits, messages, reading};

/// What a command asks for, as far as judging goes.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// On whose behalf.
    pub actor_id: i64,
    /// The policy version it was judged by; 0 where none is involved.
    pub policy_version: u64,
    /// The sender's guild term; 0 where none is involved.
    pub guild_term: u64,
    /// The operation id.
    pub operation_id: &'a [u8],
    /// As many messages that are deleted side by side get a range tombstone.
    pub least_run: usize,
}

/// An accepted change.
#[derive(Clone, PartialEq, Debug)]
pub struct Judged {
    /// All ids and times assigned.
    pub change: Change,
    /// The guild's policy version from here on, where the change raised it; else 0.
    pub policy_version: u64,
    /// The last Snowflake assigned, so far.
    pub last_snowflake: i64,
}

/// The guild a change belongs to.
pub fn guild_of(kind: &Kind) -> Option<i64> {
    let id = match kind {
        Kind::UserCreated(_) | Kind::UserGuildAdded(_) | Kind::UserGuildRemoved(_) | Kind::ReadStatesAdvanced(_) => {
            return None;
        }
        Kind::GuildCreated(change) => change.guild.as_ref()?.id,
        Kind::GuildUpdated(change) => change.guild.as_ref()?.id,
        Kind::GuildDeleted(change) => change.guild_id,
        Kind::ChannelPut(change) => change.channel.as_ref()?.guild_id,
        Kind::ChannelDeleted(change) => change.guild_id,
        Kind::RolePut(change) => change.guild_id,
        Kind::RoleDeleted(change) => change.guild_id,
        Kind::MemberPut(change) => change.guild_id,
        Kind::MemberRemoved(change) => change.guild_id,
        Kind::InvitePut(change) => change.invite.as_ref()?.guild_id,
        Kind::InviteDeleted(change) => change.guild_id,
        Kind::MessageCreated(change) => change.message.as_ref()?.guild_id,
        Kind::MessageEdited(change) => change.guild_id,
        Kind::MessageDeleted(change) => change.guild_id,
        Kind::MessagesDeleted(change) => change.guild_id,
        Kind::GuildClaimed(change) => change.guild_id,
        Kind::Split(change) => change.guild_id,
        Kind::Merge(change) => change.guild_id,
    };
    (id > 0).then_some(id)
}

fn user_of(kind: &Kind) -> Option<i64> {
    match kind {
        Kind::UserCreated(change) => change.user.as_ref().map(|user| user.id),
        Kind::UserGuildAdded(change) => Some(change.user_id),
        Kind::UserGuildRemoved(change) => Some(change.user_id),
        Kind::ReadStatesAdvanced(change) => Some(change.user_id),
        _ => None,
    }
}

/// Whether a change belongs into a log at all; this needs no data.
///
/// # Errors
/// `Invalid` when it has no kind, or belongs to another unit.
pub fn check_place(unit: Unit, change: &Change) -> Result<&Kind, Refusal> {
    let kind = change.kind.as_ref().ok_or_else(|| invalid("change has no kind, or one of a newer version"))?;
    let belongs = match (unit, guild_of(kind), user_of(kind)) {
        (Unit::Guild(_), Some(_), _) if matches!(kind, Kind::Split(_) | Kind::Merge(_)) => false,
        (Unit::Guild(own), Some(guild_id), _) => own == guild_id,
        (Unit::Bucket(_), Some(guild_id), _) => Unit::bucket(guild_id) == unit,
        (Unit::Bucket(_), None, Some(user_id)) => user_id > 0 && Unit::bucket(user_id) == unit,
        _ => false,
    };
    if belongs { Ok(kind) } else { Err(invalid(format!("the change does not belong into log {unit}"))) }
}

/// What must be known to judge a change.
pub fn needs(kind: &Kind) -> Vec<Need> {
    let mut needs: Vec<Need> = guild_of(kind).map(Need::Guild).into_iter().collect();
    match kind {
        Kind::UserCreated(change) => needs.extend(change.user.as_ref().map(|user| user_row(user.id))),
        Kind::MemberPut(change) => {
            let user_id = change.member.as_ref().and_then(|member| member.user.as_ref()).map_or(0, |user| user.id);
            needs.push(guilds::member_row(change.guild_id, user_id));
            if !change.invite_code.is_empty() {
                needs.push(guilds::invite_row(change.guild_id, &change.invite_code));
            }
        }
        Kind::MemberRemoved(change) => needs.push(guilds::member_row(change.guild_id, change.user_id)),
        Kind::InviteDeleted(change) => needs.push(guilds::invite_row(change.guild_id, &change.code)),
        Kind::MessageEdited(change) => needs.push(messages::row(change.channel_id, change.message_id)),
        Kind::MessageDeleted(change) => needs.push(messages::row(change.channel_id, change.message_id)),
        Kind::MessagesDeleted(change) => needs.extend(messages::spans(change)),
        Kind::ReadStatesAdvanced(change) => needs.extend(reading::rows(change)),
        _ => {}
    }
    needs
}

fn user_row(user_id: i64) -> Need {
    Need::Row { table: tables::USERS, partition: id_key(user_id), clustering: Vec::new() }
}

/// The refusal for a guild that lives in its own log.
pub fn other_log(guild_id: i64) -> Refusal {
    let route = Route { log: Unit::Guild(guild_id).log(), ..Route::default() };
    Refusal::new(Reason::OtherLog, "the guild was split out of its bucket; follow the route").with_route(route)
}

/// Judges a change. Everything in [`needs`] must be known.
///
/// # Errors
/// The refusal, drawn from what is known.
pub fn judge(state: &State, unit: Unit, asked: &Asked<'_>, change: &Change, ids: Ids) -> Result<Judged, Refusal> {
    let kind = check_place(unit, change)?;
    if let Some(guild_id) = guild_of(kind)
        && matches!(unit, Unit::Bucket(_))
        && state.split(guild_id).is_some()
        && !matches!(kind, Kind::Split(_) | Kind::Merge(_))
    {
        return Err(other_log(guild_id));
    }
    let mut ids = ids;
    let (kind, policy_version) = match kind {
        Kind::UserCreated(created) => (user_created(state, created)?, 0),
        Kind::UserGuildAdded(_) | Kind::UserGuildRemoved(_) => (kind.clone(), 0),
        Kind::ReadStatesAdvanced(read) => (reading::judge(state, read, ids.unix_ms)?, 0),
        Kind::MessageCreated(_) | Kind::MessageEdited(_) | Kind::MessageDeleted(_) | Kind::MessagesDeleted(_) => {
            (messages::judge(state, asked, kind, &mut ids)?, 0)
        }
        _ => guilds::judge(state, asked, kind, &mut ids)?,
    };
    Ok(Judged { change: Change { kind: Some(kind) }, policy_version, last_snowflake: ids.last })
}

fn user_created(state: &State, created: &cell_proto::v1::UserCreated) -> Result<Kind, Refusal> {
    use prost::Message as _;
    let user = created.user.as_ref().ok_or_else(|| invalid("user is missing"))?;
    limits::user(user)?;
    let known = state.row(&user_row(user.id)).and_then(|cells| cells.get(tables::BODY));
    let known = known.and_then(|body| cell_proto::v1::User::decode(body.as_slice()).ok());
    match known {
        Some(known) if known.name != user.name => {
            Err(Refusal::new(Reason::AlreadyExists, "another user has this id; choose another name"))
        }
        _ => Ok(Kind::UserCreated(created.clone())),
    }
}
