//! Why the store did not answer. It says only whether something may have happened; what to do about it is the caller's.

/// A request that was not answered. A condition that does not hold is an answer, not an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing happened: the store was not reached, or refused before doing anything.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It may have happened, or may still happen: only a serial read tells.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(String),
    /// Nothing happened: the volume is full.
    #[error(
        "the store's volume {path} has {free_bytes} bytes free and keeps {reserve_bytes}; free space or enlarge it"
    )]
    Full {
        /// The data directory.
        path: String,
        /// What is left.
        free_bytes: u64,
        /// What is never used.
        reserve_bytes: u64,
    },
    /// The data directory was written by a newer version; nothing was touched.
    #[error(
        "{path} has format {found}, this version reads up to {supported}; start the newer version again or restore a backup"
    )]
    NewerVersion {
        /// The data directory.
        path: String,
        /// Its format.
        found: u32,
        /// The newest one known here.
        supported: u32,
    },
    /// The data directory is in use, or not one of ours.
    #[error("failed to open {path}: {message}")]
    Open {
        /// The data directory.
        path: String,
        /// What is wrong and what to do.
        message: String,
    },
    /// The request makes no sense; it will never succeed.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The database refuses it, or fails at it, and will do so again until somebody changes something there.
    #[error("the database refuses it: {0}")]
    Refused(String),
    /// What is stored cannot be read.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
}

impl StoreError {
    /// A stable word for metrics, logs and the wire.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::UnknownOutcome(_) => "unknown-outcome",
            Self::Full { .. } => "full",
            Self::NewerVersion { .. } => "newer-version",
            Self::Open { .. } => "open",
            Self::Invalid(_) => "invalid",
            Self::Refused(_) => "refused",
            Self::Damaged(_) => "damaged",
        }
    }

    /// Whether a conditional write that failed so may have taken effect, or may do so later.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Self::UnknownOutcome(_))
    }
}
