//! Reconciles a `Cell`: its StatefulSets and disruption budgets, paced rollouts, the entry label of its gateways, and a deletion that
//! is held until no head names it.

mod observe;
pub(super) mod rollout;
mod validate;

use std::time::Duration;

use cell_crds::cell::CellStorage;
use cell_crds::{Cell, CellStatus, Reason};
use cell_proto::directory::Role;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use serde_json::json;

use self::rollout::SetState;
use super::{Outcome, databases};
use crate::apply::Finalizer;
use crate::build::cell::{CellInput, ROLES, budget, entry_label, replicas, set};
use crate::build::storage;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{ENTRY_LABEL, manager, selector, storage_secret};
use crate::report::{Standing, announce, is_transition};

/// How a cell's reconcile ended, and whether others should look again.
pub struct CellEnd {
    /// How.
    pub outcome: Outcome,
    /// The cell's standing changed: what depends on it looks again.
    pub changed: bool,
}

const SOON: Duration = Duration::from_secs(1);
/// Pause between two looks whether a head still names a cell that is being deleted.
const HELD: Duration = Duration::from_secs(5);
const NOW_AND_THEN: Duration = Duration::from_secs(15);

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(cell: &Cell, context: &Context) -> Result<CellEnd, ReconcileError> {
    // observe (client required for a deletion only)
    let seen = observe::observe(cell, context).await?;
    if seen.may_go {
        context.applier.finalizer(cell, Finalizer::Released).await?;
        return Ok(CellEnd { outcome: Outcome::Settled, changed: true });
    }
    // validate (pure)
    let (standing, pods) = match validate::validate(cell, &seen) {
        Err(refused) => (refused, None),
        Ok(fleet) => {
            let keys = &seen.token_keys;
            let input =
                CellInput { cell, fleet, serving: &seen.serving, token_keys: keys, common: context.common(fleet) };
            // build (pure), apply (client required)
            match apply(&input, context).await? {
                Ok(states) => (validate::standing(cell, &seen, &states), Some(summary(cell, &states))),
                Err(missing) => (Standing::Stalled(Reason::ReferenceNotFound, missing), None),
            }
        }
    };
    // report (client required)
    report(cell, context, &seen, standing, pods).await
}

/// Applies everything; the inner error says which Secret of a database is missing.
async fn apply(input: &CellInput<'_>, context: &Context) -> Result<Result<Vec<SetState>, String>, ReconcileError> {
    context.applier.finalizer(input.cell, Finalizer::Held).await?;
    let needed = databases::needed(input.cell, &context.stores.all_migrations());
    let files = match databases::files(context, needed.iter()).await? {
        Ok(files) => files,
        Err(missing) => return Ok(Err(missing)),
    };
    let name = input.cell.name_any();
    let secret = storage::secret(&storage_secret(&name), &name, input.cell.controller_owner_ref(&()), files);
    context.applier.apply(&manager("cell", "storage"), &secret).await?;
    let mut states = Vec::new();
    for role in ROLES {
        // One broken role does not keep its siblings from being reconciled: a StatefulSet that fails fails this pass at its end.
        let applied = context.applier.apply(&manager("cell", role.label()), &set(input, role)).await?;
        context.applier.apply(&manager("cell", "budget"), &budget(input.cell, role)).await?;
        states.push(rollout::advance(context, &applied).await?);
    }
    label_gateways(input.cell, context).await?;
    Ok(Ok(states))
}

/// Takes the gateways of a cordoned cell out of the entry, and brings them back: labels only, no Pod is replaced.
async fn label_gateways(cell: &Cell, context: &Context) -> Result<(), ReconcileError> {
    let selects = selector(&cell.name_any(), Role::Gateway.label());
    let labels = selects.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let params = ListParams::default().labels(&labels);
    let pods = context.applier.api::<Pod>().list(&params).await;
    let pods = pods.map_err(ReconcileError::request("list", "Pod", &cell.name_any()))?;
    let wanted = entry_label(cell);
    for pod in pods {
        if pod.labels().get(ENTRY_LABEL).map(String::as_str) != Some(wanted)
            && pod.metadata.deletion_timestamp.is_none()
        {
            let body = json!({"metadata": {"uid": pod.uid(), "labels": {ENTRY_LABEL: wanted}}});
            context.applier.patch::<Pod>(&manager("cell", "entry"), &pod.name_any(), body).await?;
        }
    }
    Ok(())
}

fn summary(cell: &Cell, states: &[SetState]) -> String {
    let line = |(role, state): (&Role, &SetState)| {
        format!("{} {}/{}", role.label(), state.ready_pods(), replicas(cell, *role))
    };
    ROLES.iter().zip(states).map(line).collect::<Vec<_>>().join(", ")
}

async fn report(
    cell: &Cell,
    context: &Context,
    seen: &observe::Seen,
    standing: Standing,
    pods: Option<String>,
) -> Result<CellEnd, ReconcileError> {
    let before = cell.status.clone().unwrap_or_default();
    // A migration may have written it since this pass began: the newest that is known counts.
    let newest = context.stores.cell(&context.settings.namespace, &cell.name_any());
    let newest = newest.filter(|newest| newest.uid() == cell.uid()).and_then(|newest| newest.status?.storage);
    let decided = newest.or_else(|| before.storage.clone()).filter(|storage| !storage.serving.is_empty());
    let serving =
        decided.unwrap_or_else(|| CellStorage { serving: cell.spec.storage_cell_ref.clone(), others: Vec::new() });
    let status = CellStatus {
        observed_generation: cell.metadata.generation,
        conditions: standing.conditions(&before.conditions, cell.metadata.generation),
        units: seen.units.or(before.units),
        pods: pods.or(before.pods.clone()),
        storage: if seen.storage_exists { Some(serving) } else { before.storage.clone() },
        blocked_by: standing.blocked_by(),
    };
    let changed = status != before;
    if changed {
        context.applier.status(&manager("cell", "status"), cell, json!(status)).await?;
        if is_transition(&before.conditions, &status.conditions) {
            announce(&context.recorder, cell, &standing, "Reconcile").await;
        }
    }
    let outcome = match &standing {
        // The number of units follows the directory, which is not watched here.
        Standing::Ready(..) => Outcome::Waiting(NOW_AND_THEN),
        // Each look walks the heads of its StorageCell.
        Standing::Stalled(Reason::HoldsUnits, _) => Outcome::Waiting(HELD),
        Standing::Reconciling(..) => Outcome::Waiting(SOON),
        Standing::Stalled(..) => Outcome::Waiting(NOW_AND_THEN),
    };
    Ok(CellEnd { outcome, changed })
}
