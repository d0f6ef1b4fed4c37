//! A sandbox's state directory and its place on the machine: `up` again, a port that is taken, state of a newer version.

use std::net::TcpListener;

use cellctl::sandbox::down::pod_processes;
use serde_json::json;

use crate::harness::{Guild, Home, Ledger, Sandbox, Traffic};

#[tokio::test(flavor = "multi_thread")]
async fn up_twice_is_up_once_and_a_taken_port_or_a_newer_store_stops_it_with_a_reason() {
    let mut sandbox = Sandbox::up("twice").await;
    sandbox.home().allow("was written by a newer version", "the store says why it does not start");
    let guild = Guild::make(&sandbox, "twice").await;
    let ledger = Ledger::default();
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(20).await;
    let pids = |sandbox: &Sandbox| {
        let agents = sandbox.state.processes().into_iter().map(|record| record.pid);
        let mut pids: Vec<i32> =
            agents.chain(pod_processes(&sandbox.state).into_iter().map(|pod| pod.record.pid)).collect();
        pids.sort_unstable();
        pids
    };
    let before = pids(&sandbox);
    let again = sandbox.up_again().await;
    assert_eq!(again.json()["ready"], true);
    assert_eq!(pids(&sandbox), before, "a second up started or ended a process");
    traffic.stop().await;

    sandbox.down().await;
    let taken = TcpListener::bind((sandbox.network.control_address(), 2379)).unwrap();
    let ended = sandbox.try_up().await;
    assert_ne!(ended.code, 0, "{}", ended.stdout);
    let address = taken.local_addr().unwrap().to_string();
    assert!(ended.stderr.contains(&address), "{address} is not named: {}", ended.stderr);
    assert!(ended.stderr.to_lowercase().contains("in use"), "{}", ended.stderr);
    drop(taken);
    sandbox.up_again().await;
    ledger.check_history(&sandbox, &guild).await;
    sandbox.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_of_a_newer_version_is_refused_and_kept() {
    let home = Home::new("newer").await;
    std::fs::create_dir_all(home.state.root()).unwrap();
    let settings = json!({"version": 999, "name": "e2e", "nodes": 3, "anything": "else"}).to_string();
    let path = home.state.root().join("settings.json");
    std::fs::write(&path, &settings).unwrap();
    for words in [&["sandbox", "up", "--no-build"][..], &["sandbox", "status"][..]] {
        let ended = home.cellctl(words).await;
        assert_eq!(ended.code, 3, "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("newer cellctl") && ended.stderr.contains("999"), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), settings);
}
