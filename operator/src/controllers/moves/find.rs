//! Finds the run of a Move: its own, an unfinished one with the same content that it adopts, or a new one. A run with other content
//! that holds a unit is never touched.

use cell_crds::{Move, Reason};
use cell_plan::moves::{Record, Spec};
use kube::ResourceExt;

use crate::context::Context;
use crate::directory::{Begun, Link, LinkError, StoredRun, content_of};
use crate::report::Standing;

/// What was found.
pub(super) enum Found {
    /// A run to drive.
    Run(Box<StoredRun>),
    /// The unit is not free.
    Busy(Standing),
    /// The Move is being deleted and never began.
    Nothing,
}

pub(super) async fn find(one: &Move, link: &Link, context: &Context, spec: &Spec) -> Result<Found, LinkError> {
    let known = one.status.as_ref().and_then(|status| status.run_id.clone()).filter(|run_id| *run_id != spec.run_id);
    for run_id in known.into_iter().chain([spec.run_id.clone()]) {
        if let Some(run) = link.run(&run_id).await? {
            if content_of(&run.record.spec) == content_of(spec) {
                return Ok(Found::Run(Box::new(run)));
            }
            return Ok(Found::Busy(other_content(&run)));
        }
    }
    for subject in &spec.subjects {
        let Some(run_id) = link.run_of_unit(subject.log()).await? else { continue };
        return held(one, link, context, spec, (subject.log(), &run_id)).await;
    }
    if one.metadata.deletion_timestamp.is_some() {
        return Ok(Found::Nothing);
    }
    let record = Record::new(spec.clone(), cell_runtime::unix_ms());
    Ok(match link.begin(&one.name_any(), &record).await? {
        Begun::Begun(run) => Found::Run(run),
        Begun::Busy { unit, run_id } => Found::Busy(busy(&unit, &run_id, None)),
    })
}

/// A unit is held by a run that is not this Move's by name: adopted if its own Move is gone and it asks for the same.
async fn held(
    one: &Move,
    link: &Link,
    context: &Context,
    spec: &Spec,
    (unit, run_id): (&str, &str),
) -> Result<Found, LinkError> {
    let deleting = one.metadata.deletion_timestamp.is_some();
    let Some(run) = link.run(run_id).await? else {
        return Ok(if deleting { Found::Nothing } else { Found::Busy(busy(unit, run_id, None)) });
    };
    let owner = context.stores.a_move(&context.settings.namespace, &run.move_name);
    let owner_lives = owner.is_some_and(|owner| {
        owner.uid().as_deref() == Some(run_id)
            || owner.status.as_ref().and_then(|status| status.run_id.as_deref()) == Some(run_id)
    });
    if owner_lives && run.move_name != one.name_any() {
        return Ok(if deleting { Found::Nothing } else { Found::Busy(busy(unit, run_id, Some(&run.move_name))) });
    }
    if content_of(&run.record.spec) == content_of(spec) {
        tracing::info!(name = one.name_any(), run_id, "adopting an unfinished run");
        return Ok(Found::Run(Box::new(run)));
    }
    Ok(if deleting { Found::Nothing } else { Found::Busy(other_content(&run)) })
}

fn busy(unit: &str, run_id: &str, name: Option<&str>) -> Standing {
    let of = name.map(|name| format!(" of Move {name}")).unwrap_or_default();
    let message = format!("unit {unit} is held by run {run_id}{of}; this Move waits until it has ended");
    Standing::Reconciling(Reason::UnitBusy, message)
}

fn other_content(run: &StoredRun) -> Standing {
    let spec = &run.record.spec;
    let units = spec.subjects.iter().map(|subject| subject.log()).collect::<Vec<_>>().join(", ");
    let message = format!(
        "run {} ({units} from {} to {}, begun as Move {}) is unfinished and asks for something else; nothing is written. Create a Move with that content to finish it",
        spec.run_id, spec.from, spec.to, run.move_name
    );
    Standing::Stalled(Reason::StageUnknown, message)
}
