//! What an answer means for a run. A definite refusal changes nothing and is retried; an unknown outcome of a switch is settled by a
//! serial read; the head alone says whether the commit point is behind.

use super::record::{Direction, Outcome, Record, Step, Subject};
use super::request::{HeadFact, RefusalKind, Response, Role};
use super::tuning::Tuning;
use super::{Context, undo};
use crate::checks::MoveRefusal;

pub(super) fn hear(record: &mut Record, context: &Context, response: &Response) {
    if notice_dead_source(record, context.now_ms, response) {
        return;
    }
    match (record.step, response) {
        (Step::Validate, Response::Head(head)) => validate(record, context.now_ms, head.as_ref()),
        (Step::ValidateBucket, Response::Head(head)) => validate_bucket(record, context.now_ms, head.as_ref()),
        (Step::Measure | Step::Settle, Response::Head(head)) => measure(record, context.now_ms, head.as_ref()),
        (Step::TakeOver | Step::PointAway, Response::Head(head)) => renew_term(record, context.now_ms, head.as_ref()),
        (Step::Warm, Response::Warmed { ready, position }) => warmed(record, context.now_ms, *ready, *position),
        (Step::Prove, Response::Reached { reached, position }) => proved(record, context.now_ms, *reached, *position),
        (Step::Switch, Response::Switched { term, at, held_us }) => {
            record.held_us = record.held_us.max(*held_us);
            switched(record, *term, *at);
        }
        (Step::Failover | Step::AbortFence, Response::Claimed { cell, term }) => {
            claimed(record, context.now_ms, cell, *term);
        }
        (_, Response::Done) => done(record, context.now_ms),
        (Step::Switch | Step::Failover, Response::Unknown { .. }) => {
            record.go(Step::Settle);
        }
        (_, Response::Refused { kind, reason, message, retry_after_ms }) => {
            let refusal = Refusal { kind: *kind, reason, message, retry_after_ms: *retry_after_ms };
            refused(record, context.now_ms, &refusal);
        }
        (_, Response::Unknown { message }) => failed(record, context.now_ms, 0, "Waiting", message),
        (_, Response::NoMember { cell, role }) => {
            let what = match role {
                Role::Data => "data service",
                Role::Guild => "guild node",
            };
            nobody(record, context.now_ms, &format!("cell {cell} has no live {what}"));
        }
        (_, Response::Pending) => failed(record, context.now_ms, 0, "Waiting", "accepted, not finished"),
        // An answer to another question: the request of this step is asked again.
        _ => failed(record, context.now_ms, 0, "Waiting", "the answer does not fit the question"),
    }
}

/// A source that shows no data service for long enough is dead: its log is claimed at the target. Only where a claim can help: once
/// the run has checked everything, and before the head has changed.
fn notice_dead_source(record: &mut Record, now_ms: i64, response: &Response) -> bool {
    if matches!(response, Response::NoMember { .. })
        && let Some(unit) = record.unit()
    {
        unit.sent = unit.unsettled;
    }
    let Response::NoMember { cell, role: Role::Data } = response else {
        // Only what the source's data service itself takes part in shows that it lives; heads can be read elsewhere.
        if matches!((record.step, response), (Step::Switch, _) | (_, Response::Warmed { .. })) {
            record.source_dead_since_ms = None;
        }
        return false;
    };
    if cell != record.source() {
        return false;
    }
    let since = *record.source_dead_since_ms.get_or_insert(now_ms);
    let can_claim = matches!(record.step, Step::Warm | Step::Measure | Step::Switch | Step::Settle);
    if !can_claim || now_ms - since < Tuning::SOURCE_DEAD_AFTER_MS {
        return false;
    }
    record.go(Step::Failover);
    true
}

fn validate(record: &mut Record, now_ms: i64, head: Option<&HeadFact>) {
    let Some(subject) = record.subject().cloned() else { return };
    let log = subject.log().to_owned();
    match (head, &subject) {
        (Some(head), _) if !head.merged => {
            if head.cell == record.spec.from {
                fits(record, head.term, head.last);
            } else {
                let expected = record.spec.from.clone();
                refuse(record, now_ms, &MoveRefusal::NotAtSource { unit: log, actual: head.cell.clone(), expected });
            }
        }
        (_, Subject::Guild { may_split: true, .. }) if !record.spec.merge => record.go(Step::ValidateBucket),
        _ => refuse(record, now_ms, &MoveRefusal::NoHead(log)),
    }
}

fn fits(record: &mut Record, term: u64, last: u64) {
    if let Some(unit) = record.unit() {
        (unit.checked, unit.term, unit.last) = (true, term, last);
    }
    if record.spec.merge {
        record.go(Step::ValidateBucket);
    } else {
        record.cursor += 1;
        record.go(Step::Validate);
    }
}

fn validate_bucket(record: &mut Record, now_ms: i64, head: Option<&HeadFact>) {
    let Some(Subject::Guild { guild_id, bucket, .. }) = record.subject().cloned() else { return };
    let Some(head) = head else {
        refuse(record, now_ms, &MoveRefusal::NoHead(bucket));
        return;
    };
    if record.spec.merge {
        if head.cell == record.spec.to {
            record.cursor += 1;
            record.go(Step::Validate);
        } else {
            refuse(record, now_ms, &MoveRefusal::NotBucketCell { guild_id, bucket_cell: head.cell.clone() });
        }
    } else if head.cell == record.spec.from {
        record.go(Step::Split);
    } else {
        let expected = record.spec.from.clone();
        refuse(record, now_ms, &MoveRefusal::NotAtSource { unit: bucket, actual: head.cell.clone(), expected });
    }
}

/// Nothing was changed yet, or what was (a split) is harmless.
fn refuse(record: &mut Record, now_ms: i64, refusal: &MoveRefusal) {
    let outcome = Outcome::Refused { reason: refusal.label().to_owned(), message: refusal.to_string() };
    record.finish(outcome, now_ms);
}

fn warmed(record: &mut Record, now_ms: i64, ready: bool, position: u64) {
    record.watermark = record.watermark.max(position);
    if ready {
        record.go(Step::Standby);
    } else {
        record.retry(now_ms, 0, "Waiting", "the target's guild node loads its snapshot");
    }
}

fn proved(record: &mut Record, now_ms: i64, reached: bool, position: u64) {
    record.watermark = record.watermark.max(position);
    if reached {
        record.go(Step::Switch);
    } else {
        record.retry(now_ms, 0, "Waiting", "the target's guild node is behind the log");
    }
}

/// The head was read before a switch, or to settle one.
fn measure(record: &mut Record, now_ms: i64, head: Option<&HeadFact>) {
    let Some(head) = head else {
        failed(record, now_ms, 0, "NoHead", "the log has no head");
        return;
    };
    if head.cell == record.target() {
        switched(record, head.term, head.last);
        return;
    }
    if head.cell != record.source() {
        let message = format!("the head names cell {}, which this run knows nothing of", head.cell);
        if record.is_committed() {
            failed(record, now_ms, 0, "NotAtSource", &message);
        } else {
            record.units.iter_mut().for_each(|unit| (unit.sent, unit.unsettled) = (false, false));
            undo::begin_abort(record, now_ms, "NotAtSource", &message);
        }
        return;
    }
    if record.step == Step::Settle && head.closed_by.as_deref() == Some(&record.spec.run_id) {
        record.retry(now_ms, 0, "Waiting", "the switch is under way at its data owner");
        return;
    }
    let settling = record.step == Step::Settle;
    let Some(unit) = record.unit() else { return };
    if settling && unit.term == head.term {
        record.go(Step::Switch);
        return;
    }
    if unit.term != head.term {
        // A raised term refuses every switch sent before.
        (unit.sent, unit.unsettled) = (false, false);
    }
    (unit.term, unit.last) = (head.term, head.last);
    record.go(Step::Prove);
}

/// The head names the target: the commit point is behind.
fn switched(record: &mut Record, term: u64, at: u64) {
    let forward = record.direction == Direction::Forward;
    record.watermark = record.watermark.max(at);
    if let Some(unit) = record.unit() {
        (unit.sent, unit.unsettled, unit.moved, unit.term) = (false, false, forward, term);
    }
    record.source_dead_since_ms = None;
    record.failed_switches = 0;
    record.go(Step::TakeOver);
}

/// The owner's claim raises the term after a switch; a guild node refuses a route that names an older one.
fn renew_term(record: &mut Record, now_ms: i64, head: Option<&HeadFact>) {
    let fits = head.filter(|head| head.cell == record.target()).map(|head| head.term);
    match (fits, record.unit()) {
        (Some(term), Some(unit)) => unit.term = term,
        _ => {
            let cell = head.map_or("none", |head| head.cell.as_str());
            let message = format!("the head names cell {cell} after the switch, which this run knows nothing of");
            record.retry(now_ms, 0, "NotAtSource", &message);
        }
    }
}

fn claimed(record: &mut Record, now_ms: i64, cell: &str, term: u64) {
    if cell == record.target() {
        // Also the answer to a fence that came too late: the commit point is behind, the abort is refused.
        record.undo_reason = if record.direction == Direction::Back { record.undo_reason.take() } else { None };
        switched(record, term, 0);
        return;
    }
    let raised = record.unit().is_some_and(|unit| term > unit.term);
    // An owner that lives keeps its term. Its switch is bounded by its hold limit, so that after a while none can be under way.
    let outwaited = now_ms - record.step_since_ms >= Tuning::SWITCH_OVER_AFTER_MS;
    if record.step == Step::AbortFence && (raised || outwaited) {
        if let Some(unit) = record.unit() {
            (unit.sent, unit.unsettled, unit.term) = (false, false, term);
        }
        record.go_first(Step::AbortForget);
        return;
    }
    record.retry(now_ms, 0, "Waiting", &format!("the claim left the head with cell {cell} at term {term}"));
}

fn done(record: &mut Record, now_ms: i64) {
    match record.step {
        Step::Split => {
            record.go(Step::Validate);
            // A pause, so that a head that does not show up is not asked for in a tight loop.
            record.not_before_ms = now_ms + Tuning::FIRST_PAUSE_MS;
        }
        Step::Standby => next_subject(record, Step::Warm),
        Step::TakeOver => record.go(Step::PointAway),
        Step::PointAway => next_subject(record, Step::Measure),
        Step::Forget | Step::Release | Step::AbortForget | Step::Merge => next_subject(record, record.step),
        _ => {}
    }
}

fn next_subject(record: &mut Record, step: Step) {
    // After a rewarm the cursor stands at the subject whose switch was refused.
    if step == Step::Warm && record.failed_switches > 0 {
        record.failed_switches = 0;
        record.go(Step::Measure);
        return;
    }
    record.cursor += 1;
    record.failed_switches = 0;
    record.go(step);
}

struct Refusal<'a> {
    kind: RefusalKind,
    reason: &'a str,
    message: &'a str,
    retry_after_ms: u32,
}

fn refused(record: &mut Record, now_ms: i64, refusal: &Refusal<'_>) {
    let undoable = !record.is_committed() && record.direction == Direction::Forward;
    match (record.step, refusal.kind) {
        (Step::Switch, kind) if kind != RefusalKind::Permanent => refused_switch(record, now_ms, refusal),
        (Step::Prove, RefusalKind::Missing | RefusalKind::Stale) => rewarm(record, now_ms, refusal),
        (Step::Forget | Step::Release | Step::AbortForget | Step::Standby | Step::PointAway, RefusalKind::Missing) => {
            done(record, now_ms)
        }
        // What it holds is not this run any more.
        (Step::Forget | Step::Release | Step::AbortForget, RefusalKind::OtherRun | RefusalKind::Stale) => {
            done(record, now_ms)
        }
        (Step::TakeOver | Step::PointAway, RefusalKind::Stale) => {
            if let Some(unit) = record.unit() {
                unit.term = 0;
            }
            record.retry(now_ms, refusal.retry_after_ms, refusal.reason, refusal.message);
        }
        (Step::Merge, RefusalKind::Permanent) if record.spec.is_merge_in_place() => {
            let outcome = Outcome::Refused { reason: refusal.reason.to_owned(), message: refusal.message.to_owned() };
            record.finish(outcome, now_ms);
        }
        (Step::Validate | Step::ValidateBucket | Step::Split | Step::Warm, RefusalKind::Permanent) => {
            undo::begin_abort(record, now_ms, refusal.reason, refusal.message);
        }
        (Step::Split, RefusalKind::Missing) => undo::begin_abort(record, now_ms, "GuildNotFound", refusal.message),
        (Step::Switch, RefusalKind::Permanent) if undoable => {
            if let Some(unit) = record.unit() {
                unit.sent = unit.unsettled;
            }
            undo::begin_abort(record, now_ms, refusal.reason, refusal.message);
        }
        _ => failed(record, now_ms, refusal.retry_after_ms, refusal.reason, refusal.message),
    }
}

/// Nothing happened. The head is read again: its term or last number may be old, or the target behind.
fn refused_switch(record: &mut Record, now_ms: i64, refusal: &Refusal<'_>) {
    if let Some(unit) = record.unit() {
        unit.sent = unit.unsettled;
    }
    record.failed_switches = record.failed_switches.saturating_add(1);
    let tries = record.failed_switches;
    let rewarm = tries.is_multiple_of(Tuning::SWITCHES_BEFORE_REWARM);
    record.go(if rewarm { Step::Warm } else { Step::Measure });
    record.attempt = tries.saturating_sub(1);
    record.retry(now_ms, refusal.retry_after_ms, refusal.reason, refusal.message);
}

fn rewarm(record: &mut Record, now_ms: i64, refusal: &Refusal<'_>) {
    let tries = record.failed_switches.saturating_add(1);
    record.failed_switches = tries;
    record.go(Step::Warm);
    record.attempt = tries.saturating_sub(1);
    record.retry(now_ms, refusal.retry_after_ms, refusal.reason, refusal.message);
}

/// Tries again later; gives a courtesy up after a few tries, and a live guild node's hold on the run after minutes.
fn failed(record: &mut Record, now_ms: i64, hint_ms: u32, reason: &str, message: &str) {
    let tried_enough = record.attempt + 1 >= Tuning::COURTESY_TRIES;
    match record.step {
        Step::Standby | Step::PointAway if tried_enough => done(record, now_ms),
        Step::Forget | Step::Release | Step::AbortForget => {
            let left_ms = record.step_since_ms.saturating_add(Tuning::FORGET_FOR_MS) - now_ms;
            if tried_enough && left_ms <= 0 {
                return done(record, now_ms);
            }
            let message = format!(
                "a guild node has not let the run go and would refuse the next one: {message}; asked again for {} s",
                left_ms.max(0) / 1000
            );
            record.retry(now_ms, hint_ms, reason, &message);
        }
        _ => record.retry(now_ms, hint_ms, reason, message),
    }
}

/// Nobody lives there to hear it. Whoever held the run has ended, and its hold with it.
fn nobody(record: &mut Record, now_ms: i64, message: &str) {
    let tidies = matches!(record.step, Step::Forget | Step::Release | Step::AbortForget);
    if tidies && record.attempt + 1 >= Tuning::COURTESY_TRIES {
        done(record, now_ms);
    } else if tidies {
        record.retry(now_ms, 0, "Waiting", message);
    } else {
        failed(record, now_ms, 0, "Waiting", message);
    }
}
