//! One reason enum feeds logs, metrics, conditions, client errors and CLI text: this file gives each its stable label.

use crate::v1::{Reason, Refusal, Route};

impl Reason {
    /// The stable CamelCase name, for conditions, metric labels and log fields.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unspecified => "Unspecified",
            Self::NotOwner => "NotOwner",
            Self::Wait => "Wait",
            Self::StaleTerm => "StaleTerm",
            Self::StalePolicy => "StalePolicy",
            Self::StaleGuildTerm => "StaleGuildTerm",
            Self::DeadlinePassed => "DeadlinePassed",
            Self::DeadlineTooFar => "DeadlineTooFar",
            Self::Overloaded => "Overloaded",
            Self::UnknownOutcome => "UnknownOutcome",
            Self::NotFound => "NotFound",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid",
            Self::AlreadyExists => "AlreadyExists",
            Self::StoreUnavailable => "StoreUnavailable",
            Self::OtherLog => "OtherLog",
            Self::Draining => "Draining",
            Self::TooLarge => "TooLarge",
            Self::BehindRetention => "BehindRetention",
            Self::Unsupported => "Unsupported",
            Self::OtherRun => "OtherRun",
            Self::Migrating => "Migrating",
            Self::CopyNotReady => "CopyNotReady",
            Self::StoreFull => "StoreFull",
        }
    }

    /// Whether the same request may succeed later or elsewhere without being changed.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::NotOwner
                | Self::Wait
                | Self::StaleTerm
                | Self::StalePolicy
                | Self::StaleGuildTerm
                | Self::Overloaded
                | Self::UnknownOutcome
                | Self::StoreUnavailable
                | Self::StoreFull
                | Self::OtherLog
                | Self::Draining
        )
    }
}

impl Refusal {
    /// A refusal without a route or hint.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into(), retry_after_ms: 0, route: None }
    }

    /// Adds the time after which a retry makes sense, in milliseconds.
    #[must_use]
    pub fn retry_after_ms(mut self, milliseconds: u32) -> Self {
        self.retry_after_ms = milliseconds;
        self
    }

    /// Adds where to go instead.
    #[must_use]
    pub fn with_route(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// The reason as the enum; unknown numbers of a newer peer read as `Unspecified`.
    pub fn why(&self) -> Reason {
        Reason::try_from(self.reason).unwrap_or(Reason::Unspecified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_a_newer_peer_reads_as_unspecified() {
        let refusal = Refusal { reason: 9999, ..Refusal::new(Reason::Wait, "") };
        assert_eq!(refusal.why(), Reason::Unspecified);
    }

    #[test]
    fn labels_are_distinct() {
        let labels: std::collections::HashSet<_> =
            (0..64).filter_map(|number| Reason::try_from(number).ok()).map(Reason::label).collect();
        assert_eq!(labels.len(), (0..64).filter(|number| Reason::try_from(*number).is_ok()).count());
    }
}
