//! Claiming (rules 2, 3, 14, 17 and 18): find the StorageCell that serves the log, raise the head's term there, seal and read what is
//! there, take over what other logs left, open the next segment, make sure that the head is still this claim's. What is not applied is
//! applied before anything is judged.

mod finish;
mod locate;

use std::collections::VecDeque;

use cell_proto::unit::Unit;
use cell_proto::v1::{
    CasHeadRequest, Head, OpenSegmentRequest, ReadCursorRequest, ReadHeadRequest, ReadRowsRequest, Reason, Refusal,
    Statics,
};
use cell_store::{CURSOR_APPLIED, CURSOR_RETAINED, CURSOR_SEGMENT, Reply, Request, StoreError};

use super::owner::{full_of, segment_of};
use super::places::{Locator, Place};
use super::types::{Identity, Inheritance};
use super::walk::{Step, Walk, Wanted};
use super::{Admission, LogMachine, State};
use crate::domain::tables::{self, GUILD_OBJECTS, kind};

/// Failed answers in a row after which a claim is given up; the caller may start another.
const MAX_FAILURES: u32 = 40;

/// A claim under way.
pub(super) struct Claim {
    step: ClaimStep,
    /// The StorageCell that serves the log.
    store: String,
    new: Head,
    /// A failover to a copy: the highest term that is known.
    forced: Option<u64>,
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
    Locate(Locator),
    /// A failover: the copy's own head.
    LocateCopy,
    /// A guild's log without a head, or sealed: where is its bucket?
    LocateBucket {
        locator: Locator,
        own: Place,
    },
    /// And does its bucket say that it was split out?
    LocateSplit {
        own: Place,
        bucket: Place,
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
    /// Where another log is.
    FindOther {
        locator: Locator,
        log: String,
        up_to: u64,
    },
    /// Its cursors.
    Other {
        place: Place,
        log: String,
        up_to: u64,
    },
    WalkOther {
        store: String,
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
    pub(super) fn start(locator: Locator) -> Self {
        Self {
            step: ClaimStep::Locate(locator),
            store: String::new(),
            new: Head::default(),
            forced: None,
            applied: 0,
            retained: 0,
            own: None,
            others: VecDeque::new(),
            inherited: Vec::new(),
            others_known: false,
        }
    }

    /// At a copy whose origin is lost.
    pub(super) fn forced(copy: String, term: u64, locator: Locator) -> Self {
        Self { step: ClaimStep::LocateCopy, store: copy, forced: Some(term), ..Self::start(locator) }
    }

    /// The StorageCell that the present step asks.
    pub(super) fn store(&self) -> &str {
        match &self.step {
            ClaimStep::Locate(locator)
            | ClaimStep::LocateBucket { locator, .. }
            | ClaimStep::FindOther { locator, .. } => locator.store(),
            ClaimStep::LocateSplit { bucket, .. } => &bucket.store,
            ClaimStep::Other { place, .. } => &place.store,
            ClaimStep::WalkOther { store, .. } => store,
            _ => &self.store,
        }
    }

    pub(super) fn requests(&self, me: &Identity) -> Vec<Request> {
        match &self.step {
            ClaimStep::Locate(locator)
            | ClaimStep::LocateBucket { locator, .. }
            | ClaimStep::FindOther { locator, .. } => vec![locator.request()],
            ClaimStep::Reread { .. } => vec![read_head(&me.log)],
            ClaimStep::Verify { .. } => vec![read_head(&me.log), read_cursor(&me.log, CURSOR_RETAINED)],
            ClaimStep::LocateCopy => vec![read_head(&me.log), read_cursor(&me.log, CURSOR_APPLIED)],
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
                vec![split.into(), read_head(&me.log)]
            }
            ClaimStep::Cas { expected, .. } => {
                let new = Some(self.new.clone());
                vec![CasHeadRequest { log: me.log.clone(), expected: expected.clone(), new }.into()]
            }
            ClaimStep::Cursors => {
                let names = [CURSOR_APPLIED, CURSOR_SEGMENT, CURSOR_RETAINED];
                names.map(|name| read_cursor(&me.log, name)).into()
            }
            ClaimStep::Walk(walk) | ClaimStep::WalkOther { walk, .. } => walk.requests(),
            ClaimStep::Other { log, .. } => {
                vec![read_cursor(log, CURSOR_SEGMENT), read_cursor(log, CURSOR_RETAINED)]
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
            // After a failover the head names a number that all new ones are above.
            last: tail.last.max(self.new.moved_at),
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

pub(super) fn head_of(result: Option<Result<Reply, StoreError>>) -> Result<Option<Head>, StoreError> {
    match result {
        Some(Ok(Reply::Head(reply))) => Ok(reply.head),
        Some(Err(error)) => Err(error),
        _ => Err(StoreError::UnknownOutcome("the store answered something else".to_owned())),
    }
}

pub(super) fn value_of(result: Option<Result<Reply, StoreError>>) -> Result<u64, StoreError> {
    match result {
        Some(Ok(Reply::ReadCursor(reply))) => Ok(reply.value),
        Some(Err(error)) => Err(error),
        _ => Err(StoreError::UnknownOutcome("the store answered something else".to_owned())),
    }
}

impl LogMachine {
    pub(super) fn locator(&self, log: &str) -> Locator {
        let mut locator = Locator::new(log, &self.me.home);
        locator.newest_pointer_holds = self.rules.newest_pointer_holds;
        locator
    }

    pub(super) fn start_claim(&mut self) {
        let claim = Claim::start(self.locator(&self.me.log));
        self.claim_with(claim);
    }

    pub(super) fn start_failover(&mut self, to: String, term: u64) {
        let claim = Claim::forced(to, term, self.locator(&self.me.log));
        self.claim_with(claim);
    }

    fn claim_with(&mut self, claim: Claim) {
        if matches!(self.state, State::Released) && !self.outstanding {
            self.admission = Admission::Open;
            self.state = State::Claiming(Box::new(claim));
        }
    }

    pub(super) fn claim_answered(&mut self, mut claim: Box<Claim>, results: Vec<Result<Reply, StoreError>>) {
        let step = std::mem::replace(&mut claim.step, ClaimStep::LocateCopy);
        let failures = self.failures;
        if let Some(refusal) = full_of(&results) {
            return self.release(refusal);
        }
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
            ClaimStep::Locate(locator) => self.searched(claim, locator, results.next()),
            ClaimStep::LocateCopy => self.copy_located(claim, results.next(), results.next()),
            ClaimStep::LocateBucket { locator, own } => self.bucket_searched(locator, own, results.next()),
            ClaimStep::LocateSplit { own, bucket } => {
                self.split_located(claim, own, bucket, (results.next(), results.next()))
            }
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
            ClaimStep::FindOther { locator, log, up_to } => self.other_searched(locator, log, up_to, results.next()),
            ClaimStep::Other { place, log, up_to } => {
                let (segment, retained) = (value_of(results.next()), value_of(results.next()));
                let (Ok(segment), Ok(retained)) = (segment, retained) else {
                    return Next::Pause(ClaimStep::Other { place, log, up_to });
                };
                let first = place.head.map_or(0, |head| head.segment).max(segment).max(retained);
                let wanted = Wanted { seal_term: None, above: u64::MAX, retained, ..self.wanted(claim) };
                let walk = Walk::new(log, first, wanted);
                Next::Step(ClaimStep::WalkOther { store: place.store, walk, up_to })
            }
            ClaimStep::WalkOther { store, walk, up_to } => {
                self.other_walked(claim, (store, walk, up_to), results.next())
            }
            ClaimStep::Open { walk, doubted } => self.opened(claim, walk, doubted, segment_of(results.next())),
            ClaimStep::Verify { walk, statics } => {
                self.verified(claim, (walk, statics), (results.next(), results.next()))
            }
        }
    }

    fn wanted(&self, claim: &Claim) -> Wanted {
        Wanted {
            seal_term: self.rules.claim_seals.then_some(claim.new.term),
            check_term: self.rules.walk_checks_term,
            own_term: false,
            above: if self.rules.reapply { claim.applied } else { u64::MAX },
            since_us: if self.rules.load_window { self.now_us - self.limits.window_us } else { i64::MAX },
            retained: claim.retained,
        }
    }
}
