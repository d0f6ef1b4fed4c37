//! The words of a migration: its stages and steps, what people wish, how it ends. Data only.

use super::request::{CopyFact, Side};

pub use crate::moves::{Blocked, Direction, RollbackWindow};

/// What a run was asked to do. It never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// Names the run in every request.
    pub run_id: String,
    /// The StorageCell that has the data.
    pub source: String,
    /// The StorageCell that shall have it.
    pub target: String,
    /// Buckets by name; empty for everything.
    pub units: Vec<String>,
    /// How long a rollback stays possible after the last cutover.
    pub rollback_window_ms: i64,
}

impl Spec {
    /// The StorageCell of a side.
    pub fn name_of(&self, side: Side) -> &str {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }
}

/// What people want of the run, which may change while it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wishes {
    /// Undo before every log is cut over.
    pub abort: bool,
    /// Undo after a cutover.
    pub rollback: bool,
    /// Lose what the other side lacks if the side that serves is dead.
    pub accept_loss: bool,
    /// End without the side that does not serve if it does not answer.
    pub ignore_unreachable: bool,
    /// Begin nothing new.
    pub paused: bool,
    /// Most rows a second; 0 for no bound.
    pub rows_per_second: u32,
    /// How far it goes by itself.
    pub target_stage: Stage,
    /// Counts requests to compare again.
    pub verify_requests: u32,
    /// Reads of 10,000 that also go to the copy.
    pub shadow_per_10000: u32,
    /// Reads that must have been compared.
    pub min_samples: u64,
    /// Of them differing at most.
    pub max_mismatch: u64,
    /// Age at which a receipt is stale.
    pub receipt_max_age_ms: i64,
}

/// The stages, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// Looks at both sides.
    Prepare,
    /// Ships every log.
    DualWrite,
    /// Copies what is older.
    Backfill,
    /// Compares.
    Verify,
    /// Compares reads.
    ShadowRead,
    /// Cuts over.
    Cutover,
    /// Ships back.
    Reverse,
    /// Releases the source.
    Complete,
}

impl Stage {
    /// The name in status, API and CLI.
    pub fn label(self) -> &'static str {
        match self {
            Self::Prepare => "Prepare",
            Self::DualWrite => "DualWrite",
            Self::Backfill => "Backfill",
            Self::Verify => "Verify",
            Self::ShadowRead => "ShadowRead",
            Self::Cutover => "Cutover",
            Self::Reverse => "Reverse",
            Self::Complete => "Complete",
        }
    }
}

/// One log in scope.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Log {
    /// Its name.
    pub name: String,
    /// The bucket that it is copied with.
    pub unit: String,
}

/// Where a run stands. Each step has at most one kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Looks at the source.
    ProbeSource,
    /// Looks at the target.
    ProbeTarget,
    /// Reads which logs there are.
    List,
    /// Tells the data services.
    Announce,
    /// Has every log shipped.
    Ship,
    /// Reads whether logs were added meanwhile.
    Relist,
    /// Has coordinator and workers.
    Staff,
    /// Copies.
    Backfill,
    /// Sees whether copies were begun anew meanwhile.
    Resweep,
    /// Compares.
    Verify,
    /// Compares and mends.
    Repair,
    /// Has shadow reads.
    AnnounceShadow,
    /// Waits for enough of them.
    Shadow,
    /// Ends shadow reads.
    AnnounceCutover,
    /// Looks at the way back.
    ReverseProbe,
    /// Reads whether logs were added meanwhile.
    Recount,
    /// Reads who serves the next log, and its term.
    Measure,
    /// The commit point of one log.
    Cut,
    /// A cutover's outcome is not known: reads who serves.
    Settle,
    /// The first log must ship back before the others follow.
    Canary,
    /// Sees that every log ships back.
    ReverseSweep,
    /// The rollback window.
    Hold,
    /// Tells the data services to stop.
    Silence,
    /// Releases the copies.
    End,
    /// Takes back what was announced.
    Retract,
    /// Tells the cells where their data is.
    Serve,
    /// Coordinator and workers go.
    Dismiss,
    /// Over.
    Done,
}

/// The log that a cutover is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InHand {
    /// The head's term when it was last read.
    pub term: u64,
    /// A cutover was sent that may still change the head, last at this time.
    pub sent_ms: Option<i64>,
    /// Of more than one cutover sent, so that the refusal of one says nothing of the others.
    pub unsettled: bool,
    /// Since when nobody that knows the log, or its store, answers.
    pub dead_since_ms: Option<i64>,
    /// One was sent that may lose what the other side lacks.
    pub loss_accepted: bool,
}

/// What became of a wish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// An abort when every log is cut over.
    TooLateToAbort,
    /// A rollback before any cutover.
    TooEarlyToRollBack,
    /// A rollback when the source is being released.
    TooLateToRollBack,
    /// A comparison once a cutover has begun.
    TooLateToVerify,
    /// An abort or a rollback when the source lacks what the target acknowledged.
    NoWayBack,
}

impl Wish {
    /// The stable CamelCase reason.
    pub fn label(self) -> &'static str {
        match self {
            Self::TooLateToAbort => "TooLateToAbort",
            Self::TooEarlyToRollBack => "TooEarlyToRollback",
            Self::TooLateToRollBack => "TooLateToRollback",
            Self::TooLateToVerify => "TooLateToVerify",
            Self::NoWayBack => "CopyNotReady",
        }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The target serves.
    Completed,
    /// Undone before every log was cut over; the source serves.
    Aborted,
    /// Undone after that; the source serves.
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
            Self::Aborted => "Aborted",
            Self::RolledBack => "RolledBack",
            Self::Refused { .. } => "Refused",
        }
    }
}

/// What is shown of the work of others. A restart reads it again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Parts per million of the phase.
    pub done_ppm: u32,
    /// Ranges done, leased, failed, all.
    pub ranges: (u64, u64, u64, u64),
    /// Rows of the phase, and a second.
    pub rows: (u64, u64),
    /// Why it is not faster.
    pub throttle: String,
    /// Whole seconds; 0 for not known.
    pub eta_seconds: u32,
    /// Workers that ask for work.
    pub workers: u32,
    /// The copies when they were last asked about.
    pub copies: CopyFact,
    /// What the coordinator found.
    pub findings: Vec<Finding>,
}

/// A range or a partition that needs someone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Finding {
    /// Its table.
    pub table: String,
    /// First token.
    pub first_token: i64,
    /// Last token.
    pub last_token: i64,
    /// The partition, where one was named.
    pub partition: String,
    /// slow, failing, tombstones, large-partition.
    pub kind: String,
    /// What to do.
    pub message: String,
}

/// Shadow reads of one process: samples, mismatches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shadowed {
    /// These do not count.
    pub base: (u64, u64),
    /// The most ever seen.
    pub most: (u64, u64),
}

impl Shadowed {
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.most.0.saturating_sub(self.base.0), self.most.1.saturating_sub(self.base.1))
    }
}
