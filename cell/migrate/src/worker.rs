//! A worker: takes leases, does the work, reports while it is at it. It keeps nothing; whatever it had not reported is done again by another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_runtime::CancellationToken;
use tokio::time::Instant;

use crate::compare::{Comparison, SETTLE, compare};
use crate::copy::{Pair, WorkError, copy};
use crate::desk::{DeskError, Leases};
use crate::job::Job;
use crate::ranges::{FailureKind, Grant, Phase, Progress};
use crate::stream::StreamError;

/// Finds the two sides of what is leased.
#[async_trait]
pub trait Tables: Send + Sync + 'static {
    /// Both sides of a lane.
    async fn pair(&self, grant: &Grant) -> Result<Pair, StreamError>;
}

/// How a worker goes about it.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its name, unique in the run.
    pub name: String,
    /// Between reports.
    pub report_every: Duration,
    /// When there is nothing to do.
    pub ask_again: Duration,
    /// Time that a mismatch gets to settle.
    pub settle: Duration,
}

impl Worker {
    /// With the usual times.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            report_every: Duration::from_secs(1),
            ask_again: Duration::from_millis(200),
            settle: SETTLE,
        }
    }

    /// Works until told to stop. A coordinator that does not answer is asked again.
    ///
    /// # Errors
    /// [`DeskError`] when the desk is here and its ledger failed.
    pub async fn run(
        &self,
        leases: Arc<dyn Leases>,
        tables: Arc<dyn Tables>,
        stop: CancellationToken,
    ) -> Result<(), DeskError> {
        loop {
            let grant = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                grant = leases.lease(&self.name) => grant,
            };
            match grant {
                Ok(Some(grant)) => {
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        worked = self.work(&*leases, &*tables, grant) => worked?,
                    }
                }
                Ok(None) => self.wait(&stop, self.ask_again).await,
                Err(DeskError::Away(error)) => {
                    tracing::debug!(%error, worker = %self.name, "no lease");
                    self.wait(&stop, Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn wait(&self, stop: &CancellationToken, time: Duration) {
        let _ = tokio::time::timeout(time, stop.cancelled()).await;
    }

    async fn work(&self, leases: &dyn Leases, tables: &dyn Tables, grant: Grant) -> Result<(), DeskError> {
        let job = Job::new(&grant);
        let work = self.do_phase(tables, &grant, &job);
        tokio::pin!(work);
        let lease_time = Duration::from_millis(grant.lease_ms.unsigned_abs());
        let mut renewed = Instant::now();
        let mut tick = tokio::time::interval_at(renewed + self.report_every, self.report_every);
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                _ = tick.tick() => {}
            }
            match leases.report(self.progress(&grant, &job)).await {
                Ok(verdict) if verdict.stop => return Ok(()),
                Ok(verdict) => {
                    renewed = Instant::now();
                    job.set(verdict.rows_per_second, verdict.last_token);
                }
                // Another may have the range by now.
                Err(DeskError::Away(_)) if renewed.elapsed() >= lease_time => return Ok(()),
                Err(DeskError::Away(_)) => {}
                Err(error) => return Err(error),
            }
        };
        self.end(leases, &grant, &job, ended, renewed + lease_time).await
    }

    async fn do_phase(&self, tables: &dyn Tables, grant: &Grant, job: &Job) -> Result<(), WorkError> {
        let pair = tables.pair(grant).await?;
        match grant.phase {
            Phase::Idle => Ok(()),
            Phase::Backfill => copy(&pair, job).await,
            Phase::Verify => compare(&pair, job, Comparison { mend: false, settle: self.settle }).await,
            Phase::Repair => compare(&pair, job, Comparison { mend: true, settle: self.settle }).await,
        }
    }

    fn progress(&self, grant: &Grant, job: &Job) -> Progress {
        let mut counts = job.counts();
        if grant.phase == Phase::Verify {
            // A range that is compared again must not be counted twice.
            counts.mismatches.clear();
        }
        Progress {
            lease: grant.lease,
            worker: self.name.clone(),
            done_until: job.done_until(),
            mark: job.mark(),
            counts,
            findings: job.findings(),
            sample: job.take_sample(),
            ..Progress::default()
        }
    }

    async fn end(
        &self,
        leases: &dyn Leases,
        grant: &Grant,
        job: &Job,
        ended: Result<(), WorkError>,
        until: Instant,
    ) -> Result<(), DeskError> {
        let mut progress = self.progress(grant, job);
        progress.ended = true;
        match ended {
            Ok(()) => (progress.counts, progress.digests) = (job.counts(), job.digests()),
            Err(WorkError { kind, text, failing_token }) => {
                if kind == FailureKind::Range {
                    tracing::warn!(table = %job.table, first = grant.tokens.first, last = grant.tokens.last, error = %text, "a range failed");
                }
                progress.failure = Some((kind, text));
                progress.failing_token = failing_token;
            }
        }
        loop {
            match leases.report(progress.clone()).await {
                Ok(_) => return Ok(()),
                Err(DeskError::Away(_)) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(200)).await
                }
                Err(DeskError::Away(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}
