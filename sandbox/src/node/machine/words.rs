//! The words between the machine and its driver: what happened, what to do, what was found. They decide nothing.

use super::backoff::Backoff;
use super::container::Exit;
use super::probe::ProbeKind;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Volumes and folders are ready.
    Prepared,
    /// Volumes could not be made ready; tried again later.
    PrepareFailed(String),
    /// A container runs.
    Started {
        /// Its index.
        index: usize,
        /// Unix milliseconds of the start.
        started_ms: i64,
    },
    /// A container could not be started.
    StartFailed {
        /// Its index.
        index: usize,
        /// Kubernetes' waiting reason.
        reason: &'static str,
        /// More, for people.
        message: String,
    },
    /// A container ended.
    Exited {
        /// Its index.
        index: usize,
        /// Which run.
        attempt: u32,
        /// How.
        exit: Exit,
    },
    /// A container's preStop hook is over and SIGTERM was sent.
    Hooked {
        /// Its index.
        index: usize,
        /// Which run.
        attempt: u32,
        /// Why the hook failed, if it did.
        failure: Option<String>,
    },
    /// A probe answered.
    Probed {
        /// The container's index.
        index: usize,
        /// Which run it was asked of.
        attempt: u32,
        /// Which probe.
        kind: ProbeKind,
        /// The answer.
        success: bool,
        /// What it said when it failed.
        message: String,
    },
    /// The Pod has run for as long as its spec allows: it is over.
    Expire,
    /// The Pod is to go, with this grace.
    Delete {
        /// Milliseconds from SIGTERM to SIGKILL.
        grace_ms: u64,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Make volumes and folders ready.
    Prepare,
    /// Start a container.
    Start {
        /// Its index.
        index: usize,
        /// Which run this is.
        attempt: u32,
        /// The back-off, to be remembered with the run.
        backoff: Backoff,
    },
    /// Try a probe.
    Probe {
        /// The container's index.
        index: usize,
        /// Which run it is asked of.
        attempt: u32,
        /// Which probe.
        kind: ProbeKind,
    },
    /// Ask a container to stop: its preStop hook, then SIGTERM.
    Stop {
        /// Its index.
        index: usize,
        /// Milliseconds the hook may take.
        grace_ms: u64,
    },
    /// SIGKILL a container.
    Kill {
        /// Its index.
        index: usize,
    },
    /// Something worth an event.
    Say {
        /// True for a warning.
        warning: bool,
        /// Event reason.
        reason: &'static str,
        /// Event note.
        note: String,
    },
}

/// A run found on disk when the agent started.
#[derive(Debug, Clone)]
pub struct Adopted {
    /// Which run.
    pub attempt: u32,
    /// The back-off it was started with.
    pub backoff: Backoff,
    /// How the run before it ended.
    pub last: Option<Exit>,
    /// What was found.
    pub state: AdoptedState,
}

/// What was found of an adopted run.
#[derive(Debug, Clone)]
pub enum AdoptedState {
    /// Its process runs.
    Running {
        /// Unix milliseconds of the start.
        started_ms: i64,
        /// The API knew it as ready: it stays so until a probe says otherwise.
        was_ready: bool,
    },
    /// It ended while nobody looked.
    Ended(Exit),
}
