//! The machine of one guild: what enters ([`Input`]) at a time ([`Now`]) and what is to be done ([`Effect`]). It orders what is in the guild,
//! feeds gateways exactly what follows their positions, and judges structural changes. It never does I/O, never waits, never reads a clock.

mod crossing;
mod feed;
mod input;
mod judge;
mod limits;
mod links;
mod members;
mod memberships;
mod mutations;
mod ownership;
mod replay;
mod ring;
mod runs;
mod view;
mod walk;

use std::collections::BTreeMap;

use cell_proto::unit::Unit;
use cell_proto::v1::{Entry, Position, Reason, Refusal, Route};

pub use input::{Effect, Input, Junction, LinkId, Loaded, LogPage, Now, Pressure, Reply, Ticket, Whereto};
pub use judge::{Judging, judge};
pub use limits::{Counters, Limits};
pub use links::member_info;
pub use members::{Members, user_id_of};
pub use memberships::OUTSTANDING_LIMIT;
pub use ring::RingLimits;
pub use view::{GuildView, Membership};

use feed::Follow;
use links::Link;
use memberships::Memberships;
use mutations::Mutations;
use ownership::Standing;
use ring::Ring;
use runs::{HeldRun, ReachWaiter};

/// How often the feed is acknowledged at most, in milliseconds.
const ACKNOWLEDGE_EVERY_MS: u64 = 5_000;

/// How long it is remembered that a guild does not exist, in milliseconds.
const MISSING_IDLE_MS: u64 = 2_000;

/// Who an actor is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The guild.
    pub guild_id: i64,
    /// Member id of this node.
    pub node: String,
    /// Differs at every start of the process.
    pub incarnation: u64,
}

/// The state of one guild on this node.
#[derive(Debug)]
pub struct GuildActor {
    identity: Identity,
    limits: Limits,
    counters: Counters,

    /// The log the guild lives in, as far as known here.
    log: String,
    /// The last number of that log that is in `view`.
    applied: u64,
    /// The last entry in `view`; after a split that is an entry of the log before.
    at: Position,
    /// No entry of this guild up to here is missing.
    seen: u64,
    /// Timestamp of the last entry: rises across logs too, so nothing is applied twice.
    last_us: i64,
    /// The head's term of `log`.
    term: u64,
    view: GuildView,
    ring: Ring,
    follow: Follow,
    /// Why the guild could not be read, when trying again would not help.
    missing: Option<Refusal>,
    /// The merge that ends the stay in the guild's own log, while the rest of that stay is read.
    merge_ahead: Option<Entry>,
    epoch: u64,

    standing: Standing,
    wanted: bool,
    attempts: u64,
    claim_after_ms: u64,
    run: Option<HeldRun>,
    /// The highest head term that a run named or this node owned the guild under, and of which log: what names a lower one is late.
    known_term: (String, u64),
    standby_target: Option<Route>,

    links: BTreeMap<LinkId, Link>,
    reaches: Vec<ReachWaiter>,
    takeovers: Vec<Ticket>,
    mutations: Mutations,
    memberships: Memberships,
    pressure: Pressure,
    last_used_ms: u64,
    /// When this node became owner.
    owned_ms: u64,
    acknowledged_ms: Option<u64>,
    next_ticket: Ticket,
    out: Vec<Effect>,
}

impl GuildActor {
    /// An actor that knows nothing yet; `log` is where the directory says that the guild lives.
    pub fn new(identity: Identity, log: String, limits: Limits, now: Now) -> Self {
        let base = Position { log: log.clone(), number: 0 };
        Self {
            identity,
            limits,
            counters: Counters::default(),
            log,
            applied: 0,
            seen: 0,
            last_us: 0,
            term: 0,
            view: GuildView::default(),
            ring: Ring::new(limits.ring, base.clone()),
            at: base,
            follow: Follow::Absent { retry_at_ms: 0 },
            missing: None,
            merge_ahead: None,
            epoch: 0,
            standing: Standing::Follower,
            wanted: false,
            attempts: 0,
            claim_after_ms: 0,
            run: None,
            known_term: (String::new(), 0),
            standby_target: None,
            links: BTreeMap::new(),
            reaches: Vec::new(),
            takeovers: Vec::new(),
            mutations: Mutations::default(),
            memberships: Memberships::default(),
            pressure: Pressure::Calm,
            last_used_ms: now.mono_ms,
            owned_ms: 0,
            acknowledged_ms: None,
            next_ticket: 0,
            out: Vec::new(),
        }
    }

    /// Takes one input and gives what is to be done, in order.
    pub fn handle(&mut self, input: Input, now: Now) -> Vec<Effect> {
        match input {
            Input::Own => self.own(now),
            Input::Yield(_) if self.run.is_some() => {}
            Input::Yield(route) | Input::Drain(route) => self.yield_to(route),
            Input::Loaded { epoch, outcome } => self.loaded(epoch, outcome, now),
            Input::Feed { epoch, entries, last, term } => self.fed(epoch, entries, last, term, now),
            Input::FeedEnded { epoch, refusal } => self.feed_ended(epoch, refusal),
            Input::LogRead { ticket, outcome } => self.log_read(ticket, outcome, now),
            Input::StartFound { ticket, outcome } => self.start_found(ticket, outcome),
            Input::JunctionsFound { ticket, outcome } => self.junctions_found(ticket, outcome, now),
            Input::Claimed { attempt, outcome } => self.claimed(attempt, *outcome, now),
            Input::Attach { link, position, user_ids, standby } => self.attach(link, position, user_ids, standby, now),
            Input::Detach { link } => self.detach(link, now),
            Input::Interest { link, add, remove, sessions } => self.interest(link, add, &remove, sessions),
            Input::Ack { link, position } => self.ack(link, position),
            Input::Typing { channel_id, user_id, at_ms } => self.typing(channel_id, user_id, at_ms),
            Input::Drained { link } => self.drained(link),
            Input::SnapshotBuilt { link, ticket, snapshot } => self.snapshot_built(link, ticket, *snapshot),
            Input::Mutate { ticket, request } => self.mutate(ticket, *request, now),
            Input::Submitted { ticket, outcome } => self.submitted(ticket, *outcome, now),
            Input::MembershipFed { log, number } => self.memberships.fed(&log, number),
            Input::MembershipLeftOut { log, number } => self.memberships.left_out(&log, number),
            Input::Warm { ticket, run_id, route } => self.warm(ticket, run_id, &route, now),
            Input::AnnounceStandby { ticket, run_id, target } => self.announce_standby(ticket, run_id, target, now),
            Input::Reach { ticket, run_id, log, at, wait_ms } => {
                let deadline_ms = now.mono_ms.saturating_add(u64::from(wait_ms));
                self.reach(ReachWaiter { ticket, log, at, deadline_ms }, &run_id);
            }
            Input::TakeOver { ticket, run_id, claim: true, route } => self.take_over(ticket, run_id, route, now),
            Input::TakeOver { ticket, run_id, claim: false, route } => self.hand_over(ticket, run_id, route, now),
            Input::Forget { ticket, run_id, route } => self.forget(ticket, &run_id, &route),
            Input::Inspect { ticket } => self.inspect(ticket),
            Input::View { ticket } => self.copy_view(ticket, now),
            Input::Pressure(pressure) => self.pressure = pressure,
            Input::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// What has been counted since the actor began.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Connected sessions, as the gateways last said.
    pub fn sessions(&self) -> i64 {
        self.links.values().map(|link| i64::from(link.sessions)).sum()
    }

    /// Whether this node owns the guild, as far as it knows.
    pub fn is_owner(&self) -> bool {
        matches!(self.standing, Standing::Owner { .. })
    }

    /// In how many milliseconds the next [`Input::Tick`] is due: soon while something waits, else once a second.
    pub fn tick_in_ms(&self) -> u64 {
        let claiming = self.wanted && !self.is_owner();
        let waiting =
            claiming || !self.reaches.is_empty() || !self.mutations.is_empty() || !self.memberships.is_empty();
        if waiting { 50 } else { 1000 }
    }

    /// Whether this node owns the guild or is about to.
    pub fn is_wanted(&self) -> bool {
        self.wanted || self.is_owner()
    }

    /// The state, for tests and benchmarks.
    pub fn view(&self) -> &GuildView {
        &self.view
    }

    /// Everything of this guild up to here is applied.
    pub fn position(&self) -> Position {
        self.at.clone()
    }

    /// Gateways attached.
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    fn tick(&mut self, now: Now) {
        self.retry_load(now);
        self.reopen_feed(now);
        self.retry_claim(now);
        self.expire_reaches(now);
        self.expire_waiting_links(now);
        self.expire_mutations(now);
        self.compare_left_out();
        self.acknowledge_feed(now);
        self.stop_when_idle(now);
    }

    fn compare_left_out(&mut self) {
        if self.is_owner() && self.follow == Follow::Live && self.memberships.wants_comparison() {
            self.compare_memberships(self.applied);
        }
    }

    fn compare_memberships(&mut self, until: u64) {
        self.memberships.compare(&self.log, until);
        self.out.push(Effect::CompareMemberships { log: self.log.clone(), until });
    }

    /// Seldom: an acknowledgement is a write, and only retention waits for it.
    fn acknowledge_feed(&mut self, now: Now) {
        let due = self.acknowledged_ms.is_none_or(|last| now.mono_ms.saturating_sub(last) >= ACKNOWLEDGE_EVERY_MS);
        if due
            && self.is_owner()
            && let Some((log, number)) = self.memberships.acknowledge(&self.log, self.applied)
        {
            self.acknowledged_ms = Some(now.mono_ms);
            self.out.push(Effect::AckFeed { log, number });
        }
    }

    fn stop_when_idle(&mut self, now: Now) {
        let busy = !self.links.is_empty()
            || self.run.is_some()
            || !self.reaches.is_empty()
            || !self.takeovers.is_empty()
            || !self.mutations.is_empty()
            || !self.memberships.is_empty();
        if busy {
            self.last_used_ms = now.mono_ms;
            return;
        }
        // A guild that does not exist takes up no place for long.
        let idle_ms = if self.missing.is_some() { MISSING_IDLE_MS } else { self.limits.idle_ms };
        if now.mono_ms.saturating_sub(self.last_used_ms) >= idle_ms {
            self.out.push(Effect::Stop);
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.out.push(Effect::Reply { ticket, reply });
    }

    fn own_log(&self) -> String {
        Unit::Guild(self.identity.guild_id).log()
    }

    fn bucket_log(&self) -> String {
        Unit::bucket(self.identity.guild_id).log()
    }

    fn not_owner(&self, route: Option<Route>) -> Refusal {
        let mut refusal = Refusal::new(Reason::NotOwner, "this node does not own the guild; follow the route");
        refusal.route = route;
        refusal
    }
}

#[cfg(test)]
mod tests;
