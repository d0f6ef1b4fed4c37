//! A move in whose middle the machine that runs everything goes: the process that serves the cluster's APIs dies, or a person takes the
//! whole sandbox down, and brings it up again. The move goes on to where it would have ended.

use crate::harness::{Guild, Ledger, Records, Sandbox, Traffic};

const SOME: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn the_clusters_apis_killed_in_the_middle_of_a_move_are_no_end_of_it() {
    let sandbox = Sandbox::up("apis").await;
    let guild = Guild::make(&sandbox, "apis").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    for step in ["Split", "Switch", "TakeOver"] {
        let target = guild.other_cell(&sandbox).await;
        let records = Records::open(&sandbox).await;
        let name = sandbox.start_move(&guild, &target).await;
        records.reach(step).await;
        sandbox.kill_component("sandbox");
        // Both of the cluster's APIs are away, the fleet's etcd among them: sends go on.
        ledger.grow(SOME * 2).await;
        sandbox.up_again().await;
        assert_eq!(sandbox.follow(&name).await, "Completed", "killed at {step}");
        assert_eq!(guild.cell(&sandbox).await, target, "killed at {step}");
    }
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_under_way_when_the_sandbox_goes_down_is_finished_when_it_comes_up() {
    let sandbox = Sandbox::up("under-way").await;
    let guild = Guild::make(&sandbox, "under-way").await;
    let ledger = Ledger::default();
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    for step in ["Warm", "Switch"] {
        let target = guild.other_cell(&sandbox).await;
        let records = Records::open(&sandbox).await;
        let name = sandbox.start_move(&guild, &target).await;
        records.reach(step).await;
        sandbox.down().await;
        sandbox.up_again().await;
        assert_eq!(sandbox.follow(&name).await, "Completed", "down at {step}");
        assert_eq!(guild.cell(&sandbox).await, target, "down at {step}");
        // What was under way is tried on, with its nonce, and must not be there twice.
        ledger.grow(SOME).await;
    }
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    sandbox.end();
}
