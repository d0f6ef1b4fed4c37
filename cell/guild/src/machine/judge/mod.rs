//! Whether a structural change may be made, judged against one version of the guild: permissions, role hierarchy, limits, invites. Gives
//! the change as it is to be committed. Never commits, and never judges messages: their data owner does.

mod channel;
mod guild;
mod invite;
mod member;
mod role;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, Member, Reason, Refusal};
use cell_runtime::policy::{self, bits};

use super::view::GuildView;

/// What a change is judged against.
#[derive(Clone, Copy, Debug)]
pub struct Judging<'a> {
    /// The guild.
    pub view: &'a GuildView,
    /// Who asks.
    pub actor_id: i64,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// Most members.
    pub member_limit: usize,
    /// Joins committed or on their way that the view does not show yet, each with its invite.
    pub joining: &'a [(i64, String)],
}

type Judgement<T> = Result<T, Refusal>;

/// Judges one change.
///
/// # Errors
/// The refusal for the caller; its message names the field and the remedy.
pub fn judge(judging: &Judging<'_>, change: &Change) -> Judgement<Change> {
    if judging.view.deleted {
        return Err(not_found("guild was deleted"));
    }
    let Some(kind) = &change.kind else {
        return Err(invalid("change is empty; set exactly one kind"));
    };
    let kind = match kind {
        Kind::GuildUpdated(updated) => Kind::GuildUpdated(guild::update(judging, updated)?),
        Kind::GuildDeleted(deleted) => Kind::GuildDeleted(guild::delete(judging, deleted)?),
        Kind::ChannelPut(put) => Kind::ChannelPut(channel::put(judging, put)?),
        Kind::ChannelDeleted(deleted) => Kind::ChannelDeleted(channel::delete(judging, deleted)?),
        Kind::RolePut(put) => Kind::RolePut(role::put(judging, put)?),
        Kind::RoleDeleted(deleted) => Kind::RoleDeleted(role::delete(judging, deleted)?),
        Kind::MemberPut(put) if put.joined => Kind::MemberPut(member::join(judging, put)?),
        Kind::MemberPut(put) => Kind::MemberPut(member::change(judging, put)?),
        Kind::MemberRemoved(removed) => Kind::MemberRemoved(member::remove(judging, removed)?),
        Kind::InvitePut(put) => Kind::InvitePut(invite::put(judging, put)?),
        Kind::InviteDeleted(deleted) => Kind::InviteDeleted(invite::delete(judging, deleted)?),
        Kind::MessageCreated(_) | Kind::MessageEdited(_) | Kind::MessageDeleted(_) | Kind::MessagesDeleted(_) => {
            return Err(invalid("messages are not structural; submit them to the data owner"));
        }
        Kind::UserCreated(_)
        | Kind::UserGuildAdded(_)
        | Kind::UserGuildRemoved(_)
        | Kind::ReadStatesAdvanced(_)
        | Kind::GuildCreated(_) => {
            return Err(invalid("this change belongs to another log; submit it to that log's data owner"));
        }
        Kind::GuildClaimed(_) | Kind::Split(_) | Kind::Merge(_) => {
            return Err(Refusal::new(Reason::Forbidden, "the platform alone makes this change"));
        }
    };
    Ok(Change { kind: Some(kind) })
}

impl<'a> Judging<'a> {
    /// The member who asks.
    fn actor(&self) -> Judgement<&'a Member> {
        self.view
            .members
            .get(self.actor_id)
            .map(AsRef::as_ref)
            .ok_or_else(|| Refusal::new(Reason::Forbidden, "you are not a member of this guild; join it first"))
    }

    fn is_owner(&self, user_id: i64) -> bool {
        user_id == self.view.guild.owner_id
    }

    /// What the actor may do in the guild as a whole.
    fn permissions(&self) -> Judgement<i64> {
        let member = self.actor()?;
        Ok(policy::guild_permissions(&self.view.guild, member, self.now_ms, |id| self.view.roles.get(&id)))
    }

    /// What the actor may do in a channel.
    fn permissions_in(&self, channel_id: i64) -> Judgement<i64> {
        let channel = self
            .view
            .channels
            .get(&channel_id)
            .ok_or_else(|| not_found("channel_id names no channel of this guild"))?;
        let member = self.actor()?;
        Ok(policy::channel_permissions(&self.view.guild, member, channel, self.now_ms, |id| self.view.roles.get(&id)))
    }

    fn require(&self, permission: i64, name: &str) -> Judgement<i64> {
        granted(self.permissions()?, permission, name)
    }

    fn require_in(&self, channel_id: i64, permission: i64, name: &str) -> Judgement<i64> {
        granted(self.permissions_in(channel_id)?, permission, name)
    }

    /// The highest position among a member's roles; the owner stands above all.
    fn rank(&self, member: &Member) -> i32 {
        if self.is_owner(super::members::user_id_of(member)) {
            return i32::MAX;
        }
        member.role_ids.iter().filter_map(|id| self.view.roles.get(id)).map(|role| role.position).max().unwrap_or(0)
    }

    /// Refuses to act on somebody who stands as high or higher.
    fn require_above(&self, target: &Member) -> Judgement<()> {
        if self.rank(self.actor()?) > self.rank(target) {
            return Ok(());
        }
        Err(Refusal::new(Reason::Forbidden, "the target's highest role is not below yours"))
    }
}

fn granted(held: i64, permission: i64, name: &str) -> Judgement<i64> {
    if held & permission == permission || held & bits::ADMINISTRATOR != 0 {
        return Ok(held);
    }
    Err(Refusal::new(Reason::Forbidden, format!("permission {name} is missing")))
}

fn invalid(message: &str) -> Refusal {
    Refusal::new(Reason::Invalid, message)
}

fn not_found(message: &str) -> Refusal {
    Refusal::new(Reason::NotFound, message)
}

/// Refuses text outside `least..=most` characters.
fn check_length(field: &str, text: &str, least: usize, most: usize) -> Judgement<()> {
    let length = text.chars().count();
    if (least..=most).contains(&length) {
        return Ok(());
    }
    Err(Refusal::new(Reason::Invalid, format!("{field} has {length} characters; give {least} to {most}")))
}

/// Refuses a number outside a range.
fn check_range(field: &str, value: i32, least: i32, most: i32) -> Judgement<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Refusal::new(Reason::Invalid, format!("{field} is {value}; give {least} to {most}")))
}

/// Refuses a count that would pass a limit.
fn check_room(what: &str, count: usize, limit: usize) -> Judgement<()> {
    if count < limit {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::TooLarge,
        format!("this guild has {count} {what}, the most is {limit}; delete some first"),
    ))
}

#[cfg(test)]
mod tests;
