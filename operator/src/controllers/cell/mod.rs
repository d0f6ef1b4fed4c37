//! Reconciles a `Cell`: its StatefulSets and disruption budgets, rollouts Pod by Pod, the entry label of its gateways, and a deletion that
//! is held until no head names it.

mod observe;
pub(super) mod rollout;
mod validate;

use std::time::Duration;

use cell_crds::cell::CellStorage;
use cell_crds::{Cell, CellStatus, Reason};
use cell_plan::rollout::{Turn, turn_after};
use cell_proto::directory::Role;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Resource, ResourceExt};
use serde_json::json;

use self::rollout::SetState;
use super::{Outcome, databases};
use crate::apply::Finalizer;
use crate::build::cell::{CellInput, ROLES, budget, entry_label, replicas, set};
use crate::build::{policy, storage, store};
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{ENTRY_LABEL, manager, selector, stateful_set, storage_secret};
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
    let secret = storage::secret(&storage_secret(&name), &name, input.cell.controller_owner_ref(&()), files.contents);
    context.applier.apply(&manager("cell", "storage"), &secret).await?;
    let namespace = &context.settings.namespace;
    let storage_cells: Vec<_> = needed.iter().filter_map(|name| context.stores.storage_cell(namespace, name)).collect();
    let policy = policy::dialling(input.cell, input.fleet, &storage_cells);
    context.applier.apply_if_served(&manager("cell", "policy"), &policy).await?;
    // One broken role does not keep its siblings from being reconciled: what fails first fails this pass at its end.
    let (states, failed) = roll_out(input, context).await?;
    if let Some(error) = failed {
        return Err(error);
    }
    label_gateways(input.cell, context).await?;
    Ok(Ok(states))
}

/// Applies the sets of all roles and takes each one's next step: sound Pods of one at a time. Answers what failed first.
async fn roll_out(
    input: &CellInput<'_>,
    context: &Context,
) -> Result<(Vec<SetState>, Option<ReconcileError>), ReconcileError> {
    let now_ms = cell_runtime::unix_ms();
    let cell_turn = turn_of_cell(input, context, now_ms).await?;
    let (mut looks, mut under_way, mut failed) = (Vec::new(), Vec::new(), None);
    for role in ROLES {
        let key = format!("applied/{}", stateful_set(&input.cell.name_any(), role));
        match apply_role(input, context, role, now_ms).await {
            Ok(look) => {
                context.awaits_no_more(&key);
                under_way.extend(look.under_way(now_ms).map(|why| (role, why)));
                looks.push((role, look));
            }
            Err(error) => {
                // It would be its turn in the order; what fails for long holds nobody.
                let why = format!("the {} role could not be applied", role.label());
                if let Turn::Others(why) = turn_after(why, context.awaits(&key, "apply", now_ms), now_ms) {
                    under_way.push((role, why));
                }
                failed = failed.or(Some(error));
            }
        }
    }
    // What is under way in any role, before or after in the order, keeps the others waiting.
    let mut states = Vec::new();
    for (role, look) in &looks {
        let beside = under_way.iter().find(|(other, _)| other != role).map(|(_, why)| Turn::Others(why.clone()));
        match rollout::advance(context, look, beside.as_ref().unwrap_or(&cell_turn)).await {
            Ok(advanced) => {
                under_way.extend(advanced.replaced.map(|pod| (*role, format!("pod {pod} is being replaced"))));
                states.push(advanced.state);
            }
            Err(error) => {
                // A Pod may be gone all the same.
                under_way.push((*role, format!("a step of the {} role failed", role.label())));
                failed = failed.or(Some(error));
            }
        }
    }
    Ok((states, failed))
}

/// A cell's Pods are replaced after those of the store that serves it: theirs cannot take over from each other while it is away. The
/// store is only looked at, and awaited for a bounded time.
async fn turn_of_cell(input: &CellInput<'_>, context: &Context, now_ms: i64) -> Result<Turn, ReconcileError> {
    let name = stateful_set(input.serving, Role::Store);
    let image = &input.fleet.spec.image.cell;
    let first = match context.applier.get::<StatefulSet>(&name).await? {
        None => None,
        Some(set) if store::has_other_image(&set, image) => {
            Some(format!("StatefulSet {name} has not been given the fleet's image yet"))
        }
        Some(set) => rollout::look(context, &set, now_ms).await?.goes_first(now_ms),
    };
    let key = format!("cell/{}", input.cell.name_any());
    Ok(match first {
        Some(why) => turn_after(why, context.awaits(&key, image, now_ms), now_ms),
        None => {
            context.awaits_no_more(&key);
            Turn::Own
        }
    })
}

async fn apply_role(
    input: &CellInput<'_>,
    context: &Context,
    role: Role,
    now_ms: i64,
) -> Result<rollout::Look, ReconcileError> {
    let applied = context.applier.apply(&manager("cell", role.label()), &set(input, role)).await;
    context.applier.apply(&manager("cell", "budget"), &budget(input.cell, role)).await?;
    rollout::look(context, &applied?, now_ms).await
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
