//! The log machine: owns one log by LOG.md rules 1–18. It decides what is asked of which store, in which order, and what is answered
//! when. It does no I/O, reads no clock and waits for nothing: `handle(input, now)` gives effects, and at most one request is
//! outstanding for the log itself and one for its copy, so that a crash after any of them can be tested. The copy never holds the log up.

mod admission;
mod apply;
mod claim;
mod commit;
mod copy;
mod handover;
mod owner;
mod places;
mod protections;
mod retention;
mod roll;
mod settle;
#[cfg(test)]
mod tests;
mod types;
mod walk;
mod window;

use std::collections::{HashMap, HashSet, VecDeque};

use cell_proto::unit::Unit;
use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_store::{Reply, Request, StoreError};

use crate::domain;

use self::claim::Claim;
use self::owner::Owner;
use self::protections::Protections;
use self::types::Pending;
use self::window::Window;

pub(crate) use self::admission::refused_by;
pub use self::copy::ship_cursor;
pub(crate) use self::copy::{CURSOR_RESTARTS, kept_since_cut, started_cursor};
pub use self::places::{FAILOVER_GAP, Place, pointer_of, pointer_to, released, released_by};
pub(crate) use self::places::{Locator, Search, has_failed_over};
pub use self::retention::feed_cursor;
pub use self::types::{
    Command, CopyStatus, Effect, Identity, Inheritance, Input, Limits, OperationId, Outcome, Ticket,
};
pub(crate) use self::walk::{Step, Walk, Wanted};

/// How long to wait before asking the store again, in microseconds.
const BACKOFF_US: i64 = 25_000;
/// The longest such wait.
const MAX_BACKOFF_US: i64 = 1_000_000;

enum State {
    Released,
    Claiming(Box<Claim>),
    Owner(Box<Owner>),
}

/// Whether commands are admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Admission {
    Open,
    /// Closed by a run; `told` once the run knows that nothing is in flight.
    Closed {
        run_id: String,
        told: bool,
    },
}

/// One log at one data service.
pub struct LogMachine {
    me: Identity,
    limits: Limits,
    rules: Protections,
    /// Rises only: the driver's monotone reading of the wall clock.
    now_us: i64,
    state: State,
    admission: Admission,
    /// Commands not answered yet.
    pending: HashMap<OperationId, Pending>,
    /// Those not in flight, oldest first.
    queue: VecDeque<OperationId>,
    window: Window,
    /// Proposed operations that may still land: an append with an unknown outcome, last number unchanged since.
    uncertain: HashSet<OperationId>,
    known: domain::State,
    /// When the next caller's deadline passes.
    expiry_at_us: i64,
    effects: Vec<Effect>,
    outstanding: bool,
    /// The last question for a copy; answers to earlier ones are passed over.
    copy_asked: u64,
    resend_at_us: Option<i64>,
    failures: u32,
}

impl LogMachine {
    /// A machine that owns nothing yet.
    pub fn new(me: Identity, limits: Limits) -> Self {
        Self::with_rules(me, limits, Protections::ALL)
    }

    fn with_rules(me: Identity, limits: Limits, rules: Protections) -> Self {
        Self {
            me,
            limits,
            rules,
            now_us: 0,
            state: State::Released,
            admission: Admission::Open,
            pending: HashMap::new(),
            queue: VecDeque::new(),
            window: Window::default(),
            uncertain: HashSet::new(),
            known: domain::State::default(),
            expiry_at_us: i64::MAX,
            effects: Vec::new(),
            outstanding: false,
            copy_asked: 0,
            resend_at_us: None,
            failures: 0,
        }
    }

    /// Takes one input in and answers with what to do. `now_us` is microseconds since the Unix epoch; going back has no effect.
    pub fn handle(&mut self, input: Input, now_us: i64) -> Vec<Effect> {
        self.now_us = self.now_us.max(now_us);
        match input {
            Input::Claim => self.start_claim(),
            Input::Submit { ticket, command } => self.submit(ticket, *command),
            Input::Answered(results) => {
                self.outstanding = false;
                self.answered(results);
            }
            Input::Tick => {}
            Input::Recheck => self.with_owner(|owner| owner.recheck = true),
            Input::Close { run_id } => self.close(run_id),
            Input::Reopen { run_id } => self.reopen(&run_id),
            Input::Switch { to_cell } => self.wish_switch(to_cell),
            Input::Seal { moved_to } => self.wish_seal(moved_to),
            Input::CutOver { to, run_id, restarts } => self.wish_cutover(to, &run_id, restarts),
            Input::FailOver { to, term } => self.start_failover(to, term),
            Input::CopyAnswered { id, results } => self.copy_answered(id, results),
            Input::Ship { target, run_id } => self.ship(target, run_id),
            Input::StopShipping => self.with_owner(|owner| owner.copy = None),
            Input::EndCopy { target, run_id } => self.end_copy(target, run_id),
        }
        self.pump();
        self.pump_copy();
        std::mem::take(&mut self.effects)
    }

    /// When to come back with [`Input::Tick`], in microseconds since the Unix epoch; none when only an input can change anything.
    pub fn wake_at_us(&self) -> Option<i64> {
        let expiry = Some(self.expiry_at_us).filter(|_| !self.pending.is_empty());
        let work = match &self.state {
            _ if self.outstanding => None,
            State::Released => None,
            State::Claiming(_) => self.resend_at_us,
            State::Owner(owner) => self.resend_at_us.or_else(|| self.owner_wake_us(owner)),
        };
        let copy = match &self.state {
            State::Owner(owner) => owner.copy.as_ref().and_then(|copy| copy.wake_at_us()),
            _ => None,
        };
        [expiry, work, copy].into_iter().flatten().min()
    }

    /// The head this machine holds, while it is the owner.
    pub fn head(&self) -> Option<&Head> {
        match &self.state {
            State::Owner(owner) => Some(&owner.head),
            _ => None,
        }
    }

    /// Last committed and last applied number, while it is the owner.
    pub fn position(&self) -> Option<(u64, u64)> {
        match &self.state {
            State::Owner(owner) => Some((owner.statics.last, owner.applied)),
            _ => None,
        }
    }

    /// The StorageCell that serves the log, while this is the owner.
    pub fn serving(&self) -> Option<&str> {
        match &self.state {
            State::Owner(owner) => Some(&owner.store),
            _ => None,
        }
    }

    /// How far the copy is; none when none is kept.
    pub fn copy_status(&self) -> Option<CopyStatus> {
        match &self.state {
            State::Owner(owner) => {
                owner.copy.as_ref().map(|copy| copy.status(owner.statics.last, owner.is_failed_over()))
            }
            _ => None,
        }
    }

    /// The run that closed admission.
    pub fn closed_by(&self) -> Option<&str> {
        match &self.admission {
            Admission::Open => None,
            Admission::Closed { run_id, .. } => Some(run_id),
        }
    }

    /// Nothing owned and nothing under way.
    pub fn is_released(&self) -> bool {
        matches!(self.state, State::Released)
    }

    /// The log is not owned yet.
    pub fn is_claiming(&self) -> bool {
        matches!(self.state, State::Claiming(_))
    }

    /// Commands not answered yet.
    pub fn queued(&self) -> usize {
        self.pending.len()
    }

    /// Nothing is in flight and the applied cursor is written: dropping the machine now leaves no work to the next owner.
    pub fn is_idle(&self) -> bool {
        match &self.state {
            State::Released => true,
            State::Claiming(_) => false,
            State::Owner(owner) => {
                self.pending.is_empty()
                    && owner.backlog.is_empty()
                    && owner.cursor == owner.applied
                    && !self.outstanding
                    && owner.copy.as_ref().is_none_or(|copy| copy.rests(owner.statics.last))
            }
        }
    }

    /// Nobody misses this owner: a copy that cannot be gone on with may be of an origin that nobody else would fence when it comes back.
    pub fn may_be_given_up(&self) -> bool {
        let is_stuck = match &self.state {
            State::Owner(owner) => owner.copy.as_ref().is_some_and(|copy| copy.is_stuck()),
            _ => false,
        };
        self.is_idle() && !is_stuck
    }

    fn with_owner(&mut self, change: impl FnOnce(&mut Owner)) {
        if let State::Owner(owner) = &mut self.state {
            change(owner);
        }
    }

    fn ask(&mut self, store: &str, requests: Vec<Request>) {
        self.ask_each(requests.into_iter().map(|request| (store.to_owned(), request)).collect());
    }

    fn ask_each(&mut self, requests: Vec<(String, Request)>) {
        debug_assert!(!self.outstanding, "one request at a time");
        self.outstanding = true;
        self.resend_at_us = None;
        self.effects.push(Effect::Ask(requests));
    }

    /// The store did not answer usefully: the present step is asked again after a pause.
    fn pause(&mut self) {
        let backoff = (BACKOFF_US << self.failures.min(6)).min(MAX_BACKOFF_US);
        self.failures += 1;
        self.resend_at_us = Some(self.now_us + backoff);
    }

    fn answered(&mut self, results: Vec<Result<Reply, StoreError>>) {
        match std::mem::replace(&mut self.state, State::Released) {
            State::Released => {}
            State::Claiming(claim) => self.claim_answered(claim, results),
            State::Owner(owner) => self.job_answered(owner, results),
        }
    }

    fn pump(&mut self) {
        self.expire();
        if self.outstanding || self.resend_at_us.is_some_and(|at| at > self.now_us) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Released) {
            State::Released => {}
            State::Claiming(claim) => {
                let (store, requests) = (claim.store().to_owned(), claim.requests(&self.me));
                self.state = State::Claiming(claim);
                self.ask(&store, requests);
            }
            State::Owner(owner) => self.work(owner),
        }
    }

    /// Steps back: everyone waiting is told, and nothing is held any more.
    fn release(&mut self, refusal: Refusal) {
        self.queue.clear();
        let unanswered: Vec<OperationId> = self.pending.keys().copied().collect();
        for operation_id in unanswered {
            self.refuse(operation_id, refusal.clone());
        }
        self.uncertain.clear();
        self.window = Window::default();
        self.known.forget();
        self.admission = Admission::Open;
        self.resend_at_us = None;
        self.failures = 0;
        self.state = State::Released;
        self.effects.push(Effect::Released { refusal });
    }

    /// The refusal of one that is not, or no more, the owner.
    fn not_owner(&self, head: Option<&Head>) -> Refusal {
        let route = head.map(|head| Route {
            log: self.me.log.clone(),
            cell: head.cell.clone(),
            term: head.term,
            ..Route::default()
        });
        let refusal = Refusal::new(Reason::NotOwner, format!("{} does not own {}", self.me.member_id, self.me.log));
        match route {
            Some(route) => refusal.with_route(route),
            None => refusal,
        }
    }

    /// The bucket's log of a guild's log.
    fn bucket_log(&self) -> Option<String> {
        match self.me.unit {
            Unit::Guild(guild_id) => Some(Unit::bucket(guild_id).log()),
            Unit::Bucket(_) => None,
        }
    }
}
