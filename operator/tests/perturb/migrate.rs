//! Scenarios of a StorageMigration: to its end, rolled back after the cutover, aborted before it. Few logs exist in them, so that every
//! request of a run can be struck.

use serde_json::json;

use super::snapshot::{Snapshot, take};
use super::stage::Stage;
use super::truth::ready;

/// How a migration goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// Everything, to the end.
    ToTheEnd,
    /// Two buckets, rolled back while it holds.
    RolledBack,
    /// Two buckets, aborted where it stops by itself before the cutover.
    Aborted,
}

const NAME: &str = "mig";
const TARGET: &str = "next";

/// The first buckets; the others are not there at all.
const LOGS: [&str; 3] = ["b0000", "b0001", "b0002"];

async fn blocked(stage: &Stage, reason: &str) -> Result<(), String> {
    let status = stage.get("storagemigrations", NAME).await.unwrap_or_default()["status"].clone();
    let waits = status["blockedBy"].as_str().is_some_and(|blocked| blocked.starts_with(reason));
    if waits { Ok(()) } else { Err(status.to_string()) }
}

/// Everybody has decided: who is not Ready says that a person must act.
async fn decided(stage: &Stage, result: &str) -> Result<(), String> {
    let migration = stage.get("storagemigrations", NAME).await.unwrap_or_default();
    if migration["status"]["result"] != result {
        return Err(migration["status"].to_string());
    }
    for (plural, name) in [
        ("cells", "shared-1"),
        ("cells", "shared-2"),
        ("storagecells", "main"),
        ("storagecells", TARGET),
        ("fleets", "prod"),
    ] {
        let one = stage.get(plural, name).await.unwrap_or_default();
        let standing = ready(&one["status"]).is_some_and(|(status, _)| status == "True");
        if !standing || one["status"]["observedGeneration"] != one["metadata"]["generation"] {
            return Err(format!("{plural}/{name}: {}", one["status"]));
        }
    }
    Ok(())
}

/// What the cells hold is as this end has it, and nothing of the run is left.
async fn leaves(stage: &Stage, course: Course) -> Result<(), String> {
    {
        let world = stage.fakes.world.lock();
        for log in LOGS {
            let copy = world.copies.get(log).cloned().unwrap_or_default();
            let in_scope = course == Course::ToTheEnd || log != LOGS[0];
            let (serving, cut_overs) = match course {
                _ if !in_scope => ("", 0),
                Course::ToTheEnd => (TARGET, 1),
                Course::RolledBack => ("main", 2),
                Course::Aborted => ("main", 0),
            };
            if (copy.serving.as_str(), copy.cut_overs, copy.shipping) != (serving, cut_overs, false) {
                return Err(format!("{log}: {copy:?}; served by {serving} after {cut_overs} cutovers is right"));
            }
        }
    }
    for side in ["main", TARGET] {
        if stage.has_key(|keys| keys.unit_run(&format!("storage:{side}"))).await {
            return Err(format!("StorageCell {side} is still held"));
        }
    }
    for (plural, name) in [
        ("statefulsets", "mig-coordinator"),
        ("services", "mig-coordinator"),
        ("deployments", "mig-workers"),
        ("secrets", "mig-migration-storage"),
    ] {
        if stage.get(plural, name).await.is_some() {
            return Err(format!("{plural}/{name} is left"));
        }
    }
    Ok(())
}

/// Plays one.
///
/// # Errors
/// What did not happen.
pub async fn play(stage: &Stage, course: Course) -> Result<Snapshot, String> {
    stage.fakes.world.lock().heads.retain(|log, _| LOGS.contains(&log.as_str()));
    stage.run_storage(TARGET, NAME).await;
    let (scope, stop, window) = match course {
        Course::ToTheEnd => (json!({}), "Complete", 0),
        Course::RolledBack => (json!({"units": &LOGS[1..]}), "Cutover", 3_600),
        Course::Aborted => (json!({"units": &LOGS[1..]}), "ShadowRead", 3_600),
    };
    let spec = json!({"source": "main", "target": TARGET, "scope": scope, "targetStage": stop, "rollbackWindowSeconds": window});
    stage.create("storagemigrations", NAME, spec).await;
    let result = match course {
        Course::ToTheEnd => "Completed",
        Course::RolledBack => {
            stage.eventually("the migration holding", || blocked(stage, "TargetStageReached")).await?;
            stage.set("storagemigrations", NAME, json!({"rollback": true})).await?;
            "RolledBack"
        }
        Course::Aborted => {
            stage.eventually("the migration waiting", || blocked(stage, "TargetStageReached")).await?;
            stage.set("storagemigrations", NAME, json!({"abort": true})).await?;
            "Aborted"
        }
    };
    stage.settled("the migration's end", || decided(stage, result)).await?;
    leaves(stage, course).await?;
    Ok(take(stage, &[]).await)
}
