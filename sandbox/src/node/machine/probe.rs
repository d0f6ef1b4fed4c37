//! One probe of one container: when the next try is due and what a row of results means. Pure; it never runs a probe.

use k8s_openapi::api::core::v1::Probe;

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbeKind {
    /// Until it succeeds the other two wait.
    Startup,
    /// Decides whether the container is ready.
    Readiness,
    /// Decides whether the container is restarted.
    Liveness,
}

impl ProbeKind {
    /// The word used in events.
    pub fn label(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Periods and thresholds, in milliseconds and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Wait after the container's start.
    pub delay_ms: u64,
    /// Between tries.
    pub period_ms: u64,
    /// Successes in a row that count.
    pub successes: u32,
    /// Failures in a row that count.
    pub failures: u32,
    /// Grace for the stop a failure brings, when the probe has its own.
    pub grace_ms: Option<u64>,
}

impl ProbeSettings {
    /// Reads the API's probe with its defaults.
    pub fn of(probe: &Probe, kind: ProbeKind) -> Self {
        let seconds = |value: Option<i32>, otherwise: i32, least: i32| {
            u64::from(value.unwrap_or(otherwise).max(least).unsigned_abs()) * 1000
        };
        let count = |value: Option<i32>, otherwise: i32| value.unwrap_or(otherwise).max(1).unsigned_abs();
        Self {
            delay_ms: seconds(probe.initial_delay_seconds, 0, 0),
            period_ms: seconds(probe.period_seconds, 10, 1),
            successes: if kind == ProbeKind::Readiness { count(probe.success_threshold, 1) } else { 1 },
            failures: count(probe.failure_threshold, 3),
            grace_ms: probe.termination_grace_period_seconds.map(|seconds| seconds.max(0).unsigned_abs() * 1000),
        }
    }
}

/// What a result changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Undecided,
    /// Enough successes in a row.
    Passed,
    /// Enough failures in a row.
    Failed,
}

/// The state of one probe while its container runs.
#[derive(Debug, Clone)]
pub struct ProbeState {
    /// Periods and thresholds.
    pub settings: ProbeSettings,
    next_ms: u64,
    in_flight: bool,
    successes: u32,
    failures: u32,
}

impl ProbeState {
    /// A probe of a container started at `started_ms` (monotonic).
    pub fn new(settings: ProbeSettings, started_ms: u64) -> Self {
        Self { settings, next_ms: started_ms + settings.delay_ms, in_flight: false, successes: 0, failures: 0 }
    }

    /// When the next try is due; None while one runs.
    pub fn due_ms(&self) -> Option<u64> {
        (!self.in_flight).then_some(self.next_ms)
    }

    /// Notes that a try began.
    pub fn begin(&mut self, now_ms: u64) {
        self.in_flight = true;
        self.next_ms = now_ms + self.settings.period_ms;
    }

    /// Makes the next try due at once.
    pub fn hasten(&mut self, now_ms: u64) {
        self.next_ms = now_ms;
    }

    /// Takes a result.
    pub fn take(&mut self, success: bool) -> Verdict {
        self.in_flight = false;
        if success {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            if self.successes >= self.settings.successes { Verdict::Passed } else { Verdict::Undecided }
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            if self.failures >= self.settings.failures { Verdict::Failed } else { Verdict::Undecided }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(successes: u32, failures: u32) -> ProbeState {
        let settings = ProbeSettings { delay_ms: 5_000, period_ms: 2_000, successes, failures, grace_ms: None };
        ProbeState::new(settings, 1_000)
    }

    #[test]
    fn the_first_try_waits_for_the_initial_delay_and_no_two_tries_overlap() {
        let mut probe = probe(1, 3);
        assert_eq!(probe.due_ms(), Some(6_000));
        probe.begin(6_000);
        assert_eq!(probe.due_ms(), None);
        probe.take(true);
        assert_eq!(probe.due_ms(), Some(8_000));
    }

    #[test]
    fn only_results_in_a_row_count() {
        let mut probe = probe(2, 2);
        let verdicts: Vec<_> = [false, true, false, false, true, true].map(|ok| probe.take(ok)).into();
        use Verdict::{Failed, Passed, Undecided};
        assert_eq!(verdicts, [Undecided, Undecided, Undecided, Failed, Undecided, Passed]);
    }

    #[test]
    fn defaults_are_kubernetes_defaults() {
        let settings =
            ProbeSettings::of(&Probe { success_threshold: Some(5), ..Probe::default() }, ProbeKind::Liveness);
        assert_eq!((settings.period_ms, settings.successes, settings.failures), (10_000, 1, 3));
    }
}
