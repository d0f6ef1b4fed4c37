//! Following the log: loading, and applying each entry exactly once in order. Entries of a lower term than the one last seen are refused.

use std::sync::Arc;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, GuildClaimed, GuildEvent, Position, Refusal};

use super::input::{Effect, Loaded, Now, Ticket};
use super::members::user_id_of;
use super::ring::{Ring, enters};
use super::{GuildActor, Membership, Whereto};

/// How long after a failed load the next is tried, in milliseconds.
const LOAD_RETRY_MS: u64 = 1_000;

/// How the actor stands to its log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Follow {
    /// Nothing is known.
    Absent { retry_at_ms: u64 },
    /// A worker reads the guild.
    Loading,
    /// The feed is open.
    Live,
    /// The feed came from an owner that is none any more: it is opened again a little later.
    Pausing { until_ms: u64 },
    /// The guild goes, or may have gone, to another log: finding out where it goes on.
    Crossing { ticket: Ticket },
}

impl GuildActor {
    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.follow, Follow::Live | Follow::Pausing { .. } | Follow::Crossing { .. })
    }

    pub(super) fn start_load(&mut self) {
        self.epoch += 1;
        self.follow = Follow::Loading;
        self.out.push(Effect::Load { epoch: self.epoch, log: self.log.clone() });
    }

    pub(super) fn retry_load(&mut self, now: Now) {
        let needed = self.wanted || self.run.is_some() || !self.links.is_empty();
        if matches!(self.follow, Follow::Absent { retry_at_ms } if needed && now.mono_ms >= retry_at_ms) {
            self.start_load();
        }
    }

    pub(super) fn loaded(&mut self, epoch: u64, outcome: Result<Box<Loaded>, Refusal>, now: Now) {
        if epoch != self.epoch || self.follow != Follow::Loading {
            return;
        }
        let loaded = match outcome {
            Ok(loaded) => *loaded,
            Err(refusal) => return self.load_failed(refusal, now),
        };
        self.missing = None;
        let stood_at = self.position();
        self.view = loaded.view;
        self.log = loaded.log;
        (self.applied, self.seen, self.term) = (loaded.as_of, loaded.as_of, loaded.term);
        self.at = Position { log: self.log.clone(), number: self.applied };
        // The entries after `as_of` are wanted even if they had been applied to the state that this one replaces.
        self.last_us = 0;
        self.ring = Ring::new(self.limits.ring, self.position());
        self.open_feed();
        self.give_up_claim();
        self.reanchor_links(&stood_at);
        if self.wanted {
            self.claim(now);
        }
        self.check_reaches();
    }

    pub(super) fn reopen_feed(&mut self, now: Now) {
        if matches!(self.follow, Follow::Pausing { until_ms } if now.mono_ms >= until_ms) {
            self.open_feed();
        }
    }

    fn load_failed(&mut self, refusal: Refusal, now: Now) {
        self.follow = Follow::Absent { retry_at_ms: now.mono_ms + LOAD_RETRY_MS };
        if !refusal.why().is_retryable() {
            self.wanted = false;
            self.missing = Some(refusal.clone());
        }
        self.refuse_everyone(&refusal);
    }

    pub(super) fn open_feed(&mut self) {
        self.epoch += 1;
        self.follow = Follow::Live;
        self.out.push(Effect::OpenFeed { epoch: self.epoch, log: self.log.clone(), from: self.applied + 1 });
    }

    pub(super) fn fed(&mut self, epoch: u64, entries: Vec<Entry>, last: u64, term: u64, now: Now) {
        if epoch != self.epoch || self.follow != Follow::Live {
            return;
        }
        if term < self.term {
            self.counters.stale_terms += 1;
            // The directory may need a moment to know better; whoever is there goes on saying the same until then.
            self.epoch += 1;
            self.follow = Follow::Pausing { until_ms: now.mono_ms + LOAD_RETRY_MS };
            return;
        }
        let risen = term > self.term;
        self.term = term;
        if risen && self.log == self.own_log() {
            // A new owner; or the log was left and entered again meanwhile, which its numbers do not show.
            return self.check_stay();
        }
        let log = self.log.clone();
        let whole = self.apply_all(entries, now);
        if whole && self.log == log {
            self.seen = self.seen.max(last);
        }
        self.check_reaches();
        self.pump_mutations(now);
    }

    /// Applies entries until the guild leaves the log or one is missing; false then.
    pub(super) fn apply_all(&mut self, entries: Vec<Entry>, now: Now) -> bool {
        let mut events = Vec::with_capacity(entries.len());
        let mut whole = true;
        for entry in entries {
            if entry.number <= self.applied || entry.timestamp_us <= self.last_us {
                self.counters.repeated += 1;
                continue;
            }
            // Every entry of a guild's own log is the guild's, so a hole shows; after a merged stay the log goes on where it was.
            let own_log = self.log.starts_with('g');
            if own_log && self.applied > 0 && entry.number != self.applied + 1 {
                self.counters.gaps += 1;
                self.open_feed();
                whole = false;
                break;
            }
            if !own_log && guild_of(&entry).is_some_and(|guild_id| guild_id != self.identity.guild_id) {
                continue;
            }
            let split = enters(&entry, &self.own_log());
            events.push(self.apply(entry));
            if split {
                self.enter_own_log();
                whole = false;
                break;
            }
        }
        self.broadcast(&events);
        // After the links have these events: a claim among them may end the ownership.
        self.check_claims(&events, now);
        whole
    }

    fn apply(&mut self, entry: Entry) -> Arc<GuildEvent> {
        self.counters.entries += 1;
        let message =
            matches!(entry.change.as_ref().and_then(|change| change.kind.as_ref()), Some(Kind::MessageCreated(_)));
        self.counters.messages += u64::from(message);
        let membership = self.view.apply(&entry);
        self.applied = entry.number;
        self.at = Position { log: self.log.clone(), number: entry.number };
        self.seen = self.seen.max(entry.number);
        self.last_us = entry.timestamp_us;
        self.tell_memberships(membership, &entry);
        let event = Arc::new(GuildEvent {
            position: Some(self.position()),
            policy_version: self.view.guild.policy_version,
            member_count: self.view.member_count(),
            entry: Some(entry),
        });
        let sequence = self.ring.push(event.clone());
        self.echoed(&event, sequence);
        event
    }

    /// The users' own lists hear of it; of a guild's end all its members'.
    fn tell_memberships(&mut self, membership: Option<Membership>, entry: &Entry) {
        if !self.is_owner() {
            return;
        }
        let ended =
            matches!(entry.change.as_ref().and_then(|change| change.kind.as_ref()), Some(Kind::GuildDeleted(_)));
        let (users, joined) = match membership {
            Some(membership) => (vec![membership.user_id], membership.joined),
            None if ended => (self.view.members.iter().map(|member| user_id_of(member)).collect(), false),
            None => return,
        };
        if self.memberships.begin(&self.log, entry.number) {
            self.out.push(Effect::FeedMembership { log: self.log.clone(), number: entry.number, users, joined });
        }
    }

    /// Claims of others end the ownership; a claim of our own whose answer was lost begins it.
    fn check_claims(&mut self, events: &[Arc<GuildEvent>], now: Now) {
        for event in events {
            let Some(entry) = &event.entry else { continue };
            if let Some(Kind::GuildClaimed(claimed)) = entry.change.as_ref().and_then(|change| change.kind.as_ref()) {
                self.claim_seen(claimed, &entry.operation_id, event.position.as_ref(), now);
            }
        }
    }

    fn claim_seen(&mut self, claimed: &GuildClaimed, operation_id: &[u8], at: Option<&Position>, now: Now) {
        if let Some(guild_term) = self.claim_is_ours(operation_id) {
            return self.become_owner(guild_term, at.map_or(0, |at| at.number), now);
        }
        match self.held_guild_term() {
            Some(held) if claimed.guild_term > held => self.step_back(Whereto::Node(claimed.node.clone())),
            Some(held) if claimed.guild_term < held => self.counters.stale_guild_terms += 1,
            Some(_) => {
                self.serve_all();
                self.pump_mutations(now);
            }
            None => {}
        }
    }
}

/// The guild an entry belongs to; none for what belongs to users.
pub(super) fn guild_of(entry: &Entry) -> Option<i64> {
    Some(match entry.change.as_ref()?.kind.as_ref()? {
        Kind::UserCreated(_) | Kind::UserGuildAdded(_) | Kind::UserGuildRemoved(_) | Kind::ReadStatesAdvanced(_) => 0,
        Kind::GuildCreated(change) => change.guild.as_ref()?.id,
        Kind::GuildUpdated(change) => change.guild.as_ref()?.id,
        Kind::GuildDeleted(change) => change.guild_id,
        Kind::ChannelPut(change) => change.channel.as_ref()?.guild_id,
        Kind::ChannelDeleted(change) => change.guild_id,
        Kind::RolePut(change) => change.guild_id,
        Kind::RoleDeleted(change) => change.guild_id,
        Kind::MemberPut(change) => change.guild_id,
        Kind::MemberRemoved(change) => change.guild_id,
        Kind::InvitePut(change) => change.invite.as_ref()?.guild_id,
        Kind::InviteDeleted(change) => change.guild_id,
        Kind::MessageCreated(change) => change.message.as_ref()?.guild_id,
        Kind::MessageEdited(change) => change.guild_id,
        Kind::MessageDeleted(change) => change.guild_id,
        Kind::MessagesDeleted(change) => change.guild_id,
        Kind::GuildClaimed(change) => change.guild_id,
        Kind::Split(change) => change.guild_id,
        Kind::Merge(change) => change.guild_id,
    })
}
