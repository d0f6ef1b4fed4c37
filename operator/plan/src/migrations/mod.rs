//! The step machine of a storage migration: `Prepare → DualWrite → Backfill → Verify → ShadowRead → Cutover → Reverse → Complete`, log
//! by log, with Abort until every log is cut over and Rollback until Complete. [`advance`] takes the last answer and gives the next
//! record and at most one request; every request may be asked again. The head of a log says which side serves it, never this machine.
//! It copies nothing, reads no clock, and never lets a cutover begin without its gates.

mod ask;
mod gates;
mod hear;
mod record;
mod request;
mod ship;
mod undo;
mod words;

pub use record::{
    Blocked, Direction, Figures, Finding, InHand, Log, Outcome, Record, RollbackWindow, Shadowed, Spec, Stage, Step,
    Wish, Wishes,
};
pub use request::{
    CoordinatorFact, CopyFact, CutFact, Phase, ReceiptFact, RefusalKind, Request, Response, ShipFact, Side,
};

/// Bounds of tries and waits, the same for every run.
pub struct Tuning;

impl Tuning {
    /// First pause between two tries, in milliseconds; doubled at each further one.
    pub const FIRST_PAUSE_MS: i64 = 100;
    /// Longest pause between two tries.
    pub const LONGEST_PAUSE_MS: i64 = 10_000;
    /// Pause between two looks at work that others do.
    pub const LOOK_EVERY_MS: i64 = 1_000;
    /// Pause between two looks while only a person or the end of the window is awaited.
    pub const IDLE_LOOK_EVERY_MS: i64 = 5_000;
    /// A log whose copy is further behind than this is not cut over, in whole seconds.
    pub const MOST_LAG_SECONDS: u32 = 10;
    /// A side that did not answer for this long is dead; what may be lost with it must be accepted.
    pub const DEAD_AFTER_MS: i64 = 20_000;
    /// After this long no cutover sent before can still be under way: a data service begins none that arrived more than 5 s ago, and
    /// this is longer than that, the way there and the hold together.
    pub const CUT_OVER_AFTER_MS: i64 = 20_000;
    /// How long the release of one copy may fail, in an undo or where that is ignored, before the run ends without it.
    pub const RELEASE_FOR_MS: i64 = 60_000;
    /// Logs passed over in one sweep because they are not ready, before the sweep begins again at the first of them.
    pub const MOST_PASSED_OVER: u32 = 16;
    /// Repairs between two requests to compare.
    pub const REPAIRS: u32 = 1;
    /// Most logs of one run: what its stored record can hold.
    pub const MOST_LOGS: usize = 40_000;
}

/// What one step may look at besides the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Unix milliseconds.
    pub now_ms: i64,
    /// What people ask for now.
    pub wishes: Wishes,
}

/// What follows one look.
#[derive(Clone, PartialEq, Debug)]
pub struct Transition {
    /// The record. It is stored before `request` is sent if `urgent`; else soon.
    pub record: Record,
    /// What to ask now.
    pub request: Option<Request>,
    /// Without a request: when to look again, in Unix milliseconds; none once the run is over.
    pub wake_at_ms: Option<i64>,
    /// Without this record a restart would not know what was asked. Otherwise only figures and the place in a sweep changed, which a
    /// restart finds again.
    pub urgent: bool,
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
    if next.stage_label() != record.stage_label() {
        next.stage_since_ms = context.now_ms;
    }
    let urgent = next.bones() != record.bones() || request.as_ref().is_some_and(Request::is_commit_point);
    Transition { record: next, request, wake_at_ms, urgent }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
