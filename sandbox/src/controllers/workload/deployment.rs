//! The Deployment controller's decision: which ReplicaSet is the current one and how many replicas each should have. Pure. Under
//! RollingUpdate it never goes above replicas + maxSurge nor takes away a ready Pod below replicas − maxUnavailable; under Recreate
//! the new ReplicaSet grows only when no old Pod is left.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use super::deployment_status::status;
use crate::controllers::pods;

/// The label that tells a Deployment's ReplicaSets apart.
pub const HASH_LABEL: &str = "pod-template-hash";
/// The annotation that numbers revisions.
pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// What to do for one Deployment now.
#[derive(Debug, Default)]
pub struct Plan {
    /// The ReplicaSet to make.
    pub create: Option<ReplicaSet>,
    /// ReplicaSets to resize.
    pub scale: Vec<(Arc<ReplicaSet>, i32)>,
    /// Old, empty ReplicaSets beyond the history limit.
    pub delete: Vec<Arc<ReplicaSet>>,
    /// The current ReplicaSet counts as the newest revision: one that came back does so anew.
    pub revise: Option<(Arc<ReplicaSet>, i64)>,
    /// The revision the Deployment is to carry.
    pub revision: Option<i64>,
    /// The status to report.
    pub status: DeploymentStatus,
}

/// How many replicas a ReplicaSet is to have.
pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Decides for one Deployment from every ReplicaSet and Pod of its namespace, at Unix second `now`.
pub fn decide(deployment: &Deployment, sets: &[Arc<ReplicaSet>], all: &[Arc<Pod>], now: i64) -> Plan {
    let Some(spec) = deployment.spec.as_ref() else { return Plan::default() };
    let uid = deployment.uid().unwrap_or_default();
    let hash = pods::template_hash(&spec.template);
    let mine: Vec<_> = sets.iter().filter(|set| pods::controlled_by(&set.metadata, &uid)).cloned().collect();
    let (current, mut old): (Vec<_>, Vec<_>) =
        mine.iter().cloned().partition(|set| pods::label(&set.metadata, HASH_LABEL) == hash);
    old.sort_by_key(|set| revision(set));
    let mut plan = Plan { status: status(deployment, current.first(), &mine, now), ..Plan::default() };
    if deployment.metadata.deletion_timestamp.is_some() || spec.paused == Some(true) {
        return plan;
    }
    if let Some(current) = current.first() {
        count_revision(&mut plan, deployment, current, &old);
    }
    let wanted = spec.replicas.unwrap_or(1).max(0);
    let recreate =
        spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()).unwrap_or("RollingUpdate") == "Recreate";
    if recreate {
        plan_recreate(&mut plan, &old, current.first(), all, wanted);
    } else {
        plan_rolling(&mut plan, deployment, &old, current.first(), wanted);
    }
    if current.is_empty() && !(recreate && has_pods(&old, all)) {
        let next = mine.iter().map(|set| revision(set)).max().unwrap_or(0) + 1;
        let first = if recreate || old.iter().all(|set| replicas(set) == 0) { wanted } else { 0 };
        plan.create = Some(build(deployment, &hash, first, next));
    }
    if current.first().is_some_and(|set| ready(set) >= wanted) {
        let keep = spec.revision_history_limit.unwrap_or(10).max(0) as usize;
        let empty: Vec<_> = old
            .iter()
            .filter(|set| replicas(set) == 0 && set.status.as_ref().is_none_or(|status| status.replicas == 0))
            .collect();
        plan.delete = empty.iter().take(empty.len().saturating_sub(keep)).map(|set| (*set).clone()).collect();
    }
    plan
}

fn count_revision(plan: &mut Plan, deployment: &Deployment, current: &Arc<ReplicaSet>, old: &[Arc<ReplicaSet>]) {
    let newest = old.iter().map(|set| revision(set)).max().unwrap_or(0);
    let own = revision(current);
    if own <= newest {
        plan.revise = Some((current.clone(), newest + 1));
    } else if deployment.annotations().get(REVISION) != Some(&own.to_string()) {
        plan.revision = Some(own);
    }
}

fn plan_recreate(
    plan: &mut Plan,
    old: &[Arc<ReplicaSet>],
    current: Option<&Arc<ReplicaSet>>,
    all: &[Arc<Pod>],
    wanted: i32,
) {
    plan.scale.extend(old.iter().filter(|set| replicas(set) > 0).map(|set| (set.clone(), 0)));
    if let Some(current) = current
        && !has_pods(old, all)
        && replicas(current) != wanted
    {
        plan.scale.push((current.clone(), wanted));
    }
}

fn has_pods(sets: &[Arc<ReplicaSet>], all: &[Arc<Pod>]) -> bool {
    sets.iter().any(|set| replicas(set) > 0)
        || all.iter().any(|pod| {
            !pods::is_ended(pod)
                && sets.iter().any(|set| pods::controlled_by(&pod.metadata, set.metadata.uid.as_deref().unwrap_or("?")))
        })
}

fn plan_rolling(
    plan: &mut Plan,
    deployment: &Deployment,
    old: &[Arc<ReplicaSet>],
    current: Option<&Arc<ReplicaSet>>,
    wanted: i32,
) {
    let Some(current) = current else { return };
    let (surge, unavailable) = limits(deployment, wanted);
    let total: i32 = old.iter().map(|set| replicas(set)).sum::<i32>() + replicas(current);
    let mine = replicas(current);
    if mine > wanted {
        plan.scale.push((current.clone(), wanted));
    } else if mine < wanted {
        let room = (wanted + surge - total).clamp(0, wanted - mine);
        if room > 0 {
            plan.scale.push((current.clone(), mine + room));
        }
    }
    let ready_now: i32 = old.iter().map(|set| ready(set)).sum::<i32>() + ready(current);
    let mut spare = (ready_now - (wanted - unavailable)).max(0);
    for set in old.iter().filter(|set| replicas(set) > 0) {
        let unready = (replicas(set) - ready(set)).max(0);
        let ready_taken = ready(set).min(spare);
        spare -= ready_taken;
        if unready + ready_taken > 0 {
            plan.scale.push((set.clone(), (replicas(set) - unready - ready_taken).max(0)));
        }
    }
}

fn ready(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn limits(deployment: &Deployment, wanted: i32) -> (i32, i32) {
    let rolling = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = share(rolling.and_then(|rolling| rolling.max_surge.as_ref()), wanted, true);
    let unavailable = share(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), wanted, false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

fn share(value: Option<&IntOrString>, wanted: i32, up: bool) -> i32 {
    let percent = match value {
        Some(IntOrString::Int(count)) => return (*count).max(0),
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse::<i32>().unwrap_or(25).clamp(0, 100),
        None => 25,
    };
    let scaled = wanted * percent;
    if up { (scaled + 99) / 100 } else { scaled / 100 }
}

/// The revision number a ReplicaSet carries.
pub fn revision(set: &ReplicaSet) -> i64 {
    set.annotations().get(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn build(deployment: &Deployment, hash: &str, count: i32, revision: i64) -> ReplicaSet {
    let Some(spec) = deployment.spec.as_ref() else { return ReplicaSet::default() };
    let mut template = spec.template.clone();
    let hash_label = (HASH_LABEL.to_owned(), hash.to_owned());
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.extend([hash_label.clone()]);
    let labels = labels.clone();
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().extend([hash_label]);
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name_any())),
            namespace: deployment.namespace(),
            labels: Some(labels),
            annotations: Some([(REVISION.to_owned(), revision.to_string())].into()),
            owner_references: deployment.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            min_ready_seconds: spec.min_ready_seconds,
            replicas: Some(count),
            selector,
            template: Some(template),
        }),
        status: None,
    }
}
