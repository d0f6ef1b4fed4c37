//! Which guilds this node holds: finds or starts a guild's task, bounded, and forgets it when it ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::ask::Envelope;

/// What others may know of a running guild without asking it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// This node owns it.
    pub(super) owner: AtomicBool,
    /// It owns it or is about to.
    pub(super) wanted: AtomicBool,
    /// Connected sessions.
    pub(super) sessions: AtomicI64,
    /// Messages since the start.
    pub(super) messages: AtomicU64,
}

/// A running guild.
#[derive(Clone)]
pub(super) struct Handle {
    pub(super) mailbox: mpsc::Sender<Envelope>,
    pub(super) shared: Arc<Shared>,
    generation: u64,
}

/// All running guilds.
#[derive(Default)]
pub(super) struct Registry {
    running: Mutex<HashMap<i64, Handle>>,
    generations: AtomicU64,
}

impl Registry {
    /// The guild's task, if it runs.
    pub(super) fn get(&self, guild_id: i64) -> Option<Handle> {
        self.running.lock().get(&guild_id).filter(|handle| !handle.mailbox.is_closed()).cloned()
    }

    /// The guild's task, started by `start` when it does not run. None: the node is full.
    pub(super) fn get_or_start(
        &self,
        guild_id: i64,
        limit: usize,
        start: impl FnOnce(u64) -> (mpsc::Sender<Envelope>, Arc<Shared>),
    ) -> Option<Handle> {
        let mut running = self.running.lock();
        if let Some(handle) = running.get(&guild_id).filter(|handle| !handle.mailbox.is_closed()) {
            return Some(handle.clone());
        }
        if running.len() >= limit && !running.contains_key(&guild_id) {
            return None;
        }
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        let (mailbox, shared) = start(generation);
        let handle = Handle { mailbox, shared, generation };
        running.insert(guild_id, handle.clone());
        Some(handle)
    }

    /// Forgets a task that ends, unless another has taken its place.
    pub(super) fn remove(&self, guild_id: i64, generation: u64) {
        let mut running = self.running.lock();
        if running.get(&guild_id).is_some_and(|handle| handle.generation == generation) {
            running.remove(&guild_id);
        }
    }

    /// Everything that runs.
    pub(super) fn all(&self) -> Vec<(i64, Handle)> {
        self.running.lock().iter().map(|(guild_id, handle)| (*guild_id, handle.clone())).collect()
    }

    /// How many run.
    pub(super) fn len(&self) -> usize {
        self.running.lock().len()
    }
}
