//! A store whose volume is full: writes are refused with a reason, what was acknowledged stays, and with room again everything goes on.

use cellctl::kinds::Kind;
use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::harness::{Guild, Ledger, Sandbox, Traffic, raw, wait_for};

const SOME: usize = 40;

/// How much the store keeps free of its volume. Only the comparison with the volume is real here: no test may fill a disk that others use.
async fn reserve(sandbox: &Sandbox, wanted: Option<&str>) {
    let patch = Patch::Merge(json!({"spec": {"embedded": {"reserve": wanted}}}));
    sandbox.api(Kind::StorageCells).patch("main", &PatchParams::default(), &patch).await.unwrap();
    let wanted = wanted.map(|_| "--reserve-bytes=");
    wait_for("the store to run with the new reserve", 60, async || {
        let pods = sandbox.list(Kind::Pods, "app.kubernetes.io/component=store").await?;
        let args = pods.first().map(|pod| pod["spec"]["containers"][0]["args"].to_string()).unwrap_or_default();
        let ready = pods.first().is_some_and(|pod| {
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            pod["metadata"]["deletionTimestamp"].is_null()
                && conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        let there = args.contains("--reserve-bytes=") == wanted.is_some();
        if ready && there { Ok(()) } else { Err(format!("ready: {ready}, {args}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_refuses_writes_loses_nothing_acknowledged_and_recovers_with_room() {
    let sandbox = Sandbox::up("full").await;
    let guild = Guild::make(&sandbox, "full").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    traffic.stop().await;

    reserve(&sandbox, Some("900000Ti")).await;
    let before = ledger.acknowledged();
    let path = format!("/api/v10/channels/{}/messages", guild.channel);
    let body = json!({"content": "there is no room for this"}).to_string();
    let refused = wait_for("a send to be refused", 60, async || {
        let answer = raw::http(sandbox.entry, &Method::POST, &path, &guild.token, body.as_bytes()).await;
        if answer.status == 507 { Ok(answer) } else { Err(format!("{answer:?}")) }
    })
    .await;
    println!("refused: {refused:?}");
    assert!(refused.json()["message"].as_str().is_some_and(|text| !text.is_empty()), "{refused:?}");
    wait_for("the store to say why", 30, async || {
        let (pod, _) = sandbox.pods("store", None).await.remove(0);
        let log = sandbox.cellctl(&["logs", "pods", &pod]).await.stdout;
        let said = log.contains("bytes free and keeps") && log.contains("free space or enlarge it");
        if said { Ok(()) } else { Err(log.chars().rev().take(600).collect::<Vec<_>>().into_iter().rev().collect()) }
    })
    .await;
    // What was acknowledged is there and readable all the while.
    ledger.check_history(&sandbox, &guild).await;
    assert_eq!(ledger.acknowledged(), before);

    reserve(&sandbox, None).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}
