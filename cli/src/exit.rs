//! How a command ends: its exit code and what stderr says. Decides nothing about what a command does.

use std::fmt;

/// The exit codes, the same for every command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// 0: what was asked for is so.
    Done,
    /// 1: something went wrong.
    Failed,
    /// 2: the command line makes no sense.
    Usage,
    /// 3: refused, or blocked by something that will not pass by itself.
    Blocked,
    /// 4: not within `--timeout`.
    TimedOut,
    /// 5: some of it is done.
    Partly,
}

impl Exit {
    /// The number the process exits with.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Blocked => 3,
            Self::TimedOut => 4,
            Self::Partly => 5,
        }
    }
}

/// Why something was refused: the field it hangs on, the reason, and what to type next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// A flag (`--to`) or the path of a field (`spec.placement.cell`).
    pub field: String,
    /// Why, in words.
    pub reason: String,
    /// The command that helps.
    pub next: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

/// Everything but success.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Exit 2.
    #[error("{0}")]
    Usage(String),
    /// Exit 3.
    #[error("{0}")]
    Refused(Refusal),
    /// Exit 3: nothing was refused; something waits, or stands still.
    #[error("{what}: {why}")]
    Waiting {
        /// It will not pass by itself.
        stalled: bool,
        /// What waits.
        what: String,
        /// For what.
        why: String,
        /// The command that helps.
        next: String,
    },
    /// Exit 4.
    #[error("timed out waiting for {waited_for}; blocked by: {blocked_by}")]
    TimedOut {
        /// What did not come about.
        waited_for: String,
        /// What stands in its way. Never empty.
        blocked_by: String,
        /// The command that helps.
        next: String,
    },
    /// Exit 5.
    #[error("partly done: {done}; not done: {left}")]
    Partly {
        /// What is done.
        done: String,
        /// What is not.
        left: String,
        /// The command that helps.
        next: String,
    },
    /// Exit 1, with the command that goes on.
    #[error("{message}")]
    Ended {
        /// What came of it.
        message: String,
        /// The command that helps.
        next: String,
    },
    /// Exit 1.
    #[error("{}", causes(.0))]
    Failed(anyhow::Error),
}

/// An error and what caused it. Many an error says already what its cause says; nobody wants to read that twice.
fn causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl From<anyhow::Error> for CommandError {
    /// A `CommandError` that travelled inside an `anyhow::Error` comes out as itself.
    fn from(error: anyhow::Error) -> Self {
        error.downcast::<Self>().unwrap_or_else(Self::Failed)
    }
}

impl CommandError {
    /// A refusal.
    pub fn refused(field: impl Into<String>, reason: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Refused(Refusal { field: field.into(), reason: reason.into(), next: next.into() })
    }

    /// The code to exit with.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) | Self::Waiting { .. } => Exit::Blocked,
            Self::TimedOut { .. } => Exit::TimedOut,
            Self::Partly { .. } => Exit::Partly,
            Self::Failed(_) | Self::Ended { .. } => Exit::Failed,
        }
    }

    /// What stderr shows: a line with the fault, and one with the next command where there is one.
    pub fn report(&self) -> String {
        let word = match self {
            Self::Usage(_) => "usage",
            Self::Refused(_) => "refused",
            Self::Waiting { stalled: true, .. } => "blocked",
            Self::Waiting { .. } => "waiting",
            _ => "error",
        };
        match self.next() {
            Some(next) if !next.is_empty() => format!("{word}: {self}\n  next: {next}"),
            _ => format!("{word}: {self}"),
        }
    }

    fn next(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => Some(&refusal.next),
            Self::TimedOut { next, .. }
            | Self::Partly { next, .. }
            | Self::Waiting { next, .. }
            | Self::Ended { next, .. } => Some(next),
            Self::Usage(_) | Self::Failed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_own_code() {
        let endings = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Blocked, Exit::TimedOut, Exit::Partly];
        assert_eq!(endings.map(Exit::code), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_refusal_names_field_reason_and_next_command() {
        let error = CommandError::refused("--to", "cell \"a\" is cordoned", "cellctl cell uncordon a");
        assert_eq!(error.exit(), Exit::Blocked);
        assert_eq!(error.report(), "refused: --to: cell \"a\" is cordoned\n  next: cellctl cell uncordon a");
    }

    #[test]
    fn what_only_waits_is_not_called_refused() {
        let waiting =
            |stalled| CommandError::Waiting { stalled, what: "cell/a".into(), why: "w".into(), next: "n".into() };
        assert_eq!(waiting(false).report(), "waiting: cell/a: w\n  next: n");
        assert_eq!(waiting(true).report(), "blocked: cell/a: w\n  next: n");
        assert_eq!(waiting(false).exit(), Exit::Blocked);
    }

    #[test]
    fn a_cause_is_said_once() {
        let cause = || std::io::Error::other("no room");
        let told = anyhow::Error::from(cause()).context("failed to use a: no room");
        assert_eq!(CommandError::from(told).report(), "error: failed to use a: no room");
        let untold = anyhow::Error::from(cause()).context("write a");
        assert_eq!(CommandError::from(untold).report(), "error: write a: no room");
    }

    #[test]
    fn a_refusal_keeps_its_code_inside_anyhow() {
        let wrapped = anyhow::Error::from(CommandError::refused("a", "b", "c"));
        assert_eq!(CommandError::from(wrapped).exit(), Exit::Blocked);
        assert_eq!(CommandError::from(anyhow::anyhow!("plain")).exit(), Exit::Failed);
    }
}
