//! When and where a request is tried again. Pure but for the jitter, which its caller adds.

use std::time::Duration;

use cell_proto::v1::{Reason, Refusal};

use super::CallError;

/// Redirects followed without a pause.
const MAX_HOPS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What to do after a try.
pub(super) enum Step {
    /// Try there at once.
    At(String),
    /// Wait, then try what the directory says.
    Pause(Duration),
}

/// The state of one request's tries.
pub(super) struct Retrying {
    writes: bool,
    /// A try may have been committed.
    unknown: bool,
    last: Reason,
    hops: u32,
    pause: Duration,
}

impl Retrying {
    /// Before the first try. `writes` says whether a try may change something.
    pub(super) fn new(writes: bool) -> Self {
        Self { writes, unknown: false, last: Reason::Unspecified, hops: 0, pause: FIRST_PAUSE }
    }

    fn next_pause(&mut self) -> Step {
        let pause = self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.hops = 0;
        Step::Pause(pause)
    }

    pub(super) fn no_owner(&mut self) -> Step {
        self.last = Reason::NotOwner;
        self.next_pause()
    }

    pub(super) fn broken(&mut self) -> Step {
        self.unknown |= self.writes;
        self.last = Reason::StoreUnavailable;
        self.next_pause()
    }

    pub(super) fn refused(&mut self, refusal: &Refusal, elsewhere: bool, address: String) -> Step {
        self.last = refusal.why();
        self.unknown |= self.last == Reason::UnknownOutcome;
        if elsewhere && !address.is_empty() && self.hops < MAX_HOPS {
            self.hops += 1;
            return Step::At(address);
        }
        if refusal.retry_after_ms > 0 {
            self.hops = 0;
            return Step::Pause(Duration::from_millis(u64::from(refusal.retry_after_ms)).min(LONGEST_PAUSE * 2));
        }
        self.next_pause()
    }

    pub(super) fn give_up(&self) -> CallError {
        self.unless_unknown(CallError::TimedOut { last: self.last })
    }

    /// The error that says that nothing was done, unless something may have been.
    pub(super) fn unless_unknown(&self, error: CallError) -> CallError {
        if self.unknown { CallError::OutcomeUnknown } else { error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_at_once_but_not_in_circles() {
        let mut state = Retrying::new(false);
        let refusal = Refusal::new(Reason::NotOwner, "");
        for _ in 0..MAX_HOPS {
            assert!(matches!(state.refused(&refusal, true, "a:1".into()), Step::At(_)));
        }
        assert!(matches!(state.refused(&refusal, true, "a:1".into()), Step::Pause(_)));
    }

    #[test]
    fn a_write_that_may_have_happened_is_never_said_to_have_failed() {
        let mut state = Retrying::new(true);
        state.broken();
        state.refused(&Refusal::new(Reason::Wait, ""), false, String::new());
        assert_eq!(state.give_up(), CallError::OutcomeUnknown);
        let mut read = Retrying::new(false);
        read.broken();
        assert!(matches!(read.give_up(), CallError::TimedOut { .. }));
        let mut held = Retrying::new(true);
        held.refused(&Refusal::new(Reason::Wait, "").retry_after_ms(50), false, String::new());
        assert_eq!(held.give_up(), CallError::TimedOut { last: Reason::Wait });
    }
}
