//! Carries out StatefulSet plans: one round looks at every set. It acts on a set only when the mirrors have seen its own last
//! writes, and reads the set live before it deletes anything.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::events::EventType;
use kube::{Api, Resource, ResourceExt};

use super::{Plan, View, decide};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::{Seen, key_of};
use crate::controllers::world::World;

#[derive(Default)]
struct Memory {
    pods: Option<Seen>,
    claims: Option<Seen>,
    set: Option<Seen>,
    refused: Option<(i64, String)>,
}

/// The StatefulSet controller.
#[derive(Default)]
pub struct StatefulSets {
    memory: HashMap<String, Memory>,
}

impl StatefulSets {
    /// One look at every set; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let sets = world.sets.all();
        self.memory.retain(|uid, _| sets.iter().any(|set| set.metadata.uid.as_deref() == Some(uid)));
        let mut fine = true;
        for set in sets {
            match self.one(world, &set).await {
                Ok(()) => {}
                Err(error) if error.is_conflict() => fine = false,
                Err(error) => {
                    tracing::warn!(set = %set.name_any(), error = %error, "statefulset round failed");
                    fine = false;
                }
            }
        }
        fine
    }

    async fn one(&mut self, world: &World, set: &Arc<StatefulSet>) -> Result<(), ActError> {
        let memory = self.memory.entry(set.uid().unwrap_or_default()).or_default();
        let fresh = memory.pods.is_none_or(|mark| world.pods.has_seen(mark))
            && memory.claims.is_none_or(|mark| world.claims.has_seen(mark))
            && memory.set.is_none_or(|mark| world.sets.has_seen(mark));
        if !fresh {
            return Ok(());
        }
        let namespace = set.namespace().unwrap_or_default();
        let pods: Vec<_> =
            world.pods.all().into_iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(&namespace)).collect();
        let decision = {
            let claims = |name: &str| world.claims.get(&namespace, name).is_some();
            decide(&View { set, pods: &pods, claims: &claims, now: world.unix_now() })
        };
        match decision {
            Ok(plan) => carry_out(world, set, plan, memory).await,
            Err(refusal) => {
                let said = (set.metadata.generation.unwrap_or(0), refusal.to_string());
                if memory.refused.as_ref() != Some(&said) {
                    act::remark(&world.recorder, set.as_ref(), EventType::Warning, "Unsupported", said.1.clone()).await;
                    memory.refused = Some(said);
                }
                Ok(())
            }
        }
    }
}

async fn carry_out(world: &World, set: &Arc<StatefulSet>, plan: Plan, memory: &mut Memory) -> Result<(), ActError> {
    let (namespace, name) = key_of(set.as_ref());
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), &namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), &namespace);
    for pod in &plan.adopt {
        let owner = set.controller_owner_ref(&());
        let body = serde_json::json!({ "metadata": { "ownerReferences": [owner], "uid": pod.uid() } });
        let version = act::patch(&pods, pod.as_ref(), body, &world.writes).await?;
        memory.pods = Some(world.pods.mark(version));
    }
    for claim in &plan.claims {
        if let Some(version) = act::create(&claims, claim, &world.writes).await? {
            memory.claims = Some(world.claims.mark(version));
        }
    }
    for pod in &plan.create {
        if let Some(version) = act::create(&pods, pod, &world.writes).await? {
            memory.pods = Some(world.pods.mark(version));
            let note = format!("create Pod {} in StatefulSet {name} successful", pod.name_any());
            act::remark(&world.recorder, set.as_ref(), EventType::Normal, "SuccessfulCreate", note).await;
        }
    }
    if !plan.delete.is_empty() && unchanged(world, set).await? {
        for pod in &plan.delete {
            if let Some(version) = act::delete(&pods, pod.as_ref(), None, &world.writes).await? {
                memory.pods = Some(world.pods.mark(version));
                let note = format!("delete Pod {} in StatefulSet {name} successful", pod.name_any());
                act::remark(&world.recorder, set.as_ref(), EventType::Normal, "SuccessfulDelete", note).await;
            }
        }
    }
    if set.status.as_ref() != Some(&plan.status) {
        let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), &namespace);
        let version = act::patch_status(&sets, set.as_ref(), &plan.status, &world.writes).await?;
        memory.set = Some(world.sets.mark(version));
    }
    Ok(())
}

/// A deletion follows only a spec that is still the live one.
async fn unchanged(world: &World, set: &StatefulSet) -> Result<bool, ActError> {
    let sets: Api<StatefulSet> = Api::namespaced(world.client.clone(), &set.namespace().unwrap_or_default());
    let live = act::call("read", sets.get_opt(&set.name_any())).await?;
    Ok(live.is_some_and(|live| {
        live.uid() == set.uid()
            && live.metadata.generation == set.metadata.generation
            && live.metadata.deletion_timestamp.is_none()
    }))
}
