//! Mirrors a run in the migration's status: stages and transitions at once, figures rounded and rarely, nothing when nothing changed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cell_crds::storage_cell::FlaggedRange;
use cell_crds::storage_migration::{RangesStatus, ReceiptStatus, ShadowStatus};
use cell_crds::{MigrationResult, Reason, RollbackReadiness, StorageMigration, StorageMigrationStatus};
use cell_plan::migrations::{Direction, Finding, Outcome as Ended, ReceiptFact, Record, RollbackWindow, Wish};
use serde_json::json;

use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::manager;
use crate::report::{Standing, announce, is_transition, now, time_of};

/// Figures are written at most this often; a new stage is written at once.
const FIGURES_EVERY: Duration = Duration::from_secs(5);
/// A wait shorter than this many tries is no news.
const QUIET_TRIES: u32 = 3;
/// Findings and digests shown, as the schema bounds them, and the words of one finding.
const MOST_FINDINGS: usize = 20;
const MOST_DIGESTS: usize = 64;
const MOST_WORDS: usize = 600;

/// Reports one run.
pub(super) struct Reporter<'a> {
    one: &'a StorageMigration,
    context: &'a Context,
    written: StorageMigrationStatus,
    written_at: Option<Instant>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(one: &'a StorageMigration, context: &'a Context, written_at: Option<Instant>) -> Self {
        // The cache lags behind what this process wrote last: within one pass the copy here is the newer one.
        Self { one, context, written: one.status.clone().unwrap_or_default(), written_at }
    }

    pub(super) fn written_at(&self) -> Option<Instant> {
        self.written_at
    }

    pub(super) async fn report(&mut self, record: &Record) -> Result<(), ReconcileError> {
        if record.outcome.is_some() {
            return Ok(());
        }
        let standing = standing(record);
        let status = status(self.one, &self.written, record, &standing);
        let news = status.stage != self.written.stage
            || status.run_id != self.written.run_id
            || status.rollback_readiness != self.written.rollback_readiness
            || is_transition(&self.written.conditions, &status.conditions);
        let recently = self.written_at.is_some_and(|at| at.elapsed() < FIGURES_EVERY);
        if !news && recently {
            return Ok(());
        }
        self.write(status, &standing).await
    }

    pub(super) async fn finish(&mut self, record: &Record) -> Result<(), ReconcileError> {
        let standing = standing(record);
        let status = status(self.one, &self.written, record, &standing);
        self.write(status, &standing).await
    }

    async fn write(&mut self, status: StorageMigrationStatus, standing: &Standing) -> Result<(), ReconcileError> {
        if status == self.written {
            return Ok(());
        }
        self.context.applier.status(&manager("migration", "status"), self.one, json!(status)).await?;
        let staged = status.stage != self.written.stage;
        if staged || is_transition(&self.written.conditions, &status.conditions) {
            let action = status.stage.clone().unwrap_or_else(|| "Migrate".into());
            announce(&self.context.recorder, self.one, standing, &action).await;
        }
        self.written = status;
        self.written_at = Some(Instant::now());
        Ok(())
    }
}

/// A migration that has no run yet.
pub(super) async fn report_waiting(
    one: &StorageMigration,
    context: &Context,
    standing: &Standing,
) -> Result<(), ReconcileError> {
    let before = one.status.clone().unwrap_or_default();
    let status = StorageMigrationStatus {
        observed_generation: one.metadata.generation,
        conditions: standing.conditions(&before.conditions, one.metadata.generation),
        stage: before.stage.clone().or_else(|| Some("Prepare".into())),
        blocked_by: standing.blocked_by(),
        ..before
    };
    Reporter::new(one, context, None).write(status, standing).await
}

/// A migration that can never have a run.
pub(super) async fn report_refused(
    one: &StorageMigration,
    context: &Context,
    standing: &Standing,
) -> Result<(), ReconcileError> {
    let before = one.status.clone().unwrap_or_default();
    let status = StorageMigrationStatus {
        observed_generation: one.metadata.generation,
        conditions: standing.conditions(&before.conditions, one.metadata.generation),
        stage: Some("Done".into()),
        stage_since: before.stage_since.clone().or_else(|| Some(now())),
        result: Some(MigrationResult::Refused),
        finished_at: before.finished_at.clone().or_else(|| Some(now())),
        blocked_by: None,
        ..before
    };
    Reporter::new(one, context, None).write(status, standing).await
}

fn standing(record: &Record) -> Standing {
    let spec = &record.spec;
    let left = match record.left_behind {
        0 => String::new(),
        left => {
            format!(
                "; {left} copies could not be released, their StorageCell did not answer: cellctl storage doctor counts them"
            )
        }
    };
    match &record.outcome {
        Some(Ended::Completed) => Standing::Ready(
            Reason::Completed,
            format!(
                "{} serves {} logs; commands were held {} µs at most{left}",
                spec.target,
                record.logs.len(),
                record.held_us
            ),
        ),
        Some(Ended::RolledBack) => Standing::Ready(Reason::RolledBack, format!("{} serves again{left}", spec.source)),
        Some(Ended::Aborted) => Standing::Ready(Reason::Aborted, format!("undone; {} serves{left}", spec.source)),
        Some(Ended::Refused { message, .. }) => Standing::Stalled(Reason::InvalidSpec, message.clone()),
        None => underway(record),
    }
}

fn underway(record: &Record) -> Standing {
    let wish = match record.wish {
        Some(Wish::TooLateToAbort) => Some("abort refused: every log is cut over; a rollback is possible"),
        Some(Wish::TooEarlyToRollBack) => Some("rollback refused: no log is cut over; abort instead"),
        Some(Wish::TooLateToRollBack) => Some("rollback refused: the source is being released"),
        Some(Wish::NoWayBack) => {
            Some("undoing refused: the source lacks what the target acknowledged; migrate back once this is complete")
        }
        Some(Wish::TooLateToVerify) => Some("comparing refused: a cutover has begun"),
        None => None,
    };
    let blocked = blocked(record);
    let person = blocked.map(|why| why.reason.as_str()).and_then(reason_of);
    let reason = match (record.wish, record.direction) {
        (Some(Wish::TooLateToAbort), _) => Reason::TooLateToAbort,
        (Some(Wish::TooLateToRollBack), _) => Reason::TooLateToRollback,
        (_, Direction::Back) if record.was_all_cut() => Reason::RollbackRequested,
        (_, Direction::Back) => Reason::AbortRequested,
        (_, Direction::Forward) => person.unwrap_or(Reason::Migrating),
    };
    let message = match (wish, blocked) {
        (Some(wish), _) => wish.to_owned(),
        (None, Some(blocked)) => format!("stage {}: {}", record.stage_label(), blocked.message),
        (None, None) => format!("stage {}", record.stage_label()),
    };
    Standing::Reconciling(reason, message)
}

/// Reasons that someone must act on, or that say where it stands; the others only wait.
fn reason_of(label: &str) -> Option<Reason> {
    [
        Reason::TargetStageReached,
        Reason::MigrationPaused,
        Reason::ReceiptDirty,
        Reason::ReceiptStale,
        Reason::ShadowMismatch,
        Reason::ShadowSamplesMissing,
        Reason::CopyBehind,
        Reason::LossNotAccepted,
        Reason::ProbeFailed,
    ]
    .into_iter()
    .find(|reason| reason.label() == label)
}

/// What it waits for, once that is worth saying.
fn blocked(record: &Record) -> Option<&cell_plan::migrations::Blocked> {
    let waits = record.attempt == 0 || record.attempt >= QUIET_TRIES;
    record.blocked_by.as_ref().filter(|_| record.outcome.is_none() && waits)
}

/// To two digits, so that a rate that wavers writes nothing.
fn rounded(number: u64) -> i64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    whole(number / unit * unit)
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What was found in this run: what the coordinator says now, and what it said of heavy ranges in phases before.
fn findings(before: &[FlaggedRange], now: &[Finding]) -> Vec<FlaggedRange> {
    let mut all: Vec<FlaggedRange> = now.iter().map(flagged).collect();
    let place = |one: &FlaggedRange| (one.kind.clone(), one.table.clone(), one.first_token, one.last_token);
    let known: BTreeSet<_> = all.iter().map(place).collect();
    let lasting = |one: &&FlaggedRange| ["slow", "tombstones", "large-partition"].contains(&one.kind.as_str());
    all.extend(before.iter().filter(lasting).filter(|one| !known.contains(&place(one))).cloned());
    all.sort_by_key(|one| std::cmp::Reverse(one.partition.is_some()));
    all.truncate(MOST_FINDINGS);
    all
}

/// A finding as resources show it.
pub(super) fn flagged(found: &Finding) -> FlaggedRange {
    FlaggedRange {
        table: found.table.clone(),
        first_token: found.first_token,
        last_token: found.last_token,
        partition: Some(found.partition.clone()).filter(|partition| !partition.is_empty()),
        kind: found.kind.clone(),
        message: found.message.chars().take(MOST_WORDS).collect(),
    }
}

fn receipt(fact: &ReceiptFact, positions: &[u64]) -> ReceiptStatus {
    ReceiptStatus {
        clean: fact.clean,
        round: i32::try_from(fact.round).unwrap_or(i32::MAX),
        rows: whole(fact.rows),
        repaired: whole(fact.repaired),
        mismatches: fact.mismatches.iter().take(32).map(|(class, count)| (class.clone(), whole(*count))).collect(),
        ended_at: (fact.ended_ms > 0).then(|| time_of(fact.ended_ms)),
        entries: (!positions.is_empty()).then(|| whole(positions.iter().sum())),
        digests: fact.digests.iter().take(MOST_DIGESTS).map(|(name, text)| (name.clone(), text.clone())).collect(),
    }
}

fn status(
    one: &StorageMigration,
    before: &StorageMigrationStatus,
    record: &Record,
    standing: &Standing,
) -> StorageMigrationStatus {
    let stage = record.stage_label().to_owned();
    let same_stage = before.stage.as_ref() == Some(&stage);
    let (readiness, until) = match record.rollback_window() {
        RollbackWindow::NotYet => (RollbackReadiness::NotYet, None),
        RollbackWindow::Open(until) => (RollbackReadiness::Ready, until.map(time_of)),
        RollbackWindow::Over => (RollbackReadiness::Over, None),
    };
    let result = record.outcome.as_ref().map(|outcome| match outcome {
        Ended::Completed => MigrationResult::Completed,
        Ended::Aborted => MigrationResult::Aborted,
        Ended::RolledBack => MigrationResult::RolledBack,
        Ended::Refused { .. } => MigrationResult::Refused,
    });
    let figures = &record.figures;
    let working = figures.ranges.3 > 0 && record.outcome.is_none();
    let (done, in_flight, failed, total) = figures.ranges;
    let ranges =
        RangesStatus { done: whole(done), failed: whole(failed), in_flight: whole(in_flight), total: whole(total) };
    let copies = Some(&figures.copies).filter(|copies| copies.answered > 0);
    // Of a run that has ended nothing lags; who took it over after a crash may never have asked, either.
    let lagging = copies.filter(|_| record.outcome.is_none());
    let (samples, mismatches) = record.shadow_counts();
    let shadow = copies.filter(|copies| copies.samples > 0 || copies.skipped > 0).map(|copies| {
        // Of those before the last comparison nothing is shown: they do not count.
        let classes = copies.mismatches.iter().take(32).filter(|_| mismatches > 0);
        ShadowStatus {
            samples: rounded(samples),
            mismatches: classes.map(|(class, count)| (class.clone(), whole(*count))).collect(),
            skipped: rounded(copies.skipped),
        }
    });
    StorageMigrationStatus {
        observed_generation: one.metadata.generation,
        conditions: standing.conditions(&before.conditions, one.metadata.generation),
        run_id: Some(record.spec.run_id.clone()),
        stage_since: if same_stage { before.stage_since.clone() } else { Some(time_of(record.stage_since_ms)) },
        stage: Some(stage),
        logs: (!record.logs.is_empty()).then(|| whole(record.logs.len() as u64)),
        logs_cut_over: (record.most_cut > 0).then(|| whole(record.cut as u64)),
        ranges: working.then_some(ranges),
        done_ppm: working.then(|| i32::try_from(figures.done_ppm).unwrap_or_default()),
        rows: working.then(|| whole(figures.rows.0)),
        rows_per_second: working.then(|| rounded(figures.rows.1)),
        throttled_by: Some(figures.throttle.clone()).filter(|text| working && !text.is_empty()),
        eta_seconds: (working && figures.eta_seconds > 0).then(|| rounded(u64::from(figures.eta_seconds))),
        backlog: lagging.map(|copies| rounded(copies.backlog)),
        lag_seconds: lagging.map(|copies| i64::from(copies.lag_seconds)),
        receipt: record
            .receipt
            .as_ref()
            .map(|fact| receipt(fact, &record.positions))
            .or_else(|| before.receipt.clone()),
        shadow: shadow.or_else(|| before.shadow.clone()),
        rollback_readiness: Some(readiness),
        rollback_until: until,
        entries_at_risk: (record.at_risk > 0).then(|| whole(record.at_risk)),
        logs_with_unknown_loss: (record.at_risk_unknown > 0).then(|| i64::from(record.at_risk_unknown)),
        findings: findings(&before.findings, &figures.findings),
        held_microseconds: (record.held_us > 0).then(|| whole(record.held_us)),
        blocked_by: blocked(record).map(|blocked| format!("{}: {}", blocked.reason, blocked.message)),
        result,
        finished_at: record.finished_ms.map(time_of),
    }
}

#[cfg(test)]
mod tests {
    use cell_plan::migrations::{Blocked, Spec, Step};

    use super::*;

    fn record() -> Record {
        let spec = Spec {
            run_id: "r".into(),
            source: "a".into(),
            target: "b".into(),
            units: Vec::new(),
            rollback_window_ms: 1000,
        };
        Record::new(spec, 0)
    }

    fn seen(record: &Record) -> StorageMigrationStatus {
        let spec = serde_json::from_value(json!({"source": "a", "target": "b"})).unwrap();
        status(&StorageMigration::new("m", spec), &StorageMigrationStatus::default(), record, &standing(record))
    }

    #[test]
    fn how_far_copies_lag_is_said_only_while_it_runs() {
        let mut record = record();
        (record.figures.copies.answered, record.figures.copies.backlog) = (1, 5);
        assert_eq!((seen(&record).backlog, seen(&record).lag_seconds), (Some(5), Some(0)));
        record.outcome = Some(Ended::RolledBack);
        assert_eq!((seen(&record).backlog, seen(&record).lag_seconds), (None, None));
    }

    #[test]
    fn a_waiting_run_says_for_what_and_gives_the_reason_a_person_acts_on() {
        let mut record = record();
        record.blocked_by = Some(Blocked { reason: "ReceiptDirty".into(), message: "3 missing".into() });
        assert_eq!(standing(&record).reason(), Reason::ReceiptDirty);
        assert_eq!(seen(&record).blocked_by.as_deref(), Some("ReceiptDirty: 3 missing"));
        record.blocked_by = Some(Blocked { reason: "Waiting".into(), message: "1 of 3 ranges".into() });
        assert_eq!(standing(&record).reason(), Reason::Migrating);
    }

    #[test]
    fn figures_are_rounded_and_go_when_the_work_is_over() {
        assert_eq!([7, 99, 123, 98_765].map(rounded), [7, 99, 120, 98_000]);
        let mut record = record();
        (record.figures.ranges, record.figures.rows) = ((1, 1, 0, 3), (500, 12_345));
        let status = seen(&record);
        assert_eq!((status.rows_per_second, status.ranges.unwrap().total), (Some(12_000), 3));
        (record.step, record.outcome) = (Step::Done, Some(Ended::Aborted));
        let status = seen(&record);
        assert_eq!((status.ranges, status.result), (None, Some(MigrationResult::Aborted)));
    }

    #[test]
    fn heavy_ranges_stay_named_when_the_next_phase_has_begun_and_failed_ones_only_while_they_fail() {
        let found = |kind: &str, partition: &str| Finding {
            table: "messages".into(),
            kind: kind.into(),
            partition: partition.into(),
            ..Finding::default()
        };
        let mut record = record();
        record.figures.findings = vec![found("failing", ""), found("tombstones", "(7)")];
        let before = seen(&record).findings;
        let kinds = |all: &[FlaggedRange]| all.iter().map(|one| one.kind.clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&before), ["tombstones", "failing"]);
        assert_eq!(kinds(&findings(&before, &[found("slow", "")])), ["tombstones", "slow"]);
        assert_eq!(findings(&before, &vec![found("slow", ""); 50]).len(), MOST_FINDINGS);
    }

    #[test]
    fn copies_left_behind_are_named_at_the_end() {
        let mut record = record();
        (record.step, record.outcome, record.left_behind) = (Step::Done, Some(Ended::Aborted), 3);
        assert!(standing(&record).message().contains("3 copies could not be released"));
    }
}
