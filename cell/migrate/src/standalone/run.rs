//! Drives the phases: copy, then verify or mend and verify again, each to its end, with workers in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_runtime::CancellationToken;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::args::{Consistency, RunFlags};
use super::outcome::{Ending, Outcome, PhaseResult};
use super::prepare::{PrepareError, Prepared, prepare};
use super::show::Show;
use crate::copy::Pair;
use crate::desk::{Desk, DeskError};
use crate::ledger::{Ledger, LedgerError};
use crate::ranges::{Control, FindingKind, Grant, LaneName, Phase, Settings, State};
use crate::stream::StreamError;
use crate::worker::{Tables, Worker};

struct Pairs(BTreeMap<String, Pair>);

#[async_trait]
impl Tables for Pairs {
    async fn pair(&self, grant: &Grant) -> Result<Pair, StreamError> {
        let missing = || StreamError::Refused(format!("table {} is not among those given", grant.lane.table));
        self.0.get(&grant.lane.table).cloned().ok_or_else(missing)
    }
}

fn settings_of(flags: &RunFlags) -> BTreeMap<String, String> {
    let consistency = match flags.consistency {
        Consistency::One => "one",
        Consistency::Quorum => "quorum",
        Consistency::LocalQuorum => "local-quorum",
        Consistency::All => "all",
    };
    [
        ("writeTimes", "kept".to_owned()),
        ("timesToLive", "kept".to_owned()),
        ("consistency", consistency.to_owned()),
        ("workers", flags.workers.to_string()),
        ("rowsPerSecond", flags.rate.to_string()),
        ("latencyCeilingMs", flags.latency_ceiling_ms.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Runs until everything is done, nothing can go on, or it is told to stop.
pub async fn run(flags: RunFlags, stop: CancellationToken) -> Outcome {
    let mut outcome = Outcome {
        ending: Ending::Failed,
        message: String::new(),
        source: String::new(),
        target: String::new(),
        settings: settings_of(&flags),
        phases: vec![],
        receipt: None,
        findings: vec![],
        failed_ranges: vec![],
    };
    let prepared = match prepare(&flags).await {
        Ok(prepared) => prepared,
        Err(error) => {
            outcome.ending = match &error {
                PrepareError::Usage(_) | PrepareError::Connect(crate::stream::cql::ConnectError::Address { .. }) => {
                    Ending::Usage
                }
                PrepareError::Connect(_) => Ending::Failed,
                PrepareError::Schema(_) | PrepareError::Same(_) => Ending::Refused,
            };
            outcome.message = error.to_string();
            return outcome;
        }
    };
    (outcome.source, outcome.target) = (prepared.source.clone(), prepared.target.clone());
    if flags.dry_run {
        outcome.ending = Ending::Done;
        let tables: Vec<&str> = prepared.pairs.keys().map(String::as_str).collect();
        outcome.message = format!("nothing was changed; would migrate {}", tables.join(", "));
        if !prepared.to_create.is_empty() {
            outcome.message = format!("nothing was changed; would run {}", prepared.to_create.join("; "));
        }
        return outcome;
    }
    match drive(&flags, prepared, &stop, &mut outcome).await {
        Ok(()) => {}
        Err(error) => {
            outcome.ending = match &error {
                DeskError::Ledger(LedgerError::Sqlite { .. }) | DeskError::Broken | DeskError::Away(_) => {
                    Ending::Failed
                }
                DeskError::Ledger(_) | DeskError::Control(_) => Ending::Refused,
            };
            outcome.message = error.to_string();
        }
    }
    outcome
}

async fn drive(
    flags: &RunFlags,
    prepared: Prepared,
    stop: &CancellationToken,
    outcome: &mut Outcome,
) -> Result<(), DeskError> {
    let identity = [("source", prepared.source.clone()), ("target", prepared.target.clone())];
    let ledger = Ledger::open(&flags.state, &identity)?;
    let mut settings = Settings::standard("standalone");
    settings.ceiling_us = flags.latency_ceiling_ms.saturating_mul(1000);
    let lane = |table: &String| (LaneName { table: table.clone(), unit: String::new() }, u64::from(flags.ranges));
    let lanes = prepared.pairs.keys().map(lane).collect();
    let desk = Desk::open(ledger, settings, lanes)?;
    let before = desk.state().await?;
    let tables = Arc::new(Pairs(prepared.pairs));
    let mut round = before.round.max(1);
    let session = Session { flags, desk: &desk, tables, stop, source: &prepared.source, target: &prepared.target };
    // Where the state file stands: a phase under way goes on; a copy that was completed is not made again.
    let copied = before.phase > Phase::Backfill || (before.phase == Phase::Backfill && before.complete);
    if !flags.skip_copy && !copied && !session.phase(Phase::Backfill, round, outcome).await? {
        return Ok(());
    }
    if flags.repair {
        let (phase, complete) = (before.phase, before.complete);
        if phase == Phase::Repair && complete || phase == Phase::Verify && round > 1 && !complete {
            // Mended before the last stop; what is left is the proof.
        } else if !session.phase(Phase::Repair, round, outcome).await? {
            return Ok(());
        }
    }
    if flags.verify || flags.repair {
        let under_way = before.phase == Phase::Verify && !before.complete;
        round += u32::from(!under_way && (flags.repair || before.phase >= Phase::Verify));
        if !session.phase(Phase::Verify, round, outcome).await? {
            return Ok(());
        }
        let clean = outcome.receipt.as_ref().is_some_and(|receipt| receipt.clean);
        if !clean {
            outcome.ending = Ending::Partly;
            outcome.message = "the sides differ; run it again with --repair, or look at the findings".to_owned();
            return Ok(());
        }
    }
    outcome.ending = Ending::Done;
    Ok(())
}

struct Session<'a> {
    flags: &'a RunFlags,
    desk: &'a Desk,
    tables: Arc<Pairs>,
    stop: &'a CancellationToken,
    source: &'a str,
    target: &'a str,
}

impl Session<'_> {
    /// One phase to its end; answers whether every range of it is done.
    async fn phase(&self, phase: Phase, round: u32, outcome: &mut Outcome) -> Result<bool, DeskError> {
        let control = Control {
            phase: Some(phase),
            round,
            rows_per_second: self.flags.rate,
            source: self.source.to_owned(),
            target: self.target.to_owned(),
            ..Control::default()
        };
        let began = Instant::now();
        let rows_before = self.desk.control(control).await?.counts.rows;
        let stop = self.stop.child_token();
        let mut workers = JoinSet::new();
        for number in 0..self.flags.workers {
            let worker = Worker::named(format!("worker-{number}"));
            let (desk, tables, stop) = (Arc::new(self.desk.clone()), self.tables.clone(), stop.clone());
            workers.spawn(async move { worker.run(desk, tables, stop).await });
        }
        let watched = self.watch(&mut workers).await;
        stop.cancel();
        while workers.join_next().await.is_some() {}
        let (state, message) = watched?;
        outcome.phases.push(PhaseResult {
            phase,
            round: state.round,
            complete: state.complete,
            done_ppm: state.done_ppm,
            ranges_failed: state.ranges_failed,
            rows: state.counts.rows - rows_before,
            counts: state.counts.clone(),
            seconds: began.elapsed().as_secs_f64(),
        });
        // What the copy found about ranges stands; what was said of rows is said anew by each comparison.
        let of_ranges = [FindingKind::Slow, FindingKind::Tombstones, FindingKind::LargePartition];
        outcome.findings.retain(|finding| of_ranges.contains(&finding.kind) && !state.findings.contains(finding));
        outcome.findings.extend(state.findings.iter().cloned());
        outcome.receipt = state.receipt.clone();
        if !state.complete {
            let (ranges, _) = self.desk.ranges("", 1000);
            outcome.failed_ranges = ranges.into_iter().filter(|range| range.state == "failed").collect();
            outcome.ending = Ending::Partly;
            outcome.message = message;
        }
        Ok(state.complete)
    }

    /// Shows progress until the phase has ended, a worker failed, a side is away for too long, or it is told to stop.
    async fn watch(&self, workers: &mut JoinSet<Result<(), DeskError>>) -> Result<(State, String), DeskError> {
        let mut show = Show::new();
        let patience_ms = i64::from(self.flags.give_up_seconds) * 1000;
        loop {
            let state = self.desk.state().await?;
            show.show(&state);
            let away_ms = match state.unavailable_since_ms {
                0 => 0,
                since => cell_runtime::unix_ms() - since,
            };
            let message = if state.ended {
                "some ranges failed; the same command with the same --state tries them again"
            } else if self.stop.is_cancelled() {
                "stopped; the same command with the same --state goes on"
            } else if away_ms > patience_ms {
                "a side has not answered for too long; the same command with the same --state goes on"
            } else {
                tokio::select! {
                    ended = workers.join_next() => {
                        if let Some(Ok(Err(error))) = ended {
                            return Err(error);
                        }
                    }
                    () = tokio::time::sleep(Duration::from_millis(200)) => {}
                    () = self.stop.cancelled() => {}
                }
                continue;
            };
            show.finish(&state);
            return Ok((state, message.to_owned()));
        }
    }
}
