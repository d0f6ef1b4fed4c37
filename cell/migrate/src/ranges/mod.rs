//! PURE: which token ranges of which tables are done, which are leased and to whom, which failed, and why it is not faster. It takes
//! the time as an argument and does no I/O; what must survive a crash it hands out as [`Record`]s, to be committed before its answer
//! is given. It never knows what a row is.

mod digest;
mod interval;
mod lease;
mod machine;
mod marks;
mod name;
mod record;
mod summary;
mod throttle;

pub use digest::Digest;
pub use interval::{IntervalSet, Tokens};
pub use lease::{FailureKind, Grant, Progress, Verdict};
pub use machine::{Control, ControlError, LaneName, Machine, Settings};
pub use marks::{MAX_MARK, Marks};
pub use record::{Counts, Finding, FindingKind, Phase, Record, Saved, SavedLease};
pub use summary::{RangeRow, Receipt, State, TableDigest, is_harmless};
pub use throttle::{Sample, Throttle, ThrottleReason};

#[cfg(test)]
mod tests;
