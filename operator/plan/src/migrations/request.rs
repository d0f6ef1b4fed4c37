//! What a run can ask, and what it can hear. Requests name logs and StorageCells, never addresses: who lives where is the driver's.

use std::collections::BTreeMap;

use super::record::{Finding, Log};

/// One of the two StorageCells of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where the data was.
    Source,
    /// Where it shall be.
    Target,
}

/// What the coordinator does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Copies.
    Backfill,
    /// Compares.
    Verify,
    /// Compares and mends.
    Repair,
}

/// One request. Every one may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// See whether a side answers and lets itself be read and written, and that its tables are there.
    Probe {
        /// Which.
        side: Side,
        /// Rises with every probe that shall be a new one.
        round: u32,
    },
    /// All logs in scope.
    List,
    /// Tell the data services what to keep copies of.
    Announce {
        /// Keep copies.
        ship: bool,
        /// Reads of 10,000 that also go to the copy.
        shadow_per_10000: u32,
    },
    /// Take that back.
    Retract,
    /// Have the log's owner keep a copy, and say how far it is and who serves.
    Ship {
        /// The log.
        log: String,
    },
    /// Have a coordinator and workers.
    Staff,
    /// Tell the coordinator what to do; the answer is how far it is.
    Control {
        /// What.
        phase: Phase,
        /// A higher one begins anew.
        round: u32,
        /// Units to be copied again.
        again: Vec<String>,
        /// Most rows a second; 0 for no bound.
        rows_per_second: u32,
        /// Begin nothing.
        paused: bool,
    },
    /// How the copies and shadow reads are, over all data services.
    Copies,
    /// Cut a log over: the commit point.
    CutOver {
        /// The log.
        log: String,
        /// The side that serves it now.
        from: Side,
        /// Its head's term.
        term: u64,
        /// How often its copy was begun anew, as far as its unit was copied since: another number is refused.
        restarts: u32,
        /// The side that serves is dead: what the copy lacks may be lost.
        accept_loss: bool,
    },
    /// Release the copy that does not serve.
    EndCopy {
        /// The log.
        log: String,
    },
    /// Have the cells know where their data is now.
    Serve,
    /// Coordinator and workers go.
    Dismiss,
}

impl Request {
    /// The name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Probe { .. } => "Probe",
            Self::List => "List",
            Self::Announce { .. } => "Announce",
            Self::Retract => "Retract",
            Self::Ship { .. } => "Ship",
            Self::Staff => "Staff",
            Self::Control { .. } => "Control",
            Self::Copies => "Copies",
            Self::CutOver { .. } => "CutOver",
            Self::EndCopy { .. } => "EndCopy",
            Self::Serve => "Serve",
            Self::Dismiss => "Dismiss",
        }
    }

    /// It may change who serves.
    pub fn is_commit_point(&self) -> bool {
        matches!(self, Self::CutOver { .. })
    }
}

/// How a refusal is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The same request may succeed later.
    Retry,
    /// The sender's picture is old: look again.
    Stale,
    /// The copy is not complete enough.
    NotReady,
    /// A side of the run does not answer.
    Unavailable,
    /// Another run holds it.
    OtherRun,
    /// Nothing of that kind is there.
    Missing,
    /// It will never succeed.
    Permanent,
}

/// A log and its copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShipFact {
    /// The StorageCell that serves.
    pub serving: String,
    /// Its head's term.
    pub term: u64,
    /// How often the copy was begun anew because it fell behind retention.
    pub restarts: u32,
    /// Whole seconds since the oldest entry that the copy lacks was committed.
    pub lag_seconds: u32,
    /// Entries that the copy lacks.
    pub backlog: u64,
    /// The number of the log's last entry.
    pub last: u64,
    /// Why shipping does not go on.
    pub blocked_by: String,
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReceiptFact {
    /// Its round.
    pub round: u32,
    /// Unix milliseconds.
    pub began_ms: i64,
    /// Unix milliseconds.
    pub ended_ms: i64,
    /// What was compared with what.
    pub source: String,
    /// The other one.
    pub target: String,
    /// Rows compared.
    pub rows: u64,
    /// Rows mended.
    pub repaired: u64,
    /// By class, those of no concern included.
    pub mismatches: BTreeMap<String, u64>,
    /// Nothing is missing, extra or differing, and every range was compared.
    pub clean: bool,
    /// What the source held, by table: the same text for the same rows in the same order.
    pub digests: BTreeMap<String, String>,
}

/// How far the coordinator is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoordinatorFact {
    /// What it does.
    pub phase: Option<Phase>,
    /// Which round of it.
    pub round: u32,
    /// Parts per million done.
    pub done_ppm: u32,
    /// Ranges done.
    pub done: u64,
    /// Ranges leased.
    pub in_flight: u64,
    /// Ranges failed.
    pub failed: u64,
    /// All ranges.
    pub total: u64,
    /// Rows so far.
    pub rows: u64,
    /// Rows a second.
    pub rows_per_second: u64,
    /// Why it is not faster.
    pub throttle: String,
    /// Whole seconds; 0 for not known.
    pub eta_seconds: u32,
    /// Workers that ask for work.
    pub workers: u32,
    /// Every range of the round is done.
    pub complete: bool,
    /// Of the last verification.
    pub receipt: Option<ReceiptFact>,
    /// Ranges and partitions that need someone.
    pub findings: Vec<Finding>,
}

impl CoordinatorFact {
    /// Every range was done, whatever it says of itself.
    pub fn covers_all(&self) -> bool {
        self.complete && self.failed == 0 && self.in_flight == 0 && self.total > 0 && self.done >= self.total
    }
}

/// The copies of all data services together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopyFact {
    /// Data services that answered.
    pub answered: u32,
    /// And those that did not.
    pub silent: u32,
    /// Logs whose copy lacks something.
    pub behind: u64,
    /// Entries that copies lack.
    pub backlog: u64,
    /// Whole seconds since the oldest of them was committed.
    pub lag_seconds: u32,
    /// Reads compared.
    pub samples: u64,
    /// Differing ones, by class.
    pub mismatches: BTreeMap<String, u64>,
    /// Not compared.
    pub skipped: u64,
    /// Samples and mismatches by the process that counted them, one that began anew by another name.
    pub shadows: BTreeMap<String, (u64, u64)>,
}

/// A log is cut over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CutFact {
    /// The new head's term.
    pub term: u64,
    /// How long commands were held, in microseconds.
    pub held_us: u64,
    /// Entries that may be lost; none when whoever failed over cannot know.
    pub at_risk: Option<u64>,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// Done, or was already so.
    Done,
    /// Accepted, not finished.
    Pending {
        /// What is awaited.
        message: String,
    },
    /// To `Probe`.
    Probed {
        /// It can be used.
        ok: bool,
        /// What was found, or what to change.
        message: String,
    },
    /// To `List`.
    Logs(Vec<Log>),
    /// To `Ship`.
    Shipped(ShipFact),
    /// To `Control`.
    Coordinator(Box<CoordinatorFact>),
    /// To `Copies`.
    Copies(CopyFact),
    /// To `CutOver`.
    Cut(CutFact),
    /// A definite no: nothing was changed.
    Refused {
        /// How to take it.
        kind: RefusalKind,
        /// The refuser's CamelCase reason.
        reason: String,
        /// The refuser's words.
        message: String,
        /// When a retry makes sense, in milliseconds; 0 for no hint.
        retry_after_ms: u32,
    },
    /// It may or may not have happened.
    Unknown {
        /// What is known.
        message: String,
    },
    /// Nobody to ask. Nothing was sent.
    Nobody {
        /// Who is missing.
        message: String,
    },
}
