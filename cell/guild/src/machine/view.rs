//! What a guild is as of one entry of its log, and how each entry changes it. Copies are cheap (shared parts), so that workers read one
//! version while the actor goes on. Judges nothing: what the log holds has happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, Entry, Guild, GuildSnapshot, Invite, Member, MemberPut, Position, Role};

use super::members::{Members, user_id_of};

/// One version of a guild.
#[derive(Clone, Debug, Default)]
pub struct GuildView {
    /// Name, owner, policy version.
    pub guild: Guild,
    /// By id.
    pub channels: Arc<BTreeMap<i64, Channel>>,
    /// By id; the guild's own id is @everyone.
    pub roles: Arc<BTreeMap<i64, Role>>,
    /// By code.
    pub invites: Arc<BTreeMap<String, Invite>>,
    /// By user id.
    pub members: Members,
    /// The highest guild term claimed in the log.
    pub guild_term: u64,
    /// The guild was deleted.
    pub deleted: bool,
}

/// A change of somebody's membership, to be told to the user's own bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// Whose.
    pub user_id: i64,
    /// Joined, or left.
    pub joined: bool,
}

impl GuildView {
    /// Applies one entry. Gives the membership it changed, if any.
    pub fn apply(&mut self, entry: &Entry) -> Option<Membership> {
        let kind = entry.change.as_ref()?.kind.as_ref()?;
        self.guild.policy_version = self.guild.policy_version.max(entry.policy_version);
        match kind {
            Kind::GuildCreated(created) => {
                let version = self.guild.policy_version;
                self.guild = created.guild.clone().unwrap_or_default();
                self.guild.policy_version = self.guild.policy_version.max(version);
                self.roles = Arc::new(created.roles.iter().map(|role| (role.id, role.clone())).collect());
                self.channels =
                    Arc::new(created.channels.iter().map(|channel| (channel.id, channel.clone())).collect());
                self.deleted = false;
                return created.owner.as_ref().and_then(|owner| self.put_member(owner.clone(), entry));
            }
            Kind::GuildUpdated(updated) => {
                if let Some(guild) = &updated.guild {
                    let version = self.guild.policy_version.max(guild.policy_version);
                    self.guild = Guild { policy_version: version, ..guild.clone() };
                }
            }
            Kind::GuildDeleted(_) => self.deleted = true,
            Kind::ChannelPut(put) => {
                if let Some(channel) = &put.channel {
                    Arc::make_mut(&mut self.channels).insert(channel.id, channel.clone());
                }
            }
            Kind::ChannelDeleted(deleted) => {
                Arc::make_mut(&mut self.channels).remove(&deleted.channel_id);
            }
            Kind::RolePut(put) => {
                if let Some(role) = &put.role {
                    Arc::make_mut(&mut self.roles).insert(role.id, role.clone());
                }
            }
            Kind::RoleDeleted(deleted) => {
                Arc::make_mut(&mut self.roles).remove(&deleted.role_id);
            }
            Kind::MemberPut(put) => return self.apply_member(put, entry),
            Kind::MemberRemoved(removed) => {
                self.members.remove(removed.user_id);
                return Some(Membership { user_id: removed.user_id, joined: false });
            }
            Kind::InvitePut(put) => {
                if let Some(invite) = &put.invite {
                    Arc::make_mut(&mut self.invites).insert(invite.code.clone(), invite.clone());
                }
            }
            Kind::InviteDeleted(deleted) => {
                Arc::make_mut(&mut self.invites).remove(&deleted.code);
            }
            Kind::GuildClaimed(claimed) => self.guild_term = self.guild_term.max(claimed.guild_term),
            Kind::UserCreated(_)
            | Kind::UserGuildAdded(_)
            | Kind::UserGuildRemoved(_)
            | Kind::ReadStatesAdvanced(_)
            | Kind::Split(_)
            | Kind::Merge(_) => {}
            Kind::MessageCreated(_) | Kind::MessageEdited(_) | Kind::MessageDeleted(_) | Kind::MessagesDeleted(_) => {}
        }
        None
    }

    fn apply_member(&mut self, put: &MemberPut, entry: &Entry) -> Option<Membership> {
        let used = put.joined && self.invites.contains_key(&put.invite_code);
        if let Some(invite) = Some(&mut self.invites)
            .filter(|_| used)
            .and_then(|invites| Arc::make_mut(invites).get_mut(&put.invite_code))
        {
            invite.uses = invite.uses.saturating_add(1).max(put.invite_uses);
        }
        let joined = self.put_member(put.member.clone()?, entry);
        joined.filter(|_| put.joined)
    }

    fn put_member(&mut self, mut member: Member, entry: &Entry) -> Option<Membership> {
        let user_id = user_id_of(&member);
        if member.joined_at_ms == 0 {
            member.joined_at_ms = entry.timestamp_us / 1000;
        }
        self.members.insert(user_id, member);
        (user_id != 0).then_some(Membership { user_id, joined: true })
    }

    /// The member count, for the wire.
    pub fn member_count(&self) -> i32 {
        i32::try_from(self.members.len()).unwrap_or(i32::MAX)
    }

    /// The snapshot for a gateway with these users. Walks every channel, role and named user: run it off the loop.
    pub fn snapshot(&self, user_ids: &[i64], position: Position, term: u64) -> GuildSnapshot {
        GuildSnapshot {
            guild: Some(self.guild.clone()),
            channels: self.channels.values().cloned().collect(),
            roles: self.roles.values().cloned().collect(),
            members: user_ids
                .iter()
                .filter_map(|id| self.members.get(*id))
                .map(|member| Member::clone(member))
                .collect(),
            member_count: self.member_count(),
            position: Some(position),
            term,
            guild_term: self.guild_term,
        }
    }
}
