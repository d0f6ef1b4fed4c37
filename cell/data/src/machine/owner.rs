//! What an owner holds, and which job comes next. One job asks the store at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use cell_proto::v1::{
    Entry, Head, ReadHeadRequest, ReadSegmentRequest, Reason, Refusal, SegmentReply, Statics, WriteCursorRequest,
};
use cell_store::{CURSOR_APPLIED, CURSOR_SEGMENT, Reply, Request, StoreError};

use super::commit::{Batch, Judging};
use super::copy::Copy;
use super::handover::{Handover, HandoverStep};
use super::retention::Retention;
use super::roll::Roll;
use super::types::{Effect, OperationId};
use super::{Admission, LogMachine, State};

/// A log's appender.
pub(super) struct Owner {
    /// The StorageCell that serves the log.
    pub(super) store: String,
    /// As this owner's claim wrote it.
    pub(super) head: Head,
    /// The segment appended to.
    pub(super) segment: u64,
    /// Its statics, as last known for certain.
    pub(super) statics: Statics,
    /// The log's last number when it was claimed: up to there, whoever asks again is a duplicate.
    pub(super) claimed_last: u64,
    pub(super) opened_at_us: i64,
    pub(super) segment_entries: u64,
    pub(super) segment_bytes: u64,
    /// Everything up to here is in the tables.
    pub(super) applied: u64,
    /// The durable applied cursor, as far as known.
    pub(super) cursor: u64,
    pub(super) cursor_due_us: i64,
    /// Committed, not applied.
    pub(super) backlog: VecDeque<Arc<Entry>>,
    /// The segment cursor names an older segment.
    pub(super) hint_due: bool,
    pub(super) recheck: bool,
    pub(super) handover: Option<Handover>,
    /// The copy kept in another StorageCell.
    pub(super) copy: Option<Box<Copy>>,
    /// A copy was shipped to at this term.
    pub(super) has_shipped: bool,
    /// The log is given up as soon as nothing is in flight: the next claim raises the term.
    pub(super) gives_up: bool,
    pub(super) retention_due_us: i64,
    /// What an earlier owner had marked as gone is gone.
    pub(super) retention_checked: bool,
    pub(super) job: Job,
}

/// What is being asked of the store.
pub(super) enum Job {
    Idle,
    /// Reads for judging.
    Judge(Judging),
    Append(Batch),
    /// A serial read after an append whose outcome is not known.
    Settle(Batch),
    /// A serial read before refusals drawn from data are given.
    Prove(Vec<(OperationId, Refusal)>),
    /// The first so many of the backlog into the tables.
    Apply(usize),
    Cursor(u64),
    Hint,
    Recheck,
    Roll(Roll),
    Handover(HandoverStep),
    Retention(Retention),
}

/// The statics in a segment's answer.
pub(super) fn segment_of(result: Option<Result<Reply, StoreError>>) -> Result<SegmentReply, StoreError> {
    match result {
        Some(Ok(Reply::Segment(reply))) => Ok(reply),
        Some(Err(error)) => Err(error),
        _ => Err(StoreError::UnknownOutcome("the store answered something else".to_owned())),
    }
}

impl Owner {
    /// The segment is still this owner's: its term, not sealed.
    pub(super) fn is_mine(&self, statics: &Statics) -> bool {
        statics.term == self.head.term && !statics.sealed
    }

    fn requests(&self, machine: &LogMachine) -> Vec<(String, Request)> {
        if let Job::Judge(judging) = &self.job {
            return judging.requests.clone();
        }
        self.own_requests(machine).into_iter().map(|request| (self.store.clone(), request)).collect()
    }

    fn own_requests(&self, machine: &LogMachine) -> Vec<Request> {
        let log = &machine.me.log;
        match &self.job {
            Job::Idle | Job::Judge(_) => Vec::new(),
            Job::Append(batch) => vec![machine.append_request(self, batch)],
            Job::Settle(_) => vec![self.read_segment(log, self.statics.last + 1, 1000)],
            Job::Prove(_) => vec![self.read_segment(log, 0, 0)],
            Job::Apply(count) => vec![machine.apply_request(self, *count)],
            Job::Cursor(value) => vec![cursor(log, CURSOR_APPLIED, *value)],
            Job::Hint => vec![cursor(log, CURSOR_SEGMENT, self.segment)],
            Job::Recheck => vec![ReadHeadRequest { log: log.clone() }.into()],
            Job::Roll(roll) => roll.requests(log, self),
            Job::Handover(step) => step.requests(log, self),
            Job::Retention(retention) => retention.requests(log),
        }
    }

    pub(super) fn read_segment(&self, log: &str, from: u64, limit: i32) -> Request {
        ReadSegmentRequest { log: log.to_owned(), segment: self.segment, from, limit, bodies_from: 0 }.into()
    }
}

pub(super) fn cursor(log: &str, name: &str, value: u64) -> Request {
    WriteCursorRequest { log: log.to_owned(), name: name.to_owned(), value }.into()
}

/// The refusal for a volume that is full.
pub(super) fn full_of(results: &[Result<Reply, StoreError>]) -> Option<Refusal> {
    let full = results.iter().find_map(|result| result.as_ref().err().filter(|e| matches!(e, StoreError::Full { .. })));
    full.map(super::admission::refused_by)
}

impl LogMachine {
    /// Chooses the next job if none is under way, and asks.
    pub(super) fn work(&mut self, mut owner: Box<Owner>) {
        if matches!(owner.job, Job::Idle) {
            if owner.gives_up {
                let refusal = Refusal::new(Reason::NotOwner, "the log is claimed anew to raise its term");
                return self.release(refusal.retry_after_ms(20));
            }
            self.choose(&mut owner);
        }
        self.keep(owner);
    }

    /// Keeps the owner; asks if a job is under way and nothing is awaited.
    fn keep(&mut self, owner: Box<Owner>) {
        let requests = if self.outstanding || self.resend_at_us.is_some_and(|at| at > self.now_us) {
            Vec::new()
        } else {
            owner.requests(self)
        };
        self.state = State::Owner(owner);
        if !requests.is_empty() {
            self.ask_each(requests);
        }
    }

    fn choose(&mut self, owner: &mut Owner) {
        if !owner.backlog.is_empty() {
            owner.job = Job::Apply(self.apply_count(owner));
        } else if owner.recheck {
            owner.job = Job::Recheck;
        } else if self.batch_is_due() {
            self.begin_batch(owner);
        } else if self.pending.is_empty() && !self.uncertain.is_empty() && self.rules.settle_before_handover {
            // Nobody waits any more for what may still land: sealing the segment under it settles that it never will.
            self.start_roll(owner);
        } else if self.pending.is_empty() && self.admission != Admission::Open && owner.applied > owner.cursor {
            // Whoever takes over then has nothing to apply again.
            owner.job = Job::Cursor(owner.applied);
        } else if self.pending.is_empty() {
            self.drained(owner);
        }
        if !matches!(owner.job, Job::Idle) {
            return;
        }
        let lag = owner.applied.saturating_sub(owner.cursor);
        if owner.hint_due {
            owner.job = Job::Hint;
        } else if lag >= self.limits.cursor_entries || (lag > 0 && self.now_us >= owner.cursor_due_us) {
            owner.job = Job::Cursor(owner.applied);
        } else if self.now_us >= owner.retention_due_us && self.queue.is_empty() {
            owner.retention_due_us = self.now_us + self.limits.retention_every_us;
            owner.job = Job::Retention(Retention::start());
        }
    }

    /// Nothing is in flight: whoever closed admission may go on.
    fn drained(&mut self, owner: &mut Owner) {
        if let Admission::Closed { run_id, told: told @ false } = &mut self.admission {
            *told = true;
            let (run_id, last) = (run_id.clone(), owner.statics.last);
            self.effects.push(Effect::Drained { run_id, last });
        }
        if let Some(step) = owner.handover.as_ref().and_then(|handover| handover.first_step(owner, self.rules)) {
            owner.job = Job::Handover(step);
        }
    }

    fn batch_is_due(&self) -> bool {
        self.batch_due_us().is_some_and(|at| at <= self.now_us)
    }

    /// When the waiting commands should be judged.
    fn batch_due_us(&self) -> Option<i64> {
        let first = self.pending.get(self.queue.front()?)?;
        if self.queue.len() >= self.limits.batch_entries {
            return Some(self.now_us);
        }
        Some(first.arrived_us + self.limits.linger_us)
    }

    pub(super) fn owner_wake_us(&self, owner: &Owner) -> Option<i64> {
        let cursor = (owner.applied > owner.cursor).then_some(owner.cursor_due_us);
        [self.batch_due_us(), cursor, Some(owner.retention_due_us)].into_iter().flatten().min()
    }

    pub(super) fn job_answered(&mut self, mut owner: Box<Owner>, results: Vec<Result<Reply, StoreError>>) {
        let job = std::mem::replace(&mut owner.job, Job::Idle);
        if let Some(refusal) = full_of(&results) {
            self.refuse_waiting(&refusal);
        }
        let mut results = results.into_iter();
        let released = match job {
            Job::Idle => None,
            Job::Judge(judging) => self.judge_answered(&mut owner, judging, results.collect()),
            Job::Append(batch) => self.append_answered(&mut owner, batch, segment_of(results.next())),
            Job::Settle(batch) => self.settle_answered(&mut owner, batch, segment_of(results.next())),
            Job::Prove(refusals) => self.prove_answered(&mut owner, refusals, segment_of(results.next())),
            Job::Apply(count) => self.apply_answered(&mut owner, count, results.next()),
            Job::Cursor(value) => self.cursor_answered(&mut owner, value, results.next()),
            Job::Hint => self.hint_answered(&mut owner, results.next()),
            Job::Recheck => self.recheck_answered(&mut owner, results.next()),
            Job::Roll(Roll::Verify) => self.roll_verified(&mut owner, results.next(), results.next()),
            Job::Roll(roll) => self.roll_answered(&mut owner, roll, segment_of(results.next())),
            Job::Handover(step) => self.handover_answered(&mut owner, step, results.next()),
            Job::Retention(retention) => self.retention_answered(&mut owner, retention, results.collect()),
        };
        match released {
            None => self.state = State::Owner(owner),
            Some(Left::Refusal(refusal)) => self.release(refusal),
            Some(Left::Done(effect)) => {
                let refusal = self.not_owner(None);
                self.effects.push(*effect);
                self.release(refusal);
            }
        }
    }

    /// A read or an idempotent write failed: the same job again, after a pause.
    pub(super) fn again(&mut self, owner: &mut Owner, job: Job) -> Option<Left> {
        owner.job = job;
        self.pause();
        None
    }

    pub(super) fn went_well(&mut self) {
        self.failures = 0;
    }

    fn cursor_answered(
        &mut self,
        owner: &mut Owner,
        value: u64,
        result: Option<Result<Reply, StoreError>>,
    ) -> Option<Left> {
        match result {
            Some(Ok(_)) => {
                self.went_well();
                owner.cursor = value;
                owner.cursor_due_us = self.now_us + self.limits.cursor_us;
                None
            }
            _ => self.again(owner, Job::Cursor(value)),
        }
    }

    fn hint_answered(&mut self, owner: &mut Owner, result: Option<Result<Reply, StoreError>>) -> Option<Left> {
        match result {
            Some(Ok(_)) => {
                owner.hint_due = false;
                None
            }
            _ => self.again(owner, Job::Hint),
        }
    }

    /// A higher term, or another appender: step back.
    fn recheck_answered(&mut self, owner: &mut Owner, result: Option<Result<Reply, StoreError>>) -> Option<Left> {
        match result {
            Some(Ok(Reply::Head(reply))) => {
                self.went_well();
                owner.recheck = false;
                match reply.head {
                    Some(head) if same_claim(&head, &owner.head) => None,
                    other => Some(Left::Refusal(self.not_owner(other.as_ref()))),
                }
            }
            _ => self.again(owner, Job::Recheck),
        }
    }
}

/// Whether two readings of a head are of one claim; the segment hint may differ.
pub(super) fn same_claim(a: &Head, b: &Head) -> bool {
    (a.term, &a.appender, &a.cell, &a.moved_to) == (b.term, &b.appender, &b.cell, &b.moved_to)
}

/// Why an owner is none any more.
pub(super) enum Left {
    /// Somebody else is, or nobody knows.
    Refusal(Refusal),
    /// It gave the log up; the effect says how.
    Done(Box<Effect>),
}
