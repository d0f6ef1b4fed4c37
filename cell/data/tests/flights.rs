//! Reads in flight, with a store that is held: who shares a query, who waits for whom, and what a full or failing store costs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cell_data::driver::Stores;
use cell_data::machine::Limits;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{Channel, ChannelPut, MessagePageQuery, QueryReply, QueryRequest, Reason};
use cell_store::{MemoryStore, Reply, Request, Store, StoreError};
use fleet::*;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A store whose reads of messages can be held, and fail when they go on.
struct Held {
    store: MemoryStore,
    held: watch::Sender<bool>,
    fails: AtomicBool,
    waiting: AtomicU64,
}

#[async_trait]
impl Store for Held {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        if matches!(&request, Request::ReadRows(read) if read.table == "messages") && *self.held.borrow() {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.held.subscribe().wait_for(|held| !held).await.unwrap();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if self.fails.load(Ordering::SeqCst) {
                return Err(StoreError::Unavailable("out of order".into()));
            }
        }
        self.store.call(request).await
    }
}

struct Reads {
    _fleet: Fleet,
    data: Data,
    store: Arc<Held>,
    channels: [i64; 2],
    log: String,
}

type Reading = JoinHandle<QueryReply>;

impl Reads {
    /// Two channels with a message each.
    async fn start() -> Self {
        let fleet = Fleet::start().await;
        let store = Arc::new(Held {
            store: MemoryStore::default(),
            held: watch::channel(false).0,
            fails: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
        });
        let data = fleet.data_on("a", "a-data-0", Limits::default(), Stores::single(store.clone())).await;
        let mut client = data.client().await;
        let log = bucket_log();
        create_head(&mut client, &log, "a").await;
        let first = create_guild(&fleet, &mut client).await;
        let channel = Channel { guild_id: GUILD, name: "other".into(), ..Channel::default() };
        let put = Kind::ChannelPut(ChannelPut { channel: Some(channel), created: true });
        let second = match insist(&mut client, fleet.request(&log, put)).await.entry.unwrap().change.unwrap().kind {
            Some(Kind::ChannelPut(put)) => put.channel.unwrap().id,
            other => panic!("{other:?}"),
        };
        for channel_id in [first, second] {
            insist(&mut client, fleet.request(&log, message(channel_id, "x"))).await;
        }
        Self { _fleet: fleet, data, store, channels: [first, second], log }
    }

    async fn read(&self, channel: usize, limit: i32) -> Reading {
        let page = MessagePageQuery { channel_id: self.channels[channel], limit, ..MessagePageQuery::default() };
        self.ask(page).await
    }

    async fn ask(&self, page: MessagePageQuery) -> Reading {
        let query = Some(Query::MessagePage(page));
        let request = QueryRequest { log: self.log.clone(), query, ..QueryRequest::default() };
        let mut client = self.data.client().await;
        tokio::spawn(async move { client.query(request).await.unwrap().into_inner() })
    }

    fn hold(&self) {
        self.store.held.send_replace(true);
    }

    fn release(&self) {
        self.store.held.send_replace(false);
    }

    async fn until(&self, what: &str, there: impl AsyncFn() -> bool) {
        let began = Instant::now();
        while !there().await {
            assert!(began.elapsed() < Duration::from_secs(20), "{what} did not happen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn waiting(&self, count: u64) {
        self.until("a read reaching the store", async || self.store.waiting.load(Ordering::SeqCst) == count).await;
    }

    /// So many reads have found one to wait for.
    async fn joined(&self, count: f64) {
        self.until("reads being joined", async || self.data.metric("data_queries_joined_total").await >= count).await;
    }

    async fn queries(&self) -> f64 {
        self.data.metric("data_queries_total").await
    }
}

fn messages(reply: &QueryReply) -> Result<usize, (Reason, u32)> {
    match reply.answer.as_ref().unwrap() {
        Answer::MessagePage(page) => Ok(page.messages.len()),
        Answer::Refusal(refusal) => Err((refusal.why(), refusal.retry_after_ms)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_read_the_same_the_store_reads_it_once() {
    let reads = Reads::start().await;
    let before = reads.queries().await;
    reads.hold();
    let first = reads.read(0, 50).await;
    reads.waiting(1).await;
    let others = futures::future::join_all((0..100).map(|_| reads.read(0, 50))).await;
    reads.joined(100.0).await;
    // Whoever began it goes away: that cancels nothing for the others.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    reads.release();
    for reading in others {
        assert_eq!(messages(&reading.await.unwrap()), Ok(1));
    }
    assert_eq!(reads.queries().await - before, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_differ_in_one_argument_share_nothing() {
    let reads = Reads::start().await;
    let before = reads.queries().await;
    reads.hold();
    let base = MessagePageQuery { channel_id: reads.channels[0], limit: 50, ..MessagePageQuery::default() };
    let pages = [
        base,
        MessagePageQuery { limit: 49, ..base },
        MessagePageQuery { after: 1, ..base },
        MessagePageQuery { before: i64::MAX, ..base },
        MessagePageQuery { around: 2, ..base },
        MessagePageQuery { channel_id: reads.channels[1], ..base },
    ];
    let readings = futures::future::join_all(pages.iter().map(|page| reads.ask(*page))).await;
    reads.waiting(pages.len() as u64).await;
    reads.release();
    for reading in readings {
        assert_eq!(messages(&reading.await.unwrap()), Ok(1));
    }
    assert_eq!(reads.queries().await - before, pages.len() as f64);
    assert_eq!(reads.data.metric("data_queries_joined_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_that_fails_fails_all_who_wait_for_it_once() {
    let reads = Reads::start().await;
    reads.hold();
    reads.store.fails.store(true, Ordering::SeqCst);
    let first = reads.read(0, 50).await;
    reads.waiting(1).await;
    let others = futures::future::join_all((0..20).map(|_| reads.read(0, 50))).await;
    reads.joined(20.0).await;
    reads.release();
    for reading in others.into_iter().chain([first]) {
        assert_eq!(messages(&reading.await.unwrap()).unwrap_err().0, Reason::StoreUnavailable);
    }
    reads.store.fails.store(false, Ordering::SeqCst);
    assert_eq!(messages(&reads.read(0, 50).await.await.unwrap()), Ok(1), "it is forgotten");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_read_by_many_keeps_no_other_waiting_and_what_waits_too_long_is_told_when_to_return() {
    let reads = Reads::start().await;
    reads.hold();
    let hot = futures::future::join_all((1..=60).map(|limit| reads.read(0, limit))).await;
    // Only so many of one channel read at once.
    reads.waiting(16).await;
    let cold = reads.read(1, 50).await;
    reads.waiting(17).await;
    let mut refused = 0;
    let mut left = Vec::new();
    reads
        .until("what waits being refused", async || hot.iter().filter(|reading| reading.is_finished()).count() == 44)
        .await;
    for reading in hot {
        if !reading.is_finished() {
            left.push(reading);
            continue;
        }
        let (why, retry_after_ms) = messages(&reading.await.unwrap()).unwrap_err();
        assert_eq!(why, Reason::Overloaded);
        assert!(retry_after_ms > 0);
        refused += 1;
    }
    assert_eq!((refused, left.len()), (44, 16));
    reads.release();
    for reading in left.into_iter().chain([cold]) {
        assert_eq!(messages(&reading.await.unwrap()), Ok(1));
    }
}
