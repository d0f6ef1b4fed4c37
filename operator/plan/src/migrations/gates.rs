//! What must be so before a run goes on. Each gate gives the reason that a person reads; none can be passed by waiting alone where a
//! person must act.

use super::Context;
use super::record::{Blocked, Direction, Record, Stage, Step};

/// It goes no further by itself.
pub(super) const TARGET_STAGE_REACHED: &str = "TargetStageReached";

fn blocked(reason: &str, message: String) -> Blocked {
    Blocked { reason: reason.to_owned(), message }
}

/// Steps that begin something, so that a pause holds them. What a cutover has begun, and what others do under a pause of their own,
/// goes on.
pub(super) fn is_held_by_pause(record: &Record) -> bool {
    let begins = matches!(
        record.step,
        Step::ProbeSource
            | Step::ProbeTarget
            | Step::List
            | Step::Announce
            | Step::Ship
            | Step::Relist
            | Step::Staff
            | Step::Resweep
            | Step::AnnounceShadow
            | Step::AnnounceCutover
            | Step::ReverseProbe
            | Step::Recount
            | Step::Measure
            | Step::Cut
    );
    begins && record.direction == Direction::Forward && record.in_hand.sent_ms.is_none()
}

pub(super) fn paused() -> Blocked {
    blocked("MigrationPaused", "spec.throttle.paused is set: nothing new is begun until it is unset".into())
}

/// Whether the run may go into a stage by itself.
pub(super) fn stage(context: &Context, wanted: Stage) -> Result<(), Blocked> {
    let target = context.wishes.target_stage;
    if target >= wanted {
        return Ok(());
    }
    let message = format!(
        "spec.targetStage is {}: it goes on to {} when told to (cellctl migration advance)",
        target.label(),
        wanted.label()
    );
    Err(blocked(TARGET_STAGE_REACHED, message))
}

/// Everything that a cutover of the next log needs.
pub(super) fn cutover(record: &Record, context: &Context) -> Result<(), Blocked> {
    stage(context, Stage::Cutover)?;
    if !record.backfilled || !record.again.is_empty() {
        return Err(blocked("CopyNotReady", "not everything is copied".into()));
    }
    receipt(record, context)?;
    shadow(record, context)
}

/// The receipt is there, clean, of these sides in this order, and young enough.
pub(super) fn receipt(record: &Record, context: &Context) -> Result<(), Blocked> {
    const NEXT: &str = "compare again (cellctl migration verify)";
    let Some(receipt) = &record.receipt else {
        return Err(blocked("ReceiptStale", format!("no receipt since the copies changed: {NEXT}")));
    };
    if receipt.source != record.spec.source || receipt.target != record.spec.target {
        let message = format!("the receipt compares {} with {}: {NEXT}", receipt.source, receipt.target);
        return Err(blocked("ReceiptStale", message));
    }
    if !receipt.clean {
        return Err(dirty(record));
    }
    let age_ms = context.now_ms - receipt.ended_ms;
    // Between two logs of one cutover it does not grow old: half done is no place to stop.
    if record.cut == 0 && age_ms >= context.wishes.receipt_max_age_ms {
        let message = format!("the receipt is older than {} s: {NEXT}", context.wishes.receipt_max_age_ms / 1000);
        return Err(blocked("ReceiptStale", message));
    }
    Ok(())
}

pub(super) fn dirty(record: &Record) -> Blocked {
    let mismatches = record.receipt.as_ref().map(|receipt| &receipt.mismatches);
    let classes = mismatches.into_iter().flatten().map(|(class, count)| format!("{count} {class}"));
    let classes = classes.collect::<Vec<_>>().join(", ");
    let message = format!(
        "the two sides still differ after a repair ({classes}); see cellctl migration report, then compare again (cellctl migration verify)"
    );
    blocked("ReceiptDirty", message)
}

/// Shadow reads: enough, and not too many that differ. None is enough only where none were asked for.
pub(super) fn shadow(record: &Record, context: &Context) -> Result<(), Blocked> {
    let wishes = &context.wishes;
    let (samples, mismatches) = record.shadow_counts();
    if mismatches > wishes.max_mismatch {
        let message = format!(
            "{mismatches} shadow reads differ, {} are allowed: repair and compare again (cellctl migration verify)",
            wishes.max_mismatch
        );
        return Err(blocked("ShadowMismatch", message));
    }
    if samples < wishes.min_samples {
        let rate = if wishes.shadow_per_10000 == 0 { "; spec.shadowRead.perTenThousand is 0" } else { "" };
        let message = format!(
            "{samples} of {} shadow reads compared{rate}; spec.shadowRead.minSamples 0 goes on without any",
            wishes.min_samples
        );
        return Err(blocked("ShadowSamplesMissing", message));
    }
    Ok(())
}
