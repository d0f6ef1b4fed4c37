//! How a session learns of a guild its user joined elsewhere. The gateway that commits a join tells all live gateways (a hint); each
//! connected user's list of guilds is also read again now and then, so a lost hint only delays. Membership itself is the guild
//! owner's word.

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

impl Gateway {
    /// Sessions of this user here want the guild; answers how many there are.
    pub fn user_joined(&self, user_id: i64, guild_id: i64) -> usize {
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
            .filter(|member| member.role == Role::Gateway && member.id != self.config.member_id)
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
            Ok(guilds) => guilds.into_iter().for_each(|guild_id| _ = self.user_joined(user_id, guild_id)),
            Err(error) => tracing::debug!(user_id, %error, "a user's list of guilds was not read"),
        }
    }
}
