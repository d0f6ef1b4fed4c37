//! The sessions of one guild in this process and what each sees of the channels. It delivers what the replica says; the caller holds
//! its lock, so that what a session gets is one unbroken sequence.

use std::sync::Arc;

use super::audience;
use super::outgoing::{self, Outgoing, Visibility};
use super::replica::Replica;
use crate::session::machine::Pushed;
use crate::session::registry::Slot;
use crate::wire::event::Event;
use crate::wire::intents::GUILDS;

/// Different views of one guild that are kept for the sessions to come; further ones are made each time.
const MAX_VIEWS: usize = 16;

/// A session that has the guild.
#[derive(Debug)]
struct Subscriber {
    slot: Arc<Slot>,
    /// Channels it may not see, rising.
    hidden: Vec<i64>,
    /// Channels it was told of just now because it became able to see them.
    fresh: Vec<i64>,
}

/// The sessions of one guild.
#[derive(Debug, Default)]
pub struct Fanout {
    live: Vec<Subscriber>,
    /// Sessions that wait for the guild, or for word on their membership.
    waiting: Vec<Arc<Slot>>,
    /// The channels there were when visibility was last computed, rising: a channel that is new and hidden was never told of.
    known: Vec<i64>,
    any_fresh: bool,
    /// The guild as the replica has it now, by the channels left out: sessions keep it, and most see the same.
    views: Vec<(Vec<i64>, Arc<str>)>,
}

/// What a delivery did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Sessions that got the event.
    pub sessions: usize,
    /// Connections that lag too far and will be closed.
    pub lagging: usize,
}

impl Fanout {
    /// Sessions that have the guild.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Whether there is no session at all.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.waiting.is_empty()
    }

    /// Users of waiting sessions.
    pub fn waiting_users(&self) -> Vec<i64> {
        self.waiting.iter().map(|slot| slot.user_id).collect()
    }

    /// Puts a session in the queue; the caller knows that it is not here yet.
    pub fn wait(&mut self, slot: &Arc<Slot>) {
        self.waiting.push(slot.clone());
    }

    /// Gives the guild to every waiting session whose membership is known now, and takes it from those known not to be members.
    pub fn admit(&mut self, replica: &Replica, not_members: &[i64], now_ms: i64) {
        if self.live.is_empty() {
            self.known = replica.channels.keys().copied().collect();
        }
        let waiting = std::mem::take(&mut self.waiting);
        for slot in waiting {
            if replica.members.contains_key(&slot.user_id) {
                self.give(replica, slot, now_ms);
            } else if not_members.contains(&slot.user_id) {
                lose(&slot, replica.guild.id);
            } else {
                self.waiting.push(slot);
            }
        }
    }

    fn give(&mut self, replica: &Replica, slot: Arc<Slot>, now_ms: i64) {
        let hidden = replica.hidden_from(slot.user_id, now_ms);
        if slot.intents.covers(GUILDS) {
            let shared = self.shared_fields(replica, &hidden);
            slot.push_initial(Event::sharing("GUILD_CREATE", shared, &replica.guild_own(slot.user_id)));
        }
        self.live.push(Subscriber { slot, hidden, fresh: Vec::new() });
    }

    fn shared_fields(&mut self, replica: &Replica, hidden: &[i64]) -> Arc<str> {
        if let Some((_, shared)) = self.views.iter().find(|(of, _)| of == hidden) {
            return shared.clone();
        }
        let shared = Event::shared_fields(&replica.guild_without(hidden));
        if self.views.len() < MAX_VIEWS {
            self.views.push((hidden.to_vec(), shared.clone()));
        }
        shared
    }

    /// The replica has changed: what was made from it is no longer the guild.
    pub fn replica_changed(&mut self) {
        self.views.clear();
    }

    /// Gives the guild to sessions of a user that just became a member.
    pub fn join(&mut self, replica: &Replica, slots: Vec<Arc<Slot>>, now_ms: i64) {
        if self.live.is_empty() {
            self.known = replica.channels.keys().copied().collect();
        }
        for slot in slots {
            let live = self.live.iter().any(|subscriber| Arc::ptr_eq(&subscriber.slot, &slot));
            if !live && slot.follows(replica.guild.id) {
                self.waiting.retain(|other| !Arc::ptr_eq(other, &slot));
                self.give(replica, slot, now_ms);
            }
        }
    }

    /// Takes the guild from all sessions of a user.
    pub fn leave(&mut self, guild_id: i64, user_id: i64) {
        self.live.retain(|subscriber| {
            let stays = subscriber.slot.user_id != user_id;
            if !stays {
                lose(&subscriber.slot, guild_id);
            }
            stays
        });
    }

    /// Takes the guild from every session; answers them.
    pub fn clear(&mut self, guild_id: i64) -> Vec<Arc<Slot>> {
        let waiting = std::mem::take(&mut self.waiting);
        let all: Vec<_> = std::mem::take(&mut self.live).into_iter().map(|one| one.slot).chain(waiting).collect();
        all.iter().for_each(|slot| lose(slot, guild_id));
        all
    }

    /// The sessions that have the guild now, taken out without being told: their sequence has a hole.
    pub fn take_live(&mut self) -> Vec<Arc<Slot>> {
        std::mem::take(&mut self.live).into_iter().map(|one| one.slot).collect()
    }

    /// Forgets one session.
    pub fn remove(&mut self, slot: &Slot) {
        let same = |other: &Arc<Slot>| std::ptr::eq(Arc::as_ptr(other), slot);
        self.live.retain(|subscriber| !same(&subscriber.slot));
        self.waiting.retain(|other| !same(other));
    }

    /// Recomputes who sees which channel and tells sessions of channels that appeared or vanished for them.
    pub fn look_again(&mut self, replica: &Replica, whose: Visibility, now_ms: i64) {
        for subscriber in &mut self.live {
            if matches!(whose, Visibility::Of(user_id) if user_id != subscriber.slot.user_id) {
                continue;
            }
            let hidden = replica.hidden_from(subscriber.slot.user_id, now_ms);
            if hidden == subscriber.hidden {
                continue;
            }
            let before = std::mem::replace(&mut subscriber.hidden, hidden);
            subscriber.tell_difference(&before, &self.known, replica);
            self.any_fresh |= !subscriber.fresh.is_empty();
        }
        self.known = replica.channels.keys().copied().collect();
    }

    /// Gives an event to everyone who may have it.
    pub fn send(&mut self, outgoing: &Outgoing) -> Delivered {
        let mut delivered = Delivered::default();
        let mut ended = false;
        for subscriber in &self.live {
            if let outgoing::Audience::Channel(channel_id) = outgoing.audience
                && subscriber.fresh.contains(&channel_id)
            {
                continue;
            }
            let slot = &subscriber.slot;
            let Some(event) = audience::select(outgoing, slot.user_id, slot.intents, &subscriber.hidden) else {
                continue;
            };
            match slot.push(event.clone()) {
                Pushed::Ended => ended = true,
                pushed => {
                    delivered.sessions += 1;
                    delivered.lagging += usize::from(pushed == Pushed::Lagging);
                }
            }
        }
        if ended {
            self.live.retain(|one| !one.slot.machine.lock().has_ended());
        }
        delivered
    }

    /// All that one entry had to say was said.
    pub fn end_entry(&mut self) {
        if std::mem::take(&mut self.any_fresh) {
            self.live.iter_mut().for_each(|one| one.fresh.clear());
        }
    }
}

impl Subscriber {
    fn tell_difference(&mut self, before: &[i64], known: &[i64], replica: &Replica) {
        if !self.slot.intents.covers(GUILDS) {
            return;
        }
        for id in before.iter().filter(|id| self.hidden.binary_search(id).is_err()) {
            if let Some(channel) = replica.channels.get(id) {
                self.slot.push(outgoing::channel_event("CHANNEL_CREATE", channel));
                self.fresh.push(*id);
            }
        }
        for id in self.hidden.iter().filter(|id| before.binary_search(id).is_err()) {
            if let Some(channel) = replica.channels.get(id).filter(|_| known.binary_search(id).is_ok()) {
                self.slot.push(outgoing::channel_event("CHANNEL_DELETE", channel));
            }
        }
    }
}

fn lose(slot: &Slot, guild_id: i64) {
    slot.machine.lock().guilds.retain(|id| *id != guild_id);
    slot.push(outgoing::guild_delete(guild_id));
}
