//! The faults that other operators had, each a test named for what must be so instead. Not here, with the reason:
//!
//! - Volumes: sizes, keyspaces and classes are immutable (the kinds' own tests), no volume is ever deleted or enlarged, nothing is
//!   decommissioned and no seeds are elected: instaclustr#407, rabbitmq#653 and #782, casskop#370, cass-operator#402 and #911.
//! - Quorum, and a bad value rolled out: which Pod goes next is pure and tested in `cell-plan` (`rollout`): opensearch#1471,
//!   zookeeper#549, spotahome#586, mongodb#1269, rabbitmq#622. A drain is the Pod's own: StarRocks#51. No role may have no Pod:
//!   cass-operator#808.
//! - Names and numbers: `names` and the kinds' own tests: argocd-operator#2181, moco#502, modelexpress#746.
//! - What was done is read from records and heads, never from a status: `runs/`: cass-operator#261. Data held: `operator.rs`:
//!   cass-operator#125. Immutable fields of children come from immutable fields of specs: dragonfly#165, OT#1321 apart from below.
//! - An operator begun anew changes nothing, whatever happened before: at the end of every run of the harness: redpanda#12734,
//!   multigres#185, keystone-operator#452, OLM#1816. Every field changed alone: `specs/`: k0smotron#533.
//! - Leadership: `perturbed.rs`: k8s#23731, kopiur#324. A custom resource that cannot be decoded (an older
//!   schema admitted it): `migrations/`.
//! - CRD upgrades, webhooks and CA injectors: there are none, or charts bring them: kubeblocks#6960, Kong PR 2122, cert-manager#8771.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use super::perturb::Theatre;
use super::perturb::ground::Ground;
use super::perturb::mutant::Bug;
use super::perturb::plan::Plan;
use super::perturb::scenario::Scenario;
use super::perturb::stage::{Stage, api, objects, small_cell};
use super::perturb::truth::OURS;

/// Plays a scenario with each of these plans.
async fn holds(scenario: Scenario, plans: &[&str]) {
    let ground = Ground::start().await;
    let mut theatre = Theatre::open(&ground, scenario).await.unwrap();
    for plan in plans {
        theatre.hold(0, &plan.parse().unwrap()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_cut_short_anywhere_is_finished_and_the_second_child_is_made_after_a_crash_at_the_first() {
    // K8SPXC-896, K8SPSMDB-578, K8SSAND-1023.
    holds(
        Scenario::FleetUp,
        &["crash@after create secrets/prod-token-keys#1; crash@after rpc CreateHeads#1; crash@after etcd put buckets#1"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_in_a_rollout_and_two_sizes_at_once_end_in_the_last_size_and_new_pods() {
    // nifikop#49, rabbitmq#758, scylla-operator#1348.
    let plan = "crash@after delete pods/shared-1-data-0#1; collapse=cells:900@after start#0; collapse=statefulsets:900@after start#0";
    holds(Scenario::Resize, &[plan]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_views_of_children_cost_no_child() {
    // rabbitmq#648, casskop#321, yugabyte#35, yugabyte#36, casskop#342.
    let plan = "stale=poddisruptionbudgets:3@after apply statefulsets/shared-1-data#1; stale=secrets:3@after apply statefulsets/shared-2-data#1; stale=services:2@after apply statefulsets/main-store#1";
    holds(Scenario::FleetUp, &[plan]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_was_away_restarts_no_workload() {
    // rabbitmq#709, kube#1986.
    let refused: Vec<String> =
        (1..6).map(|nth| format!("refuse=503@before apply statefulsets/shared-1-guild#{nth}")).collect();
    let plan = format!("{}; gone@after status fleets/prod#1; cut@after status cells/shared-2#1", refused.join("; "));
    holds(Scenario::FleetUp, &[plan.as_str()]).await;
}

/// A fleet that is Ready, on a ground of its own.
async fn ready() -> (Ground, Stage) {
    let ground = Ground::start().await;
    let stage = Stage::ready(&ground, Bug::None).await.unwrap();
    stage.wire.begin(&Plan::default());
    (ground, stage)
}

async fn patch(stage: &Stage, plural: &str, name: &str, body: Value) {
    let api: Api<DynamicObject> = api(&stage.user, &stage.namespace, plural);
    api.patch(name, &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_broken_child_keeps_no_sibling_from_being_made() {
    // logging-operator#1580.
    let (_ground, stage) = ready().await;
    let refused: Vec<String> =
        (1..40).map(|nth| format!("refuse=500@before apply statefulsets/extra-gateway#{nth}")).collect();
    stage.wire.begin(&refused.join("; ").parse().unwrap());
    stage.create("cells", "extra", small_cell()).await;
    let siblings = || async {
        for name in ["extra-guild", "extra-data"] {
            stage.get("statefulsets", name).await.ok_or_else(|| format!("{name} is not made"))?;
        }
        stage.get("poddisruptionbudgets", "extra-gateway").await.map(|_| ()).ok_or_else(|| "no budget".to_owned())
    };
    stage.eventually("the siblings", siblings).await.unwrap();
    assert!(stage.get("statefulsets", "extra-gateway").await.is_none());
    stage.wire.calm();
    stage.settled("the cell getting Ready", || stage.all_ready()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_all_drop_while_idle_come_back_and_what_people_do_to_children_is_undone() {
    // trino-operator#936, cass-operator#744, OT#1321.
    let (_ground, stage) = ready().await;
    let note = json!({"metadata": {"annotations": {"example.com/note": "look"}}});
    patch(&stage, "cells", "shared-1", note).await;
    stage.cut();
    patch(&stage, "statefulsets", "shared-1-guild", json!({"spec": {"replicas": 3}})).await;
    let back = || async {
        let set = stage.get("statefulsets", "shared-1-guild").await.unwrap_or_default();
        let pods = objects(&stage.user, &stage.namespace, "pods").await;
        let count = pods
            .iter()
            .filter(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("shared-1-guild-")))
            .count();
        if set["spec"]["replicas"] == 1 && count == 1 {
            stage.all_ready().await
        } else {
            Err(format!("{count} pods, {}", set["spec"]["replicas"]))
        }
    };
    stage.settled("the size being set back", back).await.unwrap();
    let written: Vec<String> = stage.wire.effects().into_iter().map(|(effect, _)| effect).collect();
    let others = written
        .iter()
        .filter(|effect| !effect.ends_with("cells/shared-1") && *effect != "apply statefulsets/shared-1-guild");
    assert_eq!(others.count(), 0, "an annotation and one set that was changed concern nothing else: {written:?}");
    assert!(stage.looks_again().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_owns_no_field_of_a_spec_and_every_child_is_of_its_own_namespace() {
    // kubestellar, projectbluefin/lab#381: GitOps finds no difference. koperator#186, crossplane#895.
    let (_ground, stage) = ready().await;
    for plural in OURS {
        for one in objects(&stage.user, &stage.namespace, plural).await {
            for entry in one["metadata"]["managedFields"].as_array().unwrap() {
                let manager = entry["manager"].as_str().unwrap_or_default();
                let owns = entry["fieldsV1"].get("f:spec").is_some();
                assert!(!(owns && manager.starts_with("cellplane-operator")), "{plural}: {manager} owns {entry}");
            }
        }
    }
    for plural in ["statefulsets", "services", "secrets", "poddisruptionbudgets"] {
        for one in objects(&stage.user, &stage.namespace, plural).await {
            let owner = &one["metadata"]["ownerReferences"][0];
            let kind = owner["kind"].as_str().unwrap_or_default().to_lowercase();
            let found = stage.get(&format!("{kind}s"), owner["name"].as_str().unwrap_or_default()).await;
            assert_eq!(
                found.unwrap_or_default()["metadata"]["uid"],
                owner["uid"],
                "{plural}/{}",
                one["metadata"]["name"]
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_made_anew_while_its_deletion_is_still_told_keeps_its_sets() {
    // rabbitmq#648: an old deletionTimestamp.
    let (_ground, stage) = ready().await;
    stage.create("cells", "extra", small_cell()).await;
    stage.settled("the cell getting Ready", || stage.all_ready()).await.unwrap();
    stage.wire.begin(&"hold=cells:1500@after apply cells/extra#1".parse().unwrap());
    stage.delete("cells", "extra").await;
    stage
        .eventually("the cell going", || async {
            stage.get("cells", "extra").await.map_or(Ok(()), |_| Err("there".into()))
        })
        .await
        .unwrap();
    stage.create("cells", "extra", small_cell()).await;
    stage.settled("the new one getting Ready", || stage.all_ready()).await.unwrap();
    let uid = stage.get("cells", "extra").await.unwrap()["metadata"]["uid"].clone();
    for role in ["gateway", "guild", "data"] {
        let set = stage.get("statefulsets", &format!("extra-{role}")).await.unwrap();
        assert_eq!(set["metadata"]["ownerReferences"][0]["uid"], uid, "{role}");
    }
    assert!(stage.looks_again().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_deleted_at_once_goes_in_any_order() {
    // VictoriaMetrics/helm-charts#2726.
    for order in [
        ["fleets/prod", "cells/shared-1", "cells/shared-2", "storagecells/main"],
        ["storagecells/main", "cells/shared-2", "cells/shared-1", "fleets/prod"],
    ] {
        let (_ground, stage) = ready().await;
        for one in order {
            let (plural, name) = one.split_once('/').unwrap();
            stage.delete(plural, name).await;
        }
        let gone = || async {
            for plural in OURS.iter().chain(&["statefulsets", "pods", "poddisruptionbudgets"]) {
                if let Some(left) = objects(&stage.user, &stage.namespace, plural).await.first() {
                    return Err(format!("{plural}/{}: {}", left["metadata"]["name"], left["status"]));
                }
            }
            Ok(())
        };
        stage.settled("everything going", gone).await.unwrap();
    }
}
