//! The Job controller's decision: which Pods to make, which to end, which ends were counted, what the status says. Pure. An ended Pod
//! is counted exactly once: it is first named in the status, then freed of its finalizer, then added to the totals.

mod counting;
pub mod drive;
mod ending;
mod indexes;
mod make;
mod policy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::pods;
use counting::Counted;
pub use ending::{condition_holds, finished_at, is_finished};
use indexes::Indexes;
pub use make::pod;

/// Keeps an ended Pod until it is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Names a Pod's place in an Indexed Job.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The wait before a failed Pod is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure, in seconds; doubled with each further one in a row.
    pub first: i64,
    /// At most, in seconds.
    pub most: i64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: 10, most: 600 }
    }
}

/// What is decided from.
pub struct View<'a> {
    /// The Job.
    pub job: &'a Job,
    /// Every Pod of its namespace.
    pub pods: &'a [Arc<Pod>],
    /// Unix seconds.
    pub now: i64,
    /// The wait before a failed Pod is replaced.
    pub backoff: Backoff,
}

/// What to do for one Job now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Pods to make; an Indexed Job's with their index.
    pub create: Vec<Option<u32>>,
    /// Pods to end.
    pub delete: Vec<Doomed>,
    /// Ended Pods that were counted: their finalizer goes.
    pub release: Vec<Arc<Pod>>,
    /// The status to report.
    pub status: JobStatus,
    /// What is worth an event: (warning, reason, note).
    pub remarks: Vec<(bool, &'static str, String)>,
    /// Look again at this Unix second, should nothing happen before.
    pub wake: Option<i64>,
}

/// A Pod to end.
#[derive(Debug, Clone)]
pub struct Doomed {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// It is not counted as failed: its finalizer goes first.
    pub uncounted: bool,
}

/// What a decision needs of the spec, defaults filled.
struct Wish<'a> {
    spec: &'a JobSpec,
    parallelism: i32,
    completions: Option<i32>,
    backoff_limit: i32,
    indexed: bool,
    suspended: bool,
    /// Pods that are leaving hold their place until they are gone.
    wait_for_leaving: bool,
}

impl<'a> Wish<'a> {
    fn of(spec: &'a JobSpec) -> Self {
        Self {
            spec,
            parallelism: spec.parallelism.unwrap_or(1).max(0),
            completions: spec.completions,
            backoff_limit: spec.backoff_limit.unwrap_or(6).max(0),
            indexed: spec.completion_mode.as_deref() == Some("Indexed"),
            suspended: spec.suspend == Some(true),
            wait_for_leaving: spec.pod_replacement_policy.as_deref() == Some("Failed")
                || spec.pod_failure_policy.is_some(),
        }
    }
}

/// Decides for one Job.
pub fn decide(view: &View<'_>) -> Plan {
    let job = view.job;
    let Some(spec) = job.spec.as_ref() else { return Plan::default() };
    let wish = Wish::of(spec);
    let uid = job.uid().unwrap_or_default();
    let mine: Vec<Arc<Pod>> =
        view.pods.iter().filter(|pod| pods::controlled_by(&pod.metadata, &uid)).cloned().collect();
    let before = job.status.clone().unwrap_or_default();
    if is_finished(&before) {
        let release = mine.into_iter().filter(|pod| tracked(pod)).collect();
        return Plan { release, status: before, ..Plan::default() };
    }
    let counted = counting::count(&wish, &before, &mine);
    let active: Vec<_> = mine.iter().filter(|pod| !pods::is_ended(pod) && !pods::is_leaving(pod)).cloned().collect();
    let leaving = mine.iter().filter(|pod| !pods::is_ended(pod) && pods::is_leaving(pod)).count();
    let mut plan = Plan { status: before.clone(), release: counted.release.clone(), ..Plan::default() };
    if job.metadata.deletion_timestamp.is_some() {
        plan.release = mine.iter().filter(|pod| tracked(pod)).cloned().collect();
    }
    start(&mut plan, &wish, view.now);
    counted.report(&mut plan.status, &wish);
    plan.status.active = some(active.len());
    plan.status.ready = Some(size(active.iter().filter(|pod| pods::is_ready(pod)).count()));
    plan.status.terminating = Some(size(leaving));
    let ending = ending::verdict(&wish, &plan.status, &counted, &mine, &active, view.now);
    let scene = Scene { wish: &wish, counted: &counted, active: &active, leaving, mine: &mine };
    match ending {
        Some(ending) => end(&mut plan, &scene, ending, view.now),
        None => go_on(&mut plan, &scene, view),
    }
    plan
}

/// The Pods of one decision.
struct Scene<'a> {
    wish: &'a Wish<'a>,
    counted: &'a Counted,
    active: &'a [Arc<Pod>],
    leaving: usize,
    mine: &'a [Arc<Pod>],
}

/// The Job begins, is suspended, or goes on after that.
fn start(plan: &mut Plan, wish: &Wish<'_>, now: i64) {
    let status = &mut plan.status;
    let was = condition_holds(status, "Suspended");
    if wish.suspended && !was {
        status.start_time = None;
        ending::set(status, "Suspended", "True", ("JobSuspended", "Job suspended"), now);
        plan.remarks.push((false, "Suspended", "Job suspended".into()));
    } else if !wish.suspended && was {
        status.start_time = time(now);
        ending::set(status, "Suspended", "False", ("JobResumed", "Job resumed"), now);
        plan.remarks.push((false, "Resumed", "Job resumed".into()));
    } else if !wish.suspended && status.start_time.is_none() {
        status.start_time = time(now);
    }
}

/// Nothing new is made; what runs is ended; the last word comes when nothing is left to count.
fn end(plan: &mut Plan, scene: &Scene<'_>, ending: ending::Ending, now: i64) {
    let first = ending.announce(&mut plan.status, now);
    if first && ending.failed() {
        plan.remarks.push((true, ending.event(), ending.message.clone()));
    }
    let uncounted = !ending.failed();
    plan.delete = scene.active.iter().map(|pod| Doomed { pod: pod.clone(), uncounted }).collect();
    if scene.active.is_empty() && scene.leaving == 0 && scene.counted.settled() {
        ending.conclude(&mut plan.status, now);
        if !ending.failed() {
            plan.remarks.push((false, "Completed", "Job completed".into()));
        }
    }
}

fn go_on(plan: &mut Plan, scene: &Scene<'_>, view: &View<'_>) {
    let wish = scene.wish;
    if let (Some(seconds), Some(start), false) =
        (wish.spec.active_deadline_seconds, plan.status.start_time.as_ref(), wish.suspended)
    {
        plan.wake = Some(start.0.as_second() + seconds);
    }
    if view.job.metadata.deletion_timestamp.is_some() {
        return;
    }
    let wanted = if wish.suspended { 0 } else { wanted(wish, scene) };
    let surplus = scene.active.len().saturating_sub(wanted);
    if surplus > 0 {
        let mut active = scene.active.to_vec();
        active.sort_by_key(|pod| (pods::node(pod).is_some(), pods::phase(pod) == "Running", pods::is_ready(pod)));
        plan.delete = active.into_iter().take(surplus).map(|pod| Doomed { pod, uncounted: true }).collect();
        return;
    }
    let held = if wish.wait_for_leaving { scene.leaving } else { 0 };
    let missing = wanted.saturating_sub(scene.active.len() + held);
    if missing == 0 {
        return;
    }
    if let Some(until) = backoff(scene.mine, view.backoff)
        && view.now < until
    {
        plan.wake = Some(plan.wake.map_or(until, |wake| wake.min(until)));
        return;
    }
    plan.create = if wish.indexed {
        let taken = |index: u32| scene.active.iter().any(|pod| index_of(pod) == Some(index));
        let all = u32::try_from(wish.completions.unwrap_or(0)).unwrap_or(0);
        let open = (0..all).filter(|index| !scene.counted.completed.has(*index) && !taken(*index));
        open.take(missing).map(Some).collect()
    } else {
        vec![None; missing]
    };
}

/// How many Pods are to run at once.
fn wanted(wish: &Wish<'_>, scene: &Scene<'_>) -> usize {
    let wanted = match wish.completions {
        Some(all) => (all - scene.counted.succeeded()).clamp(0, wish.parallelism),
        // A work queue: once one Pod found it empty, none is made any more.
        None if scene.counted.succeeded() > 0 => wish.parallelism.min(size(scene.active.len())),
        None => wish.parallelism,
    };
    usize::try_from(wanted).unwrap_or(0)
}

/// Not before this Unix second: the wait doubles with each failure since the last success.
fn backoff(mine: &[Arc<Pod>], backoff: Backoff) -> Option<i64> {
    let ends = |phase: &str| -> Vec<i64> {
        mine.iter().filter(|pod| pods::phase(pod) == phase).filter_map(|pod| counting::ended_at(pod)).collect()
    };
    let success = ends("Succeeded").into_iter().max().unwrap_or(i64::MIN);
    let failures: Vec<_> = ends("Failed").into_iter().filter(|at| *at > success).collect();
    let last = failures.iter().max()?;
    let doublings = u32::try_from(failures.len() - 1).unwrap_or(u32::MAX).min(20);
    Some(last + backoff.first.saturating_mul(1 << doublings).min(backoff.most))
}

/// The place of a Pod in an Indexed Job.
fn index_of(pod: &Pod) -> Option<u32> {
    pod.annotations().get(INDEX).and_then(|text| text.parse().ok())
}

/// Whether the Pod waits to be counted.
pub fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn size(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A count as the status carries it: nothing instead of 0.
fn some(count: usize) -> Option<i32> {
    (count > 0).then(|| size(count))
}

fn time(now: i64) -> Option<Time> {
    Timestamp::from_second(now).ok().map(Time)
}
