//! Drives a run: decide, store, ask, hear. What would be lost by a crash is stored before its request is sent, so this loop may end
//! anywhere; figures and places in a sweep are stored now and then.

use std::time::{Duration, Instant};

use cell_crds::StorageMigration;
use cell_plan::migrations::{Context as StepContext, Record, Response, advance};
use kube::ResourceExt;

use super::super::Outcome;
use super::perform::Hands;
use super::{spec, status};
use crate::context::Context;
use crate::directory::StoredMigration;
use crate::error::ReconcileError;
use crate::metrics::Asked;

/// Longest time one pass drives a run before others get their turn.
const PASS: Duration = Duration::from_secs(20);
/// Shortest and longest pause until the next pass.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);
/// How old what is stored may be where only figures changed.
const STORE_EVERY: Duration = Duration::from_secs(5);

/// What this process remembers of a run between two passes.
#[derive(Clone)]
pub struct Live {
    /// What is stored.
    stored: StoredMigration,
    /// What is true by now.
    record: Record,
    stored_at: Instant,
    /// When its status was written last.
    pub(super) written_at: Option<Instant>,
}

impl Live {
    fn new(stored: StoredMigration) -> Self {
        Self { record: stored.record.clone(), stored, stored_at: Instant::now(), written_at: None }
    }
}

/// The run as this process left it, if nobody wrote it since.
fn resume(context: &Context, stored: StoredMigration) -> Live {
    let live = context.live_migration(&stored.record.spec.run_id);
    match live {
        Some(live) if live.stored.revision == stored.revision => live,
        _ => Live::new(stored),
    }
}

pub(super) async fn drive(hands: &Hands<'_>, stored: StoredMigration) -> Result<Outcome, ReconcileError> {
    let run_id = stored.record.spec.run_id.clone();
    let mut live = resume(hands.context, stored);
    let ended = pass(hands, &mut live).await;
    hands.context.keep_migration(&run_id, live.record.outcome.is_none().then_some(live));
    ended
}

async fn pass(hands: &Hands<'_>, live: &mut Live) -> Result<Outcome, ReconcileError> {
    let (one, context) = (hands.one, hands.context);
    let started = Instant::now();
    let mut reporter = status::Reporter::new(one, context, live.written_at);
    let mut heard: Option<Response> = None;
    loop {
        let now_ms = cell_runtime::unix_ms();
        let current = context.stores.migration(&context.settings.namespace, &one.name_any());
        let current = current.filter(|found| found.uid() == one.uid());
        let step = StepContext { now_ms, wishes: spec::wishes(current.as_ref().unwrap_or(one), &live.record) };
        let next = advance(&live.record, &step, heard.take().as_ref());
        trace(one, &live.record, &next.record);
        live.record = next.record;
        let due = live.stored_at.elapsed() >= STORE_EVERY && live.record != live.stored.record;
        if (next.urgent || due) && !store(hands, live).await? {
            // Another pass wrote it: what is stored now rules.
            return Ok(Outcome::Waiting(SHORTEST));
        }
        reporter.report(&live.record).await?;
        live.written_at = reporter.written_at();
        let Some(request) = next.request else {
            if live.record.outcome.is_some() {
                reporter.finish(&live.record).await?;
                return Ok(Outcome::Waiting(SHORTEST));
            }
            let pause = next.wake_at_ms.map_or(0, |wake| wake - now_ms).max(0).unsigned_abs();
            return Ok(Outcome::Waiting(Duration::from_millis(pause).clamp(SHORTEST, LONGEST)));
        };
        let response = hands.perform(&live.record, &request).await;
        let asked = Asked { request: request.label(), outcome: outcome_label(&response) };
        tracing::debug!(name = one.name_any(), request = asked.request, outcome = asked.outcome, "asked");
        context.metrics.requests.get_or_create(&asked).inc();
        heard = Some(response);
        if started.elapsed() >= PASS {
            // What was heard is kept for the next pass; the request that would follow is asked again by it.
            let step = StepContext { now_ms: cell_runtime::unix_ms(), ..step };
            let next = advance(&live.record, &step, heard.as_ref());
            let asks_commit = next.request.as_ref().is_some_and(cell_plan::migrations::Request::is_commit_point);
            live.record = next.record;
            if asks_commit {
                // It counts as sent from here on, which a settling read will find untrue: that is always safe.
                tracing::debug!(name = one.name_any(), "a cutover is asked in the next pass");
            }
            store(hands, live).await?;
            return Ok(Outcome::Waiting(SHORTEST));
        }
    }
}

async fn store(hands: &Hands<'_>, live: &mut Live) -> Result<bool, ReconcileError> {
    let Some(saved) = hands.link.save_migration(&live.stored, &live.record).await? else { return Ok(false) };
    live.stored = saved;
    live.stored_at = Instant::now();
    Ok(true)
}

fn outcome_label(response: &Response) -> &'static str {
    match response {
        Response::Refused { .. } => "refused",
        Response::Unknown { .. } => "unknown",
        Response::Nobody { .. } => "nobody",
        Response::Pending { .. } => "pending",
        _ => "done",
    }
}

fn trace(one: &StorageMigration, before: &Record, after: &Record) {
    if before.stage_label() != after.stage_label() {
        let blocked = after.blocked_by.as_ref().map(|blocked| blocked.reason.as_str()).unwrap_or_default();
        let (name, run_id, stage) = (one.name_any(), after.spec.run_id.as_str(), after.stage_label());
        tracing::info!(name, run_id, stage, blocked, "the migration goes on");
    }
}
