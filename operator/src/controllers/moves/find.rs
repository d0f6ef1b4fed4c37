//! Finds the run of a Move by the records in etcd alone: its own, an unfinished one with the same content whose Move is gone and that it
//! adopts, or a new one. A status is at most a hint where to look; a run with other content that holds a unit is never touched.

use cell_crds::{Move, Reason};
use cell_plan::moves::{Record, Spec};
use kube::ResourceExt;

use crate::context::Context;
use crate::directory::{Begun, Link, LinkError, StoredRun, content_of, differences};
use crate::report::Standing;

/// What was found for a Move that drives no run yet.
pub(super) enum Found {
    /// A run to drive.
    Run(Box<StoredRun>),
    /// The unit is not free.
    Busy(Standing),
    /// Somebody wrote the record meanwhile: look again.
    Changed,
}

/// The run that this Move drives, ended or not, by its records: named for its UID, or adopted by it.
pub(super) async fn own(one: &Move, link: &Link, spec: &Spec) -> Result<Option<StoredRun>, LinkError> {
    let uid = spec.run_id.as_str();
    if let Some(run) = link.run(uid).await? {
        return Ok(Some(run).filter(|run| run.owner == uid));
    }
    // Only an adopted run has another name. While it holds a unit it is found by that; ended, by the hint, which it must confirm.
    let hint = one.status.as_ref().and_then(|status| status.run_id.as_deref()).filter(|run_id| *run_id != uid);
    if let Some(hint) = hint
        && let Some(run) = link.run(hint).await?
        && run.owner == uid
    {
        return Ok(Some(run));
    }
    for subject in &spec.subjects {
        let Some(run_id) = link.run_of_unit(subject.log()).await? else { continue };
        let run = link.run(&run_id).await?;
        if run.as_ref().is_some_and(|run| run.owner == uid) {
            return Ok(run);
        }
    }
    Ok(None)
}

/// A run for a Move that has none: adopted or begun, if its units are free.
pub(super) async fn find(one: &Move, link: &Link, context: &Context, spec: &Spec) -> Result<Found, LinkError> {
    for subject in &spec.subjects {
        let Some(run_id) = link.run_of_unit(subject.log()).await? else { continue };
        return held(one, link, context, spec, (subject.log(), &run_id)).await;
    }
    let record = Record::new(spec.clone(), cell_runtime::unix_ms());
    Ok(match link.begin(&one.name_any(), &record).await? {
        Begun::Begun(run) => Found::Run(run),
        Begun::Busy { unit, run_id } => Found::Busy(busy(&unit, &run_id, None)),
    })
}

/// A unit is held by a run that is not this Move's: adopted if the Move that drives it is gone and it asks for the same.
async fn held(
    one: &Move,
    link: &Link,
    context: &Context,
    spec: &Spec,
    (unit, run_id): (&str, &str),
) -> Result<Found, LinkError> {
    let Some(run) = link.run(run_id).await? else {
        return Ok(Found::Busy(busy(unit, run_id, None)));
    };
    if context.stores.all_moves().iter().any(|other| other.uid().as_deref() == Some(&run.owner)) {
        return Ok(Found::Busy(busy(unit, run_id, Some(&run.move_name))));
    }
    if content_of(&run.record.spec) != content_of(spec) {
        return Ok(Found::Busy(other_content(&run, spec)));
    }
    tracing::info!(name = one.name_any(), run_id, "adopting an unfinished run");
    let adopted = link.adopt(&run, &one.name_any(), &spec.run_id).await?;
    Ok(adopted.map_or(Found::Changed, |run| Found::Run(Box::new(run))))
}

fn busy(unit: &str, run_id: &str, name: Option<&str>) -> Standing {
    let of = name.map(|name| format!(" of Move {name}")).unwrap_or_default();
    let message = format!("unit {unit} is held by run {run_id}{of}; this Move waits until it has ended");
    Standing::Reconciling(Reason::UnitBusy, message)
}

/// Why an unfinished run is not this Move's to go on with: every field in which they differ.
fn other_content(run: &StoredRun, asked: &Spec) -> Standing {
    let spec = &run.record.spec;
    let message = format!(
        "run {}, begun as Move {}, is unfinished and asks for something else: {}; this Move writes nothing until that run has ended (cellctl get moves), or make it anew with the run's content",
        spec.run_id,
        run.move_name,
        differences(spec, asked).join("; ")
    );
    Standing::Stalled(Reason::StageUnknown, message)
}
