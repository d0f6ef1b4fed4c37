//! What a sandbox keeps across stopping, a power cut and the death of the process that serves its APIs.

use cellctl::kinds::Kind;

use crate::harness::{Guild, Ledger, Sandbox, Traffic, wait_for};

const SOME: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_that_was_written_to_and_moved_keeps_every_message_across_down_and_up() {
    let sandbox = Sandbox::up("keeps").await;
    let guild = Guild::make(&sandbox, "keeps").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let target = guild.other_cell(&sandbox).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    sandbox.move_guild(&guild, &target).await;
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;

    sandbox.down().await;
    sandbox.up_again().await;
    ledger.check_history(&sandbox, &guild).await;
    assert_eq!(guild.cell(&sandbox).await, target);
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let before = ledger.acknowledged();
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, before).await;
    sandbox.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_power_cut_up_alone_brings_back_every_acknowledged_message() {
    let sandbox = Sandbox::up("power").await;
    let guild = Guild::make(&sandbox, "power").await;
    let ledger = Ledger::default();
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    let target = guild.other_cell(&sandbox).await;
    let name = sandbox.start_move(&guild, &target).await;
    ledger.grow(SOME).await;
    // Sends are under way, and so is the move.
    sandbox.cut_the_power().await;
    let before = ledger.acknowledged();
    sandbox.up_again().await;
    // What was under way is tried on, with its nonce, and must not be there twice.
    ledger.grow(SOME).await;
    traffic.stop().await;
    assert!(ledger.acknowledged() > before);
    let result = sandbox.follow(&name).await;
    let there = guild.cell(&sandbox).await;
    assert_eq!(there == target, result == "Completed", "the move ended as {result}, the guild is in {there}");
    ledger.check_history(&sandbox, &guild).await;
    sandbox.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_on_without_the_sandbox_process_and_are_adopted_when_it_is_back() {
    let sandbox = Sandbox::up("adopts").await;
    let guild = Guild::make(&sandbox, "adopts").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let before = sandbox.restarts().await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    sandbox.kill_component("sandbox");
    ledger.grow(SOME * 4).await;
    sandbox.up_again().await;
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    let after = sandbox.restarts().await;
    let names = |pods: &[(String, i64)]| pods.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before), "a Pod was made anew");
    // The operator alone may have ended itself, when the API was away for longer than its Lease.
    let again: Vec<_> = after.iter().filter(|(name, count)| *count > 0 && !name.contains("operator")).collect();
    assert!(again.is_empty(), "restarted: {again:?}");
    // The control plane is itself again: it moves the guild.
    let target = guild.other_cell(&sandbox).await;
    sandbox.move_guild(&guild, &target).await;
    wait_for("every node to be seen", 30, async || {
        let ended = sandbox.cellctl(&["sandbox", "status", "-o", "json"]).await;
        if ended.code == 0 { Ok(()) } else { Err(ended.stderr) }
    })
    .await;
    assert_eq!(sandbox.list(Kind::Moves, "").await.unwrap().len(), 1);
    sandbox.end();
}
