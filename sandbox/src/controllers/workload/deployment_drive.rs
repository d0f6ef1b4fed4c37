//! Carries out Deployment plans: makes, resizes and removes ReplicaSets, always at the resourceVersion it decided on.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt};

use super::deployment::{Plan, REVISION, decide};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::Seen;
use crate::controllers::world::World;

#[derive(Default)]
struct Memory {
    sets: Option<Seen>,
    deployment: Option<Seen>,
}

/// The Deployment controller.
#[derive(Default)]
pub struct Deployments {
    memory: HashMap<String, Memory>,
}

impl Deployments {
    /// One look at every Deployment; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let deployments = world.deployments.all();
        self.memory.retain(|uid, _| deployments.iter().any(|one| one.metadata.uid.as_deref() == Some(uid)));
        let mut fine = true;
        for deployment in deployments {
            let memory = self.memory.entry(deployment.uid().unwrap_or_default()).or_default();
            let fresh = memory.sets.is_none_or(|mark| world.replica_sets.has_seen(mark))
                && memory.deployment.is_none_or(|mark| world.deployments.has_seen(mark));
            if !fresh {
                continue;
            }
            let namespace = &deployment.metadata.namespace;
            let mut sets = world.replica_sets.all();
            sets.retain(|set| set.metadata.namespace == *namespace);
            let mut pods = world.pods.all();
            pods.retain(|pod| pod.metadata.namespace == *namespace);
            let plan = decide(&deployment, &sets, &pods, world.unix_now());
            if let Err(error) = carry_out(world, &deployment, plan, memory).await {
                if !error.is_conflict() {
                    tracing::warn!(deployment = %deployment.name_any(), error = %error, "deployment round failed");
                }
                fine = false;
            }
        }
        fine
    }
}

async fn carry_out(
    world: &World,
    deployment: &Arc<Deployment>,
    plan: Plan,
    memory: &mut Memory,
) -> Result<(), ActError> {
    let namespace = deployment.namespace().unwrap_or_default();
    let sets: Api<ReplicaSet> = Api::namespaced(world.client.clone(), &namespace);
    let say = async |reason: &str, note: String| {
        act::remark(&world.recorder, deployment.as_ref(), EventType::Normal, reason, note).await;
    };
    if let Some(set) = &plan.create
        && let Some(version) = act::create(&sets, set, &world.writes).await?
    {
        memory.sets = Some(world.replica_sets.mark(version));
        say("ScalingReplicaSet", format!("Created replica set {}", set.name_any())).await;
    }
    for (set, replicas) in &plan.scale {
        let body = serde_json::json!({ "spec": { "replicas": replicas } });
        let version = act::patch(&sets, set.as_ref(), body, &world.writes).await?;
        memory.sets = Some(world.replica_sets.mark(version));
        say("ScalingReplicaSet", format!("Scaled replica set {} to {replicas}", set.name_any())).await;
    }
    for set in &plan.delete {
        if let Some(version) = act::delete(&sets, set.as_ref(), None, &world.writes).await? {
            memory.sets = Some(world.replica_sets.mark(version));
        }
    }
    let deployments: Api<Deployment> = Api::namespaced(world.client.clone(), &namespace);
    let carries =
        |revision: i64| serde_json::json!({ "metadata": { "annotations": { REVISION: revision.to_string() } } });
    if let Some((set, revision)) = &plan.revise {
        // Resized just now, it has another version: then the next round does it.
        if !plan.scale.iter().any(|(scaled, _)| scaled.metadata.uid == set.metadata.uid) {
            let version = act::patch(&sets, set.as_ref(), carries(*revision), &world.writes).await?;
            memory.sets = Some(world.replica_sets.mark(version));
        }
    }
    if let Some(revision) = plan.revision {
        let version = act::patch(&deployments, deployment.as_ref(), carries(revision), &world.writes).await?;
        memory.deployment = Some(world.deployments.mark(version));
        return Ok(());
    }
    if deployment.status.as_ref() != Some(&plan.status) {
        let version = act::patch_status(&deployments, deployment.as_ref(), &plan.status, &world.writes).await?;
        memory.deployment = Some(world.deployments.mark(version));
    }
    Ok(())
}
