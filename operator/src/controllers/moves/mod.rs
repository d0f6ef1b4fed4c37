//! Reconciles a `Move`: finds or begins its run, drives the step machine, mirrors it in the status, and holds the deletion until the
//! run has ended. The truth of a run is in etcd and in the heads.

mod drive;
mod find;
mod spec;
mod status;

use std::time::Duration;

use cell_crds::{Move, Reason};
use kube::ResourceExt;

use super::Outcome;
use crate::apply::Finalizer;
use crate::context::Context;
use crate::directory::LinkError;
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
    if is_finished(one) {
        return finish(one, context).await;
    }
    // observe (caches only), validate (pure)
    let spec = match spec::read(one, cell_runtime::unix_ms()) {
        Ok(spec) => spec,
        Err(refusal) => {
            let standing = Standing::Stalled(Reason::InvalidSpec, refusal.to_string());
            return give_up(one, context, standing).await;
        }
    };
    let Some(fleet) = context.stores.fleet() else {
        let message = "no Fleet in this namespace: create one".to_owned();
        return wait(one, context, Standing::Reconciling(Reason::NoFleet, message)).await;
    };
    if fleet.spec.paused {
        let message = "Fleet.spec.paused is set: the run stops at its step until it is unset".to_owned();
        return wait(one, context, Standing::Stalled(Reason::Paused, message)).await;
    }
    let link = context.hub.link_to(&fleet.spec.etcd);
    // find the run (client required)
    let found = match find::find(one, &link, context, &spec).await {
        Ok(found) => found,
        Err(LinkError::Malformed { key, message }) => {
            let message = format!("{key}: {message}; nothing is written; run the operator version that began it");
            return wait(one, context, Standing::Stalled(Reason::StageUnknown, message)).await;
        }
        Err(error) => return Err(error.into()),
    };
    match found {
        Found::Nothing => {
            context.applier.finalizer(one, Finalizer::Released).await?;
            Ok(Outcome::Settled)
        }
        Found::Busy(standing) => wait(one, context, standing).await,
        Found::Run(run) => {
            context.applier.finalizer(one, Finalizer::Held).await?;
            // plan (pure), apply (client required), report (client required), step by step
            drive::drive(one, context, &link, *run).await
        }
    }
}

fn is_finished(one: &Move) -> bool {
    one.status.as_ref().is_some_and(|status| status.result.is_some())
}

/// The run has ended: the Move may go, at once if it is being deleted, else when its time is over.
async fn finish(one: &Move, context: &Context) -> Result<Outcome, ReconcileError> {
    if one.metadata.deletion_timestamp.is_some() {
        forget(one, context).await?;
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

/// Forgets the stored run of a Move that goes; an etcd that is away does not hold it up.
async fn forget(one: &Move, context: &Context) -> Result<(), ReconcileError> {
    let run_id = one.status.as_ref().and_then(|status| status.run_id.clone());
    let (Some(link), Some(run_id)) = (context.link(), run_id) else { return Ok(()) };
    match link.run(&run_id).await {
        Ok(Some(run)) if run.record.outcome.is_some() => Ok(link.forget_run(&run).await?),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, name = one.name_any(), "the finished run's record stays in etcd");
            Ok(())
        }
    }
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
