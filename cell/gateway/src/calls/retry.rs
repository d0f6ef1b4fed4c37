//! What may be said of a request that was given up: that nothing was done, or that its outcome is not known. Pure.

use cell_proto::v1::{Reason, Refusal};
use cell_runtime::retry::{Retry, Step};

use super::CallError;

/// The state of one request's tries.
pub(super) struct Retrying {
    writes: bool,
    /// A try may have been committed.
    unknown: bool,
    last: Reason,
    retry: Retry,
}

impl Retrying {
    /// Before the first try. `writes` says whether a try may change something.
    pub(super) fn new(writes: bool) -> Self {
        Self { writes, unknown: false, last: Reason::Unspecified, retry: Retry::default() }
    }

    pub(super) fn no_owner(&mut self) -> Step {
        self.last = Reason::NotOwner;
        Step::Pause(self.retry.pause(0))
    }

    pub(super) fn broken(&mut self) -> Step {
        self.unknown |= self.writes;
        self.last = Reason::StoreUnavailable;
        Step::Pause(self.retry.pause(0))
    }

    pub(super) fn refused(&mut self, refusal: &Refusal, elsewhere: Option<String>) -> Step {
        self.last = refusal.why();
        self.unknown |= self.last == Reason::UnknownOutcome;
        self.retry.refused(refusal, elsewhere)
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
    fn a_write_that_may_have_happened_is_never_said_to_have_failed() {
        let mut state = Retrying::new(true);
        state.broken();
        state.refused(&Refusal::new(Reason::Wait, ""), None);
        assert_eq!(state.give_up(), CallError::OutcomeUnknown);
        let mut read = Retrying::new(false);
        read.broken();
        assert!(matches!(read.give_up(), CallError::TimedOut { .. }));
        let mut held = Retrying::new(true);
        held.refused(&Refusal::new(Reason::Wait, "").retry_after_ms(50), None);
        assert_eq!(held.give_up(), CallError::TimedOut { last: Reason::Wait });
    }
}
