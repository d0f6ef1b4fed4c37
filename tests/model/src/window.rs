//! Deadlines and the dedupe window under arbitrary clocks (rule 9): a client stamps a deadline once, one owner may commit, another one
//! with another clock claims and is asked again. Nothing else of the log is modelled here.

use std::fmt;

use crate::engine::Model;
use crate::rules::Rule::{self, *};
use crate::rules::Rules;

/// The dedupe window.
const WINDOW: i8 = 4;

/// The rules of the dedupe window.
#[derive(Clone, Copy, Debug)]
pub struct WindowModel {
    /// The rules that hold.
    pub rules: Rules,
    /// Clocks show between 0 and this.
    pub clocks: i8,
}

/// How far the command is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Fresh,
    Stamped,
    /// Answered or not: its first commit is done.
    Committed,
    /// Another owner has claimed; it knows the operation or not.
    Claimed {
        knows: bool,
    },
    Again,
    Over,
}

/// One command and its two owners.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    phase: Phase,
    deadline: i8,
    committed_at: i8,
    newest: i8,
    clock: i8,
}

/// One step of an execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each field is what its name says")]
pub enum Step {
    Stamps { deadline: i8 },
    Commits { clock: i8 },
    Refuses { clock: i8 },
    Others { newest: i8 },
    Claims { clock: i8, knows: bool },
    CommitsAgain { clock: i8 },
    Answers,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Stamps { deadline } => write!(f, "the gateway stamps deadline {deadline}"),
            Self::Commits { clock } => write!(f, "the first owner's clock says {clock}; it commits"),
            Self::Refuses { clock } => write!(f, "the owner's clock says {clock}; it refuses the deadline"),
            Self::Others { newest } => write!(f, "the log goes on until time {newest}"),
            Self::Claims { clock, knows } => {
                let window = if knows { "holds it" } else { "does not hold it" };
                write!(f, "another owner claims, its clock says {clock}; its window {window}")
            }
            Self::CommitsAgain { clock } => write!(f, "the retry arrives at {clock}; it is committed again"),
            Self::Answers => write!(f, "the retry is a duplicate or refused"),
        }
    }
}

impl WindowModel {
    fn refuses(&self, deadline: i8, clock: i8) -> bool {
        (deadline <= clock && self.rules.has(RefusePassedDeadline))
            || (deadline - clock > WINDOW / 2 && self.rules.has(RefuseFarDeadline))
    }

    fn claims(&self, state: &State, next: &mut Vec<(Step, State)>) {
        for clock in 0..=self.clocks {
            let since = if self.rules.has(WindowByOwnClock) { clock - WINDOW } else { state.newest - WINDOW };
            let knows = state.committed_at >= since;
            next.push((Step::Claims { clock, knows }, State { phase: Phase::Claimed { knows }, clock, ..*state }));
        }
    }
}

impl Model for WindowModel {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State { phase: Phase::Fresh, deadline: 0, committed_at: 0, newest: 0, clock: 0 }
    }

    fn steps(&self, state: &State, next: &mut Vec<(Step, State)>) {
        let clocks = 0..=self.clocks;
        match state.phase {
            Phase::Fresh => next.extend(
                clocks.map(|deadline| (Step::Stamps { deadline }, State { phase: Phase::Stamped, deadline, ..*state })),
            ),
            Phase::Stamped => next.extend(clocks.map(|clock| {
                if self.refuses(state.deadline, clock) {
                    (Step::Refuses { clock }, State { phase: Phase::Over, ..*state })
                } else {
                    let committed = State { phase: Phase::Committed, committed_at: clock, newest: clock, ..*state };
                    (Step::Commits { clock }, committed)
                }
            })),
            Phase::Committed => {
                self.claims(state, next);
                if state.newest == state.committed_at {
                    let later = state.committed_at + 1..=self.clocks;
                    next.extend(later.map(|newest| (Step::Others { newest }, State { newest, ..*state })));
                }
            }
            // An owner's clock does not go back.
            Phase::Claimed { knows } => next.extend((state.clock..=self.clocks).map(|clock| {
                if knows || self.refuses(state.deadline, clock) {
                    (Step::Answers, State { phase: Phase::Over, ..*state })
                } else {
                    (Step::CommitsAgain { clock }, State { phase: Phase::Again, ..*state })
                }
            })),
            Phase::Again | Phase::Over => {}
        }
    }

    fn violation(&self, state: &State) -> Option<String> {
        (state.phase == Phase::Again).then(|| "the operation is committed twice".to_owned())
    }

    fn is_done(&self, state: &State) -> bool {
        state.phase == Phase::Over
    }
}

const CLOCKS: WindowModel = WindowModel { rules: Rules::ALL, clocks: 16 };

/// Name and model.
pub fn scenarios() -> Vec<(&'static str, WindowModel)> {
    vec![("window-clocks", CLOCKS)]
}

/// For each rule the scenario that needs it.
pub fn ablations() -> Vec<(&'static [Rule], WindowModel)> {
    vec![(&[RefusePassedDeadline], CLOCKS), (&[RefuseFarDeadline], CLOCKS), (&[WindowByOwnClock], CLOCKS)]
}
