//! A sandbox's state directory and its place on the machine: `up` again, a port that is taken, state of a newer version.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use cellctl::sandbox::down::pod_processes;
use serde_json::json;

use crate::harness::{Guild, Home, Ledger, Sandbox, Traffic};

#[tokio::test(flavor = "multi_thread")]
async fn up_twice_is_up_once_and_a_taken_port_or_a_newer_store_stops_it_with_a_reason() {
    let mut sandbox = Sandbox::up("twice").await;
    sandbox.home().allow("newer", "the store says why it does not start");
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

    // What a later version wrote is not touched, neither by the store nor by the sandbox's own.
    let format = find(sandbox.state.root(), "CELLPLANE_STORE").expect("the store marks its folder");
    let ours = fs::read_to_string(&format).unwrap();
    fs::write(&format, "cellplane-store 999\n").unwrap();
    let ended = sandbox.cellctl(&["sandbox", "up", "--no-build", "--timeout", "12s"]).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("main-store"), "it does not say what it waits for: {}", ended.stderr);
    let (pod, _) = sandbox.pods("store", None).await.remove(0);
    let log = sandbox.cellctl(&["logs", "pods", &pod]).await;
    assert!(log.stdout.contains("999") && log.stdout.contains("newer"), "{}{}", log.stdout, log.stderr);
    sandbox.down().await;
    let control = find(&sandbox.state.control(), "FORMAT").expect("the sandbox marks its folder");
    let old = fs::read_to_string(&control).unwrap();
    fs::write(&control, old.replace('1', "999")).unwrap();
    let ended = sandbox.try_up().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("999") && ended.stderr.contains("newer"), "{}", ended.stderr);
    fs::write(&control, old).unwrap();
    fs::write(&format, ours).unwrap();

    // What it was made with is torn: it says what to do, and doing that loses nothing.
    let settings = sandbox.state.root().join("settings.json");
    fs::write(&settings, "{\"version\": 1, \"na").unwrap();
    let ended = sandbox.try_up().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("next: rm {}", settings.display())), "{}", ended.stderr);
    fs::remove_file(&settings).unwrap();
    sandbox.up_again().await;
    ledger.check_history(&sandbox, &guild).await;
    sandbox.end();
}

/// A file by its name somewhere below a folder.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.filter(|path| !path.is_symlink()).partition(|path| path.is_dir());
    let found = files.into_iter().find(|path| path.file_name().is_some_and(|found| found == name));
    found.or_else(|| folders.iter().find_map(|folder| find(folder, name)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_directory_of_a_newer_version_is_refused_and_kept() {
    let home = Home::new("newer").await;
    fs::create_dir_all(home.state.root()).unwrap();
    let settings = json!({"version": 999, "name": "e2e", "nodes": 3, "anything": "else"}).to_string();
    let path = home.state.root().join("settings.json");
    fs::write(&path, &settings).unwrap();
    for words in [&["sandbox", "up", "--no-build"][..], &["sandbox", "status"][..]] {
        let ended = home.cellctl(words).await;
        assert_eq!(ended.code, 3, "{words:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("newer cellctl") && ended.stderr.contains("999"), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), settings);
}
