//! Carries out the scheduler's choices: binds Pods, tells a chosen node's agent to make volumes, binds claims to the volumes made,
//! and says why a Pod waits. A choice made a moment ago counts as taken until the mirror shows it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Binding as PodBinding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::Status;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt};

use super::claims::{self, Binding, ClaimView, SELECTED_NODE};
use super::{Cluster, NodeView, Placed, place};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::Seen;
use crate::controllers::pods;
use crate::controllers::world::World;

/// The scheduler and the volume binder.
#[derive(Default)]
pub struct Scheduler {
    chosen: BTreeMap<String, String>,
    bound: BTreeSet<String>,
    claim_writes: HashMap<String, Seen>,
    volume_writes: HashMap<String, Seen>,
    said: HashMap<String, String>,
}

impl Scheduler {
    /// One look at every waiting Pod and claim; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let mut fine = self.bind_claims(world).await;
        let all = world.pods.all();
        let waiting = waiting(&all);
        let known = |uid: &String| waiting.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid));
        self.chosen.retain(|uid, _| known(uid));
        self.said.retain(|uid, _| known(uid));
        self.bound.retain(known);
        if waiting.is_empty() {
            return fine;
        }
        let mut cluster = self.cluster(world, &all);
        for pod in waiting
            .iter()
            .filter(|pod| !pod.metadata.uid.as_ref().is_some_and(|uid| self.bound.contains(uid)))
            .cloned()
            .collect::<Vec<_>>()
        {
            match self.one(world, &pod, &mut cluster).await {
                Ok(()) => {}
                Err(error) => {
                    if !error.is_conflict() {
                        tracing::warn!(pod = %pod.name_any(), error = %error, "scheduling failed");
                    }
                    fine = false;
                }
            }
        }
        fine
    }

    fn cluster(&self, world: &World, all: &[Arc<Pod>]) -> Cluster {
        let nodes = world.nodes.all().iter().map(|node| NodeView::of(node)).collect();
        let placed = all
            .iter()
            .filter(|pod| !pods::is_ended(pod))
            .filter_map(|pod| {
                let assumed = pod.metadata.uid.as_ref().and_then(|uid| self.chosen.get(uid)).map(String::as_str);
                let node = pods::node(pod).or(assumed)?.to_owned();
                Some(Placed { pod: pod.clone(), node })
            })
            .collect();
        Cluster { nodes, placed }
    }

    async fn one(&mut self, world: &World, pod: &Arc<Pod>, cluster: &mut Cluster) -> Result<(), ActError> {
        let namespace = pod.namespace().unwrap_or_default();
        let uid = pod.uid().unwrap_or_default();
        let claim = |name: &str| world.claims.get(&namespace, name);
        let volume = |name: &str| world.volumes.get("", name);
        let view = match claims::look(pod, &claim, &volume) {
            Ok(view) => view,
            Err(trouble) => return self.say_waiting(world, pod, trouble.text()).await,
        };
        cluster.placed.retain(|placed| placed.pod.metadata.uid != pod.metadata.uid);
        let node = match place(pod, &view.rule, cluster) {
            Ok(node) => node,
            Err(none) => {
                self.chosen.remove(&uid);
                return self.say_waiting(world, pod, none.to_string()).await;
            }
        };
        cluster.placed.push(Placed { pod: pod.clone(), node: node.clone() });
        self.chosen.insert(uid.clone(), node.clone());
        if view.unbound.is_empty() {
            if !bind(world, pod, &node).await? {
                return Ok(());
            }
            self.said.remove(&uid);
            self.bound.insert(uid);
            let note = format!("Successfully assigned {namespace}/{} to {node}", pod.name_any());
            act::remark(&world.recorder, pod.as_ref(), EventType::Normal, "Scheduled", note).await;
            return Ok(());
        }
        self.select_node(world, &view, &node).await
    }

    async fn select_node(&mut self, world: &World, view: &ClaimView, node: &str) -> Result<(), ActError> {
        for claim in &view.unbound {
            let uid = claim.uid().unwrap_or_default();
            let fresh = self.claim_writes.get(&uid).is_none_or(|mark| world.claims.has_seen(*mark));
            if !fresh || claim.annotations().get(SELECTED_NODE).is_some_and(|chosen| chosen == node) {
                continue;
            }
            let api: Api<PersistentVolumeClaim> =
                Api::namespaced(world.client.clone(), &claim.namespace().unwrap_or_default());
            let body = serde_json::json!({ "metadata": { "annotations": { SELECTED_NODE: node } } });
            let version = act::patch(&api, claim.as_ref(), body, &world.writes).await?;
            self.claim_writes.insert(uid, world.claims.mark(version));
        }
        Ok(())
    }

    async fn say_waiting(&mut self, world: &World, pod: &Arc<Pod>, message: String) -> Result<(), ActError> {
        let uid = pod.uid().unwrap_or_default();
        let already = pods::condition(pod, "PodScheduled").is_some_and(|condition| {
            condition.status == "False" && condition.message.as_deref() == Some(message.as_str())
        });
        if already || self.said.get(&uid) == Some(&message) {
            return Ok(());
        }
        let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.retain(|condition| condition.type_ != "PodScheduled");
        conditions.push(PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("Unschedulable".into()),
            message: Some(message.clone()),
            last_transition_time: Some(Time(Timestamp::now())),
            ..PodCondition::default()
        });
        let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
        let status = serde_json::json!({ "conditions": conditions });
        act::patch_status(&api, pod.as_ref(), &status, &world.writes).await?;
        act::remark(&world.recorder, pod.as_ref(), EventType::Warning, "FailedScheduling", message.clone()).await;
        self.said.insert(uid, message);
        Ok(())
    }

    async fn bind_claims(&mut self, world: &World) -> bool {
        let all_claims = world.claims.all();
        let all_volumes = world.volumes.all();
        let is_claim = |uid: &String| all_claims.iter().any(|claim| claim.metadata.uid.as_ref() == Some(uid));
        self.claim_writes.retain(|uid, _| is_claim(uid));
        self.volume_writes
            .retain(|name, _| all_volumes.iter().any(|volume| volume.metadata.name.as_ref() == Some(name)));
        let mut fine = true;
        for binding in claims::bindings(&all_claims, &all_volumes) {
            if let Err(error) = self.write_binding(world, &binding).await {
                if !error.is_conflict() {
                    tracing::warn!(error = %error, "claim binding failed");
                }
                fine = false;
            }
        }
        fine
    }

    async fn write_binding(&mut self, world: &World, binding: &Binding) -> Result<(), ActError> {
        match binding {
            Binding::Claim(claim, _) | Binding::ClaimStatus(claim, _) | Binding::Waiting(claim) => {
                let uid = claim.uid().unwrap_or_default();
                if self.claim_writes.get(&uid).is_some_and(|mark| !world.claims.has_seen(*mark)) {
                    return Ok(());
                }
                let version = write_claim(world, claim, binding).await?;
                self.claim_writes.insert(uid, world.claims.mark(version));
            }
            Binding::VolumePhase(volume, phase) => {
                let name = volume.name_any();
                if self.volume_writes.get(&name).is_some_and(|mark| !world.volumes.has_seen(*mark)) {
                    return Ok(());
                }
                let api: Api<PersistentVolume> = Api::all(world.client.clone());
                let status = serde_json::json!({ "phase": phase });
                let version = act::patch_status(&api, volume.as_ref(), &status, &world.writes).await?;
                self.volume_writes.insert(name, world.volumes.mark(version));
            }
        }
        Ok(())
    }
}

async fn write_claim(world: &World, claim: &Arc<PersistentVolumeClaim>, binding: &Binding) -> Result<u64, ActError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(world.client.clone(), &claim.namespace().unwrap_or_default());
    match binding {
        Binding::Claim(_, volume) => {
            let body = serde_json::json!({
                "metadata": { "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                } },
                "spec": { "volumeName": volume.name_any() },
            });
            act::patch(&api, claim.as_ref(), body, &world.writes).await
        }
        Binding::ClaimStatus(_, volume) => {
            let spec = volume.spec.clone().unwrap_or_default();
            let status = serde_json::json!({
                "phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity,
            });
            act::patch_status(&api, claim.as_ref(), &status, &world.writes).await
        }
        Binding::Waiting(_) | Binding::VolumePhase(..) => {
            act::patch_status(&api, claim.as_ref(), &serde_json::json!({ "phase": "Pending" }), &world.writes).await
        }
    }
}

fn waiting(all: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let mut waiting: Vec<_> = all
        .iter()
        .filter(|pod| {
            let spec = pod.spec.as_ref();
            let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or("default-scheduler");
            let gated = spec.and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
            pods::node(pod).is_none()
                && !pods::is_leaving(pod)
                && !pods::is_ended(pod)
                && scheduler == "default-scheduler"
                && !gated
        })
        .cloned()
        .collect();
    waiting.sort_by_key(|pod| {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        (-priority, pod.metadata.creation_timestamp.clone(), pod.name_any())
    });
    waiting
}

/// True when this call bound the Pod; false when it is gone or somebody else was faster.
async fn bind(world: &World, pod: &Pod, node: &str) -> Result<bool, ActError> {
    let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
    let binding = PodBinding {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    };
    world.writes.add();
    let (params, name) = (PostParams::default(), pod.name_any());
    let answer = api.create_subresource::<_, Status>("binding", &name, &params, &binding);
    match act::call("bind", answer).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.code(), 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}
