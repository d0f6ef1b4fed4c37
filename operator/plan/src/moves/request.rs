//! What a run can ask of a fleet, and what it can hear. Requests name cells, never addresses: who lives where is the driver's to find.

/// The roles a run talks to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A data service.
    Data,
    /// A guild node.
    Guild,
}

/// One request. Every one may be repeated: data services and guild nodes answer by run id and state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Read a head serially, at the log's data owner in `cell`, or at any data service of the StorageCell if nobody lives there.
    Inspect {
        /// The log.
        log: String,
        /// Where its owner should be.
        cell: String,
    },
    /// Split a guild out of its bucket.
    Split {
        /// The bucket's log.
        bucket: String,
        /// The guild.
        guild_id: i64,
        /// The cell of the bucket.
        cell: String,
    },
    /// Load and follow the guild at the guild node of `to`.
    Warm {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Its bucket's log.
        bucket: String,
        /// Whose data service is followed.
        from: String,
        /// Whose guild node gets warm.
        to: String,
    },
    /// Have the gateways that are linked to the guild node of `from` open standby links to `to`.
    AnnounceStandby {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Where the guild is.
        from: String,
        /// Where it goes.
        to: String,
    },
    /// Ask whether the guild node of `to` has everything up to `at`.
    Reach {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// The number it must have.
        at: u64,
        /// Whose guild node.
        to: String,
    },
    /// Switch the log's head: the commit point. Asked of the log's data owner in `from`.
    Switch {
        /// The log.
        log: String,
        /// The guild of the log; none for a bucket.
        guild_id: Option<i64>,
        /// The cell the head names now.
        from: String,
        /// The cell it shall name.
        to: String,
        /// The head's term now.
        term: u64,
    },
    /// Claim a log whose source has no data service any more, at `to`. Also a commit point.
    Failover {
        /// The log.
        log: String,
        /// Who claims.
        to: String,
    },
    /// Claim anew at the source, so that a switch that may still be under way is refused by its term.
    Fence {
        /// The log.
        log: String,
        /// Where its owner is.
        cell: String,
    },
    /// Claim the guild at the guild node of `to`.
    TakeOver {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Whose guild node.
        to: String,
        /// The head's term since the switch.
        term: u64,
    },
    /// Have the guild node of `from` send its gateways to `to`.
    PointAway {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Who had it.
        from: String,
        /// Who has it.
        to: String,
        /// The head's term since the switch.
        term: u64,
    },
    /// Have the guild node of a cell give up what it holds for this run.
    Forget {
        /// The guild.
        guild_id: i64,
        /// Its log.
        log: String,
        /// Whose guild node.
        cell: String,
    },
    /// Merge the guild back into its bucket.
    Merge {
        /// The bucket's log.
        bucket: String,
        /// The guild.
        guild_id: i64,
        /// Where both are.
        cell: String,
    },
}

impl Request {
    /// The name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Inspect { .. } => "Inspect",
            Self::Split { .. } => "Split",
            Self::Warm { .. } => "Warm",
            Self::AnnounceStandby { .. } => "AnnounceStandby",
            Self::Reach { .. } => "Reach",
            Self::Switch { .. } => "Switch",
            Self::Failover { .. } => "Failover",
            Self::Fence { .. } => "Fence",
            Self::TakeOver { .. } => "TakeOver",
            Self::PointAway { .. } => "PointAway",
            Self::Forget { .. } => "Forget",
            Self::Merge { .. } => "Merge",
        }
    }
}

/// A head as read serially.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeadFact {
    /// The cell it names.
    pub cell: String,
    /// Its term.
    pub term: u64,
    /// The guild of this log went back to its bucket.
    pub merged: bool,
    /// The log's last number, as far as the answerer knows.
    pub last: u64,
    /// The run that holds admission closed.
    pub closed_by: Option<String>,
}

/// How a refusal is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The same request may succeed later.
    Retry,
    /// The sender's picture of the head is old: read it again.
    Stale,
    /// What was asked about is not there (not warm, no such guild).
    Missing,
    /// Another run holds it.
    OtherRun,
    /// It will never succeed.
    Permanent,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// To `Inspect`: the head, or none.
    Head(Option<HeadFact>),
    /// To `Split`, `AnnounceStandby`, `TakeOver`, `PointAway`, `Forget`, `Merge`: done, or was already so.
    Done,
    /// To `Split`, `Merge` and the others: accepted, not finished.
    Pending,
    /// To `Warm`.
    Warmed {
        /// Loaded and following.
        ready: bool,
        /// The number it has.
        position: u64,
    },
    /// To `Reach`.
    Reached {
        /// It has the number asked for.
        reached: bool,
        /// The number it has.
        position: u64,
    },
    /// To `Switch`: the head names the target.
    Switched {
        /// The head's term.
        term: u64,
        /// The last number before the switch.
        at: u64,
        /// How long commands were held, in microseconds.
        held_us: u64,
    },
    /// To `Failover` and `Fence`: the head after the claim.
    Claimed {
        /// The cell it names.
        cell: String,
        /// Its term.
        term: u64,
    },
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
    /// It may or may not have happened: a timeout, a lost connection, or the refuser does not know.
    Unknown {
        /// What is known.
        message: String,
    },
    /// Nobody to ask: no live member of that role in that cell. Nothing was sent.
    NoMember {
        /// The cell.
        cell: String,
        /// The role.
        role: Role,
    },
}
