//! StatefulSet decisions as sentences.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::{Plan, Refusal, View, build, decide, revision_name};

fn set(replicas: i32, policy: &str, strategy: &str) -> StatefulSet {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "n", "uid": "set-uid", "generation": 4 },
        "spec": {
            "replicas": replicas,
            "serviceName": "web",
            "podManagementPolicy": policy,
            "updateStrategy": { "type": strategy },
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": "cell:dev" }] },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "cellplane-local" },
            }],
        },
    }))
    .unwrap()
}

fn pod(set: &StatefulSet, ordinal: i32, state: &str) -> Arc<Pod> {
    let mut pod = build::pod(set, ordinal);
    pod.metadata.uid = Some(format!("pod-{ordinal}"));
    let ready = if state == "ready" { "True" } else { "False" };
    let phase = if state == "failed" { "Failed" } else { "Running" };
    let status = json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] });
    pod.status = serde_json::from_value(status).unwrap();
    if state == "leaving" {
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    }
    Arc::new(pod)
}

fn plan(set: &StatefulSet, pods: &[Arc<Pod>]) -> Plan {
    decide(&View { set, pods, claims: &|_| false, now: 0 }).unwrap()
}

fn created(plan: &Plan) -> Vec<String> {
    plan.create.iter().map(|pod| pod.name_any()).collect()
}

fn deleted(plan: &Plan) -> Vec<String> {
    plan.delete.iter().map(|pod| pod.name_any()).collect()
}

#[test]
fn parallel_makes_all_at_once_with_their_claims() {
    let plan = plan(&set(3, "Parallel", "OnDelete"), &[]);
    assert_eq!(created(&plan), ["web-0", "web-1", "web-2"]);
    let claims: Vec<_> = plan.claims.iter().map(|claim| claim.name_any()).collect();
    assert_eq!(claims, ["data-web-0", "data-web-1", "data-web-2"]);
    let volumes = plan.create[1].spec.as_ref().unwrap().volumes.as_ref().unwrap();
    assert_eq!(volumes[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-web-1");
}

#[test]
fn a_claim_belongs_to_its_set_only_where_it_goes_with_it() {
    let mut set = set(1, "Parallel", "OnDelete");
    assert_eq!(build::claims(&set, 0)[0].metadata.owner_references, None);
    let policy = StatefulSetPersistentVolumeClaimRetentionPolicy {
        when_deleted: Some("Delete".into()),
        when_scaled: Some("Retain".into()),
    };
    set.spec.as_mut().unwrap().persistent_volume_claim_retention_policy = Some(policy);
    let owners = build::claims(&set, 0)[0].metadata.owner_references.clone().unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("StatefulSet", "set-uid"));
}

#[test]
fn a_claim_that_is_there_is_not_made_again() {
    let set = set(1, "Parallel", "OnDelete");
    let plan = decide(&View { set: &set, pods: &[], claims: &|name| name == "data-web-0", now: 0 }).unwrap();
    assert!(plan.claims.is_empty() && created(&plan) == ["web-0"]);
}

#[test]
fn ordered_ready_makes_the_next_only_when_the_one_before_is_ready() {
    let set = set(3, "OrderedReady", "OnDelete");
    assert_eq!(created(&plan(&set, &[])), ["web-0"]);
    assert!(created(&plan(&set, &[pod(&set, 0, "running")])).is_empty());
    assert_eq!(created(&plan(&set, &[pod(&set, 0, "ready")])), ["web-1"]);
}

#[test]
fn ordered_ready_shrinks_one_by_one_from_the_top() {
    let small = set(1, "OrderedReady", "OnDelete");
    let all: Vec<_> = (0..3).map(|ordinal| pod(&small, ordinal, "ready")).collect();
    assert_eq!(deleted(&plan(&small, &all)), ["web-2"]);
    let mut one_leaves = all.clone();
    one_leaves[2] = pod(&small, 2, "leaving");
    assert!(deleted(&plan(&small, &one_leaves)).is_empty(), "the one before must be gone first");
}

#[test]
fn parallel_shrinks_at_once_and_never_touches_a_claim() {
    let small = set(1, "Parallel", "OnDelete");
    let all: Vec<_> = (0..3).map(|ordinal| pod(&small, ordinal, "ready")).collect();
    let plan = plan(&small, &all);
    assert_eq!(deleted(&plan), ["web-1", "web-2"]);
    assert!(plan.claims.is_empty());
}

#[test]
fn a_leaving_pod_keeps_its_name_until_it_is_gone() {
    let set = set(1, "Parallel", "OnDelete");
    let plan = plan(&set, &[pod(&set, 0, "leaving")]);
    assert!(created(&plan).is_empty() && deleted(&plan).is_empty());
    assert_eq!(plan.status.ready_replicas, Some(0));
}

#[test]
fn an_ended_pod_is_replaced() {
    let set = set(1, "Parallel", "OnDelete");
    assert_eq!(deleted(&plan(&set, &[pod(&set, 0, "failed")])), ["web-0"]);
}

fn outdated() -> (StatefulSet, Vec<Arc<Pod>>) {
    let before = set(2, "Parallel", "RollingUpdate");
    let pods = vec![pod(&before, 0, "ready"), pod(&before, 1, "ready")];
    let mut after = before;
    after.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("cell:next".into());
    (after, pods)
}

#[test]
fn a_rolling_update_replaces_the_highest_first_and_only_when_all_are_ready() {
    let (after, pods) = outdated();
    assert_eq!(deleted(&plan(&after, &pods)), ["web-1"]);
    let half = [pods[0].clone(), pod(&after, 1, "running")];
    assert!(deleted(&plan(&after, &half)).is_empty());
    let then = [pods[0].clone(), pod(&after, 1, "ready")];
    assert_eq!(deleted(&plan(&after, &then)), ["web-0"]);
}

#[test]
fn on_delete_only_says_what_is_outdated() {
    let (mut after, pods) = outdated();
    after.spec.as_mut().unwrap().update_strategy.as_mut().unwrap().type_ = Some("OnDelete".into());
    let plan = plan(&after, &pods);
    assert!(deleted(&plan).is_empty());
    assert_eq!(plan.status.updated_replicas, Some(0));
    assert_eq!(plan.status.update_revision.as_deref(), Some(revision_name(&after).as_str()));
    let renewed = build::pod(&after, 0);
    assert_eq!(renewed.labels()["controller-revision-hash"], revision_name(&after));
}

#[test]
fn the_status_counts_and_names_the_generation() {
    let set = set(3, "Parallel", "OnDelete");
    let plan = plan(&set, &[pod(&set, 0, "ready"), pod(&set, 1, "running")]);
    assert_eq!(
        (plan.status.replicas, plan.status.ready_replicas, plan.status.observed_generation),
        (2, Some(1), Some(4))
    );
}

#[test]
fn somebody_elses_pod_of_that_name_is_left_and_an_orphan_is_adopted() {
    let set = set(2, "Parallel", "OnDelete");
    let mut foreign = (*pod(&set, 0, "ready")).clone();
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "other".into();
    let mut orphan = (*pod(&set, 1, "ready")).clone();
    orphan.metadata.owner_references = None;
    let plan = plan(&set, &[Arc::new(foreign), Arc::new(orphan)]);
    assert!(created(&plan).is_empty() && deleted(&plan).is_empty());
    assert_eq!(plan.taken, ["web-0", "web-1"]);
    assert_eq!(plan.adopt.len(), 1);
}

#[test]
fn a_leaving_set_is_left_to_the_garbage_collector() {
    let mut set = set(3, "Parallel", "OnDelete");
    set.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert!(created(&plan(&set, &[])).is_empty());
}

#[test]
fn what_is_not_done_is_refused_with_a_remedy() {
    let mut partition = set(1, "Parallel", "RollingUpdate");
    partition.spec.as_mut().unwrap().update_strategy =
        serde_json::from_value(json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 1 } })).unwrap();
    let refused = |set: &StatefulSet| decide(&View { set, pods: &[], claims: &|_| false, now: 0 }).unwrap_err();
    assert_eq!(refused(&partition), Refusal::Partition(1));
    let mut long = set(1, "Parallel", "OnDelete");
    long.metadata.name = Some("x".repeat(53));
    assert_eq!(refused(&long), Refusal::Name);
}

#[test]
fn deciding_again_on_the_result_changes_nothing() {
    let set = set(3, "Parallel", "OnDelete");
    let all: Vec<_> = (0..3).map(|ordinal| pod(&set, ordinal, "ready")).collect();
    let first = plan(&set, &all);
    let mut settled = set.clone();
    settled.status = Some(first.status.clone());
    let second = decide(&View { set: &settled, pods: &all, claims: &|_| true, now: 9 }).unwrap();
    assert_eq!(second.status, first.status);
    assert!(second.create.is_empty() && second.delete.is_empty() && second.claims.is_empty());
}
