//! Scheduling as sentences.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::json;

use super::claims::{Binding, ClaimTrouble, bindings, look};
use super::{Cluster, NodeView, Placed, Reason, VolumeHome, VolumeRule, place};

fn node(name: &str, zone: &str) -> NodeView {
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": zone } },
        "status": {
            "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    }))
    .unwrap();
    NodeView::of(&node)
}

fn pod(name: &str, more: serde_json::Value) -> Arc<Pod> {
    let mut spec = json!({ "containers": [{ "name": "c" }] });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = json!({
        "metadata": { "name": name, "namespace": "n", "uid": name, "labels": { "app": "web" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "s", "controller": true }] },
        "spec": spec,
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

fn asking(name: &str, cpu: &str) -> Arc<Pod> {
    pod(name, json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] }))
}

fn three() -> Cluster {
    Cluster { nodes: vec![node("n1", "a"), node("n2", "a"), node("n3", "b")], placed: vec![] }
}

fn fill(cluster: &mut Cluster, pods: &[Arc<Pod>]) -> Vec<String> {
    pods.iter()
        .map(|pod| {
            let node = place(pod, &VolumeRule::default(), cluster).unwrap();
            cluster.placed.push(Placed { pod: pod.clone(), node: node.clone() });
            node
        })
        .collect()
}

#[test]
fn siblings_spread_over_zones_then_hosts() {
    let mut cluster = three();
    let pods: Vec<_> = (0..4).map(|number| pod(&format!("web-{number}"), json!({}))).collect();
    assert_eq!(fill(&mut cluster, &pods), ["n1", "n3", "n2", "n3"]);
}

#[test]
fn a_cordoned_or_unready_node_gets_nothing_and_the_reason_is_counted() {
    let mut cluster = three();
    cluster.nodes[0].unschedulable = true;
    cluster.nodes[1].ready = false;
    cluster.nodes[2].unschedulable = true;
    let none = place(&pod("web-0", json!({})), &VolumeRule::default(), &cluster).unwrap_err();
    assert_eq!(none.reasons[&Reason::Unschedulable], 2);
    let words = "0/3 nodes are available: 2 node(s) were unschedulable, 1 node(s) were not ready.";
    assert_eq!(none.to_string(), words);
}

#[test]
fn requests_fill_a_node_and_then_the_next() {
    let mut cluster = Cluster { nodes: vec![node("n1", "a"), node("n2", "a")], placed: vec![] };
    let pods: Vec<_> = (0..4).map(|number| asking(&format!("w{number}"), "1")).collect();
    fill(&mut cluster, &pods);
    let none = place(&asking("w9", "1"), &VolumeRule::default(), &cluster).unwrap_err();
    assert_eq!(none.reasons[&Reason::Cpu], 2);
    assert!(
        place(&pod("small", json!({})), &VolumeRule::default(), &cluster).is_ok(),
        "without requests it still fits"
    );
}

#[test]
fn selectors_and_taints_are_obeyed() {
    let mut cluster = three();
    cluster.nodes[2].taints =
        serde_json::from_value(json!([{ "key": "team", "value": "x", "effect": "NoSchedule" }])).unwrap();
    let b_only = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "b" } });
    let none = place(&pod("p", b_only.clone()), &VolumeRule::default(), &cluster).unwrap_err();
    assert_eq!((none.reasons[&Reason::Affinity], none.reasons[&Reason::Taint]), (2, 1));
    let mut tolerant = b_only;
    tolerant["tolerations"] = json!([{ "key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule" }]);
    assert_eq!(place(&pod("p", tolerant), &VolumeRule::default(), &cluster).unwrap(), "n3");
}

#[test]
fn a_bound_volume_ties_its_pod_to_one_node_whatever_the_crowd() {
    let mut cluster = three();
    fill(&mut cluster, &[pod("web-0", json!({}))]);
    let home = VolumeHome { volume: "v".into(), host: "n1".into() };
    let rule = VolumeRule { only: vec![home], prefer: None };
    assert_eq!(place(&pod("web-1", json!({})), &rule, &cluster).unwrap(), "n1");
    cluster.nodes[0].unschedulable = true;
    let none = place(&pod("web-1", json!({})), &rule, &cluster).unwrap_err();
    assert_eq!((none.reasons[&Reason::VolumeElsewhere], none.reasons[&Reason::Unschedulable]), (2, 1));
}

#[test]
fn a_node_chosen_for_a_claim_is_kept_while_it_fits() {
    let mut cluster = three();
    let rule = VolumeRule { only: vec![], prefer: Some("n2".into()) };
    assert_eq!(place(&pod("web-0", json!({})), &rule, &cluster).unwrap(), "n2");
    cluster.nodes[1].ready = false;
    assert_eq!(place(&pod("web-0", json!({})), &rule, &cluster).unwrap(), "n1");
}

#[test]
fn a_hard_spread_refuses_what_a_soft_one_allows() {
    let spread = |when: &str| {
        json!({ "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": when, "labelSelector": { "matchLabels": { "app": "web" } } }] })
    };
    let mut cluster = three();
    cluster.nodes[2].unschedulable = true;
    fill(&mut cluster, &[pod("web-0", json!({}))]);
    let hard = place(&pod("web-1", spread("DoNotSchedule")), &VolumeRule::default(), &cluster).unwrap_err();
    assert_eq!(hard.reasons[&Reason::Spread], 2, "the cordoned zone still counts as a domain");
    assert_eq!(place(&pod("web-1", spread("ScheduleAnyway")), &VolumeRule::default(), &cluster).unwrap(), "n2");
}

#[test]
fn required_anti_affinity_keeps_one_per_host() {
    let apart = json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
    ] } } });
    let mut cluster = three();
    let pods: Vec<_> = (0..3).map(|number| pod(&format!("web-{number}"), apart.clone())).collect();
    let mut nodes = fill(&mut cluster, &pods);
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    let none = place(&pod("web-9", apart), &VolumeRule::default(), &cluster).unwrap_err();
    assert_eq!(none.reasons[&Reason::PodAffinity], 3);
}

fn claim(bound: Option<&str>, class: &str) -> Arc<PersistentVolumeClaim> {
    let body = json!({ "metadata": { "name": "d", "namespace": "n", "uid": "c1" },
        "spec": { "storageClassName": class, "volumeName": bound } });
    Arc::new(serde_json::from_value(body).unwrap())
}

fn volume(phase: &str) -> Arc<PersistentVolume> {
    let body = json!({
        "metadata": { "name": "v" },
        "spec": {
            "claimRef": { "name": "d", "namespace": "n", "uid": "c1" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"] }] }] } },
        },
        "status": { "phase": phase },
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

fn claimed() -> Arc<Pod> {
    pod("web-0", json!({ "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }] }))
}

#[test]
fn claims_say_which_nodes_or_why_not() {
    let seen = |claim: Option<Arc<PersistentVolumeClaim>>, volume: Option<Arc<PersistentVolume>>| {
        look(&claimed(), &|_| claim.clone(), &|_| volume.clone())
    };
    assert_eq!(seen(None, None).unwrap_err(), ClaimTrouble::Missing("d".into()));
    assert_eq!(seen(Some(claim(None, "fast")), None).unwrap_err(), ClaimTrouble::Unbound("d".into()));
    assert_eq!(seen(Some(claim(Some("v"), "fast")), None).unwrap_err(), ClaimTrouble::Lost("d".into()));
    assert_eq!(seen(Some(claim(None, "cellplane-local")), None).unwrap().unbound.len(), 1);
    let bound = seen(Some(claim(Some("v"), "cellplane-local")), Some(volume("Bound"))).unwrap();
    assert_eq!(bound.rule.only, [VolumeHome { volume: "v".into(), host: "n2".into() }]);
}

#[test]
fn a_claim_meets_the_volume_that_names_its_uid_in_three_writes_and_then_none() {
    let first = bindings(&[claim(None, "cellplane-local")], &[volume("")]);
    assert!(matches!(first[..], [Binding::Claim(..)]));
    let second = bindings(&[claim(Some("v"), "cellplane-local")], &[volume("")]);
    assert!(matches!(second[..], [Binding::ClaimStatus(..), Binding::VolumePhase(_, "Bound")]));
    let mut settled = (*claim(Some("v"), "cellplane-local")).clone();
    settled.status = serde_json::from_value(json!({ "phase": "Bound" })).unwrap();
    assert!(bindings(&[Arc::new(settled)], &[volume("Bound")]).is_empty());
    assert!(matches!(bindings(&[], &[volume("Bound")])[..], [Binding::VolumePhase(_, "Released")]));
    assert!(bindings(&[], &[volume("Released")]).is_empty());
}
