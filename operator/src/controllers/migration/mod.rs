//! Reconciles a `StorageMigration`: finds or begins its run, drives the step machine, mirrors it in the status, and holds the deletion
//! until the run has ended. The truth of a run is in etcd and in the heads.

mod drive;
mod find;
mod perform;
mod spec;
mod status;

use std::time::Duration;

use cell_crds::{Reason, StorageMigration};
use kube::ResourceExt;

use super::Outcome;
use crate::apply::Finalizer;
use crate::context::Context;
use crate::directory::LinkError;
use crate::error::ReconcileError;
use crate::report::Standing;
pub use drive::Live;
use find::Found;
pub use perform::cells_of;

const SOON: Duration = Duration::from_secs(1);
const NOW_AND_THEN: Duration = Duration::from_secs(30);

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(one: &StorageMigration, context: &Context) -> Result<Outcome, ReconcileError> {
    if one.status.as_ref().is_some_and(|status| status.result.is_some()) {
        return finish(one, context).await;
    }
    // observe (caches only), validate (pure)
    let spec = match spec::read(one) {
        Ok(spec) => spec,
        Err(message) => return give_up(one, context, Standing::Stalled(Reason::InvalidSpec, message)).await,
    };
    let Some(fleet) = context.stores.fleet() else {
        // A Fleet that cannot be read has not released its etcd: what the run left there is still to be undone.
        if let Some(why) = context.unread_fleet().await? {
            return wait(one, context, Standing::Stalled(Reason::InvalidSpec, why)).await;
        }
        if one.metadata.deletion_timestamp.is_some() {
            // Whoever deletes it with the Fleet gone cannot have it undone any more: its etcd is not known.
            tracing::warn!(name = one.name_any(), "deleted without a Fleet: what its run left in etcd stays there");
            context.applier.finalizer(one, Finalizer::Released).await?;
            return Ok(Outcome::Settled);
        }
        let message = "no Fleet in this namespace: create one".to_owned();
        return wait(one, context, Standing::Reconciling(Reason::NoFleet, message)).await;
    };
    if fleet.spec.paused {
        let message = "Fleet.spec.paused is set: the run stops at its stage until it is unset".to_owned();
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
            let hands = perform::Hands { one, context, fleet: &fleet, link: &link };
            drive::drive(&hands, *run).await
        }
    }
}

/// The run has ended: the migration may go. Its record in etcd goes with it.
async fn finish(one: &StorageMigration, context: &Context) -> Result<Outcome, ReconcileError> {
    if one.metadata.deletion_timestamp.is_none() {
        return Ok(Outcome::Settled);
    }
    let run_id = one.status.as_ref().and_then(|status| status.run_id.clone());
    if let (Some(link), Some(run_id)) = (context.link(), run_id) {
        match link.migration_run(&run_id).await {
            Ok(Some(run)) if run.record.outcome.is_some() => link.forget_migration(&run).await?,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, name = one.name_any(), "the finished run's record stays in etcd"),
        }
    }
    context.applier.finalizer(one, Finalizer::Released).await?;
    Ok(Outcome::Settled)
}

async fn wait(one: &StorageMigration, context: &Context, standing: Standing) -> Result<Outcome, ReconcileError> {
    status::report_waiting(one, context, &standing).await?;
    Ok(match standing {
        Standing::Stalled(Reason::StageUnknown, _) => Outcome::Waiting(NOW_AND_THEN),
        _ => Outcome::Waiting(SOON),
    })
}

/// Nothing can ever come of it: no run is begun.
async fn give_up(one: &StorageMigration, context: &Context, standing: Standing) -> Result<Outcome, ReconcileError> {
    status::report_refused(one, context, &standing).await?;
    if one.metadata.deletion_timestamp.is_some() {
        context.applier.finalizer(one, Finalizer::Released).await?;
    }
    Ok(Outcome::Settled)
}
