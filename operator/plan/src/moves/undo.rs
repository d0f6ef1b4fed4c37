//! When a run is undone: wishes and the deadline. Before the commit point an abort is local; a switch that may still be under way is
//! fenced first; after the commit point only a rollback is possible, and only until the window is over. An abort outranks all else.

use super::Context;
use super::record::{Blocked, Direction, Outcome, Record, RollbackWindow, Step, Wish};

/// Looks at wishes and the deadline, after an answer was heard and before the next request is chosen.
pub(super) fn heed(record: &mut Record, context: &Context) {
    if record.outcome.is_some() {
        return;
    }
    record.wish = None;
    if context.wishes.abort {
        if record.is_committed() || record.direction == Direction::Back {
            record.wish = Some(Wish::TooLateToAbort);
        } else {
            begin_abort(record, context.now_ms, "AbortRequested", "spec.abort is set");
        }
    }
    if !record.is_committed() && !is_undoing(record) && context.now_ms >= record.spec.deadline_ms {
        let waited = record.blocked_by.as_ref().map(|blocked| format!("; last waiting for: {}", blocked.message));
        let message = format!("spec.deadlineSeconds passed before the commit point{}", waited.unwrap_or_default());
        begin_abort(record, context.now_ms, "DeadlineExceeded", &message);
    }
    if context.wishes.rollback && !is_undoing(record) {
        match record.rollback_window() {
            RollbackWindow::NotYet => record.wish = Some(Wish::TooEarlyToRollBack),
            RollbackWindow::Over => record.wish = Some(Wish::TooLateToRollBack),
            // A switch under way is settled first: its unit is on one side or the other then.
            RollbackWindow::Open(_) if matches!(record.step, Step::Switch | Step::Settle | Step::Failover) => {}
            RollbackWindow::Open(_) => begin_rollback(record),
        }
    }
}

fn is_undoing(record: &Record) -> bool {
    let releasing = record.step == Step::Release && !record.is_committed();
    record.direction == Direction::Back || releasing || matches!(record.step, Step::AbortFence | Step::AbortForget)
}

/// Starts to undo a run that has no commit point behind it.
pub(super) fn begin_abort(record: &mut Record, now_ms: i64, reason: &str, message: &str) {
    if is_undoing(record) {
        return;
    }
    record.undo_reason = Some(Blocked { reason: reason.to_owned(), message: message.to_owned() });
    if record.units.iter().any(|unit| unit.sent) {
        // Only the subject at the cursor can have a switch under way.
        record.go(Step::AbortFence);
    } else if record.units.iter().any(|unit| unit.warmed) {
        record.go_first(Step::AbortForget);
    } else {
        finish_abort(record, now_ms);
    }
}

pub(super) fn finish_abort(record: &mut Record, now_ms: i64) {
    let why = record.undo_reason.clone();
    let (reason, message) = why.map(|why| (why.reason, why.message)).unwrap_or_default();
    record.finish(Outcome::Aborted { reason, message }, now_ms);
}

fn begin_rollback(record: &mut Record) {
    record.direction = Direction::Back;
    record.source_dead_since_ms = None;
    record.undo_reason = Some(Blocked { reason: "RollbackRequested".into(), message: "spec.rollback is set".into() });
    record.go_first(Step::Warm);
}
