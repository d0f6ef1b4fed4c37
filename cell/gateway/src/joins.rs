//! How a session learns of a guild its user joined elsewhere. The gateway that commits a join tells all live gateways (a hint), which
//! remember it for a while, as the user's list of guilds is fed a moment later; each connected user's list is also read again now and
//! then, so a lost hint only delays. Membership itself is the guild owner's word.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::Role;
use cell_proto::v1::JoinedRequest;
use cell_proto::v1::gateway_peer_client::GatewayPeerClient;
use cell_runtime::CancellationToken;

use crate::calls::Deadline;
use crate::gateway::Gateway;

const HINT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most gateways told of one join.
const MAX_PEERS: usize = 256;

/// How long a join is remembered, in milliseconds: longer than its way into the user's list.
const REMEMBER_MS: u64 = 120_000;
/// Users whose joins are remembered; when there are more, old ones are forgotten first, then all.
const MAX_REMEMBERED: usize = 20_000;
/// Joins remembered of one user.
const MAX_JOINS: usize = 100;

/// Joins of the last minutes. Pure.
#[derive(Debug, Default)]
pub struct RecentJoins(HashMap<i64, Vec<(i64, u64)>>);

impl RecentJoins {
    /// A user joined a guild.
    pub fn remember(&mut self, user_id: i64, guild_id: i64, now_ms: u64) {
        if self.0.len() >= MAX_REMEMBERED && !self.0.contains_key(&user_id) {
            self.0.retain(|_, joins| joins.iter().any(|(_, at_ms)| now_ms - at_ms < REMEMBER_MS));
            if self.0.len() >= MAX_REMEMBERED {
                self.0.clear();
            }
        }
        let joins = self.0.entry(user_id).or_default();
        joins.retain(|(guild, at_ms)| *guild != guild_id && now_ms - at_ms < REMEMBER_MS);
        if joins.len() < MAX_JOINS {
            joins.push((guild_id, now_ms));
        }
    }

    /// Guilds the user joined of late.
    pub fn of_user(&self, user_id: i64, now_ms: u64) -> Vec<i64> {
        let recent = |(guild, at_ms): &(i64, u64)| (now_ms - at_ms < REMEMBER_MS).then_some(*guild);
        self.0.get(&user_id).into_iter().flatten().filter_map(recent).collect()
    }
}

impl Gateway {
    /// Sessions of this user here want the guild; answers how many there are.
    pub fn user_joined(&self, user_id: i64, guild_id: i64) -> usize {
        self.recent_joins.lock().remember(user_id, guild_id, self.now_ms());
        self.subscribe_user(user_id, guild_id)
    }

    fn subscribe_user(&self, user_id: i64, guild_id: i64) -> usize {
        let slots = self.registry.of_user(user_id);
        slots.iter().filter(|slot| slot.follows(guild_id)).for_each(|slot| self.hub.subscribe(guild_id, slot));
        slots.len()
    }

    /// A join was committed through this gateway.
    pub fn announce_join(self: &Arc<Self>, user_id: i64, guild_id: i64) {
        self.user_joined(user_id, guild_id);
        let view = self.directory.view();
        let others = view
            .members()
            .filter(|member| member.role == Role::Gateway && member.id != self.config.role.member_id)
            .take(MAX_PEERS)
            .map(|member| member.grpc_address.clone());
        for address in others {
            let gateway = self.clone();
            tokio::spawn(async move {
                let Ok(channel) = gateway.channels.get(&address) else { return };
                let mut client = GatewayPeerClient::new(channel);
                let hint = client.joined(JoinedRequest { user_id, guild_id });
                if !matches!(tokio::time::timeout(HINT_TIMEOUT, hint).await, Ok(Ok(_))) {
                    tracing::debug!(%address, "a gateway was not told of a join; it will read the user's list");
                }
            });
        }
    }

    /// Reads connected users' lists of guilds again, one user at a time, spread over the interval.
    pub async fn check_guild_lists(self: Arc<Self>, shutdown: CancellationToken) {
        let interval = Duration::from_secs(self.config.limits.guild_list_check_seconds.max(1));
        loop {
            let users = self.registry.users();
            let pause = interval / (users.len().max(1) as u32);
            for user_id in users.into_iter().map(Some).chain([None]) {
                tokio::select! {
                    () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.5))) => {}
                    () = shutdown.cancelled() => return,
                }
                if let Some(user_id) = user_id {
                    self.check_guild_list(user_id).await;
                }
            }
        }
    }

    async fn check_guild_list(&self, user_id: i64) {
        match self.user_guilds(user_id, Deadline::after(Duration::from_secs(5))).await {
            Ok(guilds) => guilds.into_iter().for_each(|guild_id| _ = self.subscribe_user(user_id, guild_id)),
            Err(error) => tracing::debug!(user_id, %error, "a user's list of guilds was not read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_is_remembered_for_a_while_and_the_memory_is_bounded() {
        let mut joins = RecentJoins::default();
        joins.remember(1, 10, 1000);
        joins.remember(1, 10, 2000);
        joins.remember(1, 11, 3000);
        assert_eq!(joins.of_user(1, 3000), [10, 11]);
        assert_eq!(joins.of_user(1, 2500 + REMEMBER_MS), [11]);
        assert!(joins.of_user(2, 3000).is_empty());
        for user in 0..=MAX_REMEMBERED as i64 {
            joins.remember(user, 1, 4000);
        }
        assert!(joins.0.len() <= MAX_REMEMBERED);
    }
}
