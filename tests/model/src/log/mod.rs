//! A log as rules 1–17 have it: claims, segments, batches of unknown and late outcome, applying, duplicates, refusals, retention, and a
//! copy with shipping, cutover, rollback and release. Split and merge are `split`, rows and times to live `rows`.

mod append;
mod apply;
mod check;
mod claim;
mod handover;
mod landing;
mod retain;
pub mod scenarios;
pub mod state;
mod step;
mod table;

use crate::engine::Model;
use crate::rules::{Rule, Rules};

use self::state::{Budget, Damage, Head, OPERATIONS, ORIGIN, OWNERS, Owner, Phase, Segment, SegmentState, State};

pub use self::step::Step;

/// A log, the rules that hold for it and what may happen to it.
#[derive(Clone, Copy, Debug)]
pub struct LogModel {
    /// The rules that hold.
    pub rules: Rules,
    /// How many processes there are; the third serves the other cell.
    pub owners: usize,
    /// How many operations clients ask for.
    pub operations: usize,
    /// Whether a copy may be started.
    pub copies: bool,
    /// What may go wrong, and how often.
    pub budget: Budget,
}

/// The cell each process serves.
const CELLS: [u8; OWNERS] = [0, 0, 1];
/// What each process's clock says, as far as the log's timestamps have not overtaken it.
const CLOCKS: [u8; OWNERS] = [4, 0, 2];

/// Collects what can happen next.
struct Next<'a> {
    from: &'a State,
    found: &'a mut Vec<(Step, State)>,
}

impl Next<'_> {
    fn to(&mut self, step: Step, change: impl FnOnce(&mut State)) {
        let mut after = *self.from;
        change(&mut after);
        self.found.push((step, after));
    }

    /// As `to`, where the process changes and nothing else.
    fn owner(&mut self, step: Step, process: u8, change: impl FnOnce(&mut Owner)) {
        self.to(step, |state| change(&mut state.owners[process as usize]));
    }

    fn steps_back(&mut self, process: u8) {
        self.owner(Step::StepsBack { owner: process }, process, |owner| *owner = Owner::default());
    }
}

impl LogModel {
    /// Whether an operation is among those clients ask for.
    fn asks_for(&self) -> impl Iterator<Item = state::Operation> {
        OPERATIONS.into_iter().take(self.operations)
    }

    fn compare_and_set(&self, state: &mut State, store: u8, expected: Head, new: Head) -> bool {
        let head = &mut state.stores[store as usize].head;
        let whole = self.rules.has(Rule::CompareWholeRow);
        let same = if whole { *head == expected } else { head.term == expected.term };
        if same {
            if head.term >= new.term {
                state.damage = Some(Damage::TermKept);
            }
            *head = new;
        }
        same
    }
}

impl Model for LogModel {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut state = State { budget: self.budget, ..State::default() };
        let head = Head { term: 1, cell: 0, appender: Some(0), moved_at: None };
        let origin = &mut state.stores[ORIGIN as usize];
        origin.head = head;
        origin.segments[0] = Segment { state: SegmentState::Open, term: 1, ..Segment::default() };
        state.owners[0] = Owner { phase: Phase::Serving, head, ..Owner::default() };
        state
    }

    fn steps(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut next = Next { from: state, found };
        self.landings(state, &mut next);
        self.operator_steps(state, &mut next);
        for process in 0..self.owners as u8 {
            let owner = &state.owners[process as usize];
            if owner.phase != Phase::Idle && state.budget.crashes > 0 {
                next.to(Step::Crashes { owner: process }, |state| {
                    state.budget.crashes -= 1;
                    state.owners[process as usize] = Owner::default();
                });
            }
            match owner.phase {
                Phase::Idle => self.idle(state, process, &mut next),
                Phase::Pointed => self.follow_pointer(state, process, &mut next),
                Phase::Claiming => self.claim(state, process, &mut next),
                Phase::ClaimUnknown | Phase::SwitchUnknown | Phase::CutUnknown => {
                    self.settle_head(state, process, &mut next);
                }
                Phase::Walking => self.walk(state, process, &mut next),
                Phase::Verifying => self.verify(state, process, &mut next),
                Phase::Serving => self.serve(state, process, &mut next),
                Phase::Settling => self.settle(state, process, &mut next),
                Phase::Rolling => self.open_next(state, process, &mut next),
                Phase::Switching => self.switch(state, process, &mut next),
                Phase::Closing => self.close(state, process, &mut next),
                Phase::Cutting => self.cut(state, process, &mut next),
            }
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        self.check(state)
    }

    fn is_done(&self, state: &State) -> bool {
        self.is_settled(state)
    }
}
