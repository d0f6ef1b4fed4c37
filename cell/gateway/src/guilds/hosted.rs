//! One guild followed by this process: replica, position and sessions under their locks, and the questions others ask of it. Frames go
//! in, events come out; where frames come from is the driver's business.

mod frames;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use cell_proto::v1::{Member, Position, Typing};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::fanout::Fanout;
use super::follow::Follower;
use super::replica::Replica;
use crate::metrics::Metrics;
use crate::names::KnownUsers;
use crate::session::registry::{Registry, Slot};

/// Why a member or guild could not be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// The guild's owner says that the user is no member.
    NotMember,
    /// There is no such guild.
    NoGuild,
    /// No owner answered in time.
    Unreachable,
}

/// What frames led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Go on.
    GoOn,
    /// The sender is stale or something is missing: reset the link and attach anew with the position held.
    AttachAnew,
}

/// What every hosted guild shares.
#[derive(Clone)]
pub struct Shared {
    /// All sessions here.
    pub registry: Arc<Registry>,
    /// Users seen in entries.
    pub users: Arc<KnownUsers>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// One guild.
pub struct Hosted {
    /// Its id.
    pub id: i64,
    shared: Shared,
    fanout: Mutex<Fanout>,
    replica: RwLock<Option<Replica>>,
    follower: Mutex<Follower>,
    interest: Mutex<Interest>,
    /// Rises with every change of the replica.
    changed: watch::Sender<u64>,
    /// Fires when the driver has something to send up.
    pub poke: Notify,
    gone: AtomicBool,
    used_ms: AtomicI64,
}

/// Whom this process asks about.
#[derive(Default)]
struct Interest {
    /// User to when it was last asked for.
    users: HashMap<i64, i64>,
    /// Not told to the owner yet.
    pending: Vec<i64>,
    /// The owner said that they are no members.
    absent: HashSet<i64>,
    typing: Vec<Typing>,
}

/// Typing notices that wait to be sent up; further ones are dropped.
const MAX_PENDING_TYPING: usize = 64;
/// Users of one guild asked about at the same time without sessions here.
const MAX_INTEREST: usize = 100_000;
/// How long a guild that does not exist is followed after the last question.
const GONE_IDLE_MS: i64 = 5000;
/// How long a user without sessions stays of interest after the last question.
const INTEREST_MS: i64 = 300_000;

impl Hosted {
    /// Nothing is known of it yet.
    pub fn new(id: i64, shared: Shared) -> Arc<Self> {
        Arc::new(Self {
            id,
            shared,
            fanout: Mutex::default(),
            replica: RwLock::default(),
            follower: Mutex::new(Follower::new(id)),
            interest: Mutex::default(),
            changed: watch::Sender::new(0),
            poke: Notify::new(),
            gone: AtomicBool::new(false),
            used_ms: AtomicI64::new(cell_runtime::unix_ms()),
        })
    }

    fn touch(&self) {
        self.used_ms.store(cell_runtime::unix_ms(), Ordering::Relaxed);
    }

    fn tell_changed(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Whether no session has it and nobody asked for a while.
    pub fn is_idle(&self, now_ms: i64, idle_ms: i64) -> bool {
        // What does not exist is not followed for long: anyone can ask for it.
        let idle_ms = if self.is_gone() { idle_ms.min(GONE_IDLE_MS) } else { idle_ms };
        self.fanout.lock().is_empty() && now_ms - self.used_ms.load(Ordering::Relaxed) > idle_ms
    }

    /// Whether its owner said that it does not exist.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Sessions that have it.
    pub fn sessions(&self) -> usize {
        self.fanout.lock().live()
    }

    /// Where this process stands.
    pub fn position(&self) -> Option<Position> {
        self.follower.lock().position().cloned()
    }

    /// Reads the replica; `None` before the first snapshot.
    pub fn read<T>(&self, read: impl FnOnce(&Replica) -> T) -> Option<T> {
        self.replica.read().as_ref().map(read)
    }

    // ---- sessions ----

    /// A session wants the guild: it gets it as soon as its membership is known.
    pub fn subscribe(&self, slot: &Arc<Slot>) {
        // Under the fan-out's lock: a session that lists the guild is in it, once.
        let mut fanout = self.fanout.lock();
        {
            let mut machine = slot.machine.lock();
            if machine.guilds.contains(&self.id) || machine.has_ended() {
                return;
            }
            machine.guilds.push(self.id);
        }
        fanout.wait(slot);
        if let Some(replica) = self.replica.read().as_ref() {
            fanout.admit(replica, &[], cell_runtime::unix_ms());
        }
        drop(fanout);
        self.ask(slot.user_id);
    }

    /// A session is gone.
    pub fn unsubscribe(&self, slot: &Slot) {
        self.fanout.lock().remove(slot);
        self.touch();
    }

    // ---- questions ----

    fn ask(&self, user_id: i64) {
        self.touch();
        let known = self.read(|replica| replica.members.contains_key(&user_id)).unwrap_or(false);
        let mut interest = self.interest.lock();
        if interest.users.len() < MAX_INTEREST || interest.users.contains_key(&user_id) {
            interest.users.insert(user_id, cell_runtime::unix_ms());
        }
        if !known {
            interest.absent.remove(&user_id);
            // Whoever finds no room is asked for at the next attach, as everyone of interest.
            if interest.pending.len() < MAX_INTEREST {
                interest.pending.push(user_id);
            }
            drop(interest);
            self.poke.notify_one();
        }
    }

    /// The member, asking the guild's owner if it is not known here.
    ///
    /// # Errors
    /// [`Unknown`].
    pub async fn member(&self, user_id: i64, deadline: Instant) -> Result<Member, Unknown> {
        let mut changes = self.changed.subscribe();
        self.ask(user_id);
        let wait = async {
            loop {
                changes.borrow_and_update();
                if self.is_gone() {
                    return Err(Unknown::NoGuild);
                }
                if let Some(member) = self.read(|replica| replica.members.get(&user_id).cloned()).flatten() {
                    return Ok(member);
                }
                if self.interest.lock().absent.contains(&user_id) {
                    return Err(Unknown::NotMember);
                }
                if changes.changed().await.is_err() {
                    return Err(Unknown::Unreachable);
                }
            }
        };
        tokio::time::timeout_at(deadline, wait).await.unwrap_or(Err(Unknown::Unreachable))
    }

    /// Waits until the replica satisfies `condition`; false at the deadline.
    pub async fn wait_for(&self, deadline: Instant, condition: impl Fn(&Replica) -> bool) -> bool {
        let mut changes = self.changed.subscribe();
        self.touch();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if self.is_gone() {
                    return false;
                }
                if self.read(&condition).unwrap_or(false) {
                    return true;
                }
                if changes.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout_at(deadline, wait).await.unwrap_or(false)
    }

    /// Waits a moment for an entry that was just committed, so that who changed something sees it in the next answer.
    pub async fn wait_position(&self, at: &Position, at_most: Duration) {
        let mut changes = self.changed.subscribe();
        let reached = || {
            let follower = self.follower.lock();
            follower.position().is_none_or(|held| held.log != at.log || held.number >= at.number)
        };
        let wait = async { while !reached() && changes.changed().await.is_ok() {} };
        if tokio::time::timeout(at_most, wait).await.is_err() {
            self.shared.metrics.slow_replicas.inc();
        }
    }

    /// A typing notice goes up; dropped when too many wait.
    pub fn send_typing(&self, typing: Typing) {
        let mut interest = self.interest.lock();
        if interest.typing.len() < MAX_PENDING_TYPING {
            interest.typing.push(typing);
            self.poke.notify_one();
        }
    }

    // ---- what the driver takes up ----

    /// Whom an attach names: everyone of interest.
    pub fn attach_users(&self) -> Vec<i64> {
        let waiting = self.fanout.lock().waiting_users();
        let mut interest = self.interest.lock();
        let now_ms = cell_runtime::unix_ms();
        waiting.into_iter().for_each(|user| _ = interest.users.insert(user, now_ms));
        let pending = std::mem::take(&mut interest.pending);
        pending.into_iter().for_each(|user| _ = interest.users.entry(user).or_insert(now_ms));
        interest.users.keys().copied().collect()
    }

    /// Users of interest of whom nothing is known: an attach with a position is not answered with members.
    pub fn unknown_users(&self) -> Vec<i64> {
        let interest = self.interest.lock();
        let guard = self.replica.read();
        let known = |user: &i64| guard.as_ref().is_some_and(|replica| replica.members.contains_key(user));
        interest.users.keys().copied().filter(|user| !known(user) && !interest.absent.contains(user)).collect()
    }

    /// What waits to be sent up: users to ask for, and typing.
    pub fn take_pending(&self) -> (Vec<i64>, Vec<Typing>) {
        let mut interest = self.interest.lock();
        (std::mem::take(&mut interest.pending), std::mem::take(&mut interest.typing))
    }

    /// Users nobody here needs any more; they are forgotten.
    pub fn take_unneeded(&self, now_ms: i64) -> Vec<i64> {
        let mut interest = self.interest.lock();
        let unneeded: Vec<i64> = interest
            .users
            .iter()
            .filter(|(user, asked_ms)| now_ms - **asked_ms > INTEREST_MS && !self.shared.registry.has_user(**user))
            .map(|(user, _)| *user)
            .collect();
        unneeded.iter().for_each(|user| _ = interest.users.remove(user));
        interest.absent.clear();
        drop(interest);
        if let Some(replica) = self.replica.write().as_mut() {
            unneeded.iter().for_each(|user| _ = replica.members.remove(user));
        }
        unneeded
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::{Guild, GuildSnapshot, MemberInfo, User};

    use super::*;

    #[test]
    fn word_on_members_that_comes_before_the_snapshot_is_asked_for_again_and_not_lost() {
        let shared = Shared { registry: Arc::default(), users: Arc::default(), metrics: Arc::default() };
        let hosted = Hosted::new(5, shared);
        let member = Member { user: Some(User { id: 7, ..User::default() }), ..Member::default() };
        hosted.on_members(MemberInfo { guild_id: 5, members: vec![member], ..MemberInfo::default() });
        let guild = Some(Guild { id: 5, ..Guild::default() });
        assert_eq!(hosted.on_snapshot(GuildSnapshot { guild, ..GuildSnapshot::default() }, &[]), Next::GoOn);
        assert_eq!(hosted.take_pending().0, [7]);
    }
}
