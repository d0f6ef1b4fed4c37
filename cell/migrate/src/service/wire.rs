//! Between the machine's words and the contract's.

use std::collections::HashMap;

use cell_proto::v1;

use crate::ranges::{
    Control, Counts, Digest, FailureKind, Finding, FindingKind, Grant, LaneName, Phase, Progress, Receipt, Sample,
    State, TableDigest, Tokens, Verdict,
};

pub(super) fn phase_to_wire(phase: Phase) -> v1::MigratePhase {
    match phase {
        Phase::Idle => v1::MigratePhase::Idle,
        Phase::Backfill => v1::MigratePhase::Backfill,
        Phase::Verify => v1::MigratePhase::Verify,
        Phase::Repair => v1::MigratePhase::Repair,
    }
}

pub(super) fn phase_of_wire(phase: v1::MigratePhase) -> Option<Phase> {
    match phase {
        v1::MigratePhase::Unspecified => None,
        v1::MigratePhase::Idle => Some(Phase::Idle),
        v1::MigratePhase::Backfill => Some(Phase::Backfill),
        v1::MigratePhase::Verify => Some(Phase::Verify),
        v1::MigratePhase::Repair => Some(Phase::Repair),
    }
}

pub(super) fn control(request: v1::MigrateControlRequest) -> Control {
    Control {
        phase: phase_of_wire(request.phase()),
        round: request.round,
        rows_per_second: request.rows_per_second,
        paused: request.paused,
        again: request.again,
        source: request.source,
        target: request.target,
    }
}

fn finding(finding: Finding) -> v1::RangeFinding {
    v1::RangeFinding {
        table: finding.table,
        first_token: finding.first_token,
        last_token: finding.last_token,
        partition: finding.partition,
        kind: finding.kind.label().to_owned(),
        message: finding.message,
    }
}

fn table_digest(found: TableDigest) -> v1::TableDigest {
    let TableDigest { table, unit, rows, source, target } = found;
    v1::TableDigest { table, unit, rows, source, target }
}

fn digest_to_wire(digest: Digest) -> v1::RangeDigest {
    v1::RangeDigest { rows: digest.rows, first_sum: digest.sums[0], second_sum: digest.sums[1] }
}

fn digest(wire: v1::RangeDigest) -> Digest {
    Digest { rows: wire.rows, sums: [wire.first_sum, wire.second_sum] }
}

fn receipt(receipt: Receipt) -> v1::Receipt {
    v1::Receipt {
        run_id: receipt.run_id,
        round: receipt.round,
        began_unix_ms: receipt.began_unix_ms,
        ended_unix_ms: receipt.ended_unix_ms,
        source: receipt.source,
        target: receipt.target,
        ranges: receipt.ranges,
        rows_compared: receipt.rows_compared,
        mismatches: receipt.mismatches.into_iter().collect(),
        repaired: receipt.repaired,
        clean: receipt.clean,
        tables: receipt.tables.into_iter().map(table_digest).collect(),
    }
}

pub(super) fn state(state: State) -> v1::MigrateState {
    v1::MigrateState {
        run_id: state.run_id,
        phase: phase_to_wire(state.phase).into(),
        round: state.round,
        done_ppm: state.done_ppm,
        ranges_in_flight: state.ranges_in_flight,
        ranges_failed: state.ranges_failed,
        ranges_done: state.ranges_done,
        ranges_total: state.ranges_total,
        rows: state.counts.rows,
        rows_per_second: state.rows_per_second,
        redone: state.counts.redone,
        throttle: state.throttle,
        throttle_reason: state.throttle_reason,
        eta_seconds: state.eta_seconds,
        receipt: state.receipt.map(receipt),
        findings: state.findings.into_iter().map(finding).collect(),
        complete: state.complete,
        refusal: None,
        workers: state.workers,
        paused: state.paused,
        rows_read: state.counts.read,
    }
}

pub(super) fn grant_to_wire(grant: Grant, units: &str) -> v1::LeaseReply {
    v1::LeaseReply {
        lease_id: grant.lease,
        phase: phase_to_wire(grant.phase).into(),
        round: grant.round,
        table: grant.lane.table,
        first_token: grant.tokens.first,
        last_token: grant.tokens.last,
        unit: if grant.lane.unit.is_empty() { units.to_owned() } else { grant.lane.unit },
        source: grant.source,
        target: grant.target,
        rows_per_second: grant.rows_per_second,
        lease_seconds: u32::try_from(grant.lease_ms / 1000).unwrap_or(1).max(1),
        ask_again_ms: 0,
        refusal: None,
        after: grant.after,
    }
}

pub(super) fn grant_of_wire(reply: v1::LeaseReply) -> Option<Grant> {
    let phase = phase_of_wire(reply.phase())?;
    Some(Grant {
        lease: reply.lease_id,
        phase,
        round: reply.round,
        lane: LaneName { table: reply.table, unit: reply.unit },
        tokens: Tokens::new(reply.first_token, reply.last_token)?,
        after: reply.after,
        source: reply.source,
        target: reply.target,
        rows_per_second: reply.rows_per_second,
        lease_ms: i64::from(reply.lease_seconds) * 1000,
    })
}

const KINDS: [(FailureKind, &str); 3] =
    [(FailureKind::Unavailable, "unavailable: "), (FailureKind::Stale, "stale: "), (FailureKind::Range, "range: ")];

pub(super) fn progress_to_wire(progress: Progress, run_id: &str) -> v1::RangeReport {
    let failure = progress.failure.map(|(kind, text)| {
        let prefix = KINDS.iter().find(|(other, _)| *other == kind).map_or("range: ", |(_, prefix)| prefix);
        format!("{prefix}{text}")
    });
    v1::RangeReport {
        lease_id: progress.lease,
        worker: progress.worker,
        run_id: run_id.to_owned(),
        ended: progress.ended,
        failure: failure.unwrap_or_default(),
        rows: progress.counts.rows,
        mismatches: progress.counts.mismatches.into_iter().collect(),
        repaired: progress.counts.repaired,
        findings: progress.findings.into_iter().map(finding).collect(),
        read_us: progress.sample.read_us,
        write_us: progress.sample.write_us,
        done_until: progress.done_until,
        mark: progress.mark,
        failing_token: progress.failing_token,
        without_cells: progress.counts.without_cells,
        reread: progress.counts.reread,
        rows_read: progress.counts.read,
        source_digest: progress.digests.map(|(source, _)| digest_to_wire(source)),
        target_digest: progress.digests.map(|(_, target)| digest_to_wire(target)),
    }
}

/// Findings of one report, and classes, are bounded whatever a worker says.
const MAX_FINDINGS: usize = 50;
const CLASSES: [&str; 6] = ["write-race", "ttl-skew", "tombstone", "missing", "extra", "differing"];

pub(super) fn progress_of_wire(report: v1::RangeReport) -> Progress {
    let failure = (!report.failure.is_empty()).then(|| {
        let known = KINDS
            .iter()
            .find_map(|(kind, prefix)| report.failure.strip_prefix(prefix).map(|rest| (*kind, rest.to_owned())));
        known.unwrap_or((FailureKind::Range, report.failure.clone()))
    });
    let mismatches: HashMap<String, u64> = report.mismatches;
    let findings = report.findings.into_iter().take(MAX_FINDINGS).filter_map(|finding| {
        Some(Finding {
            table: finding.table,
            first_token: finding.first_token,
            last_token: finding.last_token,
            partition: finding.partition,
            kind: FindingKind::of_label(&finding.kind)?,
            message: finding.message,
        })
    });
    Progress {
        lease: report.lease_id,
        worker: report.worker,
        ended: report.ended,
        failure,
        done_until: report.done_until,
        mark: report.mark,
        failing_token: report.failing_token,
        counts: Counts {
            rows: report.rows,
            read: report.rows_read,
            repaired: report.repaired,
            without_cells: report.without_cells,
            reread: report.reread,
            mismatches: mismatches.into_iter().filter(|(class, _)| CLASSES.contains(&class.as_str())).collect(),
            ..Counts::default()
        },
        findings: findings.collect(),
        sample: Sample { read_us: report.read_us, write_us: report.write_us },
        digests: report.source_digest.zip(report.target_digest).map(|(ours, theirs)| (digest(ours), digest(theirs))),
    }
}

pub(super) fn verdict_to_wire(verdict: Verdict) -> v1::ReportReply {
    v1::ReportReply { stop: verdict.stop, rows_per_second: verdict.rows_per_second, last_token: verdict.last_token }
}

pub(super) fn verdict_of_wire(reply: v1::ReportReply) -> Verdict {
    Verdict { stop: reply.stop, rows_per_second: reply.rows_per_second, last_token: reply.last_token }
}
