//! The copy of a log in another StorageCell (rules 10–12 and 15): made, caught up, kept up to date and released beside the log's own
//! work, with one question of its own outstanding. Entries are taken from memory or read back from the serving log, so a target that is
//! slow or dead costs the origin nothing but one batch of memory.

mod attach;
mod release;
mod ship;

use cell_proto::v1::{Head, Statics};
use cell_store::{Reply, Request, StoreError};

use self::attach::Attach;
use self::release::Release;
use self::ship::Moving;
use super::handover::Handover;
use super::owner::Owner;
use super::protections::Protections;
use super::types::{CopyStatus, Effect, Identity, Limits};
use super::window::Window;
use super::{BACKOFF_US, LogMachine, MAX_BACKOFF_US, State};

/// How often a copy was begun anew.
pub(crate) const CURSOR_RESTARTS: &str = "restarts";

/// The cursor, in the serving store, of what is durable in a copy.
pub fn ship_cursor(target: &str) -> String {
    format!("ship:{target}")
}

/// What a copy's head tells of the way back (rule 13); `started_at` is the cursor of its present beginning.
pub(crate) fn kept_since_cut(head: &Head, started_at: u64, failed_over: bool) -> bool {
    head.moved_at > 0 || (started_at == 0 && !failed_over)
}

/// The cursor, in the copy's store, of the number a beginning of a copy started after.
pub(crate) fn started_cursor(restarts: u64) -> String {
    format!("started:{restarts}")
}

type Answer = Option<Result<Reply, StoreError>>;

/// One copy.
pub(super) struct Copy {
    pub(super) target: String,
    run_id: String,
    step: Step,
    asked: Option<u64>,
    resend_at_us: Option<i64>,
    failures: u32,
    attaches: u32,
    /// The copy's head, as last read.
    head: Option<Head>,
    segment: u64,
    /// Of its last segment.
    statics: Statics,
    segment_entries: u64,
    segment_bytes: u64,
    /// The number its log takes next.
    next: u64,
    /// Everything up to here is in its tables.
    applied: u64,
    /// And its cursor says so.
    durable: u64,
    /// And the cursor in the serving store.
    shipped: u64,
    cursor_due_us: i64,
    /// Where the serving log was read last.
    read_segment: Option<u64>,
    /// Numbers up to here were never used (a failover left them out).
    skip_to: u64,
    behind_since_us: i64,
    restarts: u64,
    started_at: u64,
    blocked_by: String,
    entries_total: u64,
    failures_total: u64,
}

enum Step {
    Attach(Attach),
    Moving(Moving),
    Release(Release),
    /// Released by the very run that would ship: it must not be begun again.
    Ended,
}

/// What an answer means for a copy.
enum Went {
    On(Step),
    /// The same again after a pause.
    Failed(Step, String),
    /// Somebody with a higher term ships: this owner is probably none any more.
    Outrun,
    /// The log was failed over to where this owner keeps its copy.
    FailedOver,
    /// The copy is released.
    Released,
}

/// What a copy may look at.
struct View<'a> {
    me: &'a Identity,
    rules: Protections,
    limits: &'a Limits,
    now_us: i64,
    owner: &'a Owner,
    window: &'a Window,
}

impl View<'_> {
    fn log(&self) -> String {
        self.me.log.clone()
    }

    fn term(&self) -> u64 {
        self.owner.head.term
    }

    /// Somebody waits for the copy to be whole.
    fn is_awaited(&self) -> bool {
        matches!(self.owner.handover, Some(Handover::CutOver { .. }))
    }
}

impl Copy {
    fn new(target: String, run_id: String, step: Step) -> Self {
        Self {
            target,
            run_id,
            step,
            asked: None,
            resend_at_us: None,
            failures: 0,
            attaches: 0,
            head: None,
            segment: 0,
            statics: Statics::default(),
            segment_entries: 0,
            segment_bytes: 0,
            next: 0,
            applied: 0,
            durable: 0,
            shipped: 0,
            cursor_due_us: 0,
            read_segment: None,
            skip_to: 0,
            behind_since_us: 0,
            restarts: 0,
            started_at: 0,
            blocked_by: "the copy is being looked for".to_owned(),
            entries_total: 0,
            failures_total: 0,
        }
    }

    /// Log, tables and cursors are at the end.
    pub(super) fn is_whole(&self, last: u64, restarts: u64) -> bool {
        let at_end = self.restarts == restarts
            && self.next == last + 1
            && self.applied == last
            && self.durable == last
            && self.shipped == last;
        at_end && matches!(self.step, Step::Moving(Moving::Idle))
    }

    /// Nothing is left to ship, or nothing can be.
    pub(super) fn rests(&self, last: u64) -> bool {
        self.shipped >= last || !self.blocked_by.is_empty()
    }

    /// It does not go on, and is tried again and again.
    pub(super) fn is_stuck(&self) -> bool {
        !self.blocked_by.is_empty() && !matches!(self.step, Step::Ended)
    }

    /// Whether a former origin was shipped to without a gap since it was sealed: its seal's number stays in its head until it is begun anew.
    /// One whose log was empty then has no such number, and goes on from its first entry. `failed_over`: the log was taken away unsealed.
    pub(super) fn is_kept_since_cut(&self, failed_over: bool) -> bool {
        self.head.as_ref().is_some_and(|head| kept_since_cut(head, self.started_at, failed_over))
    }

    /// How often it was begun anew, once that is known and if it is this run's.
    pub(super) fn incarnation(&self, run_id: &str) -> Option<u64> {
        let known = matches!(self.step, Step::Moving(_)) && self.run_id == run_id;
        known.then_some(self.restarts)
    }

    /// What retention may drop for this copy's sake.
    pub(super) fn shipped(&self) -> u64 {
        self.shipped
    }

    pub(super) fn wake_at_us(&self) -> Option<i64> {
        if self.asked.is_some() {
            return None;
        }
        let lag = matches!(self.step, Step::Moving(Moving::Idle)) && self.shipped < self.applied;
        self.resend_at_us.or_else(|| lag.then_some(self.cursor_due_us))
    }

    pub(super) fn status(&self, last: u64, failed_over: bool) -> CopyStatus {
        CopyStatus {
            target: self.target.clone(),
            run_id: self.run_id.clone(),
            shipped: self.durable,
            started_at: self.started_at,
            restarts: self.restarts,
            kept_since_cut: self.is_kept_since_cut(failed_over),
            backlog: last.saturating_sub(self.applied),
            behind_since_us: if self.applied < last { self.behind_since_us } else { 0 },
            blocked_by: self.blocked_by.clone(),
            entries: self.entries_total,
            failures: self.failures_total,
        }
    }

    fn requests(&self, view: &View<'_>) -> Vec<(String, Request)> {
        match &self.step {
            Step::Attach(attach) => self.attach_requests(attach, view),
            Step::Moving(moving) => self.moving_requests(moving, view),
            Step::Release(release) => self.release_requests(release, view),
            Step::Ended => Vec::new(),
        }
    }

    fn answered(&mut self, results: Vec<Result<Reply, StoreError>>, view: &View<'_>) -> Went {
        match std::mem::replace(&mut self.step, Step::Ended) {
            Step::Attach(attach) => self.attach_answered(attach, results, view),
            Step::Moving(moving) => self.moving_answered(moving, results, view),
            Step::Release(release) => self.release_answered(release, results),
            Step::Ended => Went::On(Step::Ended),
        }
    }

    fn pause(&mut self, now_us: i64) {
        let backoff = (BACKOFF_US << self.failures.min(6)).min(MAX_BACKOFF_US);
        self.failures += 1;
        self.resend_at_us = Some(now_us + backoff);
    }
}

impl LogMachine {
    pub(super) fn ship(&mut self, target: String, run_id: String) {
        self.with_owner(|owner| {
            if target == owner.store {
                return;
            }
            match &mut owner.copy {
                Some(copy) if matches!(copy.step, Step::Release(_)) => {}
                Some(copy) if copy.target == target && copy.run_id == run_id => {}
                copy => {
                    owner.has_shipped = true;
                    *copy = Some(Box::new(Copy::new(target, run_id, Step::Attach(Attach::Head))));
                }
            }
        });
    }

    /// Rule 15: whoever shipped, or cut over, at this term must not be able to any more.
    pub(super) fn end_copy(&mut self, target: String, run_id: String) {
        let raises = self.rules.release_raises_term;
        self.with_owner(|owner| {
            if target == owner.store {
                return;
            }
            if owner.has_shipped && raises {
                owner.gives_up = true;
            } else if !owner.copy.as_ref().is_some_and(|copy| matches!(copy.step, Step::Release(_))) {
                owner.copy = Some(Box::new(Copy::new(target, run_id, Step::Release(Release::Head))));
            }
        });
    }

    /// Asks the copy's next question if none is outstanding.
    pub(super) fn pump_copy(&mut self) {
        self.with_copy(|copy, view| {
            if copy.asked.is_some() || copy.resend_at_us.is_some_and(|at| at > view.now_us) {
                return None;
            }
            if matches!(copy.step, Step::Moving(Moving::Idle)) {
                copy.choose(view);
            }
            Some(Went::On(std::mem::replace(&mut copy.step, Step::Ended)))
        });
    }

    pub(super) fn copy_answered(&mut self, id: u64, results: Vec<Result<Reply, StoreError>>) {
        self.with_copy(|copy, view| {
            if copy.asked != Some(id) {
                return None;
            }
            copy.asked = None;
            if results.iter().any(Result::is_err) {
                copy.failures_total += 1;
            }
            Some(copy.answered(results, view))
        });
    }

    /// Lets the copy think, then carries out what it came to.
    fn with_copy(&mut self, think: impl FnOnce(&mut Copy, &View<'_>) -> Option<Went>) {
        let State::Owner(owner) = &mut self.state else { return };
        let Some(mut copy) = owner.copy.take() else { return };
        let view = View {
            me: &self.me,
            rules: self.rules,
            limits: &self.limits,
            now_us: self.now_us,
            owner,
            window: &self.window,
        };
        let mut effects = Vec::new();
        match think(&mut copy, &view) {
            None => {}
            Some(Went::On(step)) => {
                copy.step = step;
                copy.resend_at_us = None;
                let requests = if copy.asked.is_none() { copy.requests(&view) } else { Vec::new() };
                if !requests.is_empty() {
                    self.copy_asked += 1;
                    copy.asked = Some(self.copy_asked);
                    effects.push(Effect::AskForCopy { id: self.copy_asked, requests });
                }
            }
            Some(Went::Failed(step, why)) => {
                copy.step = step;
                copy.blocked_by = why;
                copy.pause(self.now_us);
            }
            Some(Went::Outrun) => {
                copy.step = Step::Attach(Attach::Head);
                copy.blocked_by = "another owner with a higher term ships to the copy".to_owned();
                copy.pause(self.now_us);
                owner.recheck = true;
            }
            Some(Went::FailedOver) => {
                copy.step = Step::Attach(Attach::Head);
                copy.blocked_by = "the log was failed over to the copy".to_owned();
                copy.pause(self.now_us);
                owner.gives_up = true;
            }
            Some(Went::Released) => {
                self.effects.push(Effect::CopyEnded);
                return;
            }
        }
        owner.copy = Some(copy);
        self.effects.extend(effects);
    }
}
