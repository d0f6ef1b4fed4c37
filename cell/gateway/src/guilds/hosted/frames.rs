//! What frames of the guild's owner do to the replica and the sessions: applied under one lock, in log order, each entry once.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use cell_proto::v1::{GuildEvents, GuildSnapshot, MemberInfo, Position, Typing};

use super::{Hosted, Next};
use crate::guilds::entry_names::ReplicaNames;
use crate::guilds::fanout::Fanout;
use crate::guilds::follow::{Taken, Verdict};
use crate::guilds::outgoing::{self, Effect};
use crate::guilds::replica::{Replica, user_id};
use crate::session::machine::Ended;

impl Hosted {
    /// A snapshot arrived, for an attach that named `asked`.
    pub fn on_snapshot(&self, snapshot: GuildSnapshot, asked: &[i64]) -> Next {
        let mut fanout = self.fanout.lock();
        let taken = self.follower.lock().snapshot(&snapshot);
        match taken {
            Taken::Behind => return Next::AttachAnew,
            Taken::First | Taken::Same => {}
            Taken::Skipped => self.end_sessions(&mut fanout),
        }
        let members: HashSet<i64> = snapshot.members.iter().map(user_id).collect();
        let not_members: Vec<i64> = asked.iter().copied().filter(|user| !members.contains(user)).collect();
        snapshot
            .members
            .iter()
            .filter_map(|member| member.user.as_ref())
            .for_each(|user| self.shared.users.learn(user));
        let replica = Replica::from_snapshot(snapshot);
        fanout.replica_changed();
        fanout.admit(&replica, &not_members, cell_runtime::unix_ms());
        *self.replica.write() = Some(replica);
        self.interest.lock().absent.extend(not_members);
        drop(fanout);
        self.gone.store(false, Ordering::Release);
        self.tell_changed();
        self.poke.notify_one();
        Next::GoOn
    }

    /// Their sequence has a hole nobody can fill.
    fn end_sessions(&self, fanout: &mut Fanout) {
        for slot in fanout.take_live() {
            slot.machine.lock().end(Ended::BehindRetention);
            slot.wake.notify_one();
            self.shared.metrics.sessions_ended(Ended::BehindRetention);
        }
    }

    /// Word on members arrived. Word from before what is applied here may be untrue by now, and is asked for again.
    pub fn on_members(&self, info: MemberInfo) {
        let mut fanout = self.fanout.lock();
        let early = self.replica.read().is_none();
        if early || self.is_behind(info.position.as_ref()) {
            let users = info.members.iter().map(user_id).chain(info.not_members.iter().copied());
            self.interest.lock().pending.extend(users);
            // What came before the snapshot has nothing to be kept in; it is asked for again when there is one.
            if !early {
                self.poke.notify_one();
            }
            return;
        }
        let not_members = info.not_members.clone();
        info.members.iter().filter_map(|member| member.user.as_ref()).for_each(|user| self.shared.users.learn(user));
        if let Some(replica) = self.replica.write().as_mut() {
            replica.learn(info);
        }
        if let Some(replica) = self.replica.read().as_ref() {
            fanout.admit(replica, &not_members, cell_runtime::unix_ms());
        }
        self.interest.lock().absent.extend(not_members);
        drop(fanout);
        self.tell_changed();
    }

    fn is_behind(&self, at: Option<&Position>) -> bool {
        let follower = self.follower.lock();
        at.zip(follower.position()).is_some_and(|(at, held)| at.log == held.log && at.number < held.number)
    }

    /// Entries arrived. Each is applied once; the fan-out runs under one lock, so every session gets them in log order.
    pub fn on_events(&self, frame: &GuildEvents) -> Next {
        let mut fanout = self.fanout.lock();
        let mut next = Next::GoOn;
        for event in &frame.events {
            let verdict = self.follower.lock().judge(frame.term, event);
            match verdict {
                Verdict::Apply => {}
                Verdict::Duplicate => {
                    self.shared.metrics.duplicate_events.inc();
                    continue;
                }
                Verdict::StaleTerm | Verdict::Gap => {
                    self.shared.metrics.refused_events(verdict);
                    next = Next::AttachAnew;
                    break;
                }
            }
            self.apply(&mut fanout, event);
            self.follower.lock().advance(frame.term, event);
        }
        drop(fanout);
        self.tell_changed();
        next
    }

    fn apply(&self, fanout: &mut Fanout, event: &cell_proto::v1::GuildEvent) {
        let Some(entry) = &event.entry else {
            return;
        };
        self.shared.users.learn_from(entry);
        let registry = &self.shared.registry;
        let effects = {
            let mut guard = self.replica.write();
            let Some(replica) = guard.as_mut() else {
                return;
            };
            let names = ReplicaNames::new(&self.shared.users, replica, entry);
            replica.apply(entry, event.policy_version, event.member_count, &names, &|user| registry.has_user(user))
        };
        fanout.replica_changed();
        let guard = self.replica.read();
        if let Some(replica) = guard.as_ref() {
            effects.into_iter().for_each(|effect| self.carry_out(fanout, replica, effect));
            fanout.end_entry();
        }
    }

    fn carry_out(&self, fanout: &mut Fanout, replica: &Replica, effect: Effect) {
        let now_ms = cell_runtime::unix_ms();
        match effect {
            Effect::Send(outgoing) => {
                let delivered = fanout.send(&outgoing);
                self.shared.metrics.fanned_out(delivered);
            }
            Effect::Visibility(whose) => fanout.look_again(replica, whose, now_ms),
            Effect::Joined(user_id) => {
                self.interest.lock().absent.remove(&user_id);
                let slots = self.shared.registry.of_user(user_id);
                slots.iter().for_each(|slot| {
                    let mut machine = slot.machine.lock();
                    if slot.follows(self.id) && !machine.guilds.contains(&self.id) {
                        machine.guilds.push(self.id);
                    }
                });
                fanout.join(replica, slots, now_ms);
            }
            Effect::Left(user_id) => fanout.leave(self.id, user_id),
            Effect::GuildGone => {
                self.gone.store(true, Ordering::Release);
                fanout.clear(self.id);
            }
        }
    }

    /// Somebody types.
    pub fn on_typing(&self, typing: &Typing) {
        let mut fanout = self.fanout.lock();
        let member = self.read(|replica| replica.members.get(&typing.user_id).cloned()).flatten();
        if let Effect::Send(outgoing) = outgoing::typing(typing, member.as_ref()) {
            self.shared.metrics.fanned_out(fanout.send(&outgoing));
        }
    }

    /// The owner says that there is no such guild.
    pub fn on_gone(&self) {
        self.gone.store(true, Ordering::Release);
        self.fanout.lock().clear(self.id);
        self.tell_changed();
    }

    /// The position is older than what any owner can replay: sessions that have the guild end, the next snapshot is a first one.
    pub fn on_behind_retention(&self) {
        let mut fanout = self.fanout.lock();
        self.end_sessions(&mut fanout);
        self.follower.lock().reset();
        *self.replica.write() = None;
    }
}
