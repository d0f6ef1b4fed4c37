//! The status of a Deployment, counted from its ReplicaSets. Pure; conditions change their time only when they flip.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// Counts what the Deployment's ReplicaSets report, at Unix second `now`.
pub(super) fn status(
    deployment: &Deployment,
    current: Option<&Arc<ReplicaSet>>,
    mine: &[Arc<ReplicaSet>],
    now: i64,
) -> DeploymentStatus {
    let before = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1).max(0);
    let sum = |read: &dyn Fn(&ReplicaSet) -> i32| mine.iter().map(|set| read(set)).sum::<i32>();
    let replicas = sum(&|set| set.status.as_ref().map_or(0, |status| status.replicas));
    let ready = sum(&|set| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0));
    let available = sum(&|set| set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0));
    let updated = current.and_then(|set| set.status.as_ref()).map_or(0, |status| status.replicas);
    let is_available = available >= wanted.min((wanted * 3 + 3) / 4);
    let complete = updated == wanted && replicas == wanted && available == wanted;
    let available_reason = if is_available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" };
    let progress_reason = if complete { "NewReplicaSetAvailable" } else { "ReplicaSetUpdated" };
    let old = before.conditions.as_deref().unwrap_or(&[]);
    DeploymentStatus {
        available_replicas: Some(available),
        collision_count: before.collision_count,
        conditions: Some(vec![
            condition(old, "Available", is_available, available_reason, now),
            condition(old, "Progressing", true, progress_reason, now),
        ]),
        observed_generation: deployment.metadata.generation,
        ready_replicas: Some(ready),
        replicas: Some(replicas),
        terminating_replicas: before.terminating_replicas,
        unavailable_replicas: Some((wanted.max(replicas) - available).max(0)),
        updated_replicas: Some(updated),
    }
}

fn condition(old: &[DeploymentCondition], kind: &str, holds: bool, reason: &str, now: i64) -> DeploymentCondition {
    let status = if holds { "True" } else { "False" };
    let before = old.iter().find(|condition| condition.type_ == kind);
    let time = Timestamp::from_second(now).ok().map(Time);
    let same_status = before.filter(|condition| condition.status == status);
    let same = same_status.filter(|condition| condition.reason.as_deref() == Some(reason));
    DeploymentCondition {
        last_transition_time: same_status.map_or_else(|| time.clone(), |was| was.last_transition_time.clone()),
        last_update_time: same.map_or(time, |was| was.last_update_time.clone()),
        message: None,
        reason: Some(reason.to_owned()),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}
