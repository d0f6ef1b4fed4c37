//! What a step asks. It passes what needs no request, waits where a gate is closed, and gives at most one request.

use super::record::{Blocked, Direction, Outcome, Record, Stage, Step};
use super::request::{Phase, Request, Side};
use super::{Context, Tuning, gates, ship, undo};

/// Bound of the passing: every pass moves on one step.
const MOST_PASSES: usize = 64;

enum Next {
    Ask(Request),
    Wait(i64),
    Pass,
    Over,
}

pub(super) fn ask(record: &mut Record, context: &Context) -> (Option<Request>, Option<i64>) {
    for _ in 0..MOST_PASSES {
        if record.outcome.is_none() && context.now_ms < record.not_before_ms {
            return (None, Some(record.not_before_ms));
        }
        match next(record, context) {
            Next::Ask(request) => return (Some(request), None),
            Next::Wait(until_ms) => return (None, Some(until_ms)),
            Next::Pass => {}
            Next::Over => return (None, None),
        }
    }
    record.retry(context.now_ms, 0, "Waiting", "the run passes from step to step without end");
    (None, Some(record.not_before_ms))
}

fn hold(record: &mut Record, context: &Context, why: &Blocked) -> Next {
    record.wait(context.now_ms, Tuning::IDLE_LOOK_EVERY_MS, &why.reason, &why.message);
    Next::Wait(record.not_before_ms)
}

fn next(record: &mut Record, context: &Context) -> Next {
    if context.wishes.paused && gates::is_held_by_pause(record) {
        return hold(record, context, &gates::paused());
    }
    match record.step {
        Step::Done => Next::Over,
        Step::ProbeSource => Next::Ask(Request::Probe { side: Side::Source, round: record.probe_round }),
        Step::ProbeTarget => Next::Ask(Request::Probe { side: Side::Target, round: record.probe_round }),
        Step::ReverseProbe => Next::Ask(Request::Probe { side: Side::Source, round: record.probe_round }),
        Step::List | Step::Relist | Step::Recount => Next::Ask(Request::List),
        Step::Ship | Step::Resweep | Step::ReverseSweep | Step::End => sweep(record, context),
        Step::Announce | Step::AnnounceShadow | Step::AnnounceCutover | Step::Silence => announce(record, context),
        Step::Staff => staff(record, context),
        Step::Backfill | Step::Verify | Step::Repair => control(record, context),
        Step::Shadow => Next::Ask(Request::Copies),
        Step::Measure | Step::Cut | Step::Settle | Step::Canary => cut_over(record, context),
        Step::Hold => window(record, context),
        Step::Retract | Step::Serve | Step::Dismiss => tidy(record, context),
    }
}

fn sweep(record: &mut Record, context: &Context) -> Next {
    if let Some(log) = ship::log(record) {
        let log = log.name.clone();
        return Next::Ask(if record.step == Step::End { Request::EndCopy { log } } else { Request::Ship { log } });
    }
    match record.step {
        Step::Ship => record.go(Step::Relist),
        Step::Resweep if !record.again.is_empty() => record.go_phase(Step::Backfill),
        Step::Resweep => {
            if let Err(why) = gates::stage(context, Stage::Verify) {
                return hold(record, context, &why);
            }
            record.go_phase(Step::Verify);
        }
        Step::ReverseSweep => {
            record.back_known = true;
            record.go(Step::Hold);
        }
        _ => record.go(Step::Retract),
    }
    Next::Pass
}

fn announce(record: &mut Record, context: &Context) -> Next {
    let (stage, ship, shadow_per_10000) = match record.step {
        Step::Announce => (Some(Stage::DualWrite), true, 0),
        Step::AnnounceShadow => (Some(Stage::ShadowRead), true, context.wishes.shadow_per_10000),
        Step::AnnounceCutover => (Some(Stage::Cutover), true, 0),
        _ => (None, false, 0),
    };
    if let Some(stage) = stage {
        if let Err(why) = gates::stage(context, stage) {
            return hold(record, context, &why);
        }
        record.announced = true;
    } else if !record.announced {
        record.go(Step::End);
        return Next::Pass;
    }
    Next::Ask(Request::Announce { ship, shadow_per_10000 })
}

fn staff(record: &mut Record, context: &Context) -> Next {
    if let Err(why) = gates::stage(context, Stage::Backfill) {
        return hold(record, context, &why);
    }
    record.staffed = true;
    Next::Ask(Request::Staff)
}

fn control(record: &mut Record, context: &Context) -> Next {
    let phase = match record.step {
        Step::Backfill => Phase::Backfill,
        Step::Verify => Phase::Verify,
        _ => Phase::Repair,
    };
    // The first round copies everything, whatever was begun anew meanwhile.
    let again =
        if record.copied && phase == Phase::Backfill { record.again.iter().cloned().collect() } else { Vec::new() };
    Next::Ask(Request::Control {
        phase,
        round: record.round,
        again,
        rows_per_second: context.wishes.rows_per_second,
        paused: context.wishes.paused,
    })
}

/// Nobody that knows the log in hand answered for so long that its side is dead.
pub(super) fn is_dead(record: &Record, now_ms: i64) -> bool {
    record.in_hand.dead_since_ms.is_some_and(|since| now_ms - since >= Tuning::DEAD_AFTER_MS)
}

fn cut_over(record: &mut Record, context: &Context) -> Next {
    if record.step == Step::Canary {
        return match record.logs.first() {
            Some(log) => Next::Ask(Request::Ship { log: log.name.clone() }),
            None => Next::Over,
        };
    }
    let Some((index, from)) = record.next_cut() else {
        return all_cut(record, context);
    };
    let Some(log) = record.logs.get(index).map(|log| log.name.clone()) else { return Next::Over };
    if record.direction == Direction::Forward
        && record.in_hand.sent_ms.is_none()
        && let Err(why) = gates::cutover(record, context)
    {
        return hold(record, context, &why);
    }
    if record.step != Step::Cut {
        return Next::Ask(Request::Ship { log });
    }
    let accept_loss = context.wishes.accept_loss && is_dead(record, context.now_ms);
    record.in_hand.unsettled |= record.in_hand.sent_ms.is_some();
    record.in_hand.sent_ms = Some(context.now_ms);
    record.in_hand.loss_accepted |= accept_loss;
    let known = if from == Side::Source { &record.restarts } else { &record.back };
    let restarts = known.get(&log).copied().unwrap_or_default();
    Next::Ask(Request::CutOver { log, from, term: record.in_hand.term, restarts, accept_loss })
}

fn all_cut(record: &mut Record, context: &Context) -> Next {
    match record.direction {
        Direction::Forward => {
            record.hold_since_ms.get_or_insert(context.now_ms);
            record.go(Step::ReverseSweep);
        }
        Direction::Back => record.go(Step::Silence),
    }
    Next::Pass
}

fn window(record: &mut Record, context: &Context) -> Next {
    let until = record.hold_since_ms.unwrap_or(context.now_ms).saturating_add(record.spec.rollback_window_ms);
    let may = gates::stage(context, Stage::Complete).is_ok() && !context.wishes.paused;
    if may && context.now_ms >= until {
        record.go(Step::Silence);
        return Next::Pass;
    }
    Next::Ask(Request::Copies)
}

fn tidy(record: &mut Record, context: &Context) -> Next {
    let forward = record.direction == Direction::Forward;
    match record.step {
        Step::Retract if record.announced => return Next::Ask(Request::Retract),
        Step::Retract => record.go(Step::Serve),
        Step::Serve if forward => return Next::Ask(Request::Serve),
        Step::Serve => record.go(Step::Dismiss),
        _ if record.staffed => return Next::Ask(Request::Dismiss),
        _ if forward => record.finish(Outcome::Completed, context.now_ms),
        _ => undo::finish(record, context.now_ms),
    }
    Next::Pass
}
