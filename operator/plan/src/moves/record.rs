//! What is remembered of a run between two requests. The driver stores it as it is; a new operator goes on from it.

use super::tuning::Tuning;

/// What a run was asked to do. It never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Names the run in every request.
    pub run_id: String,
    /// What moves, in order.
    pub subjects: Vec<Subject>,
    /// The cell that has it.
    pub from: String,
    /// The cell that shall have it.
    pub to: String,
    /// Merge the guild into its bucket at the end.
    pub merge: bool,
    /// Past this and before the commit point the run undoes itself. Unix milliseconds.
    pub deadline_ms: i64,
    /// How long a rollback stays possible.
    pub rollback_window_ms: i64,
}

impl Spec {
    /// The guild is in its bucket's cell already: it is merged there, and no head is switched.
    pub fn is_merge_in_place(&self) -> bool {
        self.merge && self.from == self.to
    }
}

/// One unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A bucket.
    Bucket {
        /// Its log.
        log: String,
    },
    /// A guild with a log of its own, or one that gets it by being split out.
    Guild {
        /// Its id.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Its bucket's log.
        bucket: String,
        /// Split it out if it is still in its bucket; refuse otherwise.
        may_split: bool,
    },
}

impl Subject {
    /// The log that is switched.
    pub fn log(&self) -> &str {
        match self {
            Self::Bucket { log } | Self::Guild { log, .. } => log,
        }
    }

    /// The guild, if it is one.
    pub fn guild_id(&self) -> Option<i64> {
        match self {
            Self::Bucket { .. } => None,
            Self::Guild { guild_id, .. } => Some(*guild_id),
        }
    }

    pub(super) fn bucket(&self) -> &str {
        match self {
            Self::Bucket { log } => log,
            Self::Guild { bucket, .. } => bucket,
        }
    }
}

/// Where a run stands. Each step has at most one kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Reads the unit's head.
    Validate,
    /// The guild has no log of its own (or goes back): reads its bucket's head.
    ValidateBucket,
    /// Splits the guild out.
    Split,
    /// Warms the target.
    Warm,
    /// Announces the target to the gateways.
    Standby,
    /// Reads the last number and the term.
    Measure,
    /// Has the target reach that number.
    Prove,
    /// The commit point.
    Switch,
    /// The switch's outcome is not known: reads the head.
    Settle,
    /// The source is dead: claims at the target.
    Failover,
    /// Claims the guild at the target.
    TakeOver,
    /// Sends the gateways to the target.
    PointAway,
    /// The rollback window.
    Hold,
    /// The source forgets.
    Forget,
    /// The side that serves lets the run go, so that another may begin.
    Release,
    /// Merges the guild into its bucket.
    Merge,
    /// An abort makes a switch impossible that may still be under way.
    AbortFence,
    /// An abort has the target forget.
    AbortForget,
    /// Over.
    Done,
}

/// Which way the units go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the target.
    Forward,
    /// Back to the source.
    Back,
}

/// What is remembered of one unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnitProgress {
    /// Its head was read and fits.
    pub checked: bool,
    /// The target was asked to get warm, so it must forget.
    pub warmed: bool,
    /// The head's term when it was last read.
    pub term: u64,
    /// The last number the target must have.
    pub last: u64,
    /// A switch was sent that may still change the head.
    pub sent: bool,
    /// Of more than one switch sent, so that the refusal of one says nothing of the others; only a raised term does.
    pub unsettled: bool,
    /// The head names the target.
    pub moved: bool,
}

/// Why a run does not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The stable CamelCase reason.
    pub reason: String,
    /// For people: what is waited for.
    pub message: String,
}

/// What people ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wishes {
    /// Undo before the commit point.
    pub abort: bool,
    /// Undo after it.
    pub rollback: bool,
}

/// What became of a wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// An abort after the commit point.
    TooLateToAbort,
    /// A rollback before the commit point: abort instead.
    TooEarlyToRollBack,
    /// A rollback after the window.
    TooLateToRollBack,
}

impl Wish {
    /// The stable CamelCase reason.
    pub fn label(self) -> &'static str {
        match self {
            Self::TooLateToAbort => "TooLateToAbort",
            Self::TooEarlyToRollBack => "TooEarlyToRollback",
            Self::TooLateToRollBack => "TooLateToRollback",
        }
    }
}

/// Whether a rollback is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RollbackWindow {
    /// Before the commit point.
    NotYet,
    /// Now; until a time in Unix milliseconds once it is known.
    Open(Option<i64>),
    /// No more.
    Over,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The target serves.
    Completed,
    /// Undone before the commit point, for this CamelCase reason.
    Aborted {
        /// Why.
        reason: String,
        /// For people.
        message: String,
    },
    /// Undone after it.
    RolledBack,
    /// Refused before anything was changed.
    Refused {
        /// Why.
        reason: String,
        /// For people.
        message: String,
    },
}

impl Outcome {
    /// The word in status, API and CLI.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Aborted { .. } => "Aborted",
            Self::RolledBack => "RolledBack",
            Self::Refused { .. } => "Refused",
        }
    }
}

/// Everything remembered of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What was asked.
    pub spec: Spec,
    /// Where it stands.
    pub step: Step,
    /// Which way.
    pub direction: Direction,
    /// Which subject the step is about.
    pub cursor: usize,
    /// One for each subject.
    pub units: Vec<UnitProgress>,
    /// Tries of this request so far that did not succeed.
    pub attempt: u32,
    /// Refused or unknown switches of this subject in a row.
    pub failed_switches: u32,
    /// No request before this. Unix milliseconds.
    pub not_before_ms: i64,
    /// Since when the cell that has the unit shows no live data service.
    pub source_dead_since_ms: Option<i64>,
    /// What it waits for.
    pub blocked_by: Option<Blocked>,
    /// Why it is being undone.
    pub undo_reason: Option<Blocked>,
    /// A wish that could not be granted.
    pub wish: Option<Wish>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// When the run began. Unix milliseconds.
    pub started_ms: i64,
    /// When the step began.
    pub step_since_ms: i64,
    /// When the hold began.
    pub hold_since_ms: Option<i64>,
    /// When the run ended.
    pub finished_ms: Option<i64>,
    /// The last number the target was seen to have.
    pub watermark: u64,
    /// The longest time commands were held by a switch of this run, in microseconds.
    pub held_us: u64,
    /// Requests so far.
    pub requests: u32,
}

impl Record {
    /// A run that has asked nothing yet.
    pub fn new(spec: Spec, now_ms: i64) -> Self {
        Self {
            units: vec![UnitProgress::default(); spec.subjects.len()],
            spec,
            step: Step::Validate,
            direction: Direction::Forward,
            cursor: 0,
            attempt: 0,
            failed_switches: 0,
            not_before_ms: 0,
            source_dead_since_ms: None,
            blocked_by: None,
            undo_reason: None,
            wish: None,
            outcome: None,
            started_ms: now_ms,
            step_since_ms: now_ms,
            hold_since_ms: None,
            finished_ms: None,
            watermark: 0,
            held_us: 0,
            requests: 0,
        }
    }

    /// Whether any head of this run names the target, or a merge in place is under way, which nothing undoes.
    pub fn is_committed(&self) -> bool {
        self.units.iter().any(|unit| unit.moved) || (self.spec.is_merge_in_place() && self.step == Step::Merge)
    }

    /// The step's name in status, API and CLI.
    pub fn step_label(&self) -> &'static str {
        match (self.step, self.direction) {
            (Step::Done, _) => "Done",
            (Step::AbortFence | Step::AbortForget, _) => "Abort",
            (Step::Release, Direction::Forward) if !self.is_committed() => "Abort",
            (_, Direction::Back) => "Rollback",
            (Step::Validate | Step::ValidateBucket, _) => "Validate",
            (Step::Split, _) => "Split",
            (Step::Warm | Step::Standby, _) => "Warm",
            (Step::Measure | Step::Prove, _) => "Prove",
            (Step::Switch | Step::Settle | Step::Failover, _) => "Switch",
            (Step::TakeOver | Step::PointAway, _) => "TakeOver",
            (Step::Hold, _) => "Hold",
            (Step::Merge, _) => "Merge",
            (Step::Forget | Step::Release, _) => "Complete",
        }
    }

    /// Whether a rollback is possible now.
    pub fn rollback_window(&self) -> RollbackWindow {
        let ending = self.outcome.is_some() || self.direction == Direction::Back;
        match self.step {
            Step::Forget | Step::Release | Step::Merge | Step::Done => RollbackWindow::Over,
            _ if ending => RollbackWindow::Over,
            _ if !self.is_committed() => RollbackWindow::NotYet,
            _ => RollbackWindow::Open(self.hold_since_ms.map(|since| since + self.spec.rollback_window_ms)),
        }
    }

    pub(super) fn source(&self) -> &str {
        match self.direction {
            Direction::Forward => &self.spec.from,
            Direction::Back => &self.spec.to,
        }
    }

    pub(super) fn target(&self) -> &str {
        match self.direction {
            Direction::Forward => &self.spec.to,
            Direction::Back => &self.spec.from,
        }
    }

    pub(super) fn subject(&self) -> Option<&Subject> {
        self.spec.subjects.get(self.cursor)
    }

    pub(super) fn unit(&mut self) -> Option<&mut UnitProgress> {
        self.units.get_mut(self.cursor)
    }

    /// Goes to a step, with a clean slate for its tries.
    pub(super) fn go(&mut self, step: Step) {
        self.step = step;
        self.attempt = 0;
        self.not_before_ms = 0;
        self.blocked_by = None;
    }

    /// Goes to a step of the first subject.
    pub(super) fn go_first(&mut self, step: Step) {
        self.cursor = 0;
        self.failed_switches = 0;
        self.go(step);
    }

    /// Stays at the step and tries again after a pause that grows.
    pub(super) fn retry(&mut self, now_ms: i64, hint_ms: u32, reason: &str, message: &str) {
        let pause = Tuning::FIRST_PAUSE_MS << self.attempt.min(10);
        let pause = pause.min(Tuning::LONGEST_PAUSE_MS).max(i64::from(hint_ms).min(Tuning::LONGEST_PAUSE_MS));
        self.attempt = self.attempt.saturating_add(1);
        self.not_before_ms = now_ms + pause;
        self.blocked_by = Some(Blocked { reason: reason.to_owned(), message: message.to_owned() });
    }

    pub(super) fn finish(&mut self, outcome: Outcome, now_ms: i64) {
        self.go(Step::Done);
        self.outcome = Some(outcome);
        self.finished_ms = Some(now_ms);
    }
}
