//! The two times a Pod's life is measured in. Machines are given a [`Now`]; only drivers read a clock.

use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// A moment: monotonic milliseconds for waiting, Unix milliseconds for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds since an arbitrary start; never goes back.
    pub mono_ms: u64,
    /// Unix milliseconds.
    pub wall_ms: i64,
}

/// Reads both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock {
    /// The present moment. Monotonic time starts an hour in, so that subtracting from it never underflows.
    pub fn now(&self) -> Now {
        let mono_ms = u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(3_600_000);
        Now { mono_ms, wall_ms: Timestamp::now().as_millisecond() }
    }
}

/// Unix milliseconds as the API's time, whole seconds as the API keeps them.
pub fn api_time(wall_ms: i64) -> Option<Time> {
    Timestamp::from_second(wall_ms.div_euclid(1000)).ok().map(Time)
}
