//! A log leaves its owner over gRPC: switched to another cell, split out of its bucket and merged back, each asked for twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

mod fleet;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    FeedRequest, GuildClaimed, InspectRequest, ListHeadsRequest, MergeGuildRequest, MessagePageQuery, QueryRequest,
    Reason, SplitGuildRequest, SwitchReply, SwitchRequest,
};
use fleet::*;
use tokio_stream::StreamExt;

type Client = cell_proto::v1::data_service_client::DataServiceClient<tonic::transport::Channel>;

async fn switch(client: &mut Client, log: &str, (from, to): (&str, &str), expected_term: u64) -> SwitchReply {
    let request = SwitchRequest {
        log: log.into(),
        run_id: "run-1".into(),
        from_cell: from.into(),
        to_cell: to.into(),
        expected_term,
        hold_limit_ms: 5000,
        guild_id: GUILD,
        ..SwitchRequest::default()
    };
    client.switch(request).await.unwrap().into_inner()
}

async fn history(client: &mut Client, log: &str, channel_id: i64) -> Result<usize, Reason> {
    let query = Query::MessagePage(MessagePageQuery { channel_id, limit: 100, ..MessagePageQuery::default() });
    let request = QueryRequest { log: log.into(), deadline_unix_ms: 0, query: Some(query), ..QueryRequest::default() };
    match client.query(request).await.unwrap().into_inner().answer.unwrap() {
        Answer::MessagePage(page) => Ok(page.messages.len()),
        Answer::Refusal(refusal) => Err(refusal.why()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_switched_to_another_cell_under_writes_and_back() {
    let fleet = Fleet::start().await;
    let (a, b) = (fleet.data("a", "a-data-0").await, fleet.data("b", "b-data-0").await);
    let (mut at_a, mut at_b) = (a.client().await, b.client().await);
    let log = bucket_log();
    create_head(&mut at_a, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut at_a).await;
    let feed = FeedRequest { log: log.clone(), from: 1, guild_id: 0, follower: "t".into() };
    let mut feed = at_a.feed(feed).await.unwrap().into_inner();

    // A writer that goes where it is sent, as a gateway does.
    let requests: Vec<_> = (0..200).map(|n| fleet.request(&log, message(channel_id, &format!("m{n}")))).collect();
    let (mut to_a, mut to_b, address_b) = (a.client().await, b.client().await, b.address.clone());
    let writer = tokio::spawn(async move {
        let mut there = false;
        for request in requests {
            loop {
                match submit(if there { &mut to_b } else { &mut to_a }, request.clone()).await {
                    Ok(_) => break,
                    Err(refusal) => {
                        assert!(refusal.why().is_retryable(), "{refusal:?}");
                        if let Some(route) = &refusal.route {
                            there = route.data_address == address_b;
                        }
                        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    }
                }
            }
        }
        there
    });
    // Switched in the middle of it.
    while feed.next().await.unwrap().unwrap().last < 40 {}
    let wrong = switch(&mut at_a, &log, ("a", "b"), 9).await;
    assert_eq!(wrong.refusal.unwrap().why(), Reason::StaleTerm);
    let switched = switch(&mut at_a, &log, ("a", "b"), 1).await;
    assert!(switched.switched, "{switched:?}");
    assert_eq!(switched.new_term, 2);
    assert!(switch(&mut at_a, &log, ("a", "b"), 1).await.switched, "asked again, it is done");
    assert!(writer.await.unwrap(), "the writer ended at the target");
    assert_eq!(history(&mut at_b, &log, channel_id).await, Ok(100));
    let inspected = at_b.inspect(InspectRequest { log: log.clone() }).await.unwrap().into_inner();
    assert!(inspected.owned_here);
    assert_eq!((inspected.last, inspected.head.unwrap().cell.as_str()), (201, "b"));
    let mut ended = None;
    while let Some(Ok(batch)) = feed.next().await {
        ended = batch.refusal.or(ended);
    }
    let ended = ended.expect("the feed ends with a refusal");
    assert_eq!(ended.route.unwrap().data_address, b.address);

    let term = at_b.inspect(InspectRequest { log: log.clone() }).await.unwrap().into_inner().head.unwrap().term;
    assert!(switch(&mut at_b, &log, ("b", "a"), term).await.switched);
    insist(&mut at_a, fleet.request(&log, message(channel_id, "back"))).await;
    assert_eq!(
        submit(&mut at_b, fleet.request(&log, message(channel_id, "x"))).await.unwrap_err().why(),
        Reason::NotOwner
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_whose_target_does_not_reach_the_end_is_undone() {
    let fleet = Fleet::start().await;
    let a = fleet.data("a", "a-data-0").await;
    let mut client = a.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let request = SwitchRequest {
        log: log.clone(),
        run_id: "run-1".into(),
        from_cell: "a".into(),
        to_cell: "b".into(),
        expected_term: 1,
        hold_limit_ms: 3000,
        target_guild_address: "127.0.0.1:1".into(),
        ..SwitchRequest::default()
    };
    let reply = client.switch(request).await.unwrap().into_inner();
    assert!(!reply.switched);
    assert_eq!(reply.refusal.unwrap().why(), Reason::Wait);
    // Admission is open again, under the same term.
    let committed = insist(&mut client, fleet.request(&log, message(channel_id, "on"))).await;
    assert_eq!(committed.term, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_is_split_out_moved_and_merged_back_with_one_history() {
    let fleet = Fleet::start().await;
    let (a, b) = (fleet.data("a", "a-data-0").await, fleet.data("b", "b-data-0").await);
    let (mut at_a, mut at_b) = (a.client().await, b.client().await);
    let (bucket, own) = (bucket_log(), Unit::Guild(GUILD).log());
    create_head(&mut at_a, &bucket, "a").await;
    let channel_id = create_guild(&fleet, &mut at_a).await;
    let before = fleet.request(&bucket, message(channel_id, "before"));
    let before = (before.clone(), insist(&mut at_a, before).await);
    let early = submit(&mut at_a, fleet.request(&own, message(channel_id, "early"))).await.unwrap_err();
    assert_eq!(early.why(), Reason::OtherLog);
    assert_eq!(early.route.unwrap().log, bucket);

    let split = SplitGuildRequest { bucket_log: bucket.clone(), guild_id: GUILD, run_id: "run-1".into() };
    let done = at_a.split_guild(split.clone()).await.unwrap().into_inner();
    assert_eq!((done.done, done.unchanged), (true, false), "{done:?}");
    let done = at_a.split_guild(split).await.unwrap().into_inner();
    assert_eq!((done.done, done.unchanged), (true, true), "{done:?}");
    let refusal = submit(&mut at_a, fleet.request(&bucket, message(channel_id, "x"))).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::OtherLog);
    let route = refusal.route.unwrap();
    assert_eq!((route.log, route.data_address), (own.clone(), a.address.clone()));
    assert_eq!(history(&mut at_a, &bucket, channel_id).await, Err(Reason::OtherLog));

    // What the bucket committed is a duplicate in the guild's log too.
    let again = cell_proto::v1::SubmitRequest { log: own.clone(), ..before.0.clone() };
    let again = insist(&mut at_a, again).await;
    assert!(again.duplicate);
    assert_eq!((again.position.as_ref().unwrap().log.as_str(), again.entry), (bucket.as_str(), before.1.entry.clone()));
    let first = insist(&mut at_a, fleet.request(&own, message(channel_id, "split"))).await;
    assert_eq!(first.position.unwrap().number, 1);
    assert!(first.entry.as_ref().unwrap().timestamp_us > before.1.entry.unwrap().timestamp_us);
    let inspected = at_a.inspect(InspectRequest { log: bucket.clone() }).await.unwrap().into_inner();
    assert_eq!(inspected.split_guilds, [GUILD]);

    let term = at_a.inspect(InspectRequest { log: own.clone() }).await.unwrap().into_inner().head.unwrap().term;
    assert!(switch(&mut at_a, &own, ("a", "b"), term).await.switched);
    let moved = fleet.request(&own, message(channel_id, "at b"));
    insist(&mut at_b, moved.clone()).await;
    let merge = MergeGuildRequest { bucket_log: bucket.clone(), guild_id: GUILD, run_id: "run-2".into() };
    let refusal = at_a.merge_guild(merge.clone()).await.unwrap().into_inner().refusal.unwrap();
    assert_eq!(refusal.why(), Reason::NotOwner, "it must be moved to its bucket's cell first");
    let term = at_b.inspect(InspectRequest { log: own.clone() }).await.unwrap().into_inner().head.unwrap().term;
    assert!(switch(&mut at_b, &own, ("b", "a"), term).await.switched);

    let done = at_a.merge_guild(merge.clone()).await.unwrap().into_inner();
    assert_eq!((done.done, done.unchanged), (true, false), "{done:?}");
    let done = at_a.merge_guild(merge).await.unwrap().into_inner();
    assert_eq!((done.done, done.unchanged), (true, true), "{done:?}");
    let again = cell_proto::v1::SubmitRequest { log: bucket.clone(), ..moved };
    assert!(insist(&mut at_a, again).await.duplicate);
    insist(&mut at_a, fleet.request(&bucket, message(channel_id, "merged"))).await;
    assert_eq!(history(&mut at_a, &bucket, channel_id).await, Ok(4));
    let late = submit(&mut at_a, fleet.request(&own, message(channel_id, "late"))).await.unwrap_err();
    assert_eq!(late.why(), Reason::OtherLog);
    assert_eq!(late.route.unwrap().log, bucket);

    // And out once more: the sealed log is opened from the term the new split names.
    let split = SplitGuildRequest { bucket_log: bucket.clone(), guild_id: GUILD, run_id: "run-3".into() };
    assert!(at_a.split_guild(split).await.unwrap().into_inner().done);
    let next = insist(&mut at_a, fleet.request(&own, message(channel_id, "again"))).await;
    assert_eq!(next.position.unwrap().number, 3);
    assert_eq!(history(&mut at_a, &own, channel_id).await, Ok(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_guild_term_is_refused() {
    let fleet = Fleet::start().await;
    let a = fleet.data("a", "a-data-0").await;
    let mut client = a.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    create_guild(&fleet, &mut client).await;
    let claim = |guild_term| Kind::GuildClaimed(GuildClaimed { guild_id: GUILD, node: "n".into(), guild_term });
    insist(&mut client, fleet.request(&log, claim(1))).await;
    insist(&mut client, fleet.request(&log, claim(2))).await;
    let stale = submit(&mut client, fleet.request(&log, claim(2))).await.unwrap_err();
    assert_eq!(stale.why(), Reason::StaleGuildTerm);
    let channel = cell_proto::v1::Channel { guild_id: GUILD, name: "new".into(), ..Default::default() };
    let put = Kind::ChannelPut(cell_proto::v1::ChannelPut { channel: Some(channel), created: true });
    let mut request = fleet.request(&log, put);
    request.guild_term = 1;
    assert_eq!(submit(&mut client, request.clone()).await.unwrap_err().why(), Reason::StaleGuildTerm);
    request.guild_term = 2;
    assert_eq!(insist(&mut client, request).await.entry.unwrap().policy_version, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_service_leaves_at_once_and_the_next_one_goes_on() {
    let fleet = Fleet::start().await;
    let first = fleet.data("a", "a-data-0").await;
    let mut client = first.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    first.shutdown.cancel();
    first.vanish();
    let second = fleet.data("a", "a-data-1").await;
    let mut client = second.client().await;
    insist(&mut client, fleet.request(&log, message(channel_id, "x"))).await;
    let heads = client.list_heads(ListHeadsRequest { limit: 10, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!(heads.heads[0].appender, "a-data-1");
}
