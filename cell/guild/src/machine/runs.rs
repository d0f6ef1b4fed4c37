//! The requests of a move: warm up, stand by, reach a number, take over or hand over, forget. Each is idempotent by its run id; a run never
//! takes what another holds.

use cell_proto::v1::{InspectGuildReply, Position, ReachReply, Reason, Refusal, Route, RunReply, WarmReply};

use super::GuildActor;
use super::input::{Effect, LinkId, Now, Reply, Ticket, Whereto};
use super::links::Phase;
use super::ownership::Standing;

/// A caller that waits until everything up to a number is here.
#[derive(Clone, Debug)]
pub(super) struct ReachWaiter {
    pub(super) ticket: Ticket,
    pub(super) log: String,
    pub(super) at: u64,
    pub(super) deadline_ms: u64,
}

/// How long a run that has not done its work here may be silent before another may take its place, in milliseconds: an operator asks
/// again every few seconds.
const RUN_SILENCE_MS: u64 = 120_000;

/// The run that holds the guild on this node.
#[derive(Clone, Debug)]
pub(super) struct HeldRun {
    pub(super) id: String,
    /// The highest head term its requests named.
    term: u64,
    over: bool,
    heard_ms: u64,
}

impl GuildActor {
    fn check_run(&self, run_id: &str) -> Result<(), Refusal> {
        match &self.run {
            Some(held) if held.id != run_id => {
                let message = format!("run {} holds this guild; abort or finish it first", held.id);
                Err(Refusal::new(Reason::OtherRun, message))
            }
            _ => Ok(()),
        }
    }

    /// A request that was on its way for long names a lower term of the head than is known here. 0 is no term.
    fn check_term(&self, log: &str, term: u64) -> Result<(), Refusal> {
        let known = if self.known_term.0 == log { self.known_term.1 } else { 0 };
        if term == 0 || term >= known {
            return Ok(());
        }
        let message = format!("the run names term {term} of the head, {known} is known here; plan anew");
        let route = Route { log: log.to_owned(), term: known, ..Route::default() };
        Err(Refusal::new(Reason::StaleTerm, message).with_route(route))
    }

    /// Takes a run's request: the route names the head's term it was planned by, where there is one. The end of a run is told once and
    /// may be lost, so another run takes the place of one that did its work here, that is older by the head's term, or that was not
    /// heard of for long.
    fn hold_run(&mut self, run_id: String, route: Option<&Route>, now: Now) -> Result<(), Refusal> {
        let term = route.map_or(0, |route| route.term);
        let log = route.map_or(self.log.as_str(), |route| route.log.as_str()).to_owned();
        self.check_term(&log, term)?;
        let heard_ms = now.mono_ms;
        if let Some(held) = self.run.as_ref().filter(|held| held.id != run_id) {
            let late = term != 0 && term < held.term;
            let forgotten = heard_ms.saturating_sub(held.heard_ms) >= RUN_SILENCE_MS;
            if late || !(held.over || forgotten || term > held.term) {
                self.check_run(&run_id)?;
            }
            self.run = None;
            self.standby_target = None;
        }
        self.know_term(log, term);
        if !run_id.is_empty() {
            let held = self.run.take().filter(|held| held.id == run_id);
            let (before, over) = held.map_or((0, false), |held| (held.term, held.over));
            self.run = Some(HeldRun { id: run_id, term: before.max(term), over, heard_ms });
        }
        Ok(())
    }

    /// Terms are of one log: in another they begin anew.
    pub(super) fn know_term(&mut self, log: String, term: u64) {
        if self.known_term.0 != log {
            self.known_term = (log, 0);
        }
        self.known_term.1 = self.known_term.1.max(term);
    }

    /// The run did its work here; only its end is still to be told.
    fn run_is_over(&mut self) {
        if let Some(held) = &mut self.run {
            held.over = true;
        }
    }

    pub(super) fn warm(&mut self, ticket: Ticket, run_id: String, route: &Route, now: Now) {
        let refusal = self.hold_run(run_id, Some(route), now).err();
        if refusal.is_none() {
            self.last_used_ms = now.mono_ms;
            self.retry_load(now);
        }
        let ready = refusal.is_none() && self.is_loaded();
        self.reply(ticket, Reply::Warm(WarmReply { ready, position: self.applied, refusal }));
    }

    pub(super) fn announce_standby(&mut self, ticket: Ticket, run_id: String, target: Route, now: Now) {
        let outcome = if self.is_owner() { self.hold_run(run_id, None, now) } else { Err(self.not_owner(None)) };
        if let Err(refusal) = outcome {
            return self.reply(ticket, Reply::Run(run_refused(refusal)));
        }
        let unchanged = self.standby_target.as_ref() == Some(&target);
        self.standby_target = Some(target);
        if !unchanged {
            let links: Vec<LinkId> = self.links.keys().copied().collect();
            links.into_iter().for_each(|link| self.send_standby_target(link));
        }
        self.reply(ticket, Reply::Run(run_done(unchanged)));
    }

    fn has_reached(&self, waiter: &ReachWaiter) -> bool {
        self.is_loaded() && self.log == waiter.log && self.applied.max(self.seen) >= waiter.at
    }

    pub(super) fn reach(&mut self, waiter: ReachWaiter, run_id: &str) {
        if let Err(refusal) = self.check_run(run_id) {
            return self.answer_reach(waiter.ticket, false, Some(refusal));
        }
        if self.has_reached(&waiter) {
            return self.answer_reach(waiter.ticket, true, None);
        }
        if self.reaches.len() >= self.limits.reach_waiters {
            let refusal = Refusal::new(Reason::Overloaded, "too many callers wait for this guild").retry_after_ms(100);
            return self.answer_reach(waiter.ticket, false, Some(refusal));
        }
        self.reaches.push(waiter);
    }

    fn answer_reach(&mut self, ticket: Ticket, reached: bool, refusal: Option<Refusal>) {
        let position = self.applied.max(self.seen);
        self.reply(ticket, Reply::Reach(ReachReply { reached, position, refusal }));
    }

    pub(super) fn check_reaches(&mut self) {
        let (reached, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.reaches).into_iter().partition(|waiter| self.has_reached(waiter));
        self.reaches = waiting;
        reached.into_iter().for_each(|waiter| self.answer_reach(waiter.ticket, true, None));
    }

    pub(super) fn expire_reaches(&mut self, now: Now) {
        let (expired, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.reaches).into_iter().partition(|waiter| now.mono_ms >= waiter.deadline_ms);
        self.reaches = waiting;
        expired.into_iter().for_each(|waiter| self.answer_reach(waiter.ticket, false, None));
    }

    /// At the target of a switched log.
    pub(super) fn take_over(&mut self, ticket: Ticket, run_id: String, route: Option<Route>, now: Now) {
        if let Err(refusal) = self.hold_run(run_id, route.as_ref(), now) {
            return self.reply(ticket, Reply::Run(run_refused(refusal)));
        }
        self.run_is_over();
        if self.is_owner() {
            return self.reply(ticket, Reply::Run(run_done(true)));
        }
        self.takeovers.push(ticket);
        self.own(now);
    }

    /// At the source of a switched log: it stays warm until the run is forgotten.
    pub(super) fn hand_over(&mut self, ticket: Ticket, run_id: String, route: Option<Route>, now: Now) {
        if let Err(refusal) = self.hold_run(run_id, route.as_ref(), now) {
            return self.reply(ticket, Reply::Run(run_refused(refusal)));
        }
        self.run_is_over();
        let to = route.clone().map_or(Whereto::Unknown, Whereto::Route);
        let unchanged = self.standing == Standing::Follower && self.links.is_empty();
        self.step_back(to);
        let refusal = self.not_owner(route);
        self.refuse_everyone(&refusal);
        self.reply(ticket, Reply::Run(run_done(unchanged)));
    }

    pub(super) fn forget(&mut self, ticket: Ticket, run_id: &str, route: &Route) {
        let current = self.check_term(&route.log, route.term);
        if let Err(refusal) = current.and_then(|()| self.check_run(run_id)) {
            return self.reply(ticket, Reply::Run(run_refused(refusal)));
        }
        let unchanged = self.run.take().is_none();
        self.standby_target = None;
        if !self.is_owner() {
            let refusal = self.not_owner(None);
            let standing_by = |phase: &Phase| matches!(phase, Phase::Standby { .. });
            let refused: Vec<LinkId> =
                self.links.iter().filter(|(_, link)| standing_by(&link.phase)).map(|(id, _)| *id).collect();
            refused.into_iter().for_each(|link| self.refuse_link(link, refusal.clone()));
        }
        self.reply(ticket, Reply::Run(run_done(unchanged)));
        if !self.is_owner() && !self.wanted && self.links.is_empty() {
            self.out.push(Effect::Stop);
        }
    }

    pub(super) fn inspect(&mut self, ticket: Ticket) {
        let state = match self.standing {
            Standing::Owner { .. } => "owner",
            _ if self.is_loaded() => "warm",
            _ => "absent",
        };
        let reply = InspectGuildReply {
            state: state.to_owned(),
            position: Some(Position { log: self.log.clone(), number: self.applied }),
            guild_term: self.held_guild_term().unwrap_or(self.view.guild_term),
            sessions: i32::try_from(self.sessions()).unwrap_or(i32::MAX),
            members: self.view.member_count(),
            links: i32::try_from(self.links.len()).unwrap_or(i32::MAX),
            run_id: self.run.as_ref().map(|held| held.id.clone()).unwrap_or_default(),
        };
        self.reply(ticket, Reply::Inspect(reply));
    }

    pub(super) fn copy_view(&mut self, ticket: Ticket, now: Now) {
        self.last_used_ms = now.mono_ms;
        let view = if self.is_serving() {
            Ok(Box::new(self.view.clone()))
        } else if let Some(refusal) = self.missing.clone() {
            Err(refusal)
        } else {
            Err(Refusal::new(Reason::Wait, "the guild is being taken over; retry").retry_after_ms(50))
        };
        self.reply(ticket, Reply::View(view));
    }
}

pub(super) fn run_done(unchanged: bool) -> RunReply {
    RunReply { done: true, unchanged, refusal: None }
}

pub(super) fn run_refused(refusal: Refusal) -> RunReply {
    RunReply { done: false, unchanged: false, refusal: Some(refusal) }
}
