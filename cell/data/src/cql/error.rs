//! What a failed statement means for the trait: whether something may have happened. When in doubt it may have.

use cell_store::StoreError;
use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};

/// What kind of statement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It changes nothing.
    Read,
    /// It may be repeated; the driver does so.
    Write,
    /// It is sent once.
    Condition,
}

/// Whether no node was reached: nothing was sent by the last attempt.
pub(super) fn is_unreached(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::EmptyPlan
            | ExecutionError::ConnectionPoolError(_)
            | ExecutionError::PrepareError(PrepareError::ConnectionPoolError(_))
    )
}

/// Whether the server refused it before doing anything.
fn is_refused(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::BadQuery(_)
            | ExecutionError::PrepareError(_)
            | ExecutionError::LastAttemptError(
                RequestAttemptError::SerializationError(_)
                    | RequestAttemptError::CqlRequestSerialization(_)
                    | RequestAttemptError::UnableToAllocStreamId
                    | RequestAttemptError::DbError(
                        DbError::SyntaxError
                            | DbError::Invalid
                            | DbError::Unauthorized
                            | DbError::AuthenticationError
                            | DbError::ConfigError
                            | DbError::IsBootstrapping
                            | DbError::ProtocolError,
                        _
                    )
            )
    )
}

/// What the database said, where it said anything.
fn said(error: &ExecutionError) -> Option<&DbError> {
    match error {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(said, _))
        | ExecutionError::PrepareError(PrepareError::AllAttemptsFailed {
            first_attempt: RequestAttemptError::DbError(said, _),
        }) => Some(said),
        _ => None,
    }
}

/// Whether the same statement fails again until somebody changes something at the database: a privilege, the schema, or what is read
/// or written (too many tombstones, too large a row). Everything else may pass.
pub fn is_lasting(error: &ExecutionError) -> bool {
    let lasting = |said: &DbError| {
        matches!(
            said,
            DbError::SyntaxError
                | DbError::Invalid
                | DbError::Unauthorized
                | DbError::ReadFailure { .. }
                | DbError::WriteFailure { .. }
                | DbError::FunctionFailure { .. }
        )
    };
    let garbled = matches!(
        error,
        ExecutionError::BadQuery(_)
            | ExecutionError::LastAttemptError(
                RequestAttemptError::SerializationError(_)
                    | RequestAttemptError::CqlRequestSerialization(_)
                    | RequestAttemptError::CqlResultParseError(_)
            )
    );
    garbled || said(error).is_some_and(lasting)
}

/// The trait's error.
pub(super) fn failed(error: &ExecutionError, effect: Effect) -> StoreError {
    let text = error.to_string();
    let nothing_happened = match effect {
        Effect::Read => true,
        Effect::Write => is_refused(error),
        // A condition's "unavailable" may come from its second round: only what was never sent is known not to have happened.
        Effect::Condition => is_refused(error) || is_unreached(error),
    };
    match (nothing_happened, is_lasting(error)) {
        (true, true) => StoreError::Refused(text),
        (true, false) => StoreError::Unavailable(text),
        (false, _) => StoreError::UnknownOutcome(text),
    }
}

/// A row is not what its statement asked for.
pub(super) fn unreadable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("a row of another shape than asked for: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn database(error: DbError) -> ExecutionError {
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
    }

    #[test]
    fn a_timeout_of_a_condition_is_an_unknown_outcome_and_of_a_read_none() {
        let timeout = ExecutionError::RequestTimeout(Duration::from_secs(5));
        assert!(failed(&timeout, Effect::Condition).may_have_happened());
        assert!(failed(&timeout, Effect::Write).may_have_happened());
        assert!(!failed(&timeout, Effect::Read).may_have_happened());
        assert!(failed(&database(DbError::Overloaded), Effect::Condition).may_have_happened());
    }

    #[test]
    fn what_fails_again_and_again_is_told_apart_from_what_passes() {
        let tombstones = DbError::ReadFailure {
            consistency: scylla::statement::Consistency::Quorum,
            received: 1,
            required: 2,
            numfailures: 1,
            data_present: false,
        };
        for lasting in [tombstones, DbError::Unauthorized, DbError::Invalid, DbError::SyntaxError] {
            let error = failed(&database(lasting), Effect::Read);
            assert!(matches!(error, StoreError::Refused(_)), "{error}");
        }
        let unprepared = PrepareError::AllAttemptsFailed {
            first_attempt: RequestAttemptError::DbError(DbError::Invalid, "unconfigured table".into()),
        };
        let error = failed(&ExecutionError::PrepareError(unprepared), Effect::Read);
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
        for passing in [DbError::Overloaded, DbError::IsBootstrapping, DbError::ServerError] {
            let error = failed(&database(passing), Effect::Read);
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        }
        assert!(matches!(failed(&database(DbError::Unauthorized), Effect::Write), StoreError::Refused(_)));
    }

    #[test]
    fn what_was_never_sent_or_was_refused_did_not_happen() {
        for effect in [Effect::Condition, Effect::Write] {
            assert!(!failed(&database(DbError::Unauthorized), effect).may_have_happened());
        }
        assert!(!failed(&ExecutionError::EmptyPlan, Effect::Condition).may_have_happened());
        // A plain write is repeated by the driver: an earlier attempt may have arrived.
        assert!(failed(&ExecutionError::EmptyPlan, Effect::Write).may_have_happened());
    }
}
