//! A guild that gets hot, its own cell, and its way back.

use cellctl::kinds::Kind;
use kube::api::DeleteParams;
use serde_json::json;

use crate::harness::{Guild, Ledger, Sandbox, Traffic, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_guild_gets_a_cell_of_its_own_keeps_it_without_its_wish_and_goes_back_when_released() {
    let sandbox = Sandbox::up("hot").await;
    let guild = Guild::make(&sandbox, "hot").await;
    let bucket_cell = guild.cell(&sandbox).await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let second = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    let name = format!("g-{}", guild.id);
    let own = format!("{name}-cell");
    let promotion = json!({"auto": true, "sessionsAbove": 1, "holdForSeconds": 1});
    sandbox.apply(Kind::Guilds, &name, json!({"guildId": guild.id, "promotion": promotion})).await.unwrap();

    let promoted = wait_for("the promotion's Move to complete", 120, async || {
        let moves = sandbox.list(Kind::Moves, "").await?;
        let done = moves.into_iter().find(|one| one["status"]["result"].is_string());
        done.ok_or_else(|| format!("guild {:?}", guild.id))
    })
    .await;
    assert_eq!(promoted["status"]["result"], "Completed", "{promoted}");
    assert_eq!(promoted["spec"]["cause"], "Promotion");
    assert_eq!(guild.cell(&sandbox).await, own);

    sandbox.api(Kind::Guilds).delete(&name, &DeleteParams::default()).await.unwrap();
    wait_for("the wish to be gone", 30, async || match sandbox.api(Kind::Guilds).get_opt(&name).await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    ledger.grow(60).await;
    assert_eq!(guild.cell(&sandbox).await, own, "a guild stays where it is when its wish is deleted");
    assert_eq!(sandbox.list(Kind::Moves, "").await.unwrap().len(), 1, "and nothing moves it");

    sandbox.cellctl(&["guild", "release", &guild.id]).await.done();
    wait_for("the guild to be back in its bucket", 120, async || {
        let located = guild.located(&sandbox).await;
        let back = located["cell"] == bucket_cell.as_str() && located["unit"] == located["bucket"];
        if back { Ok(()) } else { Err(format!("{located}")) }
    })
    .await;
    wait_for("the cell it left to be noted as empty", 60, async || {
        let status = sandbox.cellctl(&["status"]).await;
        let noted = status.stdout.contains(&format!("kubectl delete cell {own}"));
        if noted { Ok(()) } else { Err(format!("{}{}", status.stdout, status.stderr)) }
    })
    .await;
    ledger.grow(20).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    for listener in [&listener, &second] {
        ledger.check_listener(listener, 0).await;
    }
    sandbox.end();
}
