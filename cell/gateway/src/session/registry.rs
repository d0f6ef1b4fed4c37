//! All sessions of this gateway: by id, and by user. Holds them; decides only when a lease has run out.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::machine::{Pushed, Session};
use crate::wire::event::Event;
use crate::wire::intents::Intents;

/// A session with what is read without its lock.
#[derive(Debug)]
pub struct Slot {
    /// The session's id.
    pub id: String,
    /// The user it acts for.
    pub user_id: i64,
    /// Whether that is a bot.
    pub bot: bool,
    /// What it asked for.
    pub intents: Intents,
    /// Shard id and count.
    pub shard: Option<(u32, u32)>,
    /// The machine.
    pub machine: Mutex<Session>,
    /// Fires when the connection's writer has something to do.
    pub wake: Notify,
}

impl Slot {
    /// Wraps a machine.
    pub fn new(session: Session) -> Arc<Self> {
        let identity = session.identity().clone();
        Arc::new(Self {
            id: identity.id,
            user_id: identity.user_id,
            bot: identity.bot,
            intents: identity.intents,
            shard: identity.shard,
            machine: Mutex::new(session),
            wake: Notify::new(),
        })
    }

    /// Numbers an event, keeps it, and wakes the writer.
    pub fn push(&self, event: Arc<Event>) -> Pushed {
        let pushed = self.machine.lock().push(event);
        if matches!(pushed, Pushed::Wake | Pushed::Lagging) {
            self.wake.notify_one();
        }
        pushed
    }

    /// As [`Slot::push`] for the events a fresh session starts with.
    pub fn push_initial(&self, event: Arc<Event>) -> Pushed {
        let pushed = self.machine.lock().push_initial(event);
        self.wake.notify_one();
        pushed
    }

    /// Whether the session gets this guild's events: the guild is of its shard.
    pub fn follows(&self, guild_id: i64) -> bool {
        self.shard.is_none_or(|(id, count)| crate::wire::identify::shard_of_guild(guild_id, count) == id)
    }
}

/// Sessions by id and by user.
#[derive(Debug, Default)]
pub struct Registry {
    sessions: Mutex<HashMap<String, Arc<Slot>>>,
    by_user: Mutex<HashMap<i64, Vec<Arc<Slot>>>>,
}

impl Registry {
    /// Adds a session unless there are `max` already.
    pub fn add(&self, slot: &Arc<Slot>, max: usize) -> bool {
        {
            let mut sessions = self.sessions.lock();
            if sessions.len() >= max {
                return false;
            }
            sessions.insert(slot.id.clone(), slot.clone());
        }
        self.by_user.lock().entry(slot.user_id).or_default().push(slot.clone());
        true
    }

    /// The session with this id.
    pub fn get(&self, id: &str) -> Option<Arc<Slot>> {
        self.sessions.lock().get(id).cloned()
    }

    /// The sessions of a user.
    pub fn of_user(&self, user_id: i64) -> Vec<Arc<Slot>> {
        self.by_user.lock().get(&user_id).cloned().unwrap_or_default()
    }

    /// Whether a user has a session here.
    pub fn has_user(&self, user_id: i64) -> bool {
        self.by_user.lock().contains_key(&user_id)
    }

    /// Users with sessions here.
    pub fn users(&self) -> Vec<i64> {
        self.by_user.lock().keys().copied().collect()
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every session.
    pub fn all(&self) -> Vec<Arc<Slot>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Forgets a session.
    pub fn remove(&self, slot: &Slot) {
        self.sessions.lock().remove(&slot.id);
        let mut by_user = self.by_user.lock();
        if let Some(slots) = by_user.get_mut(&slot.user_id) {
            slots.retain(|other| other.id != slot.id);
            if slots.is_empty() {
                by_user.remove(&slot.user_id);
            }
        }
    }

    /// Removes and answers the sessions that have ended, by lease or otherwise.
    pub fn sweep(&self, now_ms: u64, lease_ms: u64) -> Vec<Arc<Slot>> {
        let ended: Vec<_> =
            self.all().into_iter().filter(|slot| slot.machine.lock().expire(now_ms, lease_ms)).collect();
        ended.iter().for_each(|slot| self.remove(slot));
        ended
    }
}
