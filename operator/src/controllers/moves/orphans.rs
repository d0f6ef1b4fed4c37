//! Runs whose Move is gone, because somebody took its finalizer off: each gets a new Move with the run's content, which adopts it. One
//! before its commit point is undone, one after it goes on. Without this its unit would be held for ever, by nothing that anybody sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cell_crds::{Move, MoveCause, MoveSpec};
use cell_plan::moves::{Record, Subject};
use cell_runtime::CancellationToken;
use kube::ResourceExt;

use crate::context::Context;
use crate::directory::{LinkError, StoredRun};
use crate::error::ReconcileError;
use crate::names::{GUILD_LABEL, ORPHAN_ANNOTATION, labels, manager};

/// Pause between two looks. Only unfinished runs are read. A run must be without a Move in two looks on end.
const EVERY: Duration = Duration::from_secs(5);
/// How long the new Move stays once its run has ended.
const KEPT_SECONDS: i32 = 86_400;

/// Looks for such runs until `shutdown`.
pub async fn watch(context: Arc<Context>, shutdown: CancellationToken) {
    context.when_filled().await;
    let mut before = BTreeSet::new();
    loop {
        match sweep(&context, &before).await {
            Ok(now) => before = now,
            Err(error) => tracing::debug!(error = format!("{error:#}"), "failed to look for runs without a Move"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// One look; answers the runs without a Move.
async fn sweep(context: &Context, before: &BTreeSet<String>) -> Result<BTreeSet<String>, ReconcileError> {
    let Some(fleet) = context.stores.fleet().filter(|fleet| !fleet.spec.paused) else { return Ok(BTreeSet::new()) };
    let link = context.hub.link_to(&fleet.spec.etcd);
    let mut orphans = BTreeSet::new();
    for run_id in link.holding_runs().await? {
        let run = match link.run(&run_id).await {
            Ok(Some(run)) if run.record.outcome.is_none() => run,
            // Of another kind or version: not this one's to judge.
            Ok(_) | Err(LinkError::Malformed { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let moves = context.stores.all_moves();
        if moves.iter().any(|one| one.uid().as_deref() == Some(&run.owner)) {
            continue;
        }
        if before.contains(&run_id) && moves.iter().all(|one| one.name_any() != name_of(&run_id)) {
            give_a_move(context, &run).await?;
        }
        orphans.insert(run_id);
    }
    Ok(orphans)
}

async fn give_a_move(context: &Context, run: &StoredRun) -> Result<(), ReconcileError> {
    // The cache may lag: the API server has the last word on whether the Move is gone.
    let there = context.applier.get::<Move>(&run.move_name).await?;
    if there.is_some_and(|one| one.uid().as_deref() == Some(&run.owner)) {
        return Ok(());
    }
    let one = build(run);
    let (name, run_id, was) = (one.name_any(), &run.record.spec.run_id, &run.move_name);
    if context.applier.create(&manager("move", "orphan"), &one).await? {
        tracing::warn!(name, run_id, was, abort = one.spec.abort, "an unfinished run had no Move and got a new one");
    }
    Ok(())
}

fn name_of(run_id: &str) -> String {
    format!("orphan-{run_id}")
}

fn build(run: &StoredRun) -> Move {
    let record = &run.record;
    let spec = spec_of(record);
    let mut one = Move::new(&name_of(&record.spec.run_id), spec);
    let mut labels = labels(&one.name_any(), "move");
    if let Some(guild) = &one.spec.guild {
        labels.insert(GUILD_LABEL.into(), guild.clone());
    }
    one.metadata.labels = Some(labels);
    one.metadata.annotations = Some(BTreeMap::from([(ORPHAN_ANNOTATION.to_owned(), run.move_name.clone())]));
    one
}

/// The content that a Move must have to adopt the run.
fn spec_of(record: &Record) -> MoveSpec {
    let spec = &record.spec;
    let guild = match &spec.subjects[..] {
        [Subject::Guild { guild_id, may_split: true, .. }] => Some(guild_id.to_string()),
        _ => None,
    };
    let units = guild.is_none().then(|| spec.subjects.iter().map(|subject| subject.log().to_owned()).collect());
    MoveSpec {
        units,
        guild,
        from: spec.from.clone(),
        to: spec.to.clone(),
        cause: MoveCause::Orphaned,
        // The run keeps its own deadline.
        deadline_seconds: 600,
        rollback_window_seconds: i32::try_from(spec.rollback_window_ms / 1000).unwrap_or(i32::MAX),
        ttl_after_finished_seconds: Some(KEPT_SECONDS),
        merge_into_bucket: spec.merge,
        abort: !record.is_committed(),
        rollback: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::spec::read;
    use super::*;
    use crate::directory::{content_of, differences};

    fn run(spec: serde_json::Value) -> StoredRun {
        let mut one = Move::new("gone", serde_json::from_value(spec).unwrap());
        one.metadata.uid = Some("d6d1a7a2-6d0f-4c34-8f6e-2f9f4b8a1c11".into());
        let record = Record::new(read(&one, 0).unwrap(), 0);
        StoredRun { move_name: "gone".into(), owner: record.spec.run_id.clone(), record, revision: 1 }
    }

    #[test]
    fn the_new_move_asks_for_exactly_what_the_run_does() {
        for spec in [
            json!({"guild": "7", "from": "a", "to": "b", "rollbackWindowSeconds": 9}),
            json!({"units": ["b0001", "g7"], "from": "a", "to": "b"}),
            json!({"guild": "7", "from": "a", "to": "a", "mergeIntoBucket": true}),
        ] {
            let run = run(spec);
            let one = build(&run);
            assert!(one.name_any().len() <= 63, "{}", one.name_any());
            let asked = read(&one, 0).unwrap();
            assert_eq!(content_of(&asked), content_of(&run.record.spec));
            assert_eq!(differences(&run.record.spec, &asked), Vec::<String>::new());
            assert!(one.spec.abort, "before the commit point it is undone");
        }
    }

    #[test]
    fn a_run_past_its_commit_point_goes_on() {
        let mut run = run(json!({"guild": "7", "from": "a", "to": "b"}));
        run.record.units[0].moved = true;
        assert!(!build(&run).spec.abort);
    }

    #[test]
    fn every_field_that_differs_is_named_with_both_values() {
        let one = run(json!({"guild": "7", "from": "a", "to": "b"})).record.spec;
        let other = run(json!({"units": ["g7"], "from": "c", "to": "d", "rollbackWindowSeconds": 1})).record.spec;
        let said = differences(&one, &other).join("; ");
        for part in
            ["guild 7 in the run and unit g7", "from is a in the run and c", "to is b", "rollbackWindowSeconds is 30"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
