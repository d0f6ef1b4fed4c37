//! Reconciles a `StorageCell`: runs the embedded store, refuses engines that this version lacks, and is held while a cell refers to it.

mod validate;

use std::time::Duration;

use cell_crds::{Reason, StorageCell, StorageCellStatus};
use cell_proto::directory::Role;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use serde_json::json;

use super::Outcome;
use super::cell::rollout;
use crate::apply::Finalizer;
use crate::build;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::manager;
use crate::report::{Standing, announce, is_transition};

const SOON: Duration = Duration::from_secs(1);
const NOW_AND_THEN: Duration = Duration::from_secs(15);
/// Version of the tables' schema that this operator's cells write.
const SCHEMA_VERSION: i32 = 1;

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(storage: &StorageCell, context: &Context) -> Result<Outcome, ReconcileError> {
    // observe (caches only)
    let name = storage.name_any();
    let cells = context.stores.all_cells();
    let users: Vec<String> =
        cells.iter().filter(|cell| cell.spec.storage_cell_ref == name).map(ResourceExt::name_any).collect();
    let fleet = context.stores.fleet();
    if storage.metadata.deletion_timestamp.is_some() && users.is_empty() {
        context.applier.finalizer(storage, Finalizer::Released).await?;
        return Ok(Outcome::Settled);
    }
    // validate (pure)
    let standing = match validate::validate(storage, fleet.as_ref(), &users) {
        Err(refused) => refused,
        Ok(fleet) => {
            // build (pure), apply (client required)
            context.applier.finalizer(storage, Finalizer::Held).await?;
            let set = build::store::set(storage, fleet, context.common(fleet));
            context.applier.apply(&manager("storagecell", "service"), &build::store::service(storage)).await?;
            let set = context.applier.apply(&manager("storagecell", "store"), &set).await?;
            settle(storage, context, &set, &users).await?
        }
    };
    // report (client required)
    report(storage, context, &standing).await
}

async fn settle(
    storage: &StorageCell,
    context: &Context,
    set: &StatefulSet,
    users: &[String],
) -> Result<Standing, ReconcileError> {
    let state = rollout::advance(context, set).await?;
    if storage.metadata.deletion_timestamp.is_some() {
        return Ok(validate::referenced(users));
    }
    Ok(match state {
        rollout::SetState::Ready { pods } => {
            Standing::Ready(Reason::AsDesired, format!("{pods} store pod is ready; used by {} cells", users.len()))
        }
        rollout::SetState::Waiting(why) => Standing::Reconciling(Reason::PodsNotReady, why),
    })
}

async fn report(storage: &StorageCell, context: &Context, standing: &Standing) -> Result<Outcome, ReconcileError> {
    let before = storage.status.clone().unwrap_or_default();
    let reachable = context.link().filter(|link| link.directory.is_synced()).map(|link| {
        let view = link.directory.view();
        view.members_of(Role::Store, &storage.name_any()).count()
    });
    let ready = matches!(standing, Standing::Ready(..));
    let status = StorageCellStatus {
        observed_generation: storage.metadata.generation,
        conditions: standing.conditions(&before.conditions, storage.metadata.generation),
        reachable_nodes: reachable.and_then(|nodes| i32::try_from(nodes).ok()).or(before.reachable_nodes),
        schema_version: if ready { Some(SCHEMA_VERSION) } else { before.schema_version },
    };
    if status != before {
        context.applier.status(&manager("storagecell", "status"), storage, json!(status)).await?;
        if is_transition(&before.conditions, &status.conditions) {
            announce(&context.recorder, storage, standing, "Reconcile").await;
        }
    }
    Ok(match standing {
        // The directory's members are not watched here: a look now and then keeps `reachableNodes` true.
        Standing::Ready(..) => Outcome::Waiting(NOW_AND_THEN),
        Standing::Reconciling(..) => Outcome::Waiting(SOON),
        Standing::Stalled(Reason::StillReferenced, _) => Outcome::Waiting(SOON),
        Standing::Stalled(..) => Outcome::Settled,
    })
}
