//! How long a container waits before it starts again: at once after the first exit, then 10 s doubling up to 300 s, forgotten after
//! ten minutes of running. Pure.

/// The steps of the back-off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The wait after the second exit in a row, in milliseconds.
    pub first_ms: u64,
    /// The longest wait, in milliseconds.
    pub most_ms: u64,
    /// Running this long forgets earlier exits, in milliseconds.
    pub forget_ms: u64,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self { first_ms: 10_000, most_ms: 300_000, forget_ms: 600_000 }
    }
}

/// The wait after the next exit, remembered with the container so that an agent's restart does not forget it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    /// The wait that applied to the present run, in milliseconds; 0 for the first.
    pub wait_ms: u64,
    /// How many exits in a row.
    pub exits: u32,
}

impl Backoff {
    /// The back-off after a run of `ran_ms`.
    pub fn after_exit(self, policy: &BackoffPolicy, ran_ms: u64) -> Self {
        if ran_ms >= policy.forget_ms || self.exits == 0 {
            return Self { wait_ms: 0, exits: 1 };
        }
        let wait_ms = if self.wait_ms == 0 { policy.first_ms } else { (self.wait_ms * 2).min(policy.most_ms) };
        Self { wait_ms, exits: self.exits.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_ten_seconds_to_five_minutes() {
        let policy = BackoffPolicy::default();
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            backoff = backoff.after_exit(&policy, 1_000);
            waits.push(backoff.wait_ms / 1000);
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_minutes_of_running_are_forgiven() {
        let policy = BackoffPolicy::default();
        let worn = Backoff { wait_ms: 300_000, exits: 9 };
        assert_eq!(worn.after_exit(&policy, 599_999).wait_ms, 300_000);
        assert_eq!(worn.after_exit(&policy, 600_000).wait_ms, 0);
    }
}
