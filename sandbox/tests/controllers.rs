//! The controllers with real node agents: StatefulSets with local volumes, scaling, cordon, lost nodes, Deployments, and silence.

#![allow(clippy::unwrap_used)]

mod cluster;

use cell_sandbox::controllers::job::condition_holds;
use cluster::{Cluster, PODS, SETS, eventually, kill, ready, restarts, shell_pod};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Notes each start in its volume and runs until told to stop.
const SCRIPT: &str = "echo start >> data/starts; trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn set(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas, "serviceName": "web", "podManagementPolicy": "Parallel",
            "updateStrategy": { "type": "OnDelete" },
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "terminationGracePeriodSeconds": 2,
                    "containers": [{ "name": "main", "image": "sh:test", "args": ["-c", SCRIPT],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }],
                },
            },
            "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "cellplane-local",
                "resources": { "requests": { "storage": "1Gi" } },
            } }],
        },
    })
}

async fn set_ready(cluster: &Cluster, replicas: i32) {
    let api: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), "default");
    eventually(&format!("{replicas} ready replicas"), || async {
        let status = api.get_opt("web").await.ok()??.status?;
        (status.replicas == replicas && status.ready_replicas.unwrap_or(0) == replicas).then_some(())
    })
    .await;
}

async fn web_pods(cluster: &Cluster) -> Vec<Pod> {
    cluster.pods().list(&ListParams::default().labels("app=web")).await.unwrap().items
}

fn node_of(pod: &Pod) -> String {
    cell_sandbox::controllers::pods::node(pod).unwrap_or_default().to_owned()
}

fn starts(cluster: &Cluster, pod: &Pod) -> usize {
    let number: u8 = node_of(pod).trim_start_matches('n').parse().unwrap();
    let folder = cluster.state(number).join("pods").join(pod.uid().unwrap());
    std::fs::read_to_string(folder.join("data/starts")).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn three_come_ready_spread_one_dies_and_scaling_keeps_every_volume() {
    let mut cluster = Cluster::start().await;
    for (number, zone) in [(1, "a"), (2, "a"), (3, "b")] {
        cluster.agent(number, zone);
    }
    cluster.nodes_ready(3).await;
    cluster.apply(SETS, set(3)).await;
    set_ready(&cluster, 3).await;
    let mut nodes: Vec<_> = web_pods(&cluster).await.iter().map(node_of).collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    let first = cluster.pods().get("web-0").await.unwrap();
    let number: u8 = node_of(&first).trim_start_matches('n').parse().unwrap();
    kill(cluster.processes(number)[0].1);
    cluster.pod_when("web-0", "restarted", |pod| ready(pod) && restarts(pod) == 1).await;
    assert_eq!(starts(&cluster, &first), 2);
    let before: Vec<_> = web_pods(&cluster).await.iter().map(|pod| (pod.name_any(), node_of(pod))).collect();
    cluster.apply(SETS, set(1)).await;
    set_ready(&cluster, 1).await;
    cluster.apply(SETS, set(3)).await;
    set_ready(&cluster, 3).await;
    let pods = web_pods(&cluster).await;
    let after: Vec<_> = pods.iter().map(|pod| (pod.name_any(), node_of(pod))).collect();
    assert_eq!(before, after, "a volume ties its pod to its node");
    let again = pods.iter().find(|pod| pod.name_any() == "web-2").unwrap();
    assert_eq!(starts(&cluster, again), 2, "the volume of the removed pod was kept");
}

#[tokio::test]
async fn a_cordoned_node_gets_nothing_new_and_the_pod_says_why_it_waits() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.apply(PODS, shell_pod("old", SCRIPT, json!({}))).await;
    cluster.pod_when("old", "ready", ready).await;
    cluster.cordon(1, true).await;
    cluster.apply(PODS, shell_pod("new", SCRIPT, json!({}))).await;
    let waiting = cluster.pod_when("new", "unschedulable", |pod| {
        condition(pod, "PodScheduled") == Some(("False".into(), "Unschedulable".into()))
    });
    let message = waiting.await.status.unwrap().conditions.unwrap()[0].message.clone().unwrap();
    assert_eq!(message, "0/1 nodes are available: 1 node(s) were unschedulable.");
    assert!(ready(&cluster.pods().get("old").await.unwrap()), "what runs there goes on");
    cluster.cordon(1, false).await;
    cluster.pod_when("new", "ready", ready).await;
}

fn condition(pod: &Pod, kind: &str) -> Option<(String, String)> {
    cell_sandbox::controllers::pods::condition(pod, kind)
        .map(|condition| (condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}

#[tokio::test]
async fn a_lost_node_is_reported_and_its_pods_are_ready_again_when_it_returns() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.apply(PODS, shell_pod("there", SCRIPT, json!({}))).await;
    cluster.pod_when("there", "ready", ready).await;
    cluster.kill_agent(1);
    cluster
        .pod_when("there", "not ready", |pod| condition(pod, "Ready") == Some(("False".into(), "NodeNotReady".into())))
        .await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let tainted =
        |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_some_and(|taints| !taints.is_empty());
    eventually("taints", || async { nodes.get("n1").await.ok().filter(|node| tainted(node)) }).await;
    cluster.agent(1, "a");
    let pod = cluster.pod_when("there", "ready again", ready).await;
    assert_eq!(restarts(&pod), 0);
    eventually("no taints", || async { nodes.get("n1").await.ok().filter(|node| !tainted(node)) }).await;
}

#[tokio::test]
async fn a_deployment_rolls_to_a_new_template_and_back_to_one_replica() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let of = |replicas: u32, word: &str| {
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "op" }, "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": "op" } },
            "template": { "metadata": { "labels": { "app": "op" } }, "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": "sh:test", "args": ["-c", format!(": {word}; trap 'exit 0' TERM; while :; do sleep 0.1; done")] }],
            } } } })
    };
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let settled = async |replicas: i32, generation: i64| {
        let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
        eventually("the deployment settled", || async {
            let status = api.get("op").await.ok()?.status?;
            let whole = status.replicas == Some(replicas) && status.updated_replicas == Some(replicas);
            let ready = status.ready_replicas == Some(replicas) && status.unavailable_replicas.unwrap_or(0) == 0;
            (whole && ready && status.observed_generation >= Some(generation)).then_some(())
        })
        .await;
    };
    cluster.apply(path, of(2, "one")).await;
    settled(2, 1).await;
    cluster.apply(path, of(2, "two")).await;
    settled(2, 2).await;
    cluster.apply(path, of(1, "two")).await;
    settled(1, 3).await;
    let pods = cluster.pods().list(&ListParams::default().labels("app=op")).await.unwrap().items;
    assert!(
        pods.iter()
            .filter(|pod| ready(pod))
            .all(|pod| pod.spec.as_ref().unwrap().containers[0].args.as_ref().unwrap()[1].contains("two"))
    );
}

#[tokio::test]
async fn a_settled_cluster_is_not_written_to_except_by_heartbeats() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.apply(SETS, set(2)).await;
    set_ready(&cluster, 2).await;
    let snapshot = async || {
        let mut versions = Vec::new();
        for path in [
            "/api/v1/pods",
            "/api/v1/nodes",
            SETS,
            "/api/v1/persistentvolumes",
            "/api/v1/persistentvolumeclaims",
            "/api/v1/events",
        ] {
            let list: Value = cluster.client.request(http::Request::get(path).body(vec![]).unwrap()).await.unwrap();
            let items = list["items"].as_array().unwrap();
            versions.extend(items.iter().map(|item| {
                let metadata = &item["metadata"];
                (metadata["uid"].to_string(), metadata["resourceVersion"].to_string())
            }));
        }
        versions
    };
    let heartbeats = async || {
        let api: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(cluster.client.clone(), "kube-node-lease");
        api.get("n1").await.unwrap().spec.unwrap().renew_time
    };
    let quiet = eventually("two equal snapshots with three heartbeats between them", || async {
        let before = snapshot().await;
        for _ in 0..3 {
            let beat = heartbeats().await;
            eventually("a heartbeat", || async { (heartbeats().await != beat).then_some(()) }).await;
        }
        (snapshot().await == before).then_some(())
    });
    quiet.await;
}

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(name: &str, script: &str, spec: Value) -> Value {
    let mut whole = json!({ "template": { "spec": { "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{ "name": "main", "image": "sh:test", "args": ["-c", script] }] } } });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": whole })
}

async fn job_when(cluster: &Cluster, name: &str, kind: &str) -> Job {
    let api: Api<Job> = Api::namespaced(cluster.client.clone(), "default");
    eventually(&format!("job {name} {kind}"), || async {
        let job = api.get_opt(name).await.ok()??;
        let holds = condition_holds(job.status.as_ref()?, kind);
        holds.then_some(job)
    })
    .await
}

#[tokio::test]
async fn jobs_run_to_their_end_fail_at_their_limit_and_vanish_after_their_time() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster
        .apply(
            JOBS,
            job(
                "good",
                "echo $JOB_COMPLETION_INDEX",
                json!({ "completions": 3, "parallelism": 2, "completionMode": "Indexed" }),
            ),
        )
        .await;
    cluster.apply(JOBS, job("bad", "exit 3", json!({ "backoffLimit": 1 }))).await;
    cluster.apply(JOBS, job("slow", "while :; do sleep 0.1; done", json!({ "activeDeadlineSeconds": 1 }))).await;
    cluster.apply(JOBS, job("brief", "true", json!({ "ttlSecondsAfterFinished": 0 }))).await;
    let init = json!({ "template": { "spec": { "restartPolicy": "OnFailure",
        "initContainers": [{ "name": "first", "image": "sh:test", "args": ["-c", "echo made > made"] }],
        "containers": [{ "name": "main", "image": "sh:test", "args": ["-c", "test -e again || { touch again; exit 1; }; cat made"] }] } } });
    cluster.apply(JOBS, job("again", "", init)).await;
    let good = job_when(&cluster, "good", "Complete").await.status.unwrap();
    assert_eq!((good.succeeded, good.completed_indexes.as_deref()), (Some(3), Some("0-2")));
    let bad = job_when(&cluster, "bad", "Failed").await.status.unwrap();
    assert_eq!(bad.failed, Some(2));
    assert_eq!(bad.conditions.unwrap().last().unwrap().reason.as_deref(), Some("BackoffLimitExceeded"));
    let slow = job_when(&cluster, "slow", "Failed").await.status.unwrap();
    assert_eq!(slow.conditions.unwrap().last().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    let again = job_when(&cluster, "again", "Complete").await;
    assert_eq!(again.status.unwrap().failed, None, "its container failed, its Pod did not");
    let api: Api<Job> = Api::namespaced(cluster.client.clone(), "default");
    let owned = async |name: &str| {
        let of = ListParams::default().labels(&format!("job-name={name}"));
        cluster.pods().list(&of).await.map(|list| list.items.len()).unwrap_or(usize::MAX)
    };
    eventually("brief job gone with its pods", || async {
        (api.get_opt("brief").await.ok()?.is_none() && owned("brief").await == 0).then_some(())
    })
    .await;
    assert_eq!(owned("good").await, 3, "ended Pods stay to be looked at");
    api.delete("good", &kube::api::DeleteParams::background()).await.unwrap();
    eventually("pods of the deleted job gone", || async { (owned("good").await == 0).then_some(()) }).await;
}
