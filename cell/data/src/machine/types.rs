//! What goes in and out of the log machine.

use std::sync::Arc;

use cell_proto::unit::Unit;
use cell_proto::v1::{Change, Committed, Entry, Head, Refusal};
use cell_store::{Reply, Request, StoreError};

/// Stamped by the gateway on a client's mutation; retries keep it.
pub type OperationId = [u8; 16];

/// Names one waiting caller.
pub type Ticket = u64;

/// What a caller is told.
pub type Outcome = Result<Committed, Refusal>;

/// Whose machine this is, and for which log.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The unit.
    pub unit: Unit,
    /// Its log's name.
    pub log: String,
    /// The cell this data service serves.
    pub cell: String,
    /// This data service's member id.
    pub member_id: String,
    /// The StorageCell where a search for the log's head starts.
    pub home: String,
}

/// Bounds and times, each in the unit its name ends with.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Entries of one append.
    pub batch_entries: usize,
    /// Bytes of one append.
    pub batch_bytes: usize,
    /// How long the first command of a batch waits for company.
    pub linger_us: i64,
    /// Commands waiting or in flight; more are refused as overloaded.
    pub queue: usize,
    /// The dedupe window.
    pub window_us: i64,
    /// Operations it holds; when it is full, new ones are refused as overloaded.
    pub window_operations: usize,
    /// Callers that wait for one operation; further ones are told to ask again.
    pub waiters: usize,
    /// Entries of a segment.
    pub segment_entries: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Age at which a segment is left behind at the next append.
    pub segment_age_us: i64,
    /// Entries younger than this are kept.
    pub retention_us: i64,
    /// How often old segments are looked for.
    pub retention_every_us: i64,
    /// Applied entries after which the cursor is written at once.
    pub cursor_entries: u64,
    /// How long the cursor may lag behind when nothing is to do.
    pub cursor_us: i64,
    /// Entries that a copy lacks are kept this long beyond the retention; a copy further behind is begun anew.
    pub copy_retention_us: i64,
    /// As many messages that are deleted side by side get a range tombstone.
    pub least_run: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_entries: 256,
            batch_bytes: 1 << 20,
            linger_us: 1_000,
            queue: 4096,
            window_operations: 1_000_000,
            waiters: 64,
            window_us: 600_000_000,
            segment_entries: 10_000,
            segment_bytes: 16 << 20,
            segment_age_us: 600_000_000,
            retention_us: 24 * 3_600_000_000,
            retention_every_us: 60_000_000,
            cursor_entries: 1000,
            cursor_us: 500_000,
            copy_retention_us: 48 * 3_600_000_000,
            least_run: crate::domain::LEAST_RUN,
        }
    }
}

/// One change to commit.
#[derive(Clone, PartialEq, Debug)]
pub struct Command {
    /// Names the operation over all retries.
    pub operation_id: OperationId,
    /// Milliseconds since the Unix epoch; set once, kept by retries.
    pub deadline_ms: i64,
    /// On whose behalf.
    pub actor_id: i64,
    /// The policy version it was judged by.
    pub policy_version: u64,
    /// The sender's guild term.
    pub guild_term: u64,
    /// The head's term the sender believes in; 0 when it does not know.
    pub term: u64,
    /// The change.
    pub change: Change,
    /// What the guild's log left; with a merge, and only there.
    pub inheritance: Option<Arc<Inheritance>>,
}

/// What another log leaves to the one that takes over (LOG.md rule 18).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inheritance {
    /// The other log.
    pub log: String,
    /// The StorageCell where it was read; empty: the one that serves the log that takes over.
    pub store: String,
    /// Its dedupe window: operation, number, segment, time.
    pub operations: Vec<(OperationId, u64, u64, i64)>,
    /// Its last timestamp.
    pub last_timestamp_us: i64,
    /// Its last Snowflake.
    pub last_snowflake: i64,
}

/// What happens to a machine.
#[derive(Debug)]
pub enum Input {
    /// Claim the log.
    Claim,
    /// Claim the log at a copy although its origin was not sealed: the origin's store is lost (`accept_loss`).
    FailOver {
        /// The StorageCell of the copy.
        to: String,
        /// The highest term that the caller knows of.
        term: u64,
    },
    /// Commit this; the ticket comes back with the outcome.
    Submit {
        /// Who waits.
        ticket: Ticket,
        /// For what.
        command: Box<Command>,
    },
    /// The results of the last [`Effect::Ask`], one per request.
    Answered(Vec<Result<Reply, StoreError>>),
    /// The results of an [`Effect::AskForCopy`], one per request.
    CopyAnswered {
        /// That effect's id.
        id: u64,
        /// In its requests' order.
        results: Vec<Result<Reply, StoreError>>,
    },
    /// Time has passed.
    Tick,
    /// Look at the head: somebody else may have claimed it.
    Recheck,
    /// Admit nothing more; [`Effect::Drained`] follows.
    Close {
        /// By which run.
        run_id: String,
    },
    /// Admit again, if that run closed and nothing irrevocable was sent.
    Reopen {
        /// By which run.
        run_id: String,
    },
    /// Give the log to another cell (rule 16); after [`Effect::Drained`].
    Switch {
        /// The cell.
        to_cell: String,
    },
    /// Seal a guild's log for a merge (rule 18); after [`Effect::Drained`].
    Seal {
        /// Where the guild goes: `log:<bucket>`.
        moved_to: String,
    },
    /// Keep a copy of the log in another StorageCell (rules 10–12).
    Ship {
        /// That StorageCell.
        target: String,
        /// On behalf of this run.
        run_id: String,
    },
    /// Keep no copy any more; the one there is stays as it is.
    StopShipping,
    /// Give the log to the StorageCell that holds its copy (rule 13); after [`Effect::Drained`].
    CutOver {
        /// That StorageCell.
        to: String,
        /// The run that the copy is kept for.
        run_id: String,
        /// How often the copy may have been begun anew, exactly; none: however often.
        restarts: Option<u64>,
    },
    /// Release the copy in another StorageCell (rule 15). An owner that shipped to it gives the log up first: the next claim raises the
    /// term, and is asked again.
    EndCopy {
        /// That StorageCell.
        target: String,
        /// On behalf of this run.
        run_id: String,
    },
}

impl Input {
    /// A stable word for logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Submit { .. } => "submit",
            Self::Answered(_) => "answered",
            Self::Tick => "tick",
            Self::Recheck => "recheck",
            Self::Close { .. } => "close",
            Self::Reopen { .. } => "reopen",
            Self::Switch { .. } => "switch",
            Self::Seal { .. } => "seal",
            Self::FailOver { .. } => "fail-over",
            Self::CopyAnswered { .. } => "copy-answered",
            Self::Ship { .. } => "ship",
            Self::StopShipping => "stop-shipping",
            Self::CutOver { .. } => "cut-over",
            Self::EndCopy { .. } => "end-copy",
        }
    }
}

/// What a machine wants done, in order.
#[derive(Debug)]
pub enum Effect {
    /// Ask stores, each named by its StorageCell; several requests only where they are reads. Nothing else is asked so before
    /// [`Input::Answered`].
    Ask(Vec<(String, Request)>),
    /// The same for the copy, beside it: one such question at a time, which never holds the others up. What comes back to another id than
    /// the last is passed over.
    AskForCopy {
        /// For [`Input::CopyAnswered`].
        id: u64,
        /// The StorageCells and what they are asked.
        requests: Vec<(String, Request)>,
    },
    /// Tell a caller.
    Answer {
        /// Who waits.
        ticket: Ticket,
        /// What for.
        outcome: Outcome,
    },
    /// These are committed and applied, in log order: feed them.
    Applied(Vec<Arc<Entry>>),
    /// The log is owned; `last` is its last number.
    Claimed {
        /// The StorageCell that serves it.
        store: String,
        /// The head.
        head: Head,
        /// Last number.
        last: u64,
    },
    /// The log is not owned (any more), or the claim failed; the refusal says why.
    Released {
        /// With the route, where known.
        refusal: Refusal,
    },
    /// Admission is closed and nothing is in flight.
    Drained {
        /// The run that closed it.
        run_id: String,
        /// Last number.
        last: u64,
    },
    /// The head names the other cell; this machine is released.
    Switched {
        /// The head.
        head: Head,
        /// Last number.
        last: u64,
    },
    /// The log is sealed; this machine is released.
    Sealed {
        /// The head.
        head: Head,
        /// What the other log takes over.
        inheritance: Inheritance,
    },
    /// The log is served by another StorageCell now; this machine is released, and the next claim follows the pointer.
    CutOver {
        /// The sealed head, with the pointer.
        head: Head,
        /// Last number.
        last: u64,
    },
    /// The copy is released for good.
    CopyEnded,
    /// The store refused for good what only this owner would ask; for the log.
    Trouble(String),
}

/// How far a copy is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CopyStatus {
    /// Its StorageCell.
    pub target: String,
    /// The run it is kept for.
    pub run_id: String,
    /// Last number in the copy: log, tables and cursors.
    pub shipped: u64,
    /// Entries up to here are not in the copy's log, only in its tables once they are backfilled.
    pub started_at: u64,
    /// How often it was begun anew.
    pub restarts: u64,
    /// Whether, if the log was cut over from there, it holds everything since: it was not begun anew meanwhile, and nobody failed over.
    pub kept_since_cut: bool,
    /// Entries committed and not shipped.
    pub backlog: u64,
    /// Since when the oldest of them waits, in microseconds since the Unix epoch; 0: nothing waits.
    pub behind_since_us: i64,
    /// Why it does not go on; empty while it does.
    pub blocked_by: String,
    /// Entries shipped, and requests failed, since this owner began.
    pub entries: u64,
    /// Failed requests.
    pub failures: u64,
}

/// A command that is not answered yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: Command,
    pub(super) tickets: Vec<Ticket>,
    /// An append with it was sent: from here on it is never refused (rule 8).
    pub(super) proposed: bool,
    /// In the queue, not in flight.
    pub(super) queued: bool,
    pub(super) bytes: usize,
    pub(super) arrived_us: i64,
}
