//! What a coordinator says, as the step machine hears it. Pure.

use std::collections::BTreeMap;

use cell_plan::migrations::{CoordinatorFact, Finding, Phase, ReceiptFact};
use cell_proto::v1::{MigratePhase, MigrateState, RangeFinding, Receipt, TableDigest};

/// What the step machine is told of it.
pub(super) fn fact(state: &MigrateState) -> CoordinatorFact {
    let phase = match state.phase() {
        MigratePhase::Backfill => Some(Phase::Backfill),
        MigratePhase::Verify => Some(Phase::Verify),
        MigratePhase::Repair => Some(Phase::Repair),
        MigratePhase::Unspecified | MigratePhase::Idle => None,
    };
    CoordinatorFact {
        phase,
        round: state.round,
        done_ppm: state.done_ppm,
        done: state.ranges_done,
        in_flight: u64::from(state.ranges_in_flight),
        failed: u64::from(state.ranges_failed),
        total: state.ranges_total,
        rows: state.rows,
        rows_per_second: state.rows_per_second,
        throttle: if state.throttle_reason.is_empty() { state.throttle.clone() } else { state.throttle_reason.clone() },
        eta_seconds: state.eta_seconds,
        workers: state.workers,
        complete: state.complete,
        receipt: state.receipt.as_ref().map(receipt),
        findings: state.findings.iter().map(finding).collect(),
    }
}

fn finding(found: &RangeFinding) -> Finding {
    let RangeFinding { table, first_token, last_token, partition, kind, message } = found.clone();
    Finding { table, first_token, last_token, partition, kind, message }
}

fn receipt(receipt: &Receipt) -> ReceiptFact {
    ReceiptFact {
        round: receipt.round,
        began_ms: receipt.began_unix_ms,
        ended_ms: receipt.ended_unix_ms,
        source: receipt.source.clone(),
        target: receipt.target.clone(),
        rows: receipt.rows_compared,
        repaired: receipt.repaired,
        mismatches: receipt.mismatches.iter().map(|(class, count)| (class.clone(), *count)).collect::<BTreeMap<_, _>>(),
        clean: receipt.clean,
        digests: receipt.tables.iter().map(|one| (name_of(one), one.source.clone())).collect(),
    }
}

/// A table, or a unit's part of one.
fn name_of(digest: &TableDigest) -> String {
    if digest.unit.is_empty() { digest.table.clone() } else { format!("{}/{}", digest.table, digest.unit) }
}
