//! The ReplicaSet controller's decision: how many Pods to make, which to delete, what the status says. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::controllers::{availability, pods, selector};

/// What to do for one ReplicaSet now.
#[derive(Debug, Default)]
pub struct Plan {
    /// How many Pods are missing.
    pub missing: usize,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Matching Pods that nobody owns: to adopt.
    pub adopt: Vec<Arc<Pod>>,
    /// The status to report.
    pub status: ReplicaSetStatus,
}

/// Decides for one ReplicaSet from every Pod of its namespace, at Unix second `now`.
pub fn decide(set: &ReplicaSet, all: &[Arc<Pod>], now: i64) -> Plan {
    let Some(spec) = set.spec.as_ref() else { return Plan::default() };
    let uid = set.uid().unwrap_or_default();
    let mut mine: Vec<_> =
        all.iter().filter(|pod| pods::controlled_by(&pod.metadata, &uid) && !pods::is_ended(pod)).cloned().collect();
    let ended = all
        .iter()
        .filter(|pod| pods::controlled_by(&pod.metadata, &uid) && pods::is_ended(pod) && !pods::is_leaving(pod));
    let leaving = mine.iter().filter(|pod| pods::is_leaving(pod)).count();
    mine.retain(|pod| !pods::is_leaving(pod));
    let mut plan = Plan { status: status(set, &mine, leaving, now), ..Plan::default() };
    if set.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    plan.delete.extend(ended.cloned());
    plan.adopt = all
        .iter()
        .filter(|pod| {
            pods::controller(&pod.metadata).is_none()
                && !pods::is_leaving(pod)
                && !pods::is_ended(pod)
                && selector::matches(&spec.selector, pod.metadata.labels.as_ref())
        })
        .cloned()
        .collect();
    let wanted = spec.replicas.unwrap_or(1).max(0) as usize;
    let have = mine.len() + plan.adopt.len();
    plan.missing = wanted.saturating_sub(have);
    let surplus = have.saturating_sub(wanted);
    mine.sort_by_key(|pod| worth(pod));
    plan.delete.extend(mine.into_iter().take(surplus));
    plan
}

/// What a Pod is worth keeping: unbound first to go, then not running, not ready, and of equals the newest.
fn worth(pod: &Pod) -> (bool, bool, bool, Reverse<Option<i64>>, Reverse<String>) {
    let age = pod.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second());
    (
        pods::node(pod).is_some(),
        pods::phase(pod) == "Running",
        pods::is_ready(pod),
        Reverse(age),
        Reverse(pod.name_any()),
    )
}

fn status(set: &ReplicaSet, mine: &[Arc<Pod>], leaving: usize, now: i64) -> ReplicaSetStatus {
    let spec = set.spec.as_ref();
    let minimum = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let wanted = spec.and_then(|spec| spec.template.as_ref()).and_then(|template| template.metadata.as_ref());
    let labels = wanted.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let count = |test: &dyn Fn(&Pod) -> bool| mine.iter().filter(|pod| test(pod)).count() as i32;
    ReplicaSetStatus {
        available_replicas: Some(count(&|pod| availability::is_available(pod, minimum, now))),
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
        fully_labeled_replicas: Some(count(&|pod| selector::contains_all(&labels, pod.metadata.labels.as_ref()))),
        observed_generation: set.metadata.generation,
        ready_replicas: Some(count(&pods::is_ready)),
        replicas: mine.len() as i32,
        terminating_replicas: set
            .status
            .as_ref()
            .and_then(|status| status.terminating_replicas)
            .map(|_| leaving as i32),
    }
}

/// A Pod of the set under a name the caller chose.
pub fn pod(set: &ReplicaSet, name: String) -> Pod {
    let template = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.namespace(),
            labels: given.labels,
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: set.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
