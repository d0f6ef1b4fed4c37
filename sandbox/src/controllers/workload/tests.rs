//! ReplicaSets and Deployments as sentences.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

use super::deployment::{self, HASH_LABEL};
use super::replica_set;

fn replica_set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": { "name": "op-abc", "namespace": "n", "uid": "rs", "generation": 1 },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "op" } },
            "template": { "metadata": { "labels": { "app": "op" } }, "spec": { "containers": [] } } },
    }))
    .unwrap()
}

fn pod(name: &str, owner: Option<&str>, node: Option<&str>, ready: bool) -> Arc<Pod> {
    let owners: Vec<_> = owner
        .iter()
        .map(
            |uid| json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": uid, "controller": true }),
        )
        .collect();
    let body = json!({
        "metadata": { "name": name, "namespace": "n", "uid": name, "labels": { "app": "op" }, "ownerReferences": owners,
            "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

#[test]
fn missing_pods_are_counted_and_orphans_adopted_first() {
    let plan =
        replica_set::decide(&replica_set(3), &[pod("a", Some("rs"), None, false), pod("b", None, None, true)], 0);
    assert_eq!((plan.missing, plan.adopt.len(), plan.delete.len()), (1, 1, 0));
    let other = pod("c", Some("somebody"), None, true);
    assert_eq!(replica_set::decide(&replica_set(1), &[other], 0).missing, 1, "another owner's Pod is not ours");
}

#[test]
fn the_least_useful_pod_goes_first() {
    let pods = [
        pod("ready", Some("rs"), Some("n1"), true),
        pod("unready", Some("rs"), Some("n1"), false),
        pod("unbound", Some("rs"), None, false),
    ];
    let names = |replicas: i32| -> Vec<_> {
        replica_set::decide(&replica_set(replicas), &pods, 0).delete.iter().map(|pod| pod.name_any()).collect()
    };
    assert_eq!(names(2), ["unbound"]);
    assert_eq!(names(1), ["unbound", "unready"]);
}

fn deployment(replicas: i32, strategy: serde_json::Value, image: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": "op", "namespace": "n", "uid": "d", "generation": 2 },
        "spec": { "replicas": replicas, "strategy": strategy, "selector": { "matchLabels": { "app": "op" } },
            "template": { "metadata": { "labels": { "app": "op" } }, "spec": { "containers": [{ "name": "c", "image": image }] } } },
    }))
    .unwrap()
}

/// The ReplicaSet a Deployment makes, as if it had `replicas` of which `available` serve.
fn made(of: &Deployment, uid: &str, replicas: i32, available: i32) -> Arc<ReplicaSet> {
    let mut set = deployment::decide(of, &[], &[], 0).create.unwrap();
    set.metadata.uid = Some(uid.into());
    set.spec.as_mut().unwrap().replicas = Some(replicas);
    set.status = serde_json::from_value(
        json!({ "replicas": replicas, "readyReplicas": available, "availableReplicas": available }),
    )
    .unwrap();
    Arc::new(set)
}

fn scales(plan: &deployment::Plan) -> Vec<(String, i32)> {
    plan.scale.iter().map(|(set, count)| (set.uid().unwrap(), *count)).collect()
}

#[test]
fn the_first_replica_set_is_made_whole_and_named_for_its_template() {
    let of = deployment(2, json!({}), "a");
    let set = deployment::decide(&of, &[], &[], 0).create.unwrap();
    assert_eq!(set.spec.as_ref().unwrap().replicas, Some(2));
    assert_eq!(set.name_any(), format!("op-{}", set.labels()[HASH_LABEL]));
    assert_eq!(
        set.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()[HASH_LABEL],
        set.labels()[HASH_LABEL]
    );
}

#[test]
fn a_rolling_update_stays_within_surge_and_unavailability() {
    let rolling = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } });
    let (before, after) = (deployment(3, rolling.clone(), "a"), deployment(3, rolling, "b"));
    let old = made(&before, "old", 3, 3);
    let fresh = deployment::decide(&after, std::slice::from_ref(&old), &[], 0);
    assert_eq!(fresh.create.unwrap().spec.unwrap().replicas, Some(0));
    let plan = deployment::decide(&after, &[old.clone(), made(&after, "new", 0, 0)], &[], 0);
    assert_eq!(scales(&plan), [("new".into(), 1)], "one more, and none less");
    let plan = deployment::decide(&after, &[old.clone(), made(&after, "new", 1, 0)], &[], 0);
    assert_eq!(scales(&plan), [], "the new one is not available yet");
    let plan = deployment::decide(&after, &[old, made(&after, "new", 1, 1)], &[], 0);
    assert_eq!(scales(&plan), [("old".into(), 2)]);
}

#[test]
fn recreate_waits_until_no_old_pod_is_left() {
    let recreate = json!({ "type": "Recreate" });
    let (before, after) = (deployment(1, recreate.clone(), "a"), deployment(1, recreate, "b"));
    let old = made(&before, "old", 1, 1);
    let plan = deployment::decide(&after, &[old], &[], 0);
    assert_eq!((scales(&plan), plan.create.is_none()), (vec![("old".into(), 0)], true));
    let empty = made(&before, "old", 0, 0);
    let still = deployment::decide(&after, std::slice::from_ref(&empty), &[pod("p", Some("old"), Some("n1"), true)], 0);
    assert!(still.create.is_none(), "its Pod still runs");
    assert_eq!(deployment::decide(&after, &[empty], &[], 0).create.unwrap().spec.unwrap().replicas, Some(1));
}

#[test]
fn an_unchanged_status_keeps_its_times() {
    let of = deployment(1, json!({}), "a");
    let set = made(&of, "new", 1, 1);
    let first = deployment::decide(&of, std::slice::from_ref(&set), &[], 100).status;
    let mut settled = of;
    settled.status = Some(first.clone());
    assert_eq!(deployment::decide(&settled, &[set], &[], 999).status, first);
}

#[test]
fn a_template_that_comes_back_is_the_newest_revision_and_the_deployment_carries_it() {
    let (first, second) = (deployment(1, json!({}), "a"), deployment(1, json!({}), "b"));
    let one = made(&first, "one", 0, 0);
    let two = deployment::decide(&second, std::slice::from_ref(&one), &[], 0).create.unwrap();
    assert_eq!(deployment::revision(&two), 2);
    let mut two = two;
    two.metadata.uid = Some("two".into());
    let sets = [one.clone(), Arc::new(two)];
    let plan = deployment::decide(&second, &sets, &[], 0);
    assert_eq!((plan.revise.is_none(), plan.revision), (true, Some(2)));
    let plan = deployment::decide(&first, &sets, &[], 0);
    assert_eq!(plan.revise.map(|(set, revision)| (set.uid().unwrap(), revision)), Some(("one".into(), 3)));
    let mut settled = second;
    settled.metadata.annotations = Some([(deployment::REVISION.to_owned(), "2".to_owned())].into());
    assert_eq!(deployment::decide(&settled, &sets, &[], 0).revision, None);
}
