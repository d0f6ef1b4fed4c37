//! Reconciles a `StorageCell`: runs the embedded store, has a database that is run elsewhere probed, has one built by the Scylla
//! operator and then probed; and is held while a cell or a migration refers to it.

mod database;
mod validate;

use std::time::Duration;

use cell_crds::{DeletionPolicy, Engine, Fleet, Reason, StorageCell, StorageCellStatus};
use cell_plan::rollout::Turn;
use cell_proto::directory::Role;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use serde_json::json;

use super::Outcome;
use super::cell::rollout;
use super::databases::{self, ProbeReport};
use crate::apply::Finalizer;
use crate::build::{self, policy};
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::manager;
use crate::report::{Standing, announce, is_transition};

const SOON: Duration = Duration::from_secs(1);
const NOW_AND_THEN: Duration = Duration::from_secs(15);
/// Version of the tables' schema that this operator's cells write.
const SCHEMA_VERSION: i32 = 2;

/// How it stands, and what a probe found of a database.
struct Seen {
    standing: Standing,
    report: Option<ProbeReport>,
    /// The probe that this stands for.
    probed_hash: Option<String>,
}

impl Seen {
    fn of(standing: Standing) -> Self {
        Self { standing, report: None, probed_hash: None }
    }
}

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(storage: &StorageCell, context: &Context) -> Result<Outcome, ReconcileError> {
    // observe (caches only)
    let name = storage.name_any();
    let users = users(context, &name);
    let fleet = context.stores.fleet();
    if storage.metadata.deletion_timestamp.is_some() && users.is_empty() {
        if storage.spec.managed.is_some() && storage.spec.deletion_policy == DeletionPolicy::Delete {
            database::delete(storage, context).await?;
        }
        context.applier.finalizer(storage, Finalizer::Released).await?;
        return Ok(Outcome::Settled);
    }
    // validate (pure)
    let seen = match validate::validate(storage, fleet.as_ref(), &users) {
        Err(refused) => Seen::of(refused),
        Ok(fleet) => {
            // build (pure), apply (client required)
            context.applier.finalizer(storage, Finalizer::Held).await?;
            if let Some(policy) = policy::database(storage) {
                context.applier.apply_if_served(&manager("storagecell", "policy"), &policy).await?;
            }
            let mut seen = match storage.spec.engine {
                Engine::Embedded => Seen::of(embedded(storage, context, fleet, &users).await?),
                _ => database::look(storage, context, fleet, &users).await?,
            };
            if storage.metadata.deletion_timestamp.is_some() {
                seen.standing = validate::referenced(&users);
            }
            seen
        }
    };
    // report (client required)
    report(storage, context, &seen).await
}

/// Who refers to a StorageCell: cells, and migrations under way.
fn users(context: &Context, name: &str) -> Vec<String> {
    let cells = context.stores.all_cells();
    let uses = |cell: &&cell_crds::Cell| databases::needed(cell, &[]).contains(name);
    let mut users: Vec<String> = cells.iter().filter(uses).map(|cell| format!("Cell {}", cell.name_any())).collect();
    let migrations = context.stores.all_migrations();
    let under_way = migrations.iter().filter(|one| one.status.as_ref().is_none_or(|status| status.result.is_none()));
    let names_it = under_way.filter(|one| one.spec.source == name || one.spec.target == name);
    users.extend(names_it.map(|one| format!("StorageMigration {}", one.name_any())));
    // What cannot be read may refer to it.
    users.extend(context.stores.undecoded_cells().map(|name| format!("perhaps Cell {name}, which cannot be decoded")));
    let unread = context.stores.undecoded_migrations();
    users.extend(unread.map(|name| format!("perhaps StorageMigration {name}, which cannot be decoded")));
    users
}

async fn embedded(
    storage: &StorageCell,
    context: &Context,
    fleet: &Fleet,
    users: &[String],
) -> Result<Standing, ReconcileError> {
    let set: StatefulSet = build::store::set(storage, fleet, context.common(fleet));
    context.applier.apply(&manager("storagecell", "service"), &build::store::service(storage)).await?;
    let set = context.applier.apply(&manager("storagecell", "store"), &set).await?;
    let look = rollout::look(context, &set, cell_runtime::unix_ms()).await?;
    Ok(match rollout::advance(context, &look, &Turn::Own).await?.state {
        rollout::SetState::Ready { pods } => {
            Standing::Ready(Reason::AsDesired, format!("{pods} store pod is ready; used by {} cells", users.len()))
        }
        rollout::SetState::Waiting(why) => Standing::Reconciling(Reason::PodsNotReady, why),
    })
}

async fn report(storage: &StorageCell, context: &Context, seen: &Seen) -> Result<Outcome, ReconcileError> {
    let before = storage.status.clone().unwrap_or_default();
    let standing = &seen.standing;
    let ready = matches!(standing, Standing::Ready(..));
    let mut status = StorageCellStatus {
        observed_generation: storage.metadata.generation,
        conditions: standing.conditions(&before.conditions, storage.metadata.generation),
        ..before.clone()
    };
    if storage.spec.engine == Engine::Embedded {
        let reachable = context.link().filter(|link| link.directory.is_synced()).map(|link| {
            let view = link.directory.view();
            view.members_of(Role::Store, &storage.name_any()).count()
        });
        status.reachable_nodes = reachable.and_then(|nodes| i32::try_from(nodes).ok()).or(before.reachable_nodes);
        status.schema_version = if ready { Some(SCHEMA_VERSION) } else { before.schema_version };
    }
    if let Some(found) = &seen.report {
        status.reachable_nodes = Some(found.nodes);
        status.version = Some(found.version.clone()).filter(|version| !version.is_empty()).or(before.version.clone());
        status.schema_version = Some(found.schema_version).filter(|version| *version > 0).or(before.schema_version);
        status.missing_privileges = found.missing_privileges.iter().take(32).cloned().collect();
        status.probed_hash = seen.probed_hash.clone();
    }
    if status != before {
        context.applier.status(&manager("storagecell", "status"), storage, json!(status)).await?;
        if is_transition(&before.conditions, &status.conditions) {
            announce(&context.recorder, storage, standing, "Reconcile").await;
        }
    }
    Ok(match standing {
        // The directory's members and referenced Secrets are not watched here: a look now and then keeps the status true.
        Standing::Ready(..) => Outcome::Waiting(NOW_AND_THEN),
        Standing::Reconciling(..) => Outcome::Waiting(SOON),
        Standing::Stalled(Reason::StillReferenced | Reason::ReferenceNotFound, _) => Outcome::Waiting(SOON),
        Standing::Stalled(..) => Outcome::Waiting(NOW_AND_THEN),
    })
}
