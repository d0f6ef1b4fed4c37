//! Reconciles a `Move`: finds or begins its run, drives the step machine, mirrors it in the status, and holds the deletion until the
//! run has ended. The truth of a run is in etcd and in the heads: a status that says otherwise is overwritten, and lets nothing go.

mod drive;
mod find;
pub mod orphans;
mod spec;
mod status;

use std::time::Duration;

use cell_crds::{Move, Reason};

use super::Outcome;
use crate::apply::Finalizer;
use crate::context::Context;
use crate::directory::{Link, LinkError, StoredRun};
use crate::error::ReconcileError;
use crate::report::Standing;
use find::Found;

const SOON: Duration = Duration::from_secs(1);
const NOW_AND_THEN: Duration = Duration::from_secs(30);

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(one: &Move, context: &Context) -> Result<Outcome, ReconcileError> {
    // observe (caches only), validate (pure)
    let spec = match spec::read(one, cell_runtime::unix_ms()) {
        Ok(spec) => spec,
        Err(refusal) => {
            let standing = Standing::Stalled(Reason::InvalidSpec, refusal.to_string());
            return give_up(one, context, standing).await;
        }
    };
    let Some(fleet) = context.stores.fleet() else {
        if is_finished(one) {
            // Without a Fleet there is no etcd to ask, and no cell that a run could ask anything of.
            return finish(one, context, None).await;
        }
        if let Some(why) = context.unread_fleet().await? {
            return wait(one, context, Standing::Stalled(Reason::InvalidSpec, why)).await;
        }
        let message = "no Fleet in this namespace: create one".to_owned();
        return wait(one, context, Standing::Reconciling(Reason::NoFleet, message)).await;
    };
    let link = context.hub.link_to(&fleet.spec.etcd);
    // find the run (client required)
    let own = match find::own(one, &link, &spec).await {
        Err(LinkError::Malformed { key, message }) => return unknown_stage(one, context, &key, &message).await,
        found => found?,
    };
    match own {
        Some(run) if run.record.outcome.is_some() => {
            status::Reporter::new(one, context).finish(&run, one.metadata.generation).await?;
            finish(one, context, Some((&link, run))).await
        }
        None if is_finished(one) => {
            status::report_generation(one, context).await?;
            finish(one, context, None).await
        }
        _ if fleet.spec.paused => {
            let message = "Fleet.spec.paused is set: the run stops at its step until it is unset".to_owned();
            wait(one, context, Standing::Stalled(Reason::Paused, message)).await
        }
        Some(run) => {
            context.applier.finalizer(one, Finalizer::Held).await?;
            // plan (pure), apply (client required), report (client required), step by step
            drive::drive(one, context, &link, run).await
        }
        None => begin(one, context, &link, &spec).await,
    }
}

/// The Move drives no run: it is given one, waits for its units, or goes.
async fn begin(
    one: &Move,
    context: &Context,
    link: &Link,
    spec: &cell_plan::moves::Spec,
) -> Result<Outcome, ReconcileError> {
    if one.metadata.deletion_timestamp.is_some() {
        context.applier.finalizer(one, Finalizer::Released).await?;
        return Ok(Outcome::Settled);
    }
    // Held before there is anything to hold: no deletion comes between.
    context.applier.finalizer(one, Finalizer::Held).await?;
    match find::find(one, link, context, spec).await {
        Err(LinkError::Malformed { key, message }) => unknown_stage(one, context, &key, &message).await,
        Err(error) => Err(error.into()),
        Ok(Found::Changed) => Ok(Outcome::Waiting(SOON)),
        Ok(Found::Busy(standing)) => wait(one, context, standing).await,
        Ok(Found::Run(run)) => drive::drive(one, context, link, *run).await,
    }
}

async fn unknown_stage(one: &Move, context: &Context, key: &str, message: &str) -> Result<Outcome, ReconcileError> {
    let message = format!("{key}: {message}; nothing is written; run the operator version that began it");
    wait(one, context, Standing::Stalled(Reason::StageUnknown, message)).await
}

fn is_finished(one: &Move) -> bool {
    one.status.as_ref().is_some_and(|status| status.result.is_some())
}

/// The run has ended: the Move may go, at once if it is being deleted, else when its time is over. Its record goes with it.
async fn finish(one: &Move, context: &Context, run: Option<(&Link, StoredRun)>) -> Result<Outcome, ReconcileError> {
    if one.metadata.deletion_timestamp.is_some() {
        if let Some((link, run)) = run {
            link.forget_run(&run).await?;
        }
        context.applier.finalizer(one, Finalizer::Released).await?;
        return Ok(Outcome::Settled);
    }
    let (Some(ttl), Some(ended)) =
        (one.spec.ttl_after_finished_seconds, one.status.as_ref().and_then(|status| status.finished_at.clone()))
    else {
        return Ok(Outcome::Settled);
    };
    let left_ms = ended.0.as_millisecond() + i64::from(ttl) * 1000 - cell_runtime::unix_ms();
    if left_ms > 0 {
        return Ok(Outcome::Waiting(Duration::from_millis(left_ms.unsigned_abs())));
    }
    context.applier.delete(one).await?;
    Ok(Outcome::Settled)
}

async fn wait(one: &Move, context: &Context, standing: Standing) -> Result<Outcome, ReconcileError> {
    status::report_waiting(one, context, &standing).await?;
    Ok(match standing {
        Standing::Stalled(Reason::StageUnknown, _) => Outcome::Waiting(NOW_AND_THEN),
        _ => Outcome::Waiting(SOON),
    })
}

/// Nothing can ever come of it: no run is begun.
async fn give_up(one: &Move, context: &Context, standing: Standing) -> Result<Outcome, ReconcileError> {
    status::report_refused(one, context, &standing).await?;
    if one.metadata.deletion_timestamp.is_some() {
        context.applier.finalizer(one, Finalizer::Released).await?;
    }
    Ok(Outcome::Settled)
}
