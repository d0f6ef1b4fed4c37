//! Carries out ReplicaSet plans. After any write it waits until the mirror has seen it, so that a late view never makes or deletes
//! a surplus Pod; it reads the set live before it deletes.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::events::EventType;
use kube::{Api, Resource, ResourceExt};
use rand::Rng;

use super::replica_set::{Plan, decide, pod};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::Seen;
use crate::controllers::world::World;

#[derive(Default)]
struct Memory {
    pods: Option<Seen>,
    set: Option<Seen>,
    /// A write's outcome is unknown: the next look is at the live Pods, not at the mirror.
    uncertain: bool,
}

/// The ReplicaSet controller.
#[derive(Default)]
pub struct ReplicaSets {
    memory: HashMap<String, Memory>,
}

impl ReplicaSets {
    /// One look at every ReplicaSet; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let sets = world.replica_sets.all();
        self.memory.retain(|uid, _| sets.iter().any(|set| set.metadata.uid.as_deref() == Some(uid)));
        let mut fine = true;
        for set in sets {
            let memory = self.memory.entry(set.uid().unwrap_or_default()).or_default();
            let fresh = memory.pods.is_none_or(|mark| world.pods.has_seen(mark))
                && memory.set.is_none_or(|mark| world.replica_sets.has_seen(mark));
            if !fresh {
                continue;
            }
            if let Err(error) = one(world, &set, memory).await {
                memory.uncertain |= error.outcome_unknown();
                if !error.is_conflict() {
                    tracing::warn!(set = %set.name_any(), error = %error, "replicaset round failed");
                }
                fine = false;
            }
        }
        fine
    }
}

async fn one(world: &World, set: &Arc<ReplicaSet>, memory: &mut Memory) -> Result<(), ActError> {
    let all: Vec<Arc<Pod>> = if memory.uncertain {
        let api: Api<Pod> = Api::namespaced(world.client.clone(), &set.namespace().unwrap_or_default());
        let live = act::call("list pods", api.list(&ListParams::default())).await?;
        let version = live.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
        memory.pods = Some(world.pods.mark(version));
        memory.uncertain = false;
        live.items.into_iter().map(Arc::new).collect()
    } else {
        let mirrored = world.pods.all().into_iter();
        mirrored.filter(|pod| pod.metadata.namespace == set.metadata.namespace).collect()
    };
    let plan = decide(set, &all, world.unix_now());
    carry_out(world, set, plan, memory).await
}

async fn carry_out(world: &World, set: &Arc<ReplicaSet>, plan: Plan, memory: &mut Memory) -> Result<(), ActError> {
    let namespace = set.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &namespace);
    for orphan in &plan.adopt {
        let owner = set.controller_owner_ref(&());
        let body = serde_json::json!({ "metadata": { "ownerReferences": [owner], "uid": orphan.uid() } });
        let version = act::patch(&pods, orphan.as_ref(), body, &world.writes).await?;
        memory.pods = Some(world.pods.mark(version));
    }
    for _ in 0..plan.missing {
        let made = pod(set, pod_name(&set.name_any()));
        if let Some(version) = act::create(&pods, &made, &world.writes).await? {
            memory.pods = Some(world.pods.mark(version));
            let note = format!("created pod: {}", made.name_any());
            act::remark(&world.recorder, set.as_ref(), EventType::Normal, "SuccessfulCreate", note).await;
        }
    }
    if !plan.delete.is_empty() && unchanged(world, set).await? {
        for surplus in &plan.delete {
            if let Some(version) = act::delete(&pods, surplus.as_ref(), None, &world.writes).await? {
                memory.pods = Some(world.pods.mark(version));
                let note = format!("deleted pod: {}", surplus.name_any());
                act::remark(&world.recorder, set.as_ref(), EventType::Normal, "SuccessfulDelete", note).await;
            }
        }
    }
    if set.status.as_ref() != Some(&plan.status) {
        let sets: Api<ReplicaSet> = Api::namespaced(world.client.clone(), &namespace);
        let version = act::patch_status(&sets, set.as_ref(), &plan.status, &world.writes).await?;
        memory.set = Some(world.replica_sets.mark(version));
    }
    Ok(())
}

fn pod_name(set: &str) -> String {
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    let suffix: String = (0..5).map(|_| char::from(alphabet[random.random_range(0..alphabet.len())])).collect();
    let stem: String = set.chars().take(247).collect();
    format!("{stem}-{suffix}")
}

async fn unchanged(world: &World, set: &ReplicaSet) -> Result<bool, ActError> {
    let sets: Api<ReplicaSet> = Api::namespaced(world.client.clone(), &set.namespace().unwrap_or_default());
    let live = act::call("read", sets.get_opt(&set.name_any())).await?;
    Ok(live.is_some_and(|live| {
        live.uid() == set.uid()
            && live.metadata.generation == set.metadata.generation
            && live.metadata.deletion_timestamp.is_none()
    }))
}
