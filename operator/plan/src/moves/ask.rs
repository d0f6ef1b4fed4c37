//! What a step asks. It skips what needs no request (a bucket has no guild node; a subject already on its side), waits where it must,
//! and gives at most one request.

use super::record::{Direction, Outcome, Record, Step, Subject};
use super::request::Request;
use super::{Context, undo};

/// Bound of the skipping: every skip moves on one step or one subject.
const MOST_SKIPS: usize = 16 * 64;

enum Next {
    Ask(Request),
    Wait(i64),
    Skip,
    Over,
}

pub(super) fn ask(record: &mut Record, context: &Context) -> (Option<Request>, Option<i64>) {
    for _ in 0..MOST_SKIPS {
        if record.outcome.is_none() && context.now_ms < record.not_before_ms {
            return (None, Some(record.not_before_ms));
        }
        match next(record, context) {
            Next::Ask(request) => return (Some(request), None),
            Next::Wait(until_ms) => return (None, Some(until_ms)),
            Next::Skip => {}
            Next::Over => return (None, None),
        }
    }
    record.retry(context.now_ms, 0, "Waiting", "the run's record names more subjects than one look can pass");
    (None, Some(record.not_before_ms))
}

fn next(record: &mut Record, context: &Context) -> Next {
    match record.step {
        Step::Done => Next::Over,
        Step::Hold => hold(record, context.now_ms),
        Step::Validate | Step::ValidateBucket | Step::Split => check(record, context),
        Step::Warm | Step::Standby => warm(record),
        Step::Measure | Step::Prove | Step::Switch | Step::Settle | Step::Failover => switch(record),
        Step::TakeOver | Step::PointAway => take_over(record),
        Step::Forget | Step::Release | Step::AbortForget => forget(record, context.now_ms),
        Step::Merge => merge(record, context.now_ms),
        Step::AbortFence => fence(record, context.now_ms),
    }
}

fn check(record: &mut Record, context: &Context) -> Next {
    let Some(subject) = record.subject().cloned() else {
        record.go_first(if record.spec.is_merge_in_place() { Step::Merge } else { Step::Warm });
        return Next::Skip;
    };
    if let Some(refusal) = &context.refusal {
        if refusal.may_pass() {
            record.retry(context.now_ms, 0, refusal.label(), &refusal.to_string());
            return Next::Wait(record.not_before_ms);
        }
        let (reason, message) = (refusal.label().to_owned(), refusal.to_string());
        if record.step == Step::Validate && record.cursor == 0 {
            record.finish(Outcome::Refused { reason, message }, context.now_ms);
        } else {
            undo::begin_abort(record, context.now_ms, &reason, &message);
        }
        return Next::Skip;
    }
    let cell = record.source().to_owned();
    match (record.step, subject) {
        (Step::ValidateBucket, subject) => Next::Ask(Request::Inspect { log: subject.bucket().to_owned(), cell }),
        (Step::Split, Subject::Guild { bucket, guild_id, .. }) => Next::Ask(Request::Split { bucket, guild_id, cell }),
        (_, subject) => Next::Ask(Request::Inspect { log: subject.log().to_owned(), cell }),
    }
}

/// Whether the subject at the cursor still has to change sides.
fn must_move(record: &Record) -> bool {
    let moved = record.units.get(record.cursor).is_some_and(|unit| unit.moved);
    match record.direction {
        Direction::Forward => !moved,
        Direction::Back => moved,
    }
}

fn warm(record: &mut Record) -> Next {
    let Some(subject) = record.subject().cloned() else {
        record.go_first(Step::Measure);
        return Next::Skip;
    };
    let (from, to) = (record.source().to_owned(), record.target().to_owned());
    let must_move = must_move(record);
    match subject {
        Subject::Guild { guild_id, log, bucket, .. } if must_move => {
            if record.step == Step::Standby {
                return Next::Ask(Request::AnnounceStandby { guild_id, log, from, to });
            }
            if record.direction == Direction::Forward
                && let Some(unit) = record.unit()
            {
                unit.warmed = true;
            }
            Next::Ask(Request::Warm { guild_id, log, bucket, from, to })
        }
        _ => {
            record.cursor += 1;
            record.go(Step::Warm);
            Next::Skip
        }
    }
}

fn switch(record: &mut Record) -> Next {
    let Some(subject) = record.subject().cloned() else {
        all_switched(record);
        return Next::Skip;
    };
    if !must_move(record) {
        record.cursor += 1;
        record.failed_switches = 0;
        record.go(Step::Measure);
        return Next::Skip;
    }
    let (from, to, log) = (record.source().to_owned(), record.target().to_owned(), subject.log().to_owned());
    let Some(unit) = record.unit() else { return Next::Over };
    let (term, at) = (unit.term, unit.last);
    match (record.step, subject.guild_id()) {
        (Step::Prove, None) => {
            record.go(Step::Switch);
            Next::Skip
        }
        (Step::Prove, Some(guild_id)) => Next::Ask(Request::Reach { guild_id, log, at, to }),
        (Step::Switch, guild_id) => {
            mark_sent(record);
            Next::Ask(Request::Switch { log, guild_id, from, to, term })
        }
        (Step::Failover, _) => {
            mark_sent(record);
            Next::Ask(Request::Failover { log, to })
        }
        _ => Next::Ask(Request::Inspect { log, cell: from }),
    }
}

/// Before a commit point is asked for. Asking again (after a crash or an unknown outcome) leaves two of them under way.
fn mark_sent(record: &mut Record) {
    if let Some(unit) = record.unit() {
        unit.unsettled |= unit.sent;
        unit.sent = true;
    }
}

fn all_switched(record: &mut Record) {
    match record.direction {
        Direction::Forward => record.go_first(Step::Hold),
        Direction::Back => record.go_first(Step::Forget),
    }
}

fn take_over(record: &mut Record) -> Next {
    let (from, to) = (record.source().to_owned(), record.target().to_owned());
    // The head's since the switch: a late copy of the request is refused by it.
    let term = record.units.get(record.cursor).map(|unit| unit.term).unwrap_or_default();
    match record.subject().cloned() {
        // A guild node knew a higher one: it is read again.
        Some(Subject::Guild { log, .. }) if term == 0 => Next::Ask(Request::Inspect { log, cell: to }),
        Some(Subject::Guild { guild_id, log, .. }) if record.step == Step::TakeOver => {
            Next::Ask(Request::TakeOver { guild_id, log, to, term })
        }
        Some(Subject::Guild { guild_id, log, .. }) => Next::Ask(Request::PointAway { guild_id, log, from, to, term }),
        _ => {
            record.cursor += 1;
            record.failed_switches = 0;
            record.go(Step::Measure);
            Next::Skip
        }
    }
}

fn hold(record: &mut Record, now_ms: i64) -> Next {
    let since = *record.hold_since_ms.get_or_insert(now_ms);
    let until = since.saturating_add(record.spec.rollback_window_ms);
    if now_ms < until {
        return Next::Wait(until);
    }
    record.go_first(Step::Forget);
    Next::Skip
}

/// First the side that gives up (the source of a completed run, the target of an undone one), then the side that serves, which only
/// lets the run go.
fn forget(record: &mut Record, now_ms: i64) -> Next {
    let aborting = record.direction == Direction::Forward && !record.is_committed();
    let serving = if aborting { record.spec.from.clone() } else { record.target().to_owned() };
    let cell = match record.step {
        Step::Release => serving,
        Step::AbortForget => record.spec.to.clone(),
        _ => record.source().to_owned(),
    };
    match record.subject().cloned() {
        Some(Subject::Guild { guild_id, log, .. })
            if !aborting || record.units.get(record.cursor).is_some_and(|unit| unit.warmed) =>
        {
            return Next::Ask(Request::Forget { guild_id, log, cell });
        }
        Some(_) => {
            record.cursor += 1;
            record.go(record.step);
        }
        None if record.step != Step::Release => record.go_first(Step::Release),
        None if aborting => undo::finish_abort(record, now_ms),
        None if record.direction == Direction::Back => record.finish(Outcome::RolledBack, now_ms),
        None => record.go_first(Step::Merge),
    }
    Next::Skip
}

fn merge(record: &mut Record, now_ms: i64) -> Next {
    let cell = record.spec.to.clone();
    match record.subject().cloned() {
        Some(Subject::Guild { guild_id, bucket, .. }) if record.spec.merge => {
            Next::Ask(Request::Merge { bucket, guild_id, cell })
        }
        Some(_) => {
            record.cursor += 1;
            record.go(Step::Merge);
            Next::Skip
        }
        None => {
            record.finish(Outcome::Completed, now_ms);
            Next::Skip
        }
    }
}

fn fence(record: &mut Record, now_ms: i64) -> Next {
    let log = record.subject().map(|subject| subject.log().to_owned());
    match log {
        Some(log) => Next::Ask(Request::Fence { log, cell: record.spec.from.clone() }),
        None => {
            undo::finish_abort(record, now_ms);
            Next::Skip
        }
    }
}
