//! Drivers under late views, lost answers and crashes, with a printed seed. The rule: never a surplus Pod, never one deletion too
//! many, and in the end what was asked for.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::Simulated;
use crate::controllers::statefulset::drive::StatefulSets;
use crate::controllers::workload::replica_set_drive::ReplicaSets;
use crate::controllers::world::World;

const PODS: &str = "api/v1/namespaces/n/pods";

/// The controller under test; a new one is a restarted one.
enum Controller {
    Sets(StatefulSets),
    Replicas(ReplicaSets),
}

impl Controller {
    async fn round(&mut self, world: &World) -> bool {
        match self {
            Self::Sets(controller) => controller.round(world).await,
            Self::Replicas(controller) => controller.round(world).await,
        }
    }

    fn restarted(&self) -> Self {
        match self {
            Self::Sets(_) => Self::Sets(StatefulSets::default()),
            Self::Replicas(_) => Self::Replicas(ReplicaSets::default()),
        }
    }
}

fn owner(kind: &str, replicas: u32, generation: u32) -> (String, Value) {
    let plural = if kind == "StatefulSet" { "statefulsets" } else { "replicasets" };
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": "web", "namespace": "n", "uid": "owner", "generation": generation },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [] } },
        },
    });
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!("web");
        object["spec"]["podManagementPolicy"] = json!("Parallel");
        object["spec"]["updateStrategy"] = json!({ "type": "OnDelete" });
    }
    (format!("apis/apps/v1/namespaces/n/{plural}"), object)
}

fn staying(simulated: &Simulated) -> usize {
    simulated.server.all("pods").iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count()
}

/// What a scheduler, a node agent or an unlucky day does to one Pod.
fn disturb(simulated: &Simulated, random: &mut StdRng, kills: &mut usize) {
    let pods = simulated.server.paths("pods");
    if pods.is_empty() {
        return;
    }
    let (path, mut pod) = pods[random.random_range(0..pods.len())].clone();
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        simulated.server.remove(&path);
    } else if pod["spec"]["nodeName"].is_null() {
        pod["spec"]["nodeName"] = json!("n1");
        simulated.server.put(PODS, pod);
    } else if pod["status"].is_null() {
        pod["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        simulated.server.put(PODS, pod);
    } else if random.random_ratio(1, 12) {
        *kills += 1;
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        simulated.server.put(PODS, pod);
    }
}

async fn run(kind: &str, seed: u64, lossy: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut simulated, world) = Simulated::new();
    let mut controller = if kind == "StatefulSet" {
        Controller::Sets(StatefulSets::default())
    } else {
        Controller::Replicas(ReplicaSets::default())
    };
    let (collection, object) = owner(kind, 3, 1);
    simulated.server.put(&collection, object);
    simulated.relist(&world);
    let mut kills = 0;
    for step in 0..120 {
        match random.random_range(0..10) {
            0..=3 => {
                controller.round(&world).await;
            }
            4..=6 => {
                simulated.deliver(&world);
            }
            7 | 8 => disturb(&simulated, &mut random, &mut kills),
            _ if lossy => simulated.server.lose_answers(1),
            _ if random.random_ratio(1, 4) => {
                controller = controller.restarted();
                simulated.relist(&world);
            }
            _ => {}
        }
        let present = staying(&simulated);
        assert!(present <= 3, "seed {seed} step {step}: {present} pods for 3 replicas");
    }
    settle(&mut simulated, &world, &mut controller).await;
    let made = simulated.server.created().len();
    assert_eq!(staying(&simulated), 3, "seed {seed}");
    assert_eq!(made, 3 + kills, "seed {seed}: one Pod made for each wanted or killed, no more");
}

async fn settle(simulated: &mut Simulated, world: &World, controller: &mut Controller) {
    simulated.server.lose_answers(0);
    for _ in 0..40 {
        while simulated.deliver(world) {}
        for (path, pod) in simulated.server.paths("pods") {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                simulated.server.remove(&path);
            }
        }
        controller.round(world).await;
    }
    while simulated.deliver(world) {}
    let before = simulated.server.changes();
    controller.round(world).await;
    assert_eq!(simulated.server.changes(), before, "a settled cluster is not written to");
}

#[tokio::test]
async fn late_views_and_crashes_never_make_a_surplus_pod() {
    for seed in 0..60 {
        run("ReplicaSet", seed, false).await;
        run("StatefulSet", seed, false).await;
    }
}

#[tokio::test]
async fn lost_answers_never_make_a_surplus_pod() {
    for seed in 0..60 {
        run("ReplicaSet", seed, true).await;
        run("StatefulSet", seed, true).await;
    }
}

#[tokio::test]
async fn three_then_one_then_three_ends_with_three_under_any_lag() {
    for seed in 0..30 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut simulated, world) = Simulated::new();
        let mut controller = Controller::Sets(StatefulSets::default());
        for (generation, replicas) in [(1, 3), (2, 1), (3, 3)] {
            let (collection, object) = owner("StatefulSet", replicas, generation);
            simulated.server.put(&collection, object);
            for _ in 0..random.random_range(0..8) {
                match random.random_range(0..3) {
                    0 => {
                        controller.round(&world).await;
                    }
                    1 => {
                        simulated.deliver(&world);
                    }
                    _ => disturb(&simulated, &mut random, &mut 0),
                }
            }
        }
        settle(&mut simulated, &world, &mut controller).await;
        let mut names: Vec<_> =
            simulated.server.all("pods").iter().map(|pod| pod["metadata"]["name"].to_string()).collect();
        names.sort();
        assert_eq!(names, ["\"web-0\"", "\"web-1\"", "\"web-2\""], "seed {seed}");
    }
}

#[tokio::test]
async fn a_stale_larger_wish_does_not_delete_by_an_old_spec() {
    let (mut simulated, world) = Simulated::new();
    let mut controller = Controller::Sets(StatefulSets::default());
    let (collection, object) = owner("StatefulSet", 3, 1);
    simulated.server.put(&collection, object);
    simulated.relist(&world);
    settle(&mut simulated, &world, &mut controller).await;
    let (_, one) = owner("StatefulSet", 1, 2);
    simulated.server.put(&collection, one);
    while simulated.deliver(&world) {}
    let (_, three) = owner("StatefulSet", 3, 3);
    simulated.server.put(&collection, three);
    controller.round(&world).await;
    assert_eq!(staying(&simulated), 3, "the mirror says one, the live set says three: nothing is deleted");
}
