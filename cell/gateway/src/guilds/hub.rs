//! All guilds this process follows: opened on demand, by sessions and by REST, each with one driver; closed when idle. It also finds
//! the guild of a bare channel id.

use std::collections::HashMap;
use std::sync::Arc;

use cell_runtime::{CancellationToken, Directory};
use parking_lot::Mutex;

use super::driver;
use super::hosted::{Hosted, Shared};
use super::link::Links;
use crate::session::registry::Slot;

/// Most guilds one process follows.
const MAX_GUILDS: usize = 100_000;
/// Most channels remembered with their guild; when full, it starts anew.
const MAX_CHANNELS: usize = 500_000;
/// How long a guild without sessions is followed after its last use.
pub const IDLE_MS: i64 = 300_000;

/// This process follows as many guilds as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this gateway follows as many guilds as it may; retry")]
pub struct TooManyGuilds;

/// All guilds.
pub struct Hub {
    guilds: Mutex<HashMap<i64, Arc<Hosted>>>,
    channels: Mutex<HashMap<i64, i64>>,
    /// Links to guild nodes.
    pub links: Arc<Links>,
    /// Where guild nodes are.
    pub directory: Directory,
    shared: Shared,
    shutdown: CancellationToken,
}

impl Hub {
    /// None yet. Drivers end with `shutdown`.
    pub fn new(links: Arc<Links>, directory: Directory, shared: Shared, shutdown: CancellationToken) -> Arc<Self> {
        Arc::new(Self { guilds: Mutex::default(), channels: Mutex::default(), links, directory, shared, shutdown })
    }

    /// The guild, followed from now on.
    ///
    /// # Errors
    /// [`TooManyGuilds`].
    pub fn open(self: &Arc<Self>, guild_id: i64) -> Result<Arc<Hosted>, TooManyGuilds> {
        let mut guilds = self.guilds.lock();
        if let Some(hosted) = guilds.get(&guild_id) {
            return Ok(hosted.clone());
        }
        if guilds.len() >= MAX_GUILDS {
            return Err(TooManyGuilds);
        }
        let hosted = Hosted::new(guild_id, self.shared.clone());
        guilds.insert(guild_id, hosted.clone());
        self.shared.metrics.guilds.set(guilds.len() as i64);
        drop(guilds);
        tokio::spawn(driver::run(self.clone(), hosted.clone(), self.shutdown.clone()));
        Ok(hosted)
    }

    /// The guild, if it is followed already.
    pub fn get(&self, guild_id: i64) -> Option<Arc<Hosted>> {
        self.guilds.lock().get(&guild_id).cloned()
    }

    /// A session wants a guild.
    pub fn subscribe(self: &Arc<Self>, guild_id: i64, slot: &Arc<Slot>) {
        match self.open(guild_id) {
            Ok(hosted) => hosted.subscribe(slot),
            Err(error) => tracing::warn!(guild_id, %error, "a session goes without a guild"),
        }
    }

    /// A session has ended.
    pub fn unsubscribe_all(&self, slot: &Slot) {
        let followed = std::mem::take(&mut slot.machine.lock().guilds);
        for guild_id in followed {
            if let Some(hosted) = self.get(guild_id) {
                hosted.unsubscribe(slot);
            }
        }
    }

    /// Forgets a guild if it is still idle; answers whether its driver may end.
    pub fn close_idle(&self, hosted: &Arc<Hosted>, now_ms: i64) -> bool {
        let mut guilds = self.guilds.lock();
        // Under the lock nobody can obtain it anew; a holder of an old handle has touched it.
        let idle = hosted.is_idle(now_ms, IDLE_MS) && Arc::strong_count(hosted) <= 2;
        if idle {
            guilds.remove(&hosted.id);
            self.shared.metrics.guilds.set(guilds.len() as i64);
        }
        idle
    }

    /// The guild of a channel, if it was seen here.
    pub fn guild_of_channel(&self, channel_id: i64) -> Option<i64> {
        self.channels.lock().get(&channel_id).copied()
    }

    /// A channel's guild became known. It never changes.
    pub fn learn_channel(&self, channel_id: i64, guild_id: i64) {
        let mut channels = self.channels.lock();
        if channels.len() >= MAX_CHANNELS {
            channels.clear();
        }
        channels.insert(channel_id, guild_id);
    }
}
