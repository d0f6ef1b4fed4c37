//! Processes killed during a live move under load: the move completes or undoes itself, and nothing acknowledged is lost, doubled or out
//! of order.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kube::api::DeleteParams;
use rand::Rng;
use tokio::time::sleep;

use crate::harness::{Guild, Ledger, Records, Sandbox, Traffic, random, wait_for};

/// The steps of a run and at which end something is killed, where the victim has one. The first is there only once: the guild gets a log of
/// its own. Each is stored before its request is sent, so the kill meets the request, or what follows it.
const STEPS: [(&str, End); 9] = [
    ("Split", End::Source),
    ("Validate", End::Source),
    ("Warm", End::Target),
    ("Prove", End::Target),
    ("Switch", End::Source),
    ("TakeOver", End::Target),
    ("PointAway", End::Source),
    ("Hold", End::Target),
    ("Forget", End::Source),
];
/// When in a move the operator is killed: right after its start, at one of these steps or past them, after its commit point.
const POINTS: [&[&str]; 3] = [&[], &["Warm", "Prove", "Switch"], &["Hold"]];
const GATEWAY_PORT: u16 = 8080;
const SOME: usize = 10;
/// The waits of a Pod double with each end of its process: after so many kills it is replaced by a new one.
const KILLS_OF_A_POD: usize = 3;

/// One end of a move.
#[derive(Clone, Copy)]
enum End {
    Source,
    Target,
}

/// Whose processes of a component are killed.
#[derive(Clone, Copy)]
enum Victims {
    OfOneEnd,
    All,
}

/// Kills every process of a component, but for the gateway of the listener, at each step of a move: one move after the other. Each ends
/// where it would have ended undisturbed.
async fn survives(test: &str, component: &str, victims: Victims) {
    let mut random = random(test);
    let sandbox = Sandbox::up(test).await;
    let guild = Guild::make(&sandbox, test).await;
    let ledger = Ledger::default();
    // Not through the entry: the listener's gateway must not be the one that is killed.
    let home = guild.cell(&sandbox).await;
    let (kept, address) = sandbox.pods("gateway", Some(&home)).await.remove(0);
    let listener = guild.listen(&sandbox, SocketAddr::new(address.parse::<IpAddr>().unwrap(), GATEWAY_PORT)).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    let mut kills: HashMap<String, usize> = HashMap::new();
    for (step, end) in STEPS {
        let source = guild.cell(&sandbox).await;
        let target = guild.other_cell(&sandbox).await;
        let cell = match (victims, end) {
            (Victims::All, _) => None,
            (Victims::OfOneEnd, End::Source) => Some(source.as_str()),
            (Victims::OfOneEnd, End::Target) => Some(target.as_str()),
        };
        let pods = sandbox.pods(component, cell).await;
        let records = Records::open(&sandbox).await;
        let name = sandbox.start_move(&guild, &target).await;
        records.reach(step).await;
        sleep(Duration::from_millis(random.random_range(0..20))).await;
        for (pod, _) in pods.iter().filter(|(pod, _)| *pod != kept) {
            sandbox.kill_pod(pod).await;
            *kills.entry(pod.clone()).or_default() += 1;
        }
        let result = sandbox.follow(&name).await;
        println!("{test}: {step}: {source} to {target}: {result}");
        assert_eq!((result.as_str(), guild.cell(&sandbox).await), ("Completed", target), "killed at {step}");
        ledger.grow(SOME).await;
        renew(&sandbox, component, &mut kills).await;
    }
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}

/// Replaces the Pods that were killed often.
async fn renew(sandbox: &Sandbox, component: &str, kills: &mut HashMap<String, usize>) {
    let often: Vec<String> =
        kills.iter().filter(|(_, count)| **count >= KILLS_OF_A_POD).map(|(pod, _)| pod.clone()).collect();
    for pod in &often {
        kills.remove(pod);
        sandbox.api(cellctl::kinds::Kind::Pods).delete(pod, &DeleteParams::default()).await.unwrap();
    }
    if often.is_empty() {
        return;
    }
    wait_for("new Pods in place of those killed often", 60, async || {
        let pods =
            sandbox.list(cellctl::kinds::Kind::Pods, &format!("app.kubernetes.io/component={component}")).await?;
        let fresh = |pod: &&serde_json::Value| {
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            often.iter().any(|name| pod["metadata"]["name"] == name.as_str()) && restarts == Some(0) && ready
        };
        let count = pods.iter().filter(fresh).count();
        if count == often.len() { Ok(()) } else { Err(format!("{count} of {}", often.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guild_nodes_killed_during_moves_lose_nothing() {
    survives("guild", "guild", Victims::OfOneEnd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_killed_during_moves_lose_nothing_for_sessions_elsewhere() {
    survives("gateway", "gateway", Victims::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_services_killed_during_moves_lose_nothing() {
    survives("data", "data", Victims::OfOneEnd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_killed_during_moves_lose_nothing() {
    survives("store", "store", Victims::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_anywhere_in_a_move_ends_at_the_same_placement() {
    let mut random = random("operator");
    let sandbox = Sandbox::up("operator").await;
    let guild = Guild::make(&sandbox, "operator").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    for steps in POINTS {
        let target = guild.other_cell(&sandbox).await;
        let operator = sandbox.pods("operator", None).await.remove(0).0;
        let name = sandbox.start_move(&guild, &target).await;
        if !steps.is_empty() {
            sandbox.reach(&name, steps).await;
        }
        sleep(Duration::from_millis(random.random_range(0..300))).await;
        sandbox.kill_pod(&operator).await;
        assert_eq!(sandbox.follow(&name).await, "Completed", "{name}");
        assert_eq!(guild.cell(&sandbox).await, target);
    }
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}
