//! When a run is undone, and what becomes of wishes. Logs that were cut over are brought back first, then the copies are released. A
//! cutover that may still be under way is settled before anything else. An abort outranks all else.

use super::Context;
use super::record::{Blocked, Direction, InHand, Outcome, Record, RollbackWindow, Stage, Step, Wish};

/// Looks at wishes, after an answer was heard and before the next request is chosen.
pub(super) fn heed(record: &mut Record, context: &Context) {
    if record.outcome.is_some() {
        return;
    }
    record.wish = None;
    if record.direction == Direction::Back {
        return;
    }
    if context.wishes.abort {
        if record.was_all_cut() || record.stage() == Some(Stage::Complete) {
            record.wish = Some(Wish::TooLateToAbort);
        } else {
            begin(record, context, "AbortRequested", "spec.abort is set");
        }
    }
    if context.wishes.rollback && record.direction == Direction::Forward && record.outcome.is_none() {
        match record.rollback_window() {
            RollbackWindow::NotYet => record.wish = Some(Wish::TooEarlyToRollBack),
            RollbackWindow::Over if record.has_no_way_back() => record.wish = Some(Wish::NoWayBack),
            RollbackWindow::Over => record.wish = Some(Wish::TooLateToRollBack),
            RollbackWindow::Open(_) => begin(record, context, "RollbackRequested", "spec.rollback is set"),
        }
    }
    compare_again(record, context);
}

/// Somebody asks to compare again.
fn compare_again(record: &mut Record, context: &Context) {
    if record.direction == Direction::Back || context.wishes.verify_requests <= record.verified_requests {
        return;
    }
    let sent = record.in_hand.sent_ms.is_some();
    match record.stage() {
        Some(Stage::Prepare | Stage::DualWrite | Stage::Backfill) => {
            record.verified_requests = context.wishes.verify_requests;
        }
        Some(stage @ (Stage::Verify | Stage::ShadowRead | Stage::Cutover))
            if !sent && (record.cut == 0 || stage != Stage::Cutover) =>
        {
            record.verified_requests = context.wishes.verify_requests;
            record.repairs = 0;
            record.discard_receipt();
            record.go_phase(Step::Verify);
        }
        _ => record.wish = record.wish.or(Some(Wish::TooLateToVerify)),
    }
}

/// An undo is wished for, by a person or by what happened.
pub(super) fn is_wanted(context: &Context) -> bool {
    context.wishes.abort || context.wishes.rollback
}

fn begin(record: &mut Record, context: &Context, reason: &str, message: &str) {
    if record.has_no_way_back() {
        record.undo_reason = None;
        record.wish = Some(Wish::NoWayBack);
        return;
    }
    record.undo_reason = Some(Blocked { reason: reason.to_owned(), message: message.to_owned() });
    if record.in_hand.sent_ms.is_some() {
        if record.step != Step::Settle {
            record.go(Step::Settle);
        }
        return;
    }
    record.direction = Direction::Back;
    record.in_hand = InHand::default();
    if record.announced || record.staffed || record.cut > 0 {
        record.go(Step::Measure);
    } else {
        finish(record, context.now_ms);
    }
}

/// A rollback that has brought nothing back yet finds that it cannot: the run stays where it was, and says why.
pub(super) fn stay(record: &mut Record, log: usize) {
    record.no_way_back = Some(record.no_way_back.map_or(log, |from| from.min(log)));
    (record.direction, record.undo_reason) = (Direction::Forward, None);
    record.in_hand = InHand::default();
    record.go(if record.back_known { Step::Hold } else { Step::ReverseSweep });
}

/// Everything is undone.
pub(super) fn finish(record: &mut Record, now_ms: i64) {
    let rolled_back = record.undo_reason.as_ref().is_some_and(|why| why.reason == "RollbackRequested");
    record.finish(if rolled_back { Outcome::RolledBack } else { Outcome::Aborted }, now_ms);
}
