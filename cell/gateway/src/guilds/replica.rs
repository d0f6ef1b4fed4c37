//! One guild as this process knows it: structure, the members it was asked about, the policy. Pure. It judges permissions and turns
//! log entries into what sessions are told; it never decides who is a member.

use std::collections::{BTreeMap, HashMap};

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, Entry, Guild, GuildSnapshot, Member, MemberInfo, MemberPut, Role};
use cell_runtime::policy;
use serde_json::{Map, Value};

use super::outgoing::{self, Effect, Visibility};
use crate::wire::objects::{self, GuildParts, Names};

/// A replica.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    /// The guild.
    pub guild: Guild,
    /// Channels by id.
    pub channels: BTreeMap<i64, Channel>,
    /// Roles by id.
    pub roles: BTreeMap<i64, Role>,
    /// Members this process asked about.
    pub members: HashMap<i64, Member>,
    /// How many members the guild has.
    pub member_count: i32,
    /// The policy version in force.
    pub policy_version: u64,
}

impl Replica {
    /// From a snapshot.
    pub fn from_snapshot(snapshot: GuildSnapshot) -> Self {
        let guild = snapshot.guild.unwrap_or_default();
        Self {
            policy_version: guild.policy_version,
            guild,
            channels: snapshot.channels.into_iter().map(|channel| (channel.id, channel)).collect(),
            roles: snapshot.roles.into_iter().map(|role| (role.id, role)).collect(),
            members: snapshot.members.into_iter().map(|member| (user_id(&member), member)).collect(),
            member_count: snapshot.member_count,
        }
    }

    /// What a member may do in the guild as a whole; `None` when the member is not known here.
    pub fn guild_permissions(&self, user_id: i64, now_ms: i64) -> Option<i64> {
        let member = self.members.get(&user_id)?;
        Some(policy::guild_permissions(&self.guild, member, now_ms, |id| self.roles.get(&id)))
    }

    /// What a member may do in a channel; `None` when the member or the channel is not known here.
    pub fn channel_permissions(&self, user_id: i64, channel_id: i64, now_ms: i64) -> Option<i64> {
        let (member, channel) = (self.members.get(&user_id)?, self.channels.get(&channel_id)?);
        Some(policy::channel_permissions(&self.guild, member, channel, now_ms, |id| self.roles.get(&id)))
    }

    /// Ids of the channels this member may not see, rising.
    pub fn hidden_from(&self, user_id: i64, now_ms: i64) -> Vec<i64> {
        let hidden = |id: &i64| {
            self.channel_permissions(user_id, *id, now_ms)
                .is_none_or(|permissions| permissions & policy::bits::VIEW_CHANNEL == 0)
        };
        self.channels.keys().copied().filter(hidden).collect()
    }

    /// The whole guild as everybody sees it who may not see these channels, but for what is the reader's own.
    pub fn guild_without(&self, hidden: &[i64]) -> Map<String, Value> {
        objects::shared_guild(&GuildParts {
            guild: &self.guild,
            roles: self.roles.values().collect(),
            channels: self.channels.values().filter(|channel| hidden.binary_search(&channel.id).is_err()).collect(),
            members: Vec::new(),
            member_count: self.member_count,
        })
    }

    /// What of the guild is this member's own.
    pub fn guild_own(&self, user_id: i64) -> Map<String, Value> {
        objects::own_guild(&self.members.get(&user_id).into_iter().collect::<Vec<_>>())
    }

    /// Takes over what was asked about members.
    pub fn learn(&mut self, info: MemberInfo) {
        for member in info.members {
            self.members.insert(user_id(&member), member);
        }
        for user_id in info.not_members {
            self.members.remove(&user_id);
        }
    }

    /// Applies one entry of this guild and says what sessions are told, in order. `keep` says whether a member that joins or changes
    /// is of interest here.
    pub fn apply(
        &mut self,
        entry: &Entry,
        policy_version: u64,
        member_count: i32,
        names: &dyn Names,
        keep: &dyn Fn(i64) -> bool,
    ) -> Vec<Effect> {
        let Some(kind) = entry.change.as_ref().and_then(|change| change.kind.as_ref()) else {
            return Vec::new();
        };
        self.policy_version = self.policy_version.max(policy_version).max(entry.policy_version);
        self.guild.policy_version = self.policy_version;
        if member_count > 0 {
            self.member_count = member_count;
        }
        match kind {
            Kind::GuildUpdated(change) => self.update_guild(change.guild.as_ref()),
            Kind::GuildDeleted(_) => vec![Effect::GuildGone],
            Kind::ChannelPut(change) => self.put_channel(change.channel.as_ref()),
            Kind::ChannelDeleted(change) => self.delete_channel(change.channel_id),
            Kind::RolePut(change) => self.put_role(change.role.as_ref()),
            Kind::RoleDeleted(change) => self.delete_role(change.role_id),
            Kind::MemberPut(change) => self.put_member(change, keep),
            Kind::MemberRemoved(change) => self.remove_member(change.user_id, names),
            other => outgoing::of_message_or_invite(self.guild.id, other, entry, names).into_iter().collect(),
        }
    }

    fn update_guild(&mut self, guild: Option<&Guild>) -> Vec<Effect> {
        let Some(guild) = guild else {
            return Vec::new();
        };
        self.guild = Guild { policy_version: self.policy_version, ..guild.clone() };
        vec![outgoing::guild_update(&self.guild, self.roles.values()), Effect::Visibility(Visibility::Everyone)]
    }

    fn put_channel(&mut self, channel: Option<&Channel>) -> Vec<Effect> {
        let Some(channel) = channel else {
            return Vec::new();
        };
        let known = self.channels.insert(channel.id, channel.clone()).is_some();
        let event = if known { outgoing::channel_update(channel) } else { outgoing::channel_create(channel) };
        vec![Effect::Visibility(Visibility::Everyone), event]
    }

    fn delete_channel(&mut self, channel_id: i64) -> Vec<Effect> {
        let Some(channel) = self.channels.remove(&channel_id) else {
            return Vec::new();
        };
        vec![outgoing::channel_delete(&channel), Effect::Visibility(Visibility::Everyone)]
    }

    fn put_role(&mut self, role: Option<&Role>) -> Vec<Effect> {
        let Some(role) = role else {
            return Vec::new();
        };
        let known = self.roles.insert(role.id, role.clone()).is_some();
        vec![outgoing::role_put(self.guild.id, role, known), Effect::Visibility(Visibility::Everyone)]
    }

    fn delete_role(&mut self, role_id: i64) -> Vec<Effect> {
        if self.roles.remove(&role_id).is_none() {
            return Vec::new();
        }
        self.members.values_mut().for_each(|member| member.role_ids.retain(|id| *id != role_id));
        for channel in self.channels.values_mut() {
            channel.overwrites.retain(|overwrite| overwrite.r#type != 0 || overwrite.id != role_id);
        }
        vec![outgoing::role_delete(self.guild.id, role_id), Effect::Visibility(Visibility::Everyone)]
    }

    fn put_member(&mut self, change: &MemberPut, keep: &dyn Fn(i64) -> bool) -> Vec<Effect> {
        let Some(member) = &change.member else {
            return Vec::new();
        };
        let user = user_id(member);
        if keep(user) || self.members.contains_key(&user) {
            self.members.insert(user, member.clone());
        }
        if change.joined {
            return vec![outgoing::member_add(self.guild.id, member), Effect::Joined(user)];
        }
        vec![outgoing::member_update(self.guild.id, member), Effect::Visibility(Visibility::Of(user))]
    }

    fn remove_member(&mut self, user_id: i64, names: &dyn Names) -> Vec<Effect> {
        let known = self.members.remove(&user_id).and_then(|member| member.user).or_else(|| names.user(user_id));
        let user = known.unwrap_or_else(|| objects::unknown_user(user_id));
        vec![Effect::Left(user_id), outgoing::member_remove(self.guild.id, &user)]
    }
}

/// The id of a member's user.
pub fn user_id(member: &Member) -> i64 {
    member.user.as_ref().map_or(0, |user| user.id)
}

#[cfg(test)]
mod tests;
