//! The step machine of a move: `Validate → (Split) → Warm → Prove → Switch → TakeOver → Hold → Complete → (Merge)`, with Abort before
//! the commit point and Rollback after it. [`advance`] takes the last answer and gives the next record and at most one request. The
//! driver stores the record before it sends the request, so a crash after any request loses nothing: every request may be asked
//! again. The commit point is the head's, never this machine's.

mod ask;
mod hear;
mod record;
mod request;
mod tuning;
mod undo;

pub use record::{
    Blocked, Direction, Outcome, Record, RollbackWindow, Spec, Step, Subject, UnitProgress, Wish, Wishes,
};
pub use request::{HeadFact, RefusalKind, Request, Response, Role};
pub use tuning::Tuning;

use crate::checks::MoveRefusal;

/// What one step may look at besides the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Unix milliseconds.
    pub now_ms: i64,
    /// What people ask for now.
    pub wishes: Wishes,
    /// What the check of both ends says now; looked at before anything is asked.
    pub refusal: Option<MoveRefusal>,
}

/// What follows one look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The record to store, before `request` is sent.
    pub record: Record,
    /// What to ask now.
    pub request: Option<Request>,
    /// Without a request: when to look again, in Unix milliseconds; none once the run is over.
    pub wake_at_ms: Option<i64>,
}

/// Takes the answer to the last request (none after a start or crash, or while waiting) and decides what follows.
pub fn advance(record: &Record, context: &Context, response: Option<&Response>) -> Transition {
    let mut next = record.clone();
    if next.outcome.is_none() {
        if let Some(response) = response {
            hear::hear(&mut next, context, response);
        }
        undo::heed(&mut next, context);
    }
    let (request, wake_at_ms) = ask::ask(&mut next, context);
    if request.is_some() {
        next.requests = next.requests.saturating_add(1);
    }
    if next.step != record.step || next.direction != record.direction {
        next.step_since_ms = context.now_ms;
    }
    Transition { record: next, request, wake_at_ms }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
