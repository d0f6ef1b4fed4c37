//! A data service end to end over gRPC: claim, commit, apply, read, follow; one dies and another takes over with nothing lost; a lower
//! term is refused by owner and store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

mod fleet;

use cell_proto::unit::bucket_of;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    AppendRequest, ChannelDeleted, ChannelQuery, ClaimRequest, FeedRequest, GuildChunk, IdRange, InspectRequest,
    MessageDeleted, MessageEdited, MessagePageQuery, MessagesDeleted, QueryRequest, ReadGuildRequest, ReadLogRequest,
    ReadState, ReadStatesAdvanced, ReadStatesQuery, Reason, ScanRowsRequest, StoredEntry, SubmitRequest, UserCreated,
};
use cell_store::{MemoryStore, Reply, Request, Store, StoreError};
use fleet::*;
use tokio_stream::StreamExt;

type Client = cell_proto::v1::data_service_client::DataServiceClient<tonic::transport::Channel>;

async fn history(client: &mut Client, log: &str, channel_id: i64) -> Vec<String> {
    let query = Query::MessagePage(MessagePageQuery { channel_id, limit: 100, ..MessagePageQuery::default() });
    let request = QueryRequest { log: log.into(), deadline_unix_ms: 0, query: Some(query), ..QueryRequest::default() };
    match client.query(request).await.unwrap().into_inner().answer.unwrap() {
        Answer::MessagePage(page) => page.messages.into_iter().map(|message| message.content).collect(),
        other => panic!("{other:?}"),
    }
}

fn message_id(committed: &cell_proto::v1::Committed) -> i64 {
    match committed.entry.as_ref().unwrap().change.as_ref().unwrap().kind.as_ref().unwrap() {
        Kind::MessageCreated(created) => created.message.as_ref().unwrap().id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_is_created_written_to_read_and_followed() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    assert_eq!(bucket_of(channel_id), bucket_of(GUILD));

    let request = fleet.request(&log, message(channel_id, "one"));
    let first = insist(&mut client, request.clone()).await;
    let again = insist(&mut client, request).await;
    assert!(again.duplicate);
    assert_eq!(again.entry, first.entry);
    let second = insist(&mut client, fleet.request(&log, message(channel_id, "two"))).await;
    assert!(message_id(&second) > message_id(&first));
    let edit = Kind::MessageEdited(MessageEdited {
        guild_id: GUILD,
        channel_id,
        message_id: message_id(&first),
        content: "one, edited".into(),
        ..MessageEdited::default()
    });
    let foreign = submit(&mut client, fleet.request(&log, edit.clone())).await.unwrap_err();
    assert_eq!(foreign.why(), Reason::Forbidden);
    let own = SubmitRequest { actor_id: user("ann").id, ..fleet.request(&log, edit) };
    insist(&mut client, own).await;
    assert_eq!(history(&mut client, &log, channel_id).await, ["two", "one, edited"]);
    let delete = MessageDeleted { guild_id: GUILD, channel_id, message_id: message_id(&second) };
    insist(&mut client, fleet.request(&log, Kind::MessageDeleted(delete))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, ["one, edited"]);
    let gone = submit(&mut client, fleet.request(&log, Kind::MessageDeleted(delete))).await.unwrap_err();
    assert_eq!(gone.why(), Reason::NotFound);

    let query = QueryRequest {
        log: log.clone(),
        deadline_unix_ms: 0,
        query: Some(Query::Channel(ChannelQuery { channel_id })),
        ..QueryRequest::default()
    };
    assert!(
        matches!(client.query(query).await.unwrap().into_inner().answer, Some(Answer::Channel(c)) if c.guild_id == GUILD)
    );

    let request = ReadGuildRequest { log: log.clone(), guild_id: GUILD };
    let chunks: Vec<GuildChunk> =
        client.read_guild(request).await.unwrap().into_inner().map(Result::unwrap).collect().await;
    assert!(chunks.last().unwrap().done);
    assert_eq!(chunks[0].guild.as_ref().unwrap().policy_version, 1);
    assert_eq!(chunks.iter().map(|chunk| chunk.members.len()).sum::<usize>(), 1);

    let request = FeedRequest { log: log.clone(), from: 2, guild_id: GUILD, follower: "test".into() };
    let mut feed = client.feed(request).await.unwrap().into_inner();
    let mut numbers = Vec::new();
    while numbers.len() < 4 {
        numbers.extend(feed.next().await.unwrap().unwrap().entries.into_iter().map(|entry| entry.number));
    }
    let live = insist(&mut client, fleet.request(&log, message(channel_id, "live"))).await;
    while numbers.len() < 5 {
        numbers.extend(feed.next().await.unwrap().unwrap().entries.into_iter().map(|entry| entry.number));
    }
    assert_eq!(numbers, [2, 3, 4, 5, 6]);
    assert_eq!(live.position.unwrap().number, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_owner_is_followed_by_another_with_nothing_lost() {
    let fleet = Fleet::start().await;
    let first = fleet.data("a", "a-data-0").await;
    let mut client = first.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let mut sent = Vec::new();
    for number in 0..50 {
        let request = fleet.request(&log, message(channel_id, &format!("m{number}")));
        sent.push((request.clone(), insist(&mut client, request).await));
    }
    let second = fleet.data("a", "a-data-1").await;
    let mut other = second.client().await;
    let refusal = submit(&mut other, fleet.request(&log, message(channel_id, "x"))).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::NotOwner);
    assert_eq!(refusal.route.unwrap().data_address, first.address);

    first.kill();
    for (request, committed) in &sent {
        let again = insist(&mut other, request.clone()).await;
        assert!(again.duplicate, "every acknowledged operation is known to the next owner: {again:?} {committed:?}");
        assert_eq!(again.entry, committed.entry);
    }
    let next = insist(&mut other, fleet.request(&log, message(channel_id, "after"))).await;
    assert_eq!(next.position.unwrap().number, 52);
    assert_eq!(next.term, 2);
    assert_eq!(history(&mut other, &log, channel_id).await.len(), 51);
    let read = ReadLogRequest { log, from: 1, limit: 1000, guild_id: 0 };
    let numbers: Vec<u64> =
        other.read_log(read).await.unwrap().into_inner().entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=51).collect::<Vec<_>>(), "the first owner's segment; the next page follows");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_owner_is_refused_by_the_store_and_steps_back() {
    let fleet = Fleet::start().await;
    let stale = fleet.data("a", "a-data-0").await;
    let mut stale_client = stale.client().await;
    let log = bucket_log();
    create_head(&mut stale_client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut stale_client).await;
    let second = fleet.data("a", "a-data-1").await;
    let mut client = second.client().await;
    let claim = ClaimRequest { log: log.clone(), force: true, run_id: "r".into() };
    let claimed = client.claim(claim).await.unwrap().into_inner();
    assert_eq!(claimed.head.unwrap().term, 2);

    // The first still believes that it owns the log: its append is refused, it steps back and sends the caller on.
    let request = fleet.request(&log, message(channel_id, "late"));
    let refusal = submit(&mut stale_client, request.clone()).await.unwrap_err();
    assert!(matches!(refusal.why(), Reason::UnknownOutcome | Reason::NotOwner), "{refusal:?}");
    let refusal = submit(&mut stale_client, request.clone()).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::NotOwner);
    assert_eq!(refusal.route.unwrap().data_address, second.address);
    let committed = insist(&mut client, request).await;
    assert!(!committed.duplicate);
    assert_eq!(history(&mut client, &log, channel_id).await, ["late"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_term_is_refused_by_owner_and_store() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let second = fleet.data("a", "a-data-1").await;
    let mut client = second.client().await;
    client.claim(ClaimRequest { log: log.clone(), force: true, run_id: "r".into() }).await.unwrap();

    let request = SubmitRequest { term: 1, ..fleet.request(&log, message(channel_id, "stale")) };
    let refusal = submit(&mut client, request).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::StaleTerm);
    assert_eq!(
        (refusal.route.as_ref().unwrap().term, &refusal.route.as_ref().unwrap().data_address),
        (2, &second.address)
    );

    let inspected = client.inspect(InspectRequest { log: log.clone() }).await.unwrap().into_inner();
    assert!(inspected.owned_here);
    let entry = StoredEntry { number: inspected.last + 1, timestamp_us: i64::MAX, ..StoredEntry::default() };
    for segment in [1, 2] {
        let append = AppendRequest {
            log: log.clone(),
            segment,
            term: 1,
            last: inspected.last,
            entries: vec![entry.clone()],
            ..AppendRequest::default()
        };
        let reply = fleet.store.append(append).await.unwrap();
        assert!(!reply.applied, "segment {segment} took an append of a lower term");
    }
    assert_eq!(history(&mut client, &log, channel_id).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_created_once_and_its_name_is_kept() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let ann = user("ann");
    let log = cell_proto::unit::Unit::bucket(ann.id).log();
    create_head(&mut client, &log, "a").await;
    let create = |user| Kind::UserCreated(UserCreated { user: Some(user) });
    insist(&mut client, fleet.request(&log, create(ann.clone()))).await;
    insist(&mut client, fleet.request(&log, create(ann.clone()))).await;
    let thief = cell_proto::v1::User { name: "bob".into(), ..ann };
    let refusal = submit(&mut client, fleet.request(&log, create(thief))).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::AlreadyExists);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_lease_lapsed_serves_on_until_it_sees_a_higher_term() {
    let fleet = Fleet::start().await;
    let first = fleet.data("a", "a-data-0").await;
    let mut client = first.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let request = FeedRequest { log: log.clone(), from: 1, guild_id: 0, follower: "test".into() };
    let mut feed = client.feed(request).await.unwrap().into_inner();
    // Nobody sees it any more, and nobody claimed: the head still names it.
    first.vanish();
    first.recheck();
    insist(&mut client, fleet.request(&log, message(channel_id, "on"))).await;
    let second = fleet.data("a", "a-data-1").await;
    let claim = ClaimRequest { log, force: false, run_id: String::new() };
    assert_eq!(second.client().await.claim(claim).await.unwrap().into_inner().head.unwrap().term, 2);
    first.recheck();
    let mut ended = None;
    while let Some(Ok(batch)) = feed.next().await {
        ended = batch.refusal.or(ended);
    }
    assert_eq!(ended.unwrap().route.unwrap().data_address, second.address);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_messages_and_channels_are_deleted_by_one_entry_each() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let mut ids = Vec::new();
    for n in 0..24 {
        let committed = insist(&mut client, fleet.request(&log, message(channel_id, &format!("m{n}")))).await;
        ids.push(message_id(&committed));
    }
    let mut message_ids = ids[2..20].to_vec();
    message_ids.extend([ids[22], ids[21], ids[23] + 1]);
    message_ids.rotate_left(7);
    let bulk = MessagesDeleted { guild_id: GUILD, channel_id, message_ids, ..MessagesDeleted::default() };
    let request = fleet.request(&log, Kind::MessagesDeleted(bulk));
    let committed = insist(&mut client, request.clone()).await;
    assert_eq!(committed.position.as_ref().unwrap().number, 26, "one entry");
    assert!(insist(&mut client, request).await.duplicate);
    let Some(Kind::MessagesDeleted(gone)) = committed.entry.unwrap().change.unwrap().kind else { panic!("other") };
    assert_eq!(gone.message_ids, [&ids[2..20], &ids[21..23]].concat());
    assert_eq!(gone.ranges, [IdRange { first: ids[2], last: ids[19] }], "none for the two: they are too few");
    assert_eq!(history(&mut client, &log, channel_id).await, ["m23", "m20", "m1", "m0"]);
    let gone = Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id });
    insist(&mut client, fleet.request(&log, gone)).await;
    let scan = ScanRowsRequest {
        table: "messages".into(),
        first_token: i64::MIN,
        last_token: i64::MAX,
        limit: 100,
        ..ScanRowsRequest::default()
    };
    assert_eq!(fleet.store.scan_rows(scan).await.unwrap().rows, []);
    let late = submit(&mut client, fleet.request(&log, message(channel_id, "late"))).await.unwrap_err();
    assert_eq!(late.why(), Reason::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_states_are_kept_by_user_and_read_in_pages() {
    let fleet = Fleet::start().await;
    let data = fleet.data("a", "a-data-0").await;
    let mut client = data.client().await;
    let reader = user("bea").id;
    let log = cell_proto::unit::Unit::bucket(reader).log();
    create_head(&mut client, &log, "a").await;
    let read = |channels: std::ops::Range<i64>, last_message_id| {
        let states = channels.map(|channel_id| ReadState { channel_id, last_message_id }).collect();
        Kind::ReadStatesAdvanced(ReadStatesAdvanced { user_id: reader, states })
    };
    for start in (1..1050).step_by(100) {
        insist(&mut client, fleet.request(&log, read(start..start + 100, 5))).await;
    }
    insist(&mut client, fleet.request(&log, read(3..4, 9))).await;
    let back = submit(&mut client, fleet.request(&log, read(3..4, 8))).await.unwrap_err();
    assert_eq!(back.why(), Reason::AlreadyExists);
    let (mut states, mut after_channel_id) = (Vec::new(), 0);
    loop {
        let query = Query::ReadStates(ReadStatesQuery { user_id: reader, after_channel_id });
        let request = QueryRequest { log: log.clone(), query: Some(query), ..QueryRequest::default() };
        let Some(Answer::ReadStates(page)) = client.query(request).await.unwrap().into_inner().answer else {
            panic!("no read states")
        };
        after_channel_id = page.states.last().unwrap().channel_id;
        states.extend(page.states);
        if !page.more {
            break;
        }
    }
    assert_eq!(states.iter().map(|state| state.channel_id).collect::<Vec<_>>(), (1..1101).collect::<Vec<_>>());
    assert_eq!((states[2].last_message_id, states[3].last_message_id), (9, 5));
}

/// A store whose volume may be full.
#[derive(Default)]
struct Small {
    store: MemoryStore,
    full: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl Store for Small {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        let reads = matches!(
            request,
            Request::ReadHead(_) | Request::ReadSegment(_) | Request::ReadRows(_) | Request::ReadCursor(_)
        );
        if !reads && self.full.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(StoreError::Full { path: "/data".into(), free_bytes: 1, reserve_bytes: 2 });
        }
        self.store.call(request).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_refuses_writes_by_its_name_and_goes_on_reading() {
    let fleet = Fleet::start().await;
    let small = std::sync::Arc::new(Small::default());
    let limits = cell_data::machine::Limits { segment_entries: 4, ..Default::default() };
    let stores = || cell_data::driver::Stores::single(small.clone());
    let data = fleet.data_on("a", "a-data-0", limits.clone(), stores()).await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&fleet, &mut client).await;
    let fill = |full: bool| small.full.store(full, std::sync::atomic::Ordering::Relaxed);
    for round in 0..6 {
        // In some round the segment is rolled first, which the full store refuses too.
        fill(true);
        let refused = submit(&mut client, fleet.request(&log, message(channel_id, "no room"))).await.unwrap_err();
        assert_eq!((refused.why(), refused.retry_after_ms), (Reason::StoreFull, 30_000), "round {round}: {refused:?}");
        assert_eq!(history(&mut client, &log, channel_id).await.len(), round);
        fill(false);
        insist(&mut client, fleet.request(&log, message(channel_id, "room"))).await;
    }
    // Who would have to claim the log cannot either.
    data.kill();
    fill(true);
    let second = fleet.data_on("a", "a-data-1", limits, stores()).await;
    let mut client = second.client().await;
    let refused = submit(&mut client, fleet.request(&log, message(channel_id, "no room"))).await.unwrap_err();
    assert_eq!(refused.why(), Reason::StoreFull, "{refused:?}");
    fill(false);
    insist(&mut client, fleet.request(&log, message(channel_id, "room"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await.len(), 7);
}
