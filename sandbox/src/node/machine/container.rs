//! One container's life: waiting, running, stopping, ended. Pure; the Pod machine above decides when it starts and stops.

use super::backoff::Backoff;
use super::plan::ContainerPlan;
use super::probe::{ProbeKind, ProbeState, Verdict};
use crate::node::clock::Now;

/// The reason of a run that ended unseen (a power cut): no fault of the container, so it brings no back-off.
pub const LOST: &str = "ContainerStatusUnknown";

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Kubernetes' word for it.
    pub reason: &'static str,
    /// More, for people.
    pub message: Option<String>,
    /// Unix milliseconds of the start.
    pub started_ms: i64,
    /// Unix milliseconds of the end.
    pub finished_ms: i64,
}

impl Exit {
    /// True when the exit code is 0.
    pub fn succeeded(&self) -> bool {
        self.code == 0
    }
}

/// Where a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not started; the reason Kubernetes shows.
    Waiting {
        /// For example `ContainerCreating`.
        reason: &'static str,
        /// More, for people.
        message: Option<String>,
        /// Not before this (monotonic milliseconds).
        until_ms: u64,
    },
    /// The start was ordered.
    Starting,
    /// Runs.
    Running {
        /// Unix milliseconds of the start.
        started_ms: i64,
        /// Monotonic milliseconds of the start.
        since_ms: u64,
    },
    /// Was told to stop and still runs.
    Stopping {
        /// Unix milliseconds of the start.
        started_ms: i64,
        /// SIGKILL at this time (monotonic milliseconds); None when it was sent.
        kill_ms: Option<u64>,
        /// Why.
        message: Option<String>,
    },
    /// Ended and will not start again by itself, or waits for the back-off.
    Ended(Exit),
}

/// A container and its history.
#[derive(Debug, Clone)]
pub struct Container {
    /// What to run.
    pub plan: ContainerPlan,
    /// Where it is.
    pub state: State,
    /// How the run before the present one ended.
    pub last: Option<Exit>,
    /// Which run this is, 0 the first: the number of restarts.
    pub attempt: u32,
    /// The back-off so far.
    pub backoff: Backoff,
    /// The readiness probe passed (or there is none) and it runs.
    pub ready: bool,
    /// The startup probe passed (or there is none) and it runs.
    pub started: bool,
    probes: Vec<(ProbeKind, ProbeState)>,
}

impl Container {
    /// A container never started.
    pub fn new(plan: ContainerPlan) -> Self {
        let reason = if plan.init { "PodInitializing" } else { "ContainerCreating" };
        Self {
            plan,
            state: State::Waiting { reason, message: None, until_ms: 0 },
            last: None,
            attempt: 0,
            backoff: Backoff::default(),
            ready: false,
            started: false,
            probes: Vec::new(),
        }
    }

    /// True while a process may exist.
    pub fn alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Running { .. } | State::Stopping { .. })
    }

    /// Notes that it runs, and starts its probes.
    pub fn run(&mut self, started_ms: i64, now: Now) {
        self.state = State::Running { started_ms, since_ms: now.mono_ms };
        self.probes =
            self.plan.probes.iter().map(|(kind, settings)| (*kind, ProbeState::new(*settings, now.mono_ms))).collect();
        self.started = !self.has(ProbeKind::Startup);
        self.ready = self.started && !self.has(ProbeKind::Readiness);
    }

    /// Notes that it has been running since before this agent, with what the API knew of it.
    pub fn take_over(&mut self, started_ms: i64, was_ready: bool, now: Now) {
        self.run(started_ms, now);
        if was_ready {
            self.started = true;
            self.ready = true;
            self.probes.iter_mut().for_each(|(_, probe)| probe.hasten(now.mono_ms));
        }
    }

    /// Notes its end.
    pub fn end(&mut self, exit: Exit) {
        self.state = State::Ended(exit);
        self.ready = false;
        self.started = false;
        self.probes.clear();
    }

    fn has(&self, kind: ProbeKind) -> bool {
        self.plan.probes.iter().any(|(other, _)| *other == kind)
    }

    fn may_probe(&self, kind: ProbeKind) -> bool {
        match kind {
            ProbeKind::Startup => !self.started,
            ProbeKind::Readiness | ProbeKind::Liveness => self.started,
        }
    }

    /// The probes due at `now_ms`; each counts as begun.
    pub fn due_probes(&mut self, now_ms: u64) -> Vec<ProbeKind> {
        if !matches!(self.state, State::Running { .. }) {
            return Vec::new();
        }
        let kinds: Vec<_> = self.probes.iter().map(|(kind, _)| *kind).filter(|kind| self.may_probe(*kind)).collect();
        let mut due = Vec::new();
        for (kind, probe) in &mut self.probes {
            if kinds.contains(kind) && probe.due_ms().is_some_and(|due| due <= now_ms) {
                probe.begin(now_ms);
                due.push(*kind);
            }
        }
        due
    }

    /// When the next probe is due.
    pub fn next_probe_ms(&self) -> Option<u64> {
        if !matches!(self.state, State::Running { .. }) {
            return None;
        }
        self.probes.iter().filter(|(kind, _)| self.may_probe(*kind)).filter_map(|(_, probe)| probe.due_ms()).min()
    }

    /// Takes a probe's result; Some(grace) when the container must be restarted.
    pub fn take_probe(&mut self, kind: ProbeKind, success: bool, now: Now) -> Option<Option<u64>> {
        let probe = self.probes.iter_mut().find(|(other, _)| *other == kind).map(|(_, probe)| probe)?;
        let grace = probe.settings.grace_ms;
        match (kind, probe.take(success)) {
            (_, Verdict::Undecided) => None,
            (ProbeKind::Startup, Verdict::Passed) => {
                self.started = true;
                self.ready = !self.has(ProbeKind::Readiness);
                self.probes.iter_mut().for_each(|(_, probe)| probe.hasten(now.mono_ms));
                None
            }
            (ProbeKind::Readiness, verdict) => {
                self.ready = verdict == Verdict::Passed && matches!(self.state, State::Running { .. });
                None
            }
            (ProbeKind::Liveness, Verdict::Passed) => None,
            (ProbeKind::Startup | ProbeKind::Liveness, Verdict::Failed) => Some(grace),
        }
    }
}
