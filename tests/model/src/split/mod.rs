//! Split and merge (rule 18): which log takes the guild's commands, and what the one that takes over must know of the other.

mod claim;
mod own;
pub mod scenarios;
pub mod state;

use std::fmt;

use crate::engine::Model;
use crate::rules::Rules;

use self::state::{BUCKET, Budget, Damage, GUILD, Process, State};

/// A bucket, one of its guilds, and two processes.
#[derive(Clone, Copy, Debug)]
pub struct SplitModel {
    /// The rules that hold.
    pub rules: Rules,
    /// How many operations clients ask for.
    pub operations: u8,
    /// What may go wrong, and how often.
    pub budget: Budget,
}

/// What each process's clock says.
const CLOCKS: [u8; 2] = [5, 0];

/// One step of an execution. Log 0 is the bucket's, 1 the guild's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each field is what its name says")]
pub enum Step {
    Crashes { process: usize },
    ReadsSeal { process: usize, term: u8 },
    ReadsSplit { process: usize, term: u8 },
    Claims { process: usize, log: usize, term: u8 },
    OpensGuild { process: usize, term: u8 },
    StepsBack { process: usize, log: usize },
    Commits { process: usize, log: usize, operation: u8, timestamp: u8 },
    CommitUnknown { process: usize, operation: u8 },
    Lands { applied: bool },
    Settles { process: usize },
    Rolls { process: usize },
    Applies { process: usize, log: usize },
    Answers { process: usize, log: usize, operation: u8 },
    Splits { process: usize },
    Seals { process: usize, term: u8 },
    Merges { process: usize },
}

fn name(log: usize) -> &'static str {
    if log == BUCKET { "the bucket's log" } else { "the guild's log" }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Crashes { process } => write!(f, "p{process} crashes and starts again"),
            Self::ReadsSeal { process, term } => write!(f, "p{process} reads the guild's head: sealed at term {term}"),
            Self::ReadsSplit { process, term } => write!(f, "p{process} reads the bucket: split, term {term}"),
            Self::Claims { process, log, term } => write!(f, "p{process} claims {} at term {term}", name(log)),
            Self::OpensGuild { process, term } => write!(f, "p{process} opens the guild's log at term {term}"),
            Self::StepsBack { process, log } => write!(f, "p{process} finds that it does not own {}", name(log)),
            Self::Commits { process, log, operation, timestamp } => {
                write!(f, "p{process} commits operation {operation} to {} (time {timestamp})", name(log))
            }
            Self::CommitUnknown { process, operation } => {
                write!(f, "p{process} appends operation {operation} to the guild's log: outcome unknown")
            }
            Self::Lands { applied: true } => write!(f, "late: the append lands in the guild's log"),
            Self::Lands { applied: false } => write!(f, "late: the append fails its condition"),
            Self::Settles { process } => write!(f, "p{process} reads the guild's segment serially to settle"),
            Self::Rolls { process } => write!(f, "p{process} seals the segment under what may still land"),
            Self::Applies { process, log } => write!(f, "p{process} applies an entry of {}", name(log)),
            Self::Answers { process, log, operation } => {
                write!(f, "p{process} answers operation {operation}, known from {}", name(log))
            }
            Self::Splits { process } => write!(f, "p{process} appends SPLIT to the bucket's log"),
            Self::Seals { process, term } => write!(f, "p{process} seals the guild's log for a merge, term {term}"),
            Self::Merges { process } => write!(f, "p{process} appends MERGE to the bucket's log"),
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
        self.found.push((step, after));
    }
}

impl Model for SplitModel {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut state = State { budget: self.budget, ..State::default() };
        let bucket = &mut state.logs[BUCKET];
        (bucket.term, bucket.open, bucket.segment_open) = (1, true, true);
        state.processes[0].owns[BUCKET].term = 1;
        state
    }

    fn steps(&self, state: &State, found: &mut Vec<(Step, State)>) {
        let mut next = Next { from: state, found };
        self.landing(state, &mut next);
        for process in 0..2 {
            if state.processes[process] != Process::default() && state.budget.crashes > 0 {
                next.to(Step::Crashes { process }, |state| {
                    state.budget.crashes -= 1;
                    state.processes[process] = Process::default();
                });
            }
            self.readings(state, process, &mut next);
            for log in [BUCKET, GUILD] {
                self.claim(state, process, log, &mut next);
                self.own(state, process, log, &mut next);
            }
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        let said = match state.damage {
            Some(Damage::CommittedTwice) => Some("an operation is committed twice"),
            Some(Damage::TimeGoesBack) => Some("a later entry of the guild has an earlier write time"),
            Some(Damage::AnsweredEarly) => Some("an operation was answered before any table shows it"),
            Some(Damage::AfterSeal) => Some("an entry came to the guild's log after its seal"),
            None => None,
        };
        let accepts = |log| (0..2).any(|process| state.is_owner(process, log) && self.accepts(state, process, log));
        let both = accepts(BUCKET) && accepts(GUILD);
        said.or(both.then_some("both logs accept the guild's commands")).map(str::to_owned)
    }

    fn is_done(&self, state: &State) -> bool {
        let all = (1 << self.operations) - 1;
        let home = if state.is_split() { GUILD } else { BUCKET };
        state.answered == all && state.flight.is_none() && (0..2).any(|process| state.is_owner(process, home))
    }
}
