//! Finds the run of a migration: its own, an unfinished one with the same content that it adopts, or a new one. A run with other
//! content that holds a StorageCell is never touched.

use cell_crds::{Reason, StorageMigration};
use cell_plan::migrations::{Record, Spec};
use kube::ResourceExt;

use crate::context::Context;
use crate::directory::{Link, LinkError, MigrationBegun, StoredMigration, migration_content};
use crate::report::Standing;

/// What was found.
pub(super) enum Found {
    /// A run to drive.
    Run(Box<StoredMigration>),
    /// A StorageCell is not free.
    Busy(Standing),
    /// The migration is being deleted and never began.
    Nothing,
}

pub(super) async fn find(
    one: &StorageMigration,
    link: &Link,
    context: &Context,
    spec: &Spec,
) -> Result<Found, LinkError> {
    let known = one.status.as_ref().and_then(|status| status.run_id.clone()).filter(|run_id| *run_id != spec.run_id);
    for run_id in known.into_iter().chain([spec.run_id.clone()]) {
        if let Some(run) = link.migration_run(&run_id).await? {
            if migration_content(&run.record.spec) == migration_content(spec) {
                return Ok(Found::Run(Box::new(run)));
            }
            return Ok(Found::Busy(other_content(&run)));
        }
    }
    for side in [&spec.source, &spec.target] {
        if let Some(run_id) = link.run_of_storage(side).await? {
            return held(one, link, context, spec, (side, &run_id)).await;
        }
    }
    if one.metadata.deletion_timestamp.is_some() {
        return Ok(Found::Nothing);
    }
    let record = Record::new(spec.clone(), cell_runtime::unix_ms());
    Ok(match link.begin_migration(&one.name_any(), &record).await? {
        MigrationBegun::Begun(run) => Found::Run(run),
        MigrationBegun::Busy { storage_cell, run_id } => Found::Busy(busy(&storage_cell, &run_id, None)),
    })
}

/// A StorageCell is held by a run that is not this migration's by name: adopted if its own is gone and it asks for the same.
async fn held(
    one: &StorageMigration,
    link: &Link,
    context: &Context,
    spec: &Spec,
    (side, run_id): (&str, &str),
) -> Result<Found, LinkError> {
    let deleting = one.metadata.deletion_timestamp.is_some();
    let none = |standing| if deleting { Found::Nothing } else { Found::Busy(standing) };
    let Some(run) = link.migration_run(run_id).await? else {
        return Ok(none(busy(side, run_id, None)));
    };
    let owner = context.stores.migration(&context.settings.namespace, &run.name);
    let owner_lives = owner.is_some_and(|owner| {
        owner.uid().as_deref() == Some(run_id)
            || owner.status.as_ref().and_then(|status| status.run_id.as_deref()) == Some(run_id)
    });
    if owner_lives && run.name != one.name_any() {
        return Ok(none(busy(side, run_id, Some(&run.name))));
    }
    // Its coordinator is found by the name: only one of the same name goes on with what it has done.
    if run.name == one.name_any() && migration_content(&run.record.spec) == migration_content(spec) {
        tracing::info!(name = one.name_any(), run_id, "adopting an unfinished run");
        return Ok(Found::Run(Box::new(run)));
    }
    Ok(none(other_content(&run)))
}

fn busy(side: &str, run_id: &str, name: Option<&str>) -> Standing {
    let of = name.map(|name| format!(" of StorageMigration {name}")).unwrap_or_default();
    let message = format!("StorageCell {side} is held by run {run_id}{of}; this one waits until it has ended");
    Standing::Reconciling(Reason::UnitBusy, message)
}

fn other_content(run: &StoredMigration) -> Standing {
    let spec = &run.record.spec;
    let units = if spec.units.is_empty() { "everything".to_owned() } else { spec.units.join(", ") };
    let message = format!(
        "run {} ({units} from {} to {}, begun as StorageMigration {}) is unfinished and asks for something else; nothing is written. Create a StorageMigration of that name and content to finish it",
        spec.run_id, spec.source, spec.target, run.name
    );
    Standing::Stalled(Reason::StageUnknown, message)
}
