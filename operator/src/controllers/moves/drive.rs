//! Drives a run: decide, store, ask, hear. The record is stored before its request is sent, so this loop may end anywhere.

use std::time::{Duration, Instant};

use cell_crds::Move;
use cell_plan::checks::{MoveRefusal, check_ends, check_in_place};
use cell_plan::moves::{Context as StepContext, Record, Response, Transition, Wishes, advance};
use kube::ResourceExt;

use super::super::{Outcome, cell_facts};
use super::status;
use crate::context::Context;
use crate::directory::{Link, StoredRun};
use crate::error::ReconcileError;
use crate::metrics::Asked;
use crate::rpc;

/// Longest time one pass drives a run before others get their turn.
const PASS: Duration = Duration::from_secs(20);
/// Shortest and longest pause until the next pass.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);

pub(super) async fn drive(
    one: &Move,
    context: &Context,
    link: &Link,
    mut run: StoredRun,
) -> Result<Outcome, ReconcileError> {
    let started = Instant::now();
    let mut reporter = status::Reporter::new(one, context);
    let mut heard: Option<Response> = None;
    loop {
        let now_ms = cell_runtime::unix_ms();
        let current = context.stores.a_move(&context.settings.namespace, &one.name_any());
        let current = current.as_ref().filter(|found| found.uid() == one.uid()).unwrap_or(one);
        let generation = current.metadata.generation;
        let step =
            StepContext { now_ms, wishes: wishes(current, &run.record), refusal: refusal(context, link, &run.record) };
        let Transition { record, request, wake_at_ms } = advance(&run.record, &step, heard.as_ref());
        if record != run.record {
            trace(one, &run.record, &record);
            let Some(saved) = link.save(&run, &record).await? else {
                // Another pass wrote it: what is stored now rules.
                return Ok(Outcome::Waiting(SHORTEST));
            };
            run = saved;
        }
        reporter.report(&run, generation).await?;
        let Some(request) = request else {
            if run.record.outcome.is_some() {
                reporter.finish(&run, generation).await?;
                return Ok(Outcome::Waiting(SHORTEST));
            }
            let pause = wake_at_ms.map_or(0, |wake| wake - now_ms).max(0).unsigned_abs();
            return Ok(Outcome::Waiting(Duration::from_millis(pause).clamp(SHORTEST, LONGEST)));
        };
        let response = rpc::perform(link, &run.record.spec.run_id, &request).await;
        let asked = Asked { request: request.label(), outcome: outcome_label(&response) };
        tracing::debug!(name = one.name_any(), request = asked.request, outcome = asked.outcome, response = ?response, "asked");
        context.metrics.requests.get_or_create(&asked).inc();
        heard = Some(response);
        if started.elapsed() >= PASS {
            // What was heard is stored by the next transition of this very loop: take it, then yield.
            let step = StepContext { now_ms: cell_runtime::unix_ms(), ..step };
            let next = advance(&run.record, &step, heard.as_ref());
            if next.record != run.record {
                // Its request is not sent now: the next pass asks it again, which every request allows.
                link.save(&run, &next.record).await?;
            }
            return Ok(Outcome::Waiting(SHORTEST));
        }
    }
}

/// The wishes of the Move as it is now. A deletion is a wish to abort; after the commit point it only waits.
fn wishes(one: &Move, record: &Record) -> Wishes {
    let deleting = one.metadata.deletion_timestamp.is_some() && !record.is_committed();
    Wishes { abort: one.spec.abort || deleting, rollback: one.spec.rollback }
}

fn refusal(context: &Context, link: &Link, record: &Record) -> Option<MoveRefusal> {
    let view = link.directory.view();
    let facts: Vec<_> = context.stores.all_cells().iter().map(|cell| cell_facts(cell, &view)).collect();
    let spec = &record.spec;
    if spec.is_merge_in_place() { check_in_place(&spec.to, &facts) } else { check_ends(&spec.from, &spec.to, &facts) }
        .err()
}

fn outcome_label(response: &Response) -> &'static str {
    match response {
        Response::Refused { .. } => "refused",
        Response::Unknown { .. } => "unknown",
        Response::NoMember { .. } => "nobody",
        Response::Pending => "pending",
        _ => "done",
    }
}

fn trace(one: &Move, before: &Record, after: &Record) {
    let changed = before.step_label() != after.step_label();
    let blocked = after.blocked_by.as_ref().map(|blocked| blocked.reason.as_str()).unwrap_or_default();
    let (name, run_id, step) = (one.name_any(), after.spec.run_id.as_str(), after.step_label());
    if changed {
        tracing::info!(name, run_id, step, blocked, "the run goes on");
    } else {
        tracing::debug!(name, run_id, step, at = ?after.step, blocked, "the run goes on");
    }
}
