//! Reads: a guild of many members comes in chunks, identical reads share one query, history is paged, a log is followed from afar.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

mod fleet;

use cell_data::machine::Limits;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    CellWrite, FeedRequest, Member, MessagePageQuery, QueryRequest, ReadGuildRequest, ReadLogRequest, Reason,
    RowMutation, User, WriteRequest,
};
use cell_store::Store;
use fleet::*;
use prost::Message as _;
use tokio_stream::StreamExt;

fn page(log: &str, query: MessagePageQuery) -> QueryRequest {
    QueryRequest {
        log: log.into(),
        deadline_unix_ms: 0,
        query: Some(Query::MessagePage(query)),
        ..QueryRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_of_a_hundred_thousand_members_is_read_in_chunks() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    create_guild(&fleet, &mut client).await;
    // Straight into the table: as if a hundred thousand had joined.
    for chunk in 0..100_i64 {
        let row = |number: i64| {
            let id = chunk * 1000 + number + 1;
            let user = Some(User { id, name: format!("user {id}"), ..User::default() });
            let body = Member { user, ..Member::default() }.encode_to_vec();
            RowMutation {
                table: "guild_objects".into(),
                partition: GUILD.to_be_bytes().to_vec(),
                clustering: [&b"m"[..], &id.to_be_bytes()].concat(),
                cells: vec![CellWrite { column: "body".into(), value: body }],
                ..RowMutation::default()
            }
        };
        let mutations = (0..1000).map(row).collect();
        fleet.store.write(WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }).await.unwrap();
    }
    let request = ReadGuildRequest { log, guild_id: GUILD };
    let mut chunks = client.read_guild(request).await.unwrap().into_inner();
    let (mut members, mut largest, mut done) = (0, 0, false);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.unwrap();
        assert_eq!(chunk.refusal, None);
        members += chunk.members.len();
        largest = largest.max(chunk.encoded_len());
        done = chunk.done;
    }
    assert!(done);
    assert_eq!(members, 100_001);
    assert!(largest < 1 << 20, "{largest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_reads_in_flight_share_one_query_and_see_own_writes() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    insist(&mut client, fleet.request(&log, message(channel_id, "x"))).await;
    let request = page(&log, MessagePageQuery { channel_id, limit: 50, ..MessagePageQuery::default() });
    let before = data.metric("data_queries_total").await;
    let reads = (0..200).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.query(request).await.unwrap().into_inner() }
    });
    let replies = futures::future::join_all(reads).await;
    for reply in &replies {
        assert!(matches!(&reply.answer, Some(Answer::MessagePage(page)) if page.messages.len() == 1), "{reply:?}");
    }
    let (queries, joined) =
        (data.metric("data_queries_total").await - before, data.metric("data_queries_joined_total").await);
    assert_eq!(queries + joined, 200.0);
    assert!(queries < 100.0, "{queries} of 200 identical reads read the store");
    // A write makes another key: its author reads it.
    insist(&mut client, fleet.request(&log, message(channel_id, "y"))).await;
    let reply = client.query(request).await.unwrap().into_inner();
    assert!(matches!(reply.answer, Some(Answer::MessagePage(page)) if page.messages.len() == 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_paged_before_after_and_around() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    for number in 0..10 {
        insist(&mut client, fleet.request(&log, message(channel_id, &number.to_string()))).await;
    }
    let mut read = async |query: MessagePageQuery| match client
        .query(page(&log, query))
        .await
        .unwrap()
        .into_inner()
        .answer
        .unwrap()
    {
        Answer::MessagePage(page) => {
            Ok(page.messages.iter().map(|m| (m.content.parse::<i64>().unwrap(), m.id)).unzip::<_, _, Vec<_>, Vec<_>>())
        }
        Answer::Refusal(refusal) => Err(refusal.why()),
        other => panic!("{other:?}"),
    };
    let base = MessagePageQuery { channel_id, limit: 3, ..MessagePageQuery::default() };
    let (all, ids) = read(MessagePageQuery { limit: 100, ..base }).await.unwrap();
    assert_eq!(all, (0..10).rev().collect::<Vec<_>>());
    let id = |number: usize| ids[9 - number];
    assert_eq!(read(base).await.unwrap().0, [9, 8, 7]);
    assert_eq!(read(MessagePageQuery { before: id(7), ..base }).await.unwrap().0, [6, 5, 4]);
    assert_eq!(read(MessagePageQuery { after: id(2), ..base }).await.unwrap().0, [5, 4, 3]);
    assert_eq!(read(MessagePageQuery { around: id(5), ..base }).await.unwrap().0, [6, 5, 4]);
    assert_eq!(read(MessagePageQuery { limit: 101, ..base }).await, Err(Reason::Invalid));
    assert_eq!(read(MessagePageQuery { before: 1, after: 1, ..base }).await, Err(Reason::Invalid));
    assert_eq!(read(MessagePageQuery { channel_id: 5, ..base }).await, Err(Reason::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_far_behind_reads_segments_and_then_lives() {
    let fleet = Fleet::start().await;
    let limits = Limits { segment_entries: 7, ..Limits::default() };
    let first = fleet.data_with("a", "a-data-0", limits.clone()).await;
    let mut client = first.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    for number in 0..40 {
        insist(&mut client, fleet.request(&log, message(channel_id, &number.to_string()))).await;
    }
    // The next owner's ring is empty: everything comes from segments, over several of them.
    first.kill();
    let second = fleet.data_with("a", "a-data-1", limits).await;
    let mut client = second.client().await;
    insist(&mut client, fleet.request(&log, message(channel_id, "new owner"))).await;
    let feed = FeedRequest { log: log.clone(), from: 1, guild_id: GUILD, follower: "t".into() };
    let mut feed = client.feed(feed).await.unwrap().into_inner();
    let mut numbers = Vec::new();
    while numbers.len() < 42 {
        let batch = feed.next().await.unwrap().unwrap();
        assert_eq!(batch.refusal, None);
        numbers.extend(batch.entries.iter().map(|entry| entry.number));
    }
    assert_eq!(numbers, (1..=42).collect::<Vec<_>>());
    let mut read = Vec::new();
    while read.len() < 42 {
        let from = read.last().map_or(1, |number| number + 1);
        let request = ReadLogRequest { log: log.clone(), from, limit: 5, guild_id: 0 };
        let reply = client.read_log(request).await.unwrap().into_inner();
        assert_eq!(reply.refusal, None);
        read.extend(reply.entries.iter().map(|entry| entry.number));
    }
    assert_eq!(read, numbers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_waits_for_what_its_caller_knows_and_never_answers_older() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let committed = insist(&mut client, fleet.request(&log, message(channel_id, "x"))).await;
    let last = committed.position.unwrap().number;
    let known = |not_before| {
        let page = page(&log, MessagePageQuery { channel_id, limit: 50, ..MessagePageQuery::default() });
        QueryRequest { not_before, ..page }
    };
    let reply = client.query(known(last)).await.unwrap().into_inner();
    assert!(reply.as_of >= last && matches!(reply.answer, Some(Answer::MessagePage(_))), "{reply:?}");
    // Of what is not applied yet it says so, with a hint; never an older page.
    let reply = client.query(known(last + 1)).await.unwrap().into_inner();
    let Some(Answer::Refusal(refusal)) = reply.answer else { panic!("{reply:?}") };
    assert_eq!(refusal.why(), Reason::Wait);
    assert!(refusal.retry_after_ms > 0);
    // One that waits is answered as soon as it is applied.
    let (mut other, request) = (client.clone(), known(last + 1));
    let waiting = tokio::spawn(async move { other.query(request).await.unwrap().into_inner() });
    insist(&mut client, fleet.request(&log, message(channel_id, "y"))).await;
    let reply = waiting.await.unwrap();
    let newest = match &reply.answer {
        Some(Answer::MessagePage(page)) => page.messages.first().map(|message| message.content.as_str()),
        _ => None,
    };
    assert_eq!(newest, Some("y"), "{reply:?}");
}
