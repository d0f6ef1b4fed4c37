//! Processes killed during a live move under load: the move completes or undoes itself, and nothing acknowledged is lost, doubled or out
//! of order.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use crate::harness::{Guild, Ledger, Sandbox, Traffic, random};

/// When in a move something is killed: right after its start, at these steps or past them, after its commit point; and at which end of
/// the move, where the victim has one.
const POINTS: [(&[&str], End); 4] = [
    (&[], End::Source),
    (&["Warm", "Prove", "Switch"], End::Source),
    (&["Warm", "Prove", "Switch"], End::Target),
    (&["Hold"], End::Target),
];
const GATEWAY_PORT: u16 = 8080;
const SOME: usize = 20;

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

/// Kills every process of a component, but for the gateway of the listener, during one move after the other.
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
    for (round, (steps, end)) in POINTS.into_iter().enumerate() {
        let source = guild.cell(&sandbox).await;
        let target = guild.other_cell(&sandbox).await;
        let cell = match (victims, end) {
            (Victims::All, _) => None,
            (Victims::OfOneEnd, End::Source) => Some(source.as_str()),
            (Victims::OfOneEnd, End::Target) => Some(target.as_str()),
        };
        let pods = sandbox.pods(component, cell).await;
        let name = sandbox.start_move(&guild, &target).await;
        if !steps.is_empty() {
            sandbox.reach(&name, steps).await;
        }
        sleep(Duration::from_millis(random.random_range(0..200))).await;
        for (pod, _) in pods.iter().filter(|(pod, _)| *pod != kept) {
            sandbox.kill_pod(pod).await;
        }
        let result = sandbox.follow(&name).await;
        let there = guild.cell(&sandbox).await;
        println!("{test}: round {round}: {source} to {target}: {result}");
        let expected = if result == "Completed" { &target } else { &source };
        assert_eq!(&there, expected, "the move ended as {result}");
        ledger.grow(SOME).await;
    }
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
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
    for (steps, _) in POINTS {
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
