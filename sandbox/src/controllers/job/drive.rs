//! Carries out Job plans, frees Pods whose Job is gone, and removes finished Jobs after their time. After any write it waits until the
//! mirror has seen it; after one of unknown outcome it looks at the live Pods.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Preconditions, PropagationPolicy};
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt};
use rand::Rng;

use super::{FINALIZER, Plan, View, decide, finished_at, is_finished, tracked};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::Seen;
use crate::controllers::pods;
use crate::controllers::world::World;

/// Pods made in one round at most; the rest follow in the next.
const CREATE_AT_ONCE: usize = 50;

#[derive(Default)]
struct Memory {
    pods: Option<Seen>,
    job: Option<Seen>,
    /// A write's outcome is unknown: the next look is at the live Pods, not at the mirror.
    uncertain: bool,
}

/// The Job controller.
#[derive(Default)]
pub struct Jobs {
    memory: HashMap<String, Memory>,
    wake: Option<i64>,
}

impl Jobs {
    /// How long from now until something is due by itself.
    pub fn due(&self, world: &World) -> Option<Duration> {
        let seconds = self.wake?.saturating_sub(world.unix_now());
        Some(Duration::from_secs(seconds.max(0).unsigned_abs()).max(Duration::from_millis(200)))
    }

    /// One look at every Job; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let jobs = world.jobs.all();
        self.memory.retain(|uid, _| jobs.iter().any(|job| job.metadata.uid.as_deref() == Some(uid)));
        self.wake = None;
        let mut fine = true;
        for job in &jobs {
            let memory = self.memory.entry(job.uid().unwrap_or_default()).or_default();
            let fresh = memory.pods.is_none_or(|mark| world.pods.has_seen(mark))
                && memory.job.is_none_or(|mark| world.jobs.has_seen(mark));
            if !fresh {
                continue;
            }
            match one(world, job, memory).await {
                Ok(wake) => self.wake = [self.wake, wake].into_iter().flatten().min(),
                Err(error) => {
                    memory.uncertain |= error.outcome_unknown();
                    if !error.is_conflict() {
                        tracing::warn!(job = %job.name_any(), error = %error, "job round failed");
                    }
                    fine = false;
                }
            }
        }
        fine & free_orphans(world, &jobs).await
    }
}

/// One Job; when to look again.
async fn one(world: &World, job: &Arc<Job>, memory: &mut Memory) -> Result<Option<i64>, ActError> {
    if job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref()).is_some_and(|by| by != OURS) {
        return Ok(None);
    }
    let all: Vec<Arc<Pod>> = if memory.uncertain {
        let api: Api<Pod> = Api::namespaced(world.client.clone(), &job.namespace().unwrap_or_default());
        let live = act::call("list pods", api.list(&ListParams::default())).await?;
        let version = live.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
        memory.pods = Some(world.pods.mark(version));
        memory.uncertain = false;
        live.items.into_iter().map(Arc::new).collect()
    } else {
        let mirrored = world.pods.all().into_iter();
        mirrored.filter(|pod| pod.metadata.namespace == job.metadata.namespace).collect()
    };
    let view = View { job, pods: &all, now: world.unix_now(), backoff: world.options.job_backoff };
    let plan = decide(&view);
    let wake = plan.wake;
    carry_out(world, job, plan, memory).await?;
    match expiry(job) {
        Some(due) if due <= world.unix_now() => expire(world, job).await.map(|()| None),
        due => Ok([wake, due].into_iter().flatten().min()),
    }
}

/// The controller a Job names when it means this one.
const OURS: &str = "kubernetes.io/job-controller";

async fn carry_out(world: &World, job: &Arc<Job>, plan: Plan, memory: &mut Memory) -> Result<(), ActError> {
    let namespace = job.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(world.client.clone(), &namespace);
    let say = async |warning: bool, reason: &str, note: String| {
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        act::remark(&world.recorder, job.as_ref(), kind, reason, note).await;
    };
    for index in plan.create.iter().take(CREATE_AT_ONCE) {
        let made = super::pod(job, *index, &suffix());
        if let Some(version) = act::create(&api, &made, &world.writes).await? {
            memory.pods = Some(world.pods.mark(version));
            say(false, "SuccessfulCreate", format!("Created pod: {}", made.name_any())).await;
        }
    }
    if !plan.delete.is_empty() && unchanged(world, job).await? {
        for doomed in &plan.delete {
            if doomed.uncounted && tracked(&doomed.pod) {
                release(world, &api, &doomed.pod, memory).await?;
            }
            if let Some(version) = act::delete(&api, doomed.pod.as_ref(), None, &world.writes).await? {
                memory.pods = Some(world.pods.mark(version));
                say(false, "SuccessfulDelete", format!("Deleted pod: {}", doomed.pod.name_any())).await;
            }
        }
    }
    for pod in &plan.release {
        release(world, &api, pod, memory).await?;
    }
    if job.status.as_ref() != Some(&plan.status) {
        let jobs: Api<Job> = Api::namespaced(world.client.clone(), &namespace);
        let whole = whole(job, &plan);
        let version = act::patch_status(&jobs, job.as_ref(), &whole, &world.writes).await?;
        memory.job = Some(world.jobs.mark(version));
        for (warning, reason, note) in plan.remarks {
            say(warning, reason, note).await;
        }
    }
    Ok(())
}

/// The status as a merge patch: what is no longer in it is named as null.
fn whole(job: &Job, plan: &Plan) -> serde_json::Value {
    let shown = |status: &k8s_openapi::api::batch::v1::JobStatus| serde_json::to_value(status).unwrap_or_default();
    let mut wanted = shown(&plan.status);
    let before = job.status.as_ref().map(shown).unwrap_or_default();
    blank(&mut wanted, &before);
    wanted
}

/// Names as null what `before` has and `wanted` has not.
fn blank(wanted: &mut serde_json::Value, before: &serde_json::Value) {
    let (Some(wanted), Some(before)) = (wanted.as_object_mut(), before.as_object()) else { return };
    for (name, value) in before {
        match wanted.get_mut(name) {
            Some(inner) => blank(inner, value),
            None => {
                wanted.insert(name.clone(), serde_json::Value::Null);
            }
        }
    }
}

/// Takes the finalizer off a Pod.
async fn release(world: &World, api: &Api<Pod>, pod: &Arc<Pod>, memory: &mut Memory) -> Result<(), ActError> {
    let kept: Vec<_> = pod.metadata.finalizers.iter().flatten().filter(|one| *one != FINALIZER).collect();
    let body = serde_json::json!({ "metadata": { "uid": pod.uid(), "finalizers": kept } });
    match act::patch(api, pod.as_ref(), body, &world.writes).await {
        Ok(version) => {
            memory.pods = Some(world.pods.mark(version));
            Ok(())
        }
        Err(error) if error.code() == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Pods that wait to be counted by a Job that is gone are freed, once the live API says it is gone.
async fn free_orphans(world: &World, jobs: &[Arc<Job>]) -> bool {
    let mut fine = true;
    for pod in world.pods.all().into_iter().filter(|pod| tracked(pod)) {
        let owner = pods::controller(&pod.metadata).filter(|owner| owner.kind == "Job");
        let known = owner.is_some_and(|owner| jobs.iter().any(|job| job.metadata.uid.as_ref() == Some(&owner.uid)));
        if known {
            continue;
        }
        if let Err(error) = free_orphan(world, &pod).await
            && !error.is_conflict()
        {
            tracing::warn!(pod = %pod.name_any(), error = %error, "pod of a job that is gone not freed");
            fine = false;
        }
    }
    fine
}

async fn free_orphan(world: &World, pod: &Arc<Pod>) -> Result<(), ActError> {
    let namespace = pod.namespace().unwrap_or_default();
    if let Some(owner) = pods::controller(&pod.metadata).filter(|owner| owner.kind == "Job") {
        let jobs: Api<Job> = Api::namespaced(world.client.clone(), &namespace);
        let live = act::call("read", jobs.get_opt(&owner.name)).await?;
        if live.is_some_and(|live| live.metadata.uid.as_ref() == Some(&owner.uid)) {
            return Ok(());
        }
    }
    release(world, &Api::namespaced(world.client.clone(), &namespace), pod, &mut Memory::default()).await
}

/// The Unix second a finished Job is to be removed.
fn expiry(job: &Job) -> Option<i64> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    Some(finished_at(job.status.as_ref()?)? + i64::from(ttl)).filter(|_| job.metadata.deletion_timestamp.is_none())
}

/// Removes a finished Job with its Pods, if the live one is still due.
async fn expire(world: &World, job: &Job) -> Result<(), ActError> {
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &job.namespace().unwrap_or_default());
    let live = act::call("read", jobs.get_opt(&job.name_any())).await?;
    let due = live.as_ref().and_then(expiry).is_some_and(|due| due <= world.unix_now());
    let finished = live.as_ref().and_then(|live| live.status.as_ref()).is_some_and(is_finished);
    let same = live.as_ref().is_some_and(|live| live.uid() == job.uid());
    if !(due && finished && same) {
        return Ok(());
    }
    world.writes.add();
    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        preconditions: Some(Preconditions { uid: job.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    match act::call("delete", jobs.delete(&job.name_any(), &params)).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.code(), 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

fn suffix() -> String {
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..5).map(|_| char::from(alphabet[random.random_range(0..alphabet.len())])).collect()
}

/// A deletion follows only a spec that is still the live one.
async fn unchanged(world: &World, job: &Job) -> Result<bool, ActError> {
    let jobs: Api<Job> = Api::namespaced(world.client.clone(), &job.namespace().unwrap_or_default());
    let live = act::call("read", jobs.get_opt(&job.name_any())).await?;
    Ok(live.is_some_and(|live| live.uid() == job.uid() && live.metadata.generation == job.metadata.generation))
}
