//! Backfill together with shipping, for one row: batches that grow stale, write times, cell-wise merge, deletes of rows and of ranges
//! before and after the copied row, times to live, tombstone collection, a ship cursor behind retention, and the receipt at the end. The
//! log itself is taken for granted here; `log` models it.

mod copy;
pub mod scenarios;
pub mod state;
mod verify;

use std::fmt;

use crate::engine::Model;
use crate::rules::{Rule, Rules};

use self::state::{BRIEF, Budget, Entry, GRACE, Kind, NUMBERS, STALE_AFTER, State};

/// A migration of one row.
#[derive(Clone, Copy, Debug)]
pub struct RowsModel {
    /// The rules that hold.
    pub rules: Rules,
    /// What clients may write.
    pub kinds: &'static [Kind],
    /// What may go wrong, and how often.
    pub budget: Budget,
}

/// One step of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each field is what its name says")]
pub enum Step {
    Writes { kind: Kind, number: u8 },
    TimePasses { now: u8 },
    CollectsOrigin,
    CollectsTarget,
    DropsEntry { number: u8 },
    StartsShipping { after: u8 },
    Ships { number: u8 },
    FallsBehind { after: u8 },
    Reads,
    Copies,
    CopyUnknown,
    CopyLands,
    CopyIsLost,
    GivesReceipt,
    DeletesExtra { at: u8 },
    CopiesAgain,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Writes { kind, number } => write!(f, "a client writes {kind:?} as entry {number}"),
            Self::TimePasses { now } => write!(f, "time passes: {now}"),
            Self::CollectsOrigin => write!(f, "the origin collects its tombstones"),
            Self::CollectsTarget => write!(f, "the target collects its tombstones"),
            Self::DropsEntry { number } => write!(f, "entry {number} falls out of the retained log"),
            Self::StartsShipping { after } => write!(f, "shipping starts after entry {after}"),
            Self::Ships { number } => write!(f, "entry {number} is shipped and applied"),
            Self::FallsBehind { after } => write!(f, "the ship cursor is behind retention and goes on after {after}"),
            Self::Reads => write!(f, "the worker reads the row"),
            Self::Copies => write!(f, "the worker writes the row to the target"),
            Self::CopyUnknown => write!(f, "the worker writes the row: on its way, and the worker starts anew"),
            Self::CopyLands => write!(f, "late: the copied row arrives"),
            Self::CopyIsLost => write!(f, "the copied row never arrives"),
            Self::GivesReceipt => write!(f, "verify finds both sides equal and gives a receipt"),
            Self::DeletesExtra { at } => write!(f, "verify deletes the extra row at write time {at}"),
            Self::CopiesAgain => write!(f, "verify finds the row missing or different and has it copied again"),
        }
    }
}

/// Collects what can happen next.
struct Next<'a> {
    from: &'a State,
    found: &'a mut Vec<(Step, State)>,
}

impl Next<'_> {
    fn to(&mut self, step: Step, change: impl FnOnce(&mut State)) {
        let mut after = *self.from;
        change(&mut after);
        if after != *self.from {
            self.found.push((step, after));
        }
    }
}

impl RowsModel {
    fn grace(&self) -> u8 {
        if self.rules.has(Rule::GraceOutlastsBatch) { GRACE } else { STALE_AFTER }
    }

    fn clients(&self, state: &State, next: &mut Next) {
        if state.budget.writes == 0 || state.last as usize >= NUMBERS {
            return;
        }
        let is_there = state.origin.visible(state.now)[0].is_some();
        for kind in self.kinds {
            if *kind == Kind::Edit && !is_there {
                continue;
            }
            let number = state.last + 1;
            next.to(Step::Writes { kind: *kind, number }, |state| {
                let expires = if *kind == Kind::PutBriefly { state.now + BRIEF } else { 0 };
                let entry = Entry { kind: *kind, expires };
                state.budget.writes -= 1;
                state.log[state.last as usize] = Some(entry);
                state.last = number;
                state.origin.apply(number, entry, state.now);
            });
        }
    }

    fn time(&self, state: &State, next: &mut Next) {
        if state.now < state.budget.until {
            next.to(Step::TimePasses { now: state.now + 1 }, |state| state.now += 1);
        }
        let (grace, now) = (self.grace(), state.now);
        next.to(Step::CollectsOrigin, |state| state.origin.collect(grace, now));
        next.to(Step::CollectsTarget, |state| state.target.collect(grace, now));
        if state.budget.drops > 0 && state.dropped < state.last {
            next.to(Step::DropsEntry { number: state.dropped + 1 }, |state| {
                state.budget.drops -= 1;
                state.log[state.dropped as usize] = None;
                state.dropped += 1;
            });
        }
    }
}

impl Model for RowsModel {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State { budget: self.budget, ..State::default() }
    }

    fn steps(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut next = Next { from: state, found };
        self.clients(state, &mut next);
        self.time(state, &mut next);
        self.shipping(state, &mut next);
        self.copying(state, &mut next);
        self.verifying(state, &mut next);
    }

    fn violation(&self, state: &State) -> Option<String> {
        self.check(state)
    }

    fn is_done(&self, state: &State) -> bool {
        state.receipt && verify::is_settled(state) && verify::difference(state).is_none()
    }
}
