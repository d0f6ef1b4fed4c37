//! A guild moves to another cell while it is spoken in, in the order of requests that the operator sends.

use cell_proto::unit::Unit;
use cell_proto::v1::{
    AnnounceStandbyRequest, ForgetRequest, InspectGuildRequest, InspectRequest, MergeGuildRequest, Route,
    SplitGuildRequest, SwitchRequest, TakeOverRequest, WarmRequest,
};

use super::fleet::*;
use super::gateway::Gateway;

const RUN: &str = "run-1";

async fn split(fleet: &Fleet) {
    let request = SplitGuildRequest { bucket_log: log(), guild_id: GUILD, run_id: RUN.into() };
    let split = fleet.data_client("a").await.split_guild(request).await.unwrap().into_inner();
    assert!(split.done, "{split:?}");
}

fn own() -> String {
    Unit::Guild(GUILD).log()
}

async fn warm(node: &GuildNode) {
    let request = WarmRequest { guild_id: GUILD, log: own(), run_id: RUN.into(), ..WarmRequest::default() };
    eventually(|| async {
        let reply = node.client().await.warm(request.clone()).await.unwrap().into_inner();
        assert_eq!(reply.refusal, None);
        reply.ready
    })
    .await;
}

async fn switch(fleet: &Fleet, (from, to): (&str, &str), target: &GuildNode) {
    let mut client = fleet.data_client(from).await;
    let head = client.inspect(InspectRequest { log: own() }).await.unwrap().into_inner().head.unwrap();
    let request = SwitchRequest {
        log: own(),
        run_id: RUN.into(),
        from_cell: from.into(),
        to_cell: to.into(),
        expected_term: head.term,
        target_guild_address: target.address.clone(),
        guild_id: GUILD,
        hold_limit_ms: 5000,
        target_data_address: fleet.data_address(to),
    };
    let switched = client.switch(request).await.unwrap().into_inner();
    assert!(switched.switched, "{switched:?}");
}

async fn hand_over(fleet: &Fleet, source: &GuildNode, target: &GuildNode, cell: &str) {
    let claim = TakeOverRequest { guild_id: GUILD, log: own(), run_id: RUN.into(), claim: true, route: None };
    let claimed = target.client().await.take_over(claim).await.unwrap().into_inner();
    assert!(claimed.done, "{claimed:?}");
    let mut client = fleet.data_client(cell).await;
    let head = client.inspect(InspectRequest { log: own() }).await.unwrap().into_inner().head.unwrap();
    let route = Route {
        log: own(),
        cell: cell.into(),
        term: head.term,
        data_address: fleet.data_address(cell),
        guild_address: target.address.clone(),
    };
    let told = TakeOverRequest { guild_id: GUILD, log: own(), run_id: RUN.into(), claim: false, route: Some(route) };
    let told = source.client().await.take_over(told).await.unwrap().into_inner();
    assert!(told.done, "{told:?}");
}

async fn state(node: &GuildNode) -> String {
    node.client().await.inspect_guild(InspectGuildRequest { guild_id: GUILD }).await.unwrap().into_inner().state
}

async fn say(fleet: &Fleet, channel_id: i64, said: &mut Vec<String>, count: usize) {
    for _ in 0..count {
        said.push(format!("m{}", said.len()));
        fleet.say(channel_id, said.last().unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_moves_back_and_home_and_its_gateway_misses_nothing() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let (source, target) = (fleet.guild_node("a", "a-guild-0"), fleet.guild_node("b", "b-guild-0"));
    let (mut gateway, mut said) = (Gateway::default(), Vec::new());
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    say(&fleet, channel_id, &mut said, 5).await;

    split(&fleet).await;
    say(&fleet, channel_id, &mut said, 5).await;
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 10).await;
    warm(&target).await;
    let route = Route { guild_address: target.address.clone(), ..Route::default() };
    let standby = AnnounceStandbyRequest { guild_id: GUILD, run_id: RUN.into(), target: Some(route) };
    assert!(source.client().await.announce_standby(standby).await.unwrap().into_inner().done);
    gateway.until(&fleet, |gateway| gateway.standby.is_some()).await;

    say(&fleet, channel_id, &mut said, 5).await;
    switch(&fleet, ("a", "b"), &target).await;
    say(&fleet, channel_id, &mut said, 5).await;
    hand_over(&fleet, &source, &target, "b").await;
    gateway.until(&fleet, |gateway| gateway.moved.is_some()).await;
    let moved = gateway.moved.take().unwrap();
    assert_eq!(moved.route.unwrap().guild_address, target.address);
    say(&fleet, channel_id, &mut said, 5).await;
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 25).await;
    assert_eq!((state(&source).await, state(&target).await), ("warm".into(), "owner".into()));

    // Rolled back within the window: the source is still warm.
    warm(&source).await;
    switch(&fleet, ("b", "a"), &source).await;
    hand_over(&fleet, &target, &source, "a").await;
    say(&fleet, channel_id, &mut said, 5).await;
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 30).await;
    for node in [&source, &target] {
        let forget = ForgetRequest { guild_id: GUILD, run_id: RUN.into(), ..ForgetRequest::default() };
        assert!(node.client().await.forget(forget).await.unwrap().into_inner().done);
    }
    eventually(|| async { state(&target).await == "absent" }).await;

    // Merged back into its bucket, under the same actor.
    let merge = MergeGuildRequest { bucket_log: log(), guild_id: GUILD, run_id: RUN.into() };
    let merged = fleet.data_client("a").await.merge_guild(merge).await.unwrap().into_inner();
    assert!(merged.done, "{merged:?}");
    say(&fleet, channel_id, &mut said, 5).await;
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 35).await;
    assert_eq!(gateway.heard, said);
    assert_eq!(gateway.position.unwrap().log, log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_moves_while_it_is_spoken_in_and_its_gateway_hears_everything_once_in_order() {
    let fleet = std::sync::Arc::new(Fleet::start().await);
    let channel_id = fleet.create_guild().await;
    let (source, target) = (fleet.guild_node("a", "a-guild-0"), fleet.guild_node("b", "b-guild-0"));
    let mut gateway = Gateway::default();
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let speaker = tokio::spawn({
        let fleet = fleet.clone();
        async move {
            let mut said = Vec::new();
            while !*stopped.borrow() {
                say(&fleet, channel_id, &mut said, 1).await;
            }
            said
        }
    });
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 20).await;
    split(&fleet).await;
    for (from, to, nodes) in [("a", "b", (&source, &target)), ("b", "a", (&target, &source))] {
        warm(nodes.1).await;
        switch(&fleet, (from, to), nodes.1).await;
        hand_over(&fleet, nodes.0, nodes.1, to).await;
        let heard = gateway.heard.len();
        gateway.until(&fleet, |gateway| gateway.heard.len() >= heard + 50).await;
        for node in [nodes.0, nodes.1] {
            let forget = ForgetRequest { guild_id: GUILD, run_id: RUN.into(), ..ForgetRequest::default() };
            assert!(node.client().await.forget(forget).await.unwrap().into_inner().done);
        }
    }
    let merge = MergeGuildRequest { bucket_log: log(), guild_id: GUILD, run_id: RUN.into() };
    assert!(fleet.data_client("a").await.merge_guild(merge).await.unwrap().into_inner().done);
    let heard = gateway.heard.len();
    gateway.until(&fleet, |gateway| gateway.heard.len() >= heard + 20).await;
    stop.send(true).unwrap();
    let said = speaker.await.unwrap();
    gateway.until(&fleet, |gateway| gateway.heard.len() >= said.len()).await;
    assert_eq!(gateway.heard, said);
}
