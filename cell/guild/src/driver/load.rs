//! Tells the fleet how busy this node's guilds are: every few seconds, the busiest ones, only when something changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cell_proto::directory::{GuildLoad, LOAD_GUILDS, Load};
use cell_runtime::CancellationToken;
use cell_runtime::directory::Registration;

use super::node::Node;

/// How often.
const PERIOD: Duration = Duration::from_secs(5);
/// Reports that a rate is averaged over.
const RATE_WINDOW: usize = 2;

/// Messages counted at the last reports, by guild.
#[derive(Default)]
struct Rates(HashMap<i64, Vec<u64>>);

impl Rates {
    /// Messages a second since the oldest report remembered.
    fn next(&mut self, guild_id: i64, messages: u64) -> i64 {
        let seen = self.0.entry(guild_id).or_default();
        // A guild that was started anew counts from the start.
        if seen.last().is_some_and(|last| *last > messages) {
            seen.clear();
        }
        seen.push(messages);
        if seen.len() > RATE_WINDOW + 1 {
            seen.remove(0);
        }
        let span_seconds = (seen.len() - 1) as u64 * PERIOD.as_secs();
        let more = messages - seen.first().copied().unwrap_or(messages);
        i64::try_from(more.checked_div(span_seconds).unwrap_or(0)).unwrap_or(i64::MAX)
    }
}

fn measure(node: &Node, rates: &mut Rates) -> Load {
    let running = node.registry.all();
    rates.0.retain(|guild_id, _| running.iter().any(|(running, _)| running == guild_id));
    let owned = running.into_iter().filter(|(_, handle)| handle.shared.owner.load(Ordering::Acquire));
    let guilds = owned
        .map(|(guild_id, handle)| GuildLoad {
            guild_id: guild_id.to_string(),
            sessions: handle.shared.sessions.load(Ordering::Relaxed),
            messages_per_second: rates.next(guild_id, handle.shared.messages.load(Ordering::Relaxed)),
        })
        .filter(|load| load.sessions > 0 || load.messages_per_second > 0)
        .collect();
    busiest(guilds)
}

fn busiest(mut guilds: Vec<GuildLoad>) -> Load {
    guilds.sort_by(|a, b| {
        (b.sessions, b.messages_per_second, &a.guild_id).cmp(&(a.sessions, a.messages_per_second, &b.guild_id))
    });
    guilds.truncate(LOAD_GUILDS);
    Load { guilds }
}

/// Reports until `shutdown`.
pub(super) async fn report(node: Arc<Node>, registration: Arc<Registration>, shutdown: CancellationToken) {
    let key = node.directory.keys().load(&node.member_id);
    let (mut rates, mut told, mut lease) = (Rates::default(), Load::default(), None);
    let mut period = tokio::time::interval(PERIOD);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = shutdown.cancelled() => return,
        }
        let load = measure(&node, &mut rates);
        // A new lease means that the key under the old one is gone.
        if registration.lease().is_none() || load == told && lease == registration.lease() {
            continue;
        }
        let Ok(value) = serde_json::to_vec(&load) else { continue };
        match node.directory.put(&key, value, Some(&registration)).await {
            Ok(()) => (told, lease) = (load, registration.lease()),
            Err(error) => tracing::debug!(%error, "the load was not reported"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_averaged_over_the_window_and_starts_anew_with_the_guild() {
        let mut rates = Rates::default();
        assert_eq!(rates.next(1, 100), 0);
        assert_eq!(rates.next(1, 200), 20);
        assert_eq!(rates.next(1, 400), 30);
        assert_eq!(rates.next(1, 400), 20);
        assert_eq!(rates.next(1, 5), 0);
    }

    #[test]
    fn only_the_busiest_guilds_are_told() {
        let guild = |id: usize| GuildLoad { guild_id: id.to_string(), sessions: id as i64, messages_per_second: 0 };
        let load = busiest((0..LOAD_GUILDS + 10).map(guild).collect());
        assert_eq!(load.guilds.len(), LOAD_GUILDS);
        assert_eq!(load.guilds[0].sessions, (LOAD_GUILDS + 9) as i64);
    }
}
