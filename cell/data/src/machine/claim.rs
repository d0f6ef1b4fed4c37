//! Claiming (rules 2, 3, 17 and 18): raise the head's term, seal and read what is there, take over what other logs left, open the next
//! segment, make sure that the head is still this claim's. What is not applied is applied before anything is judged.

mod finish;
mod locate;

use std::collections::VecDeque;

use cell_proto::unit::Unit;
use cell_proto::v1::{
    Head, OpenSegmentRequest, ReadCursorRequest, ReadHeadRequest, ReadRowsRequest, Reason, Refusal, Statics,
};
use cell_store::{CURSOR_APPLIED, CURSOR_RETAINED, CURSOR_SEGMENT, Reply, Request, StoreError};

use super::owner::{same_claim, segment_of};
use super::types::{Identity, Inheritance};
use super::walk::{Step, Walk, Wanted};
use super::{Admission, LogMachine, State};
use crate::domain::tables::{self, GUILD_OBJECTS, kind};

/// Failed answers in a row after which a claim is given up; the caller may start another.
const MAX_FAILURES: u32 = 40;

/// A claim under way.
pub(super) struct Claim {
    step: ClaimStep,
    new: Head,
    applied: u64,
    retained: u64,
    /// The own log's walk, while another log is read.
    own: Option<Walk>,
    /// Logs whose dedupe window must be taken over, up to a number, not read yet.
    others: VecDeque<(String, u64)>,
    inherited: Vec<Inheritance>,
    /// Read the others only once.
    others_known: bool,
}

enum ClaimStep {
    Locate,
    /// A guild's log without a head, or sealed: does its bucket say that it was split out?
    LocateSplit {
        current: Option<Head>,
    },
    Cas {
        expected: Option<Head>,
        doubted: bool,
    },
    Reread {
        expected: Option<Head>,
    },
    Cursors,
    Walk(Walk),
    /// Head and cursors of another log.
    Other(String, u64),
    WalkOther {
        walk: Walk,
        up_to: u64,
    },
    Open {
        walk: Walk,
        doubted: bool,
    },
    Verify {
        walk: Walk,
        statics: Statics,
    },
}

fn read_head(log: &str) -> Request {
    ReadHeadRequest { log: log.to_owned() }.into()
}

fn read_cursor(log: &str, name: &str) -> Request {
    ReadCursorRequest { log: log.to_owned(), name: name.to_owned() }.into()
}

impl Claim {
    pub(super) fn start() -> Self {
        Self {
            step: ClaimStep::Locate,
            new: Head::default(),
            applied: 0,
            retained: 0,
            own: None,
            others: VecDeque::new(),
            inherited: Vec::new(),
            others_known: false,
        }
    }

    pub(super) fn requests(&self, me: &Identity) -> Vec<Request> {
        match &self.step {
            ClaimStep::Locate | ClaimStep::Reread { .. } | ClaimStep::Verify { .. } => vec![read_head(&me.log)],
            ClaimStep::LocateSplit { .. } => {
                let guild_id = if let Unit::Guild(guild_id) = me.unit { guild_id } else { 0 };
                let split = ReadRowsRequest {
                    table: GUILD_OBJECTS.to_owned(),
                    partition: tables::id_key(guild_id),
                    start: vec![kind::SPLIT],
                    end: vec![kind::SPLIT + 1],
                    limit: 1,
                    reverse: false,
                };
                vec![split.into(), read_head(&Unit::bucket(guild_id).log())]
            }
            ClaimStep::Cas { expected, .. } => {
                let new = Some(self.new.clone());
                vec![cell_proto::v1::CasHeadRequest { log: me.log.clone(), expected: expected.clone(), new }.into()]
            }
            ClaimStep::Cursors => {
                let names = [CURSOR_APPLIED, CURSOR_SEGMENT, CURSOR_RETAINED];
                names.map(|name| read_cursor(&me.log, name)).into()
            }
            ClaimStep::Walk(walk) | ClaimStep::WalkOther { walk, .. } => walk.requests(),
            ClaimStep::Other(log, _) => {
                vec![read_head(log), read_cursor(log, CURSOR_SEGMENT), read_cursor(log, CURSOR_RETAINED)]
            }
            ClaimStep::Open { walk, .. } => {
                let statics = Some(self.opening(walk));
                vec![OpenSegmentRequest { log: me.log.clone(), segment: walk.next_segment(), statics }.into()]
            }
        }
    }

    /// What the next segment starts with: everything above what this log and the ones it takes over from had.
    fn opening(&self, walk: &Walk) -> Statics {
        let tail = walk.tail.map(|(_, statics)| statics).unwrap_or_default();
        let timestamp = self.inherited.iter().map(|other| other.last_timestamp_us).max().unwrap_or(0);
        let snowflake = self.inherited.iter().map(|other| other.last_snowflake).max().unwrap_or(0);
        Statics {
            term: self.new.term,
            sealed: false,
            last: tail.last,
            last_timestamp_us: tail.last_timestamp_us.max(timestamp),
            last_snowflake: tail.last_snowflake.max(snowflake),
        }
    }
}

/// How a claim goes on after an answer.
enum Next {
    Step(ClaimStep),
    Pause(ClaimStep),
    Refuse(Refusal),
    Serve(Walk, Statics),
}

fn head_of(result: Option<Result<Reply, StoreError>>) -> Result<Option<Head>, StoreError> {
    match result {
        Some(Ok(Reply::Head(reply))) => Ok(reply.head),
        Some(Err(error)) => Err(error),
        _ => Err(StoreError::UnknownOutcome("the store answered something else".to_owned())),
    }
}

fn value_of(result: Option<Result<Reply, StoreError>>) -> Result<u64, StoreError> {
    match result {
        Some(Ok(Reply::ReadCursor(reply))) => Ok(reply.value),
        Some(Err(error)) => Err(error),
        _ => Err(StoreError::UnknownOutcome("the store answered something else".to_owned())),
    }
}

impl LogMachine {
    pub(super) fn start_claim(&mut self) {
        if matches!(self.state, State::Released) && !self.outstanding {
            self.admission = Admission::Open;
            self.state = State::Claiming(Box::new(Claim::start()));
        }
    }

    pub(super) fn claim_answered(&mut self, mut claim: Box<Claim>, results: Vec<Result<Reply, StoreError>>) {
        let step = std::mem::replace(&mut claim.step, ClaimStep::Locate);
        let failures = self.failures;
        match self.claim_step(&mut claim, step, results) {
            Next::Step(step) => {
                self.failures = 0;
                claim.step = step;
                self.state = State::Claiming(claim);
            }
            Next::Pause(_) if failures >= MAX_FAILURES => {
                self.release(Refusal::new(Reason::StoreUnavailable, "the store does not answer").retry_after_ms(500));
            }
            Next::Pause(step) => {
                claim.step = step;
                self.pause();
                self.state = State::Claiming(claim);
            }
            Next::Refuse(refusal) => self.release(refusal),
            Next::Serve(walk, statics) => self.serve(*claim, walk, statics),
        }
    }

    fn claim_step(&self, claim: &mut Claim, step: ClaimStep, results: Vec<Result<Reply, StoreError>>) -> Next {
        let mut results = results.into_iter();
        match step {
            ClaimStep::Locate => match head_of(results.next()) {
                Ok(head) => self.located(claim, head),
                Err(_) => Next::Pause(ClaimStep::Locate),
            },
            ClaimStep::LocateSplit { current } => self.split_located(claim, current, results.next(), results.next()),
            ClaimStep::Cas { expected, doubted } => self.head_raised(claim, expected, doubted, results.next()),
            ClaimStep::Reread { expected } => match head_of(results.next()) {
                Ok(head) if head.as_ref() == Some(&claim.new) => Next::Step(ClaimStep::Cursors),
                Ok(head) if head == expected => Next::Step(ClaimStep::Cas { expected, doubted: true }),
                Ok(head) => Next::Refuse(self.not_owner(head.as_ref())),
                Err(_) => Next::Pause(ClaimStep::Reread { expected }),
            },
            ClaimStep::Cursors => {
                let (applied, segment, retained) =
                    (value_of(results.next()), value_of(results.next()), value_of(results.next()));
                let (Ok(applied), Ok(segment), Ok(retained)) = (applied, segment, retained) else {
                    return Next::Pause(ClaimStep::Cursors);
                };
                (claim.applied, claim.retained) = (applied, retained);
                let first = claim.new.segment.max(segment).max(retained);
                Next::Step(ClaimStep::Walk(Walk::new(self.me.log.clone(), first, self.wanted(claim))))
            }
            ClaimStep::Walk(mut walk) => match walk.answered(segment_of(results.next())) {
                Step::Go => Next::Step(ClaimStep::Walk(walk)),
                Step::Pause => Next::Pause(ClaimStep::Walk(walk)),
                Step::Outrun => Next::Refuse(self.not_owner(None)),
                Step::Done => self.walked(claim, walk),
            },
            ClaimStep::Other(log, up_to) => {
                let (head, segment, retained) =
                    (head_of(results.next()), value_of(results.next()), value_of(results.next()));
                let (Ok(head), Ok(segment), Ok(retained)) = (head, segment, retained) else {
                    return Next::Pause(ClaimStep::Other(log, up_to));
                };
                let first = head.map_or(0, |head| head.segment).max(segment).max(retained);
                let wanted = Wanted { seal_term: None, above: u64::MAX, retained, ..self.wanted(claim) };
                let walk = Walk::new(log, first, wanted);
                Next::Step(ClaimStep::WalkOther { walk, up_to })
            }
            ClaimStep::WalkOther { mut walk, up_to } => match walk.answered(segment_of(results.next())) {
                Step::Go => Next::Step(ClaimStep::WalkOther { walk, up_to }),
                Step::Pause => Next::Pause(ClaimStep::WalkOther { walk, up_to }),
                Step::Outrun => Next::Refuse(self.not_owner(None)),
                Step::Done => {
                    let mut inheritance = walk.inheritance();
                    inheritance.operations.retain(|(_, number, _, _)| *number <= up_to);
                    self.as_ruled(&mut inheritance);
                    claim.inherited.push(inheritance);
                    self.next_other(claim)
                }
            },
            ClaimStep::Open { walk, doubted } => self.opened(claim, walk, doubted, segment_of(results.next())),
            ClaimStep::Verify { walk, statics } => match head_of(results.next()) {
                Ok(Some(head)) if same_claim(&head, &claim.new) || !self.rules.verify_head => {
                    Next::Serve(walk, statics)
                }
                Ok(head) => Next::Refuse(self.not_owner(head.as_ref())),
                Err(_) => Next::Pause(ClaimStep::Verify { walk, statics }),
            },
        }
    }

    fn wanted(&self, claim: &Claim) -> Wanted {
        Wanted {
            seal_term: self.rules.claim_seals.then_some(claim.new.term),
            check_term: self.rules.walk_checks_term,
            above: if self.rules.reapply { claim.applied } else { u64::MAX },
            since_us: if self.rules.load_window { self.now_us - self.limits.window_us } else { i64::MAX },
            retained: claim.retained,
        }
    }
}
