//! A guild's bucket is carried from one store to another under traffic while processes are killed, brought back, and carried again: every
//! acknowledged send is there exactly once.

use std::time::Duration;

use rand::Rng;
use tokio::time::sleep;

use crate::harness::{Guild, Ledger, Sandbox, Traffic, random, wait_for};

const SOME: usize = 20;
/// Read before the migration begins, so that there is something to copy.
const BEFORE: usize = 150;

/// Who dies at which stage on the first way.
const KILLED: [(&str, &str); 4] =
    [("DualWrite", "data"), ("Backfill", "coordinator"), ("Verify", "store"), ("ShadowRead", "data")];

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_carried_to_another_store_and_back_and_again_under_kills_loses_nothing() {
    let mut random = random("storage");
    let sandbox = Sandbox::up("storage").await;
    let guild = Guild::make(&sandbox, "storage").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    sandbox.another_store("second").await;
    ledger.grow(BEFORE).await;

    sandbox.start_migration(&guild, ("main", "second"), "there").await;
    for (stage, component) in KILLED {
        sandbox.reach_stage("there", stage).await;
        sleep(Duration::from_millis(random.random_range(0..300))).await;
        for (pod, _) in sandbox.pods(component, None).await {
            sandbox.kill_pod(&pod).await;
        }
        ledger.grow(SOME).await;
    }
    read_until_enough(&sandbox, &guild, "there").await;
    assert_eq!(serving(&sandbox, &guild).await, "main", "nothing is cut over before somebody says so");
    sandbox.cellctl(&["migration", "advance", "there", "--to", "Cutover", "--yes"]).await.done();
    sandbox.reach_goal("there", "Reverse").await;
    assert_eq!(serving(&sandbox, &guild).await, "second");
    ledger.grow(SOME).await;
    for (pod, _) in sandbox.pods("store", None).await {
        sandbox.kill_pod(&pod).await;
    }
    sandbox.cellctl(&["migration", "rollback", "there", "--yes"]).await.done();
    assert_eq!(sandbox.migrated("there").await, "RolledBack");
    assert_eq!(serving(&sandbox, &guild).await, "main");
    ledger.grow(SOME).await;

    sandbox.start_migration(&guild, ("main", "second"), "again").await;
    read_until_enough(&sandbox, &guild, "again").await;
    sandbox.cellctl(&["migration", "advance", "again", "--to", "Complete", "--yes"]).await.done();
    sandbox.reach_stage("again", "Cutover").await;
    for (pod, _) in sandbox.pods("data", None).await {
        sandbox.kill_pod(&pod).await;
    }
    assert_eq!(sandbox.migrated("again").await, "Completed");
    assert_eq!(serving(&sandbox, &guild).await, "second");
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}

/// Where a run is held before it is aborted.
const ABORTED_AT: [&str; 3] = ["DualWrite", "Backfill", "ShadowRead"];

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_aborted_at_any_stage_leaves_nothing_and_what_was_deleted_since_stays_deleted_in_the_next() {
    let sandbox = Sandbox::up("aborted").await;
    let guild = Guild::make(&sandbox, "aborted").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    sandbox.another_store("second").await;
    ledger.grow(BEFORE).await;

    for stage in ABORTED_AT {
        let name = stage.to_lowercase();
        sandbox.start_migration_to(&guild, ("main", "second"), &name, stage).await;
        if stage == "ShadowRead" {
            read_until_enough(&sandbox, &guild, &name).await;
        } else {
            sandbox.reach_goal(&name, stage).await;
        }
        // The copy has these rows; the next one must not bring them back.
        ledger.delete(&sandbox, &guild, SOME).await;
        sandbox.cellctl(&["migration", "abort", &name, "--yes"]).await.done();
        assert_eq!(sandbox.migrated(&name).await, "Aborted");
        assert_eq!(serving(&sandbox, &guild).await, "main");
        for component in ["coordinator", "worker"] {
            wait_for(&format!("no {component} to be left of {name}"), 60, async || {
                let left = sandbox.pods(component, None).await;
                if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
            })
            .await;
        }
        ledger.delete(&sandbox, &guild, SOME).await;
        ledger.grow(SOME).await;
    }

    sandbox.start_migration_to(&guild, ("main", "second"), "whole", "ShadowRead").await;
    read_until_enough(&sandbox, &guild, "whole").await;
    sandbox.cellctl(&["migration", "advance", "whole", "--to", "Complete", "--yes"]).await.done();
    assert_eq!(sandbox.migrated("whole").await, "Completed");
    assert_eq!(serving(&sandbox, &guild).await, "second");
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}

async fn serving(sandbox: &Sandbox, guild: &Guild) -> String {
    guild.located(sandbox).await["storageCell"].as_str().unwrap().to_owned()
}

/// Reads history until the migration has compared enough of what was read, and waits for somebody.
async fn read_until_enough(sandbox: &Sandbox, guild: &Guild, name: &str) {
    let reading = async {
        loop {
            guild.history(sandbox).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    let status = tokio::select! {
        status = sandbox.reach_goal(name, "ShadowRead") => status,
        () = reading => unreachable!("it reads on"),
    };
    assert!(status["receipt"]["clean"] == true && status["receipt"]["rows"].as_u64() > Some(0), "{status}");
    wait_for("the shadow reads to be shown", 30, async || {
        let status = sandbox.get(cellctl::kinds::Kind::StorageMigrations, name).await?["status"].clone();
        if status["shadow"]["samples"].as_u64() > Some(0) { Ok(()) } else { Err(format!("{status}")) }
    })
    .await;
}
