//! What an answer means for a run. A definite refusal changes nothing and is tried again; an unknown outcome of a cutover is settled
//! by asking who serves; only a head says that a log is cut over.

use std::collections::HashSet;
use std::sync::Arc;

use super::record::{Direction, InHand, Log, Outcome, Record, Step};
use super::request::{CoordinatorFact, CopyFact, CutFact, RefusalKind, Response, ShipFact, Side};
use super::{Context, Tuning, ask, gates, ship, undo};

pub(super) fn hear(record: &mut Record, context: &Context, response: &Response) {
    let now_ms = context.now_ms;
    notice_life(record, now_ms, response);
    match (record.step, response) {
        (Step::ProbeSource | Step::ProbeTarget | Step::ReverseProbe, Response::Probed { ok, message }) => {
            probed(record, now_ms, *ok, message);
        }
        (Step::List | Step::Relist | Step::Recount, Response::Logs(logs)) => listed(record, now_ms, logs),
        (Step::Ship | Step::Resweep | Step::ReverseSweep, Response::Shipped(fact)) => {
            ship::shipped(record, context, fact);
        }
        (Step::End, Response::Done | Response::Pending { .. }) => ship::released(record, context, response),
        (Step::Measure, Response::Shipped(fact)) => measured(record, now_ms, fact),
        (Step::Settle, Response::Shipped(fact)) => settled(record, context, fact),
        (Step::Canary, Response::Shipped(fact)) => canary(record, context, fact),
        (Step::Cut, Response::Cut(fact)) => cut(record, *fact),
        (Step::Cut, Response::Unknown { message }) => {
            record.go_on(Step::Settle);
            record.retry(now_ms, 0, "Waiting", message);
        }
        (Step::Backfill | Step::Verify | Step::Repair, Response::Coordinator(fact)) => {
            coordinated(record, context, fact);
        }
        (Step::Shadow | Step::Hold, Response::Copies(fact)) => copies(record, context, fact),
        (_, Response::Done) => done(record, now_ms),
        (_, Response::Pending { message }) => record.wait(now_ms, Tuning::LOOK_EVERY_MS, "Waiting", message),
        (_, Response::Refused { kind, reason, message, retry_after_ms }) => {
            refused(record, context, *kind, (reason, message, *retry_after_ms));
        }
        (_, Response::Unknown { message } | Response::Nobody { message }) => {
            failed(record, context, 0, "Waiting", message);
        }
        _ => failed(record, context, 0, "Waiting", "the answer does not fit the question"),
    }
}

/// Keeps since when nobody that knows the log in hand answers.
fn notice_life(record: &mut Record, now_ms: i64, response: &Response) {
    if !matches!(record.step, Step::Measure | Step::Cut | Step::Settle) {
        return;
    }
    let silent = match response {
        Response::Nobody { .. } | Response::Unknown { .. } => true,
        Response::Refused { kind, .. } => *kind == RefusalKind::Unavailable,
        _ => false,
    };
    if silent {
        record.in_hand.dead_since_ms.get_or_insert(now_ms);
    } else {
        record.in_hand.dead_since_ms = None;
    }
    // Nothing was sent, so nothing is under way because of it.
    let nothing_sent = matches!(response, Response::Nobody { .. }) && record.step == Step::Cut;
    if nothing_sent && !record.in_hand.unsettled {
        record.in_hand.sent_ms = None;
    }
}

fn probed(record: &mut Record, now_ms: i64, ok: bool, message: &str) {
    if !ok {
        // Somebody has to change something; the probe is made anew.
        record.probe_round = record.probe_round.saturating_add(1);
        return record.retry(now_ms, 0, "ProbeFailed", message);
    }
    match record.step {
        Step::ProbeSource => record.go(Step::ProbeTarget),
        Step::ProbeTarget => record.go(Step::List),
        _ => record.go(Step::Recount),
    }
}

fn listed(record: &mut Record, now_ms: i64, logs: &[Log]) {
    if record.step == Step::List {
        if logs.is_empty() || logs.len() > Tuning::MOST_LOGS {
            let message = format!(
                "{} logs are in scope; a run takes 1–{}: name other units in spec.scope",
                logs.len(),
                Tuning::MOST_LOGS
            );
            return record.finish(Outcome::Refused { reason: "NoHead".into(), message }, now_ms);
        }
        let mut logs = logs.to_vec();
        logs.sort();
        logs.dedup();
        record.logs = Arc::new(logs);
        return record.go(Step::Announce);
    }
    let known: HashSet<&Log> = record.logs.iter().chain(record.there.iter()).collect();
    let added: Vec<Log> = logs.iter().filter(|log| !known.contains(log)).cloned().collect();
    match (record.step, added.is_empty()) {
        (Step::Relist, true) => record.go(Step::Staff),
        (_, true) => record.go(Step::Measure),
        (_, false) => {
            // A guild was split out before the data services knew of the run.
            record.again.extend(added.iter().map(|log| log.unit.clone()));
            record.backfilled = false;
            record.discard_receipt();
            Arc::make_mut(&mut record.logs).extend(added);
            record.go(Step::Ship);
        }
    }
}

/// Who serves the log that is to be cut over, and how far its copy is.
fn measured(record: &mut Record, now_ms: i64, fact: &ShipFact) {
    let Some((index, from)) = record.next_cut() else { return record.go(Step::Measure) };
    let Some(log) = record.logs.get(index).cloned() else { return };
    if fact.serving == record.spec.name_of(other(from)) {
        return cut(record, CutFact { term: fact.term, ..CutFact::default() });
    }
    if fact.serving != record.spec.name_of(from) {
        let message =
            format!("log {}: StorageCell {} serves it, which this run knows nothing of", log.name, fact.serving);
        return record.retry(now_ms, 0, "NotAtSource", &message);
    }
    if record.direction == Direction::Forward && ship::notice_restarts(record, &log, fact) {
        return record.go_phase(Step::Backfill);
    }
    let covered = record.positions.get(index).copied().unwrap_or_default();
    if record.direction == Direction::Forward && fact.last < covered && record.receipt.is_some() {
        // It lost what was compared: a receipt about entries that are not there proves nothing.
        let message =
            format!("log {} ends at {}, and the receipt is about {covered} entries of it", log.name, fact.last);
        record.discard_receipt();
        return record.retry(now_ms, 0, "ReceiptStale", &message);
    }
    record.in_hand = InHand { term: fact.term, ..InHand::default() };
    if !fact.blocked_by.is_empty() {
        let message = format!("log {}: {}", log.name, fact.blocked_by);
        return record.retry(now_ms, 0, "CopyBehind", &message);
    }
    if record.direction == Direction::Back && !ship::is_whole_back(record, &log, fact) {
        if record.was_all_cut() && record.cut == record.logs.len() {
            return undo::stay(record, index);
        }
        let message = format!(
            "log {}: its copy in {} was begun anew after the cutover and lacks what {} acknowledged since",
            log.name, record.spec.source, record.spec.target
        );
        return record.retry(now_ms, 0, "CopyNotReady", &message);
    }
    if fact.lag_seconds > Tuning::MOST_LAG_SECONDS {
        let message = format!("log {}: its copy is {} s behind", log.name, fact.lag_seconds);
        return record.retry(now_ms, 0, "CopyBehind", &message);
    }
    record.go_on(Step::Cut);
}

/// A cutover was sent and its outcome was not heard.
fn settled(record: &mut Record, context: &Context, fact: &ShipFact) {
    let Some((_, from)) = record.next_cut() else { return record.go(Step::Measure) };
    if fact.serving == record.spec.name_of(other(from)) {
        return cut(record, CutFact { term: fact.term, ..CutFact::default() });
    }
    if fact.serving != record.spec.name_of(from) {
        let message = format!("StorageCell {} serves it, which this run knows nothing of", fact.serving);
        return record.retry(context.now_ms, 0, "NotAtSource", &message);
    }
    let sent_ms = record.in_hand.sent_ms.unwrap_or(context.now_ms);
    // A raised term refuses whatever was sent; and after a while none is under way, since its owner answers that it is not.
    let over = fact.term > record.in_hand.term || context.now_ms - sent_ms >= Tuning::CUT_OVER_AFTER_MS;
    if over {
        record.in_hand = InHand { term: fact.term, ..InHand::default() };
        record.go(Step::Measure);
    } else if record.direction == Direction::Forward && undo::is_wanted(context) {
        record.wait(context.now_ms, Tuning::LOOK_EVERY_MS, "Waiting", "a cutover that was sent is settled first");
    } else {
        record.go_on(Step::Cut);
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Source => Side::Target,
        Side::Target => Side::Source,
    }
}

/// The head names the other side.
fn cut(record: &mut Record, fact: CutFact) {
    record.held_us = record.held_us.max(fact.held_us);
    let lossy = std::mem::take(&mut record.in_hand).loss_accepted;
    record.at_risk = record.at_risk.saturating_add(fact.at_risk.unwrap_or(0));
    record.at_risk_unknown += u32::from(lossy && fact.at_risk.is_none());
    match record.direction {
        Direction::Forward => {
            if lossy {
                record.no_way_back = Some(record.no_way_back.map_or(record.cut, |from| from.min(record.cut)));
            }
            // A source that is dead ships nothing back: to wait for it would keep all other logs there.
            let canary = record.most_cut == 0 && !lossy;
            record.cut += 1;
            record.most_cut = record.most_cut.max(record.cut);
            record.go(if canary { Step::Canary } else { Step::Measure });
        }
        Direction::Back => {
            record.cut = record.cut.saturating_sub(1);
            record.go(Step::Measure);
        }
    }
}

/// The first log that was cut over must ship back before the others follow.
fn canary(record: &mut Record, context: &Context, fact: &ShipFact) {
    if fact.serving == record.spec.target && fact.blocked_by.is_empty() {
        if let Some(log) = record.logs.first().cloned() {
            record.back.insert(log.name, fact.restarts);
        }
        record.in_hand = InHand::default();
        return record.go(Step::Measure);
    }
    let now_ms = context.now_ms;
    record.in_hand.dead_since_ms.get_or_insert(now_ms);
    if context.wishes.accept_loss && ask::is_dead(record, now_ms) {
        // The source died right after: who accepted the loss wants the others on the target.
        record.in_hand = InHand::default();
        return record.go(Step::Measure);
    }
    let why = if fact.blocked_by.is_empty() { "the source serves it again" } else { &fact.blocked_by };
    record.retry(now_ms, 0, "CopyBehind", &format!("the first log that was cut over does not ship back: {why}"));
}

fn coordinated(record: &mut Record, context: &Context, fact: &CoordinatorFact) {
    let now_ms = context.now_ms;
    if fact.round > record.round {
        // It did more than this record knows of: that work was not asked for by it.
        (record.round, record.begun) = (fact.round.saturating_add(1), false);
        return record.retry(now_ms, 0, "Waiting", "the coordinator is at a later round; begun anew");
    }
    let figures = &mut record.figures;
    figures.done_ppm = fact.done_ppm;
    figures.ranges = (fact.done, fact.in_flight, fact.failed, fact.total);
    figures.rows = (fact.rows, fact.rows_per_second);
    (figures.throttle, figures.eta_seconds, figures.workers) = (fact.throttle.clone(), fact.eta_seconds, fact.workers);
    figures.findings.clone_from(&fact.findings);
    record.begun = true;
    if fact.round < record.round || !fact.covers_all() {
        return look_again(record, context, fact);
    }
    match record.step {
        Step::Backfill => {
            record.again.clear();
            (record.copied, record.backfilled) = (true, true);
            record.go(Step::Resweep);
        }
        Step::Repair => record.go_phase(Step::Verify),
        _ => compared(record, now_ms, fact),
    }
}

fn look_again(record: &mut Record, context: &Context, fact: &CoordinatorFact) {
    let (reason, message) = if context.wishes.paused {
        let paused = gates::paused();
        (paused.reason, paused.message)
    } else if fact.failed > 0 {
        (
            "RangesFailed".to_owned(),
            format!("{} ranges failed and are tried again; see cellctl migration report", fact.failed),
        )
    } else if fact.workers == 0 && fact.round == record.round {
        ("Waiting".to_owned(), "no worker asks for work".to_owned())
    } else if fact.throttle.is_empty() {
        ("Waiting".to_owned(), format!("{} of {} ranges are done", fact.done, fact.total))
    } else {
        ("Throttled".to_owned(), format!("{} of {} ranges are done; {}", fact.done, fact.total, fact.throttle))
    };
    record.wait(context.now_ms, Tuning::LOOK_EVERY_MS, &reason, &message);
}

/// A verification has covered everything.
fn compared(record: &mut Record, now_ms: i64, fact: &CoordinatorFact) {
    let receipt = fact.receipt.as_ref().filter(|receipt| receipt.round == record.round);
    let Some(receipt) = receipt.cloned() else {
        return record.retry(now_ms, 0, "ReceiptStale", "the coordinator has no receipt of this round");
    };
    let clean = receipt.clean;
    record.receipt = Some(receipt);
    if clean {
        return record.go(Step::AnnounceShadow);
    }
    if record.repairs < Tuning::REPAIRS {
        record.repairs += 1;
        return record.go_phase(Step::Repair);
    }
    let why = gates::dirty(record);
    record.wait(now_ms, Tuning::IDLE_LOOK_EVERY_MS, &why.reason, &why.message);
}

fn copies(record: &mut Record, context: &Context, fact: &CopyFact) {
    let all_answered = fact.answered > 0 && fact.silent == 0 && record.step == Step::Shadow;
    record.count_shadows(&fact.shadows, all_answered);
    record.figures.copies = fact.clone();
    let now_ms = context.now_ms;
    if record.step == Step::Hold {
        return in_window(record, context);
    }
    if fact.answered == 0 || fact.silent > 0 {
        let message = format!("{} of {} data services answered", fact.answered, fact.answered + fact.silent);
        return record.retry(now_ms, 0, "Waiting", &message);
    }
    match gates::shadow(record, context).and_then(|()| gates::stage(context, super::Stage::Cutover)) {
        Err(why) => record.wait(now_ms, Tuning::IDLE_LOOK_EVERY_MS, &why.reason, &why.message),
        Ok(()) => match gates::receipt(record, context) {
            Err(why) => record.wait(now_ms, Tuning::IDLE_LOOK_EVERY_MS, &why.reason, &why.message),
            Ok(()) => {
                record.probe_round = record.probe_round.saturating_add(1);
                record.go(Step::AnnounceCutover);
            }
        },
    }
}

/// The rollback window, or after it.
fn in_window(record: &mut Record, context: &Context) {
    let until = record.hold_since_ms.unwrap_or(context.now_ms).saturating_add(record.spec.rollback_window_ms);
    let left_ms = (until - context.now_ms).max(1);
    let (reason, message) = match gates::stage(context, super::Stage::Complete) {
        _ if record.has_no_way_back() => (
            "CopyNotReady".to_owned(),
            format!("no rollback: {} lacks what {} acknowledged", record.spec.source, record.spec.target),
        ),
        _ if context.wishes.paused => (gates::paused().reason, gates::paused().message),
        Err(why) => (why.reason, why.message),
        Ok(()) => ("Waiting".to_owned(), "the rollback window is open".to_owned()),
    };
    record.wait(context.now_ms, left_ms.min(Tuning::IDLE_LOOK_EVERY_MS), &reason, &message);
}

fn done(record: &mut Record, now_ms: i64) {
    match record.step {
        Step::Announce => record.go(Step::Ship),
        Step::Staff if record.backfilled => record.go(Step::Resweep),
        Step::Staff => record.go_phase(Step::Backfill),
        Step::AnnounceShadow => record.go(Step::Shadow),
        Step::AnnounceCutover => record.go(Step::ReverseProbe),
        Step::Silence => record.go(Step::End),
        Step::Retract => {
            record.announced = false;
            record.go(Step::Serve);
        }
        Step::Serve => record.go(Step::Dismiss),
        Step::Dismiss => {
            record.staffed = false;
            record.go(Step::Dismiss);
        }
        _ => record.retry(now_ms, 0, "Waiting", "the answer does not fit the question"),
    }
}

fn refused(record: &mut Record, context: &Context, kind: RefusalKind, (reason, message, hint_ms): (&str, &str, u32)) {
    match (record.step, kind) {
        // Nothing is left to release.
        (Step::End, RefusalKind::Missing | RefusalKind::OtherRun) => ship::released(record, context, &Response::Done),
        (Step::ProbeSource | Step::ProbeTarget | Step::List, RefusalKind::Permanent) => {
            let outcome = Outcome::Refused { reason: reason.to_owned(), message: message.to_owned() };
            record.finish(outcome, context.now_ms);
        }
        (Step::Backfill | Step::Verify | Step::Repair, RefusalKind::Stale) => {
            (record.round, record.begun) = (record.round.saturating_add(1), false);
            record.retry(context.now_ms, hint_ms, reason, message);
        }
        // A definite no, unless an earlier one is still under way: then who serves is read first.
        (Step::Cut, kind) if kind != RefusalKind::Unavailable => {
            let settle = record.in_hand.unsettled;
            record.go_on(if settle { Step::Settle } else { Step::Measure });
            record.in_hand.sent_ms = record.in_hand.sent_ms.filter(|_| settle);
            record.retry(context.now_ms, hint_ms, reason, message);
        }
        _ => failed(record, context, hint_ms, reason, message),
    }
}

/// Tries again later, and says what must be accepted where a side is dead.
fn failed(record: &mut Record, context: &Context, hint_ms: u32, reason: &str, message: &str) {
    match record.step {
        Step::Ship | Step::Resweep | Step::ReverseSweep | Step::End => ship::failed(record, context, reason, message),
        Step::Measure | Step::Settle | Step::Cut if ask::is_dead(record, context.now_ms) => {
            if context.wishes.accept_loss {
                record.go_on(Step::Cut);
                return record.retry(context.now_ms, hint_ms, reason, message);
            }
            let message = format!(
                "the side that serves does not answer ({message}): entries that the other one lacks may be lost; wait for it, or set spec.acceptLoss"
            );
            record.retry(context.now_ms, hint_ms, "LossNotAccepted", &message);
        }
        _ => record.retry(context.now_ms, hint_ms, reason, message),
    }
}
