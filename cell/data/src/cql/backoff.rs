//! Waiting while no node can be reached: the driver then fails at once, hundreds of thousands of times a second. Callers are held, longer
//! each time, up to a bound; one success lets all through again. It never refuses.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    failures: u32,
    until: Option<Instant>,
}

/// Holds callers while nothing is reached.
#[derive(Default)]
pub(super) struct Backoff {
    state: Mutex<State>,
}

impl Backoff {
    /// Waits until the next try is due; at most [`LONGEST`].
    pub(super) async fn pass(&self) {
        let until = self.state.lock().until;
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// A node answered, whatever it said.
    pub(super) fn reached(&self) {
        let mut state = self.state.lock();
        if state.until.is_some() {
            *state = State::default();
        }
    }

    /// No node was reached.
    pub(super) fn lost(&self, now: Instant) {
        let mut state = self.state.lock();
        // Callers that were let through together fail together: that is one failure.
        if state.until.is_some_and(|until| until > now) {
            return;
        }
        let wait = FIRST.saturating_mul(1 << state.failures.min(10)).min(LONGEST);
        state.failures = state.failures.saturating_add(1);
        state.until = Some(now + wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_grow_to_a_bound_and_end_with_a_success() {
        let backoff = Backoff::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..8 {
            backoff.lost(now);
            let until = backoff.state.lock().until.unwrap();
            // A second failure of the same moment changes nothing.
            backoff.lost(now);
            assert_eq!(backoff.state.lock().until.unwrap(), until);
            waits.push(until - now);
            now = until;
        }
        assert_eq!(waits[..3], [FIRST, FIRST * 2, FIRST * 4]);
        assert_eq!(waits[7], LONGEST);
        backoff.reached();
        assert!(backoff.state.lock().until.is_none());
    }
}
