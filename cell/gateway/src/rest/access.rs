//! What a caller may do where: judged by the guild's replica, which is opened on demand, for the version of the policy that a command
//! then carries.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{Channel, ChannelQuery, query_reply};
use cell_runtime::policy::bits;
use tokio::time::Instant;

use super::error::{ApiError, Missing};
use crate::calls::Deadline;
use crate::gateway::Gateway;
use crate::guilds::hosted::{Hosted, Unknown};

/// How long a channel that exists may take to reach this process's replica.
const CATCH_UP: Duration = Duration::from_secs(2);

/// What the caller may do in a guild.
#[derive(Clone)]
pub struct GuildAccess {
    /// The guild.
    pub hosted: Arc<Hosted>,
    /// In the guild as a whole.
    pub permissions: i64,
    /// The policy version judged by.
    pub policy_version: u64,
    /// Whether the caller owns the guild.
    pub owner: bool,
}

/// What the caller may do in a channel.
#[derive(Clone)]
pub struct ChannelAccess {
    /// The guild.
    pub hosted: Arc<Hosted>,
    /// The channel.
    pub channel: Channel,
    /// In the channel.
    pub permissions: i64,
    /// The policy version judged by.
    pub policy_version: u64,
}

fn need(permissions: i64, bit: i64) -> Result<(), ApiError> {
    if permissions & bit == bit { Ok(()) } else { Err(ApiError::no_permission()) }
}

impl GuildAccess {
    /// Refuses without this permission.
    ///
    /// # Errors
    /// 403.
    pub fn need(&self, bit: i64) -> Result<(), ApiError> {
        need(self.permissions, bit)
    }
}

impl ChannelAccess {
    /// Refuses without this permission.
    ///
    /// # Errors
    /// 403.
    pub fn need(&self, bit: i64) -> Result<(), ApiError> {
        need(self.permissions, bit)
    }

    /// Whether the caller has this permission.
    pub fn may(&self, bit: i64) -> bool {
        self.permissions & bit == bit
    }
}

impl Gateway {
    /// The guild, for a caller that need not be a member.
    ///
    /// # Errors
    /// 503.
    pub fn open_guild(&self, guild_id: i64) -> Result<Arc<Hosted>, ApiError> {
        self.hub.open(guild_id).map_err(|error| ApiError::unavailable(error.to_string()))
    }

    /// The log a guild lives in, as far as known here.
    pub fn log_of(&self, hosted: &Hosted) -> String {
        hosted.position().map_or_else(|| self.calls.log_of_guild(hosted.id), |held| held.log)
    }

    /// What a member may do in a guild.
    ///
    /// # Errors
    /// 403 for who is no member, 404, 503.
    pub async fn guild_access(&self, user_id: i64, guild_id: i64, deadline: Deadline) -> Result<GuildAccess, ApiError> {
        let hosted = self.open_guild(guild_id)?;
        hosted.member(user_id, deadline.at).await.map_err(|unknown| match unknown {
            Unknown::NotMember => ApiError::no_access(),
            Unknown::NoGuild => ApiError::missing(Missing::Guild),
            Unknown::Unreachable => ApiError::unavailable("the guild's owner did not answer in time; retry later"),
        })?;
        let now_ms = cell_runtime::unix_ms();
        let judged = hosted.read(|replica| {
            let permissions = replica.guild_permissions(user_id, now_ms)?;
            Some((permissions, replica.policy_version, replica.guild.owner_id == user_id))
        });
        let (permissions, policy_version, owner) = judged.flatten().ok_or_else(ApiError::no_access)?;
        Ok(GuildAccess { hosted, permissions, policy_version, owner })
    }

    /// The guild of a channel.
    ///
    /// # Errors
    /// 404, 503.
    pub async fn guild_of_channel(&self, channel_id: i64, deadline: Deadline) -> Result<i64, ApiError> {
        if let Some(guild_id) = self.hub.guild_of_channel(channel_id) {
            return Ok(guild_id);
        }
        let query = Query::Channel(ChannelQuery { channel_id });
        let reply = self
            .calls
            .query(Unit::bucket(channel_id).log(), query, deadline)
            .await
            .map_err(|error| ApiError::of_call(error, Missing::Channel))?;
        match reply.answer {
            Some(query_reply::Answer::Channel(channel)) if channel.guild_id != 0 => {
                self.hub.learn_channel(channel_id, channel.guild_id);
                Ok(channel.guild_id)
            }
            _ => Err(ApiError::missing(Missing::Channel)),
        }
    }

    /// What a member may do in a channel.
    ///
    /// # Errors
    /// 403 for who cannot see it, 404, 503.
    pub async fn channel_access(
        &self,
        user_id: i64,
        channel_id: i64,
        deadline: Deadline,
    ) -> Result<ChannelAccess, ApiError> {
        let guild_id = self.guild_of_channel(channel_id, deadline).await?;
        let access = self.guild_access(user_id, guild_id, deadline).await.map_err(|error| match error.code() {
            code if code == Missing::Guild as u32 => ApiError::missing(Missing::Channel),
            _ => error,
        })?;
        let hosted = access.hosted;
        let known = |hosted: &Hosted| hosted.read(|replica| replica.channels.contains_key(&channel_id)) == Some(true);
        if !known(&hosted) {
            // The channel's log knows it: the entry is on its way here, or it has just been deleted.
            let until = deadline.at.min(Instant::now() + CATCH_UP);
            hosted.wait_for(until, |replica| replica.channels.contains_key(&channel_id)).await;
        }
        let now_ms = cell_runtime::unix_ms();
        let judged = hosted
            .read(|replica| {
                let channel = replica.channels.get(&channel_id)?.clone();
                let permissions = replica.channel_permissions(user_id, channel_id, now_ms)?;
                Some((channel, permissions, replica.policy_version))
            })
            .flatten();
        let (channel, permissions, policy_version) = judged.ok_or_else(|| ApiError::missing(Missing::Channel))?;
        if permissions & bits::VIEW_CHANNEL == 0 {
            return Err(ApiError::no_access());
        }
        Ok(ChannelAccess { hosted, channel, permissions, policy_version })
    }
}
