//! Sweeps over all logs: having them shipped, seeing that copies were not begun anew, releasing them. One that is not ready does not
//! keep the others waiting: it is passed over, and the sweep comes back to it.

use std::sync::Arc;

use super::record::{Direction, Log, Record, Step};
use super::request::{Response, ShipFact};
use super::{Context, Tuning};

/// In place of a time: the copy was given up.
const GIVEN_UP: i64 = i64::MIN;

/// How many logs the sweep of this step has.
pub(super) fn length(record: &Record) -> usize {
    if record.step == Step::End { record.logs.len() + record.there.len() } else { record.logs.len() }
}

/// The log at the sweep's place.
pub(super) fn log(record: &Record) -> Option<&Log> {
    let place = record.sweep.0;
    match record.step {
        Step::End => record.logs.get(place).or_else(|| record.there.get(place - record.logs.len().min(place))),
        _ => record.logs.get(place),
    }
}

fn done(record: &mut Record) {
    record.sweep.0 += 1;
    if record.sweep.1 == 0 {
        record.attempt = 0;
        record.blocked_by = None;
    }
    back_to_the_passed_over(record, None);
}

/// Goes on to the next one; back to the first passed over after a pause when there are many, or none is left.
fn pass_over(record: &mut Record, context: &Context, reason: &str, message: &str) {
    if record.sweep.1 == 0 {
        record.sweep.2 = record.sweep.0;
    }
    record.sweep.1 += 1;
    record.sweep.0 += 1;
    let log = record.sweep.0.checked_sub(1).and_then(|place| record.logs.get(place)).map(|log| log.name.clone());
    let message = log.map_or_else(|| message.to_owned(), |log| format!("log {log}: {message}"));
    back_to_the_passed_over(record, Some((context.now_ms, reason, &message)));
}

fn back_to_the_passed_over(record: &mut Record, why: Option<(i64, &str, &str)>) {
    if record.sweep.1 == 0 {
        return;
    }
    let over = record.sweep.0 >= length(record) || record.sweep.1 >= Tuning::MOST_PASSED_OVER;
    if let Some((now_ms, reason, message)) = why {
        let attempt = record.attempt;
        record.retry(now_ms, 0, reason, message);
        if !over {
            (record.not_before_ms, record.attempt) = (0, attempt);
        }
    }
    if over {
        record.sweep = (record.sweep.2, 0, record.sweep.2);
    }
}

/// Nothing is copied yet: how often the copy was begun anew before does not matter.
fn begin_counting(record: &mut Record, log: &Log, fact: &ShipFact) {
    if fact.restarts > 0 {
        record.restarts.insert(log.name.clone(), fact.restarts);
    }
}

/// Remembers that a copy was begun anew since its unit was copied. Answers whether it was.
pub(super) fn notice_restarts(record: &mut Record, log: &Log, fact: &ShipFact) -> bool {
    let known = record.restarts.get(&log.name).copied().unwrap_or_default();
    if fact.restarts <= known {
        return false;
    }
    record.restarts.insert(log.name.clone(), fact.restarts);
    record.again.insert(log.unit.clone());
    record.backfilled = false;
    record.discard_receipt();
    true
}

/// Keeps how often the copy in the source had been begun anew, or that it was since.
fn notice_way_back(record: &mut Record, log: &Log, fact: &ShipFact) {
    let place = record.sweep.0;
    match record.back.get(&log.name) {
        Some(known) if *known == fact.restarts => {}
        Some(_) => record.no_way_back = Some(record.no_way_back.map_or(place, |from| from.min(place))),
        None if fact.restarts > 0 => {
            record.back.insert(log.name.clone(), fact.restarts);
        }
        None => {}
    }
}

/// Whether the copy in the source holds all that was acknowledged since its cutover: it was not begun anew.
pub(super) fn is_whole_back(record: &mut Record, log: &Log, fact: &ShipFact) -> bool {
    if record.no_way_back.is_some_and(|from| record.cut > from) {
        return false;
    }
    match record.back.get(&log.name) {
        Some(known) => *known == fact.restarts,
        None if record.back_known => fact.restarts == 0,
        // Nobody looked since the cutover; what is found now is what the cutover must find.
        None => {
            record.back.insert(log.name.clone(), fact.restarts);
            true
        }
    }
}

/// The answer for the log at the sweep's place.
pub(super) fn shipped(record: &mut Record, context: &Context, fact: &ShipFact) {
    let Some(log) = log(record).cloned() else { return };
    let place = record.sweep.0;
    let serves_target = fact.serving == record.spec.target;
    if !serves_target && fact.serving != record.spec.source {
        let message = format!("StorageCell {} serves it, which this run knows nothing of", fact.serving);
        return pass_over(record, context, "NotAtSource", &message);
    }
    match record.step {
        Step::ReverseSweep if !serves_target => {
            return pass_over(record, context, "Waiting", "the target does not serve it");
        }
        Step::Ship | Step::Resweep if serves_target && place >= record.cut => {
            // It was there before this run: only its copy is to be released at the end.
            Arc::make_mut(&mut record.logs).remove(place);
            if place < record.positions.len() {
                Arc::make_mut(&mut record.positions).remove(place);
            }
            Arc::make_mut(&mut record.there).push(log);
            back_to_the_passed_over(record, None);
            return;
        }
        Step::ReverseSweep if fact.blocked_by.is_empty() => notice_way_back(record, &log, fact),
        Step::Ship if !record.copied => begin_counting(record, &log, fact),
        Step::Ship | Step::Resweep if place >= record.cut => {
            notice_restarts(record, &log, fact);
            if record.step == Step::Resweep {
                let positions = Arc::make_mut(&mut record.positions);
                positions.resize(record.logs.len(), 0);
                positions[place] = fact.last;
            }
        }
        _ => {}
    }
    if fact.blocked_by.is_empty() {
        done(record);
    } else {
        pass_over(record, context, "CopyBehind", &fact.blocked_by);
    }
}

/// A sweep's request that did not succeed.
pub(super) fn failed(record: &mut Record, context: &Context, reason: &str, message: &str) {
    let may_leave = record.direction == Direction::Back || context.wishes.ignore_unreachable;
    if record.step == Step::End
        && let Some(log) = log(record).map(|log| log.name.clone())
    {
        let since_ms = *record.unreleased.entry(log.clone()).or_insert(context.now_ms);
        if since_ms == GIVEN_UP {
            return done(record);
        }
        if may_leave && context.now_ms - since_ms >= Tuning::RELEASE_FOR_MS {
            record.left_behind = record.left_behind.saturating_add(1);
            record.unreleased.insert(log, GIVEN_UP);
            return done(record);
        }
    }
    let hint = match (record.step, record.direction) {
        (Step::End, Direction::Forward) => {
            format!("{message}; cellctl migration complete --ignore-unreachable ends the run without it")
        }
        _ => message.to_owned(),
    };
    pass_over(record, context, reason, &hint);
}

/// The answer to a release.
pub(super) fn released(record: &mut Record, context: &Context, response: &Response) {
    match response {
        Response::Done => {
            let known = log(record).map(|log| log.name.clone()).and_then(|log| record.unreleased.remove(&log));
            if known == Some(GIVEN_UP) {
                record.left_behind = record.left_behind.saturating_sub(1);
            }
            done(record);
        }
        // Somebody is at it: that is no failure.
        _ => {
            if let Some(log) = log(record).map(|log| log.name.clone()) {
                record.unreleased.remove(&log);
            }
            pass_over(record, context, "Waiting", "the copy is being released");
        }
    }
}
