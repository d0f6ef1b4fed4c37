//! A log between two StorageCells over gRPC: shipped, cut over under writes, rolled back, cut over again, released; with owners killed and
//! a target that hangs or fails. Acknowledged sends are there exactly once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cell_data::driver::Stores;
use cell_data::machine::Limits;
use cell_proto::directory::Migration;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    Committed, CopyStatusRequest, CutOverReply, CutOverRequest, EndCopyRequest, InspectRequest, ListHeadsRequest,
    MessagePageQuery, MessagesDeleted, QueryRequest, ReadRowsRequest, Reason, RowMutation, ScanRowsRequest, ShipReply,
    ShipRequest, SplitGuildRequest, WriteRequest,
};
use cell_store::{MemoryStore, Reply, Request, Store, StoreError};
use fleet::*;

type Client = cell_proto::v1::data_service_client::DataServiceClient<tonic::transport::Channel>;

/// A cutover from the old store to the new one, which waits long and loses nothing.
fn forward(log: &str, expected_term: u64) -> CutOverRequest {
    CutOverRequest {
        log: log.into(),
        run_id: "run-1".into(),
        from: "old".into(),
        to: "new".into(),
        expected_term,
        hold_limit_ms: 10_000,
        accept_loss: false,
        expected_restarts: 0,
    }
}

/// A store that can be made to hang, or to fail.
#[derive(Default)]
struct Mood {
    store: MemoryStore,
    /// 0: well; 1: fails; 2: hangs.
    mood: AtomicU64,
    /// The next such write is done, and its answer never comes: 1 the seal of a segment, 2 the seal of a head with a pointer,
    /// 3 a claim of a head.
    trap: AtomicU64,
    sprung: tokio::sync::Notify,
}

fn trap_for(request: &Request) -> u64 {
    match request {
        Request::CasSegment(seal) if seal.new.is_some_and(|new| new.sealed) => 1,
        Request::CasHead(seal) if seal.new.as_ref().is_some_and(|new| !new.moved_to.is_empty()) => 2,
        Request::CasHead(claim) if claim.new.as_ref().is_some_and(|new| !new.appender.is_empty()) => 3,
        _ => 0,
    }
}

#[async_trait]
impl Store for Mood {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        match self.mood.load(Ordering::Relaxed) {
            1 => Err(StoreError::Unavailable("out of order".into())),
            2 => {
                tokio::time::sleep(Duration::from_secs(10)).await;
                Err(StoreError::UnknownOutcome("too late".into()))
            }
            _ => {
                let kind = trap_for(&request);
                let reply = self.store.call(request).await;
                if kind != 0 && self.trap.compare_exchange(kind, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    self.sprung.notify_one();
                    std::future::pending::<()>().await;
                }
                reply
            }
        }
    }
}

struct Two {
    fleet: Fleet,
    old: Arc<Mood>,
    new: Arc<Mood>,
}

impl Two {
    async fn start() -> Self {
        Self { fleet: Fleet::start().await, old: Arc::default(), new: Arc::default() }
    }

    fn stores(&self, home: &str) -> Stores {
        let pick = |name: &str, old: &Arc<Mood>, new: &Arc<Mood>| -> Result<Arc<dyn Store>, StoreError> {
            match name {
                "old" => Ok(old.clone()),
                "new" => Ok(new.clone()),
                other => Err(StoreError::Unavailable(format!("no store {other}"))),
            }
        };
        let (old, new) = (self.old.clone(), self.new.clone());
        let own = pick(home, &old, &new).unwrap();
        Stores::new(home, own, Arc::new(move |name: &str| pick(name, &old, &new)))
    }

    async fn data(&self, id: &str) -> Data {
        self.fleet.data_on("a", id, Limits::default(), self.stores("old")).await
    }

    fn migration(&self, ship: bool, shadow_per_10000: u32) {
        let (source, target) = ("old".to_owned(), "new".to_owned());
        let migration = Migration { run_id: "run-1".into(), source, target, units: Vec::new(), ship, shadow_per_10000 };
        self.fleet.directory.change(|view| view.set_migration(migration.clone()));
    }
}

/// A log with a guild in the old store, its one data service (which ends when it is dropped), a client of it, and the guild's channel.
async fn guild_in_the_old_store() -> (Two, Data, Client, String, i64) {
    let two = Two::start().await;
    let data = two.data("a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    create_head(&mut client, &log, "a").await;
    let channel_id = create_guild(&two.fleet, &mut client).await;
    (two, data, client, log, channel_id)
}

async fn ship(client: &mut Client, log: &str) -> ShipReply {
    let (source, target) = ("old".to_owned(), "new".to_owned());
    let request = ShipRequest { log: log.into(), run_id: "run-1".into(), source, target };
    client.ship(request).await.unwrap().into_inner()
}

/// Ships until the copy has everything.
async fn shipped(client: &mut Client, log: &str) -> ShipReply {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let reply = ship(client, log).await;
        if reply.refusal.is_none() && reply.blocked_by.is_empty() && reply.shipped == reply.last {
            return reply;
        }
        assert!(tokio::time::Instant::now() < deadline, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn cut_over(client: &mut Client, log: &str, (from, to): (&str, &str), expected_term: u64) -> CutOverReply {
    let request = CutOverRequest {
        log: log.into(),
        run_id: "run-1".into(),
        from: from.into(),
        to: to.into(),
        expected_term,
        hold_limit_ms: 10_000,
        accept_loss: false,
        expected_restarts: 0,
    };
    client.cut_over(request).await.unwrap().into_inner()
}

async fn term(client: &mut Client, log: &str) -> u64 {
    client.inspect(InspectRequest { log: log.into() }).await.unwrap().into_inner().head.unwrap().term
}

/// All messages, newest first.
async fn history(client: &mut Client, log: &str, channel_id: i64) -> Vec<String> {
    let (mut all, mut before) = (Vec::new(), 0);
    loop {
        let query = Query::MessagePage(MessagePageQuery { channel_id, before, limit: 100, ..Default::default() });
        let request = QueryRequest { log: log.into(), query: Some(query), ..QueryRequest::default() };
        match client.query(request).await.unwrap().into_inner().answer.unwrap() {
            Answer::MessagePage(page) if page.messages.is_empty() => return all,
            Answer::MessagePage(page) => {
                before = page.messages.last().unwrap().id;
                all.extend(page.messages.into_iter().map(|message| message.content));
            }
            Answer::Refusal(refusal) if refusal.why().is_retryable() => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

fn expected(count: usize) -> Vec<String> {
    (0..count).rev().map(|n| format!("m{n}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_cut_over_under_writes_rolled_back_and_cut_over_again() {
    let (two, data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);

    let requests: Vec<_> = (0..400).map(|n| two.fleet.request(&log, message(channel_id, &format!("m{n}")))).collect();
    let mut writing = data.client().await;
    let writer = tokio::spawn(async move {
        for request in requests {
            insist(&mut writing, request).await;
        }
    });
    let mut at = ("old", "new");
    for round in 0..3 {
        let reply = shipped(&mut client, &log).await;
        assert_eq!((reply.serving.as_str(), reply.restarts), (at.0, 0), "round {round}");
        let wrong = cut_over(&mut client, &log, at, 99).await;
        assert_eq!(wrong.refusal.unwrap().why(), Reason::StaleTerm);
        let before = reply.term;
        let cut = cut_over(&mut client, &log, at, before).await;
        assert!(cut.cut, "{cut:?}");
        assert!(cut.new_term > before);
        assert!(cut_over(&mut client, &log, at, before).await.cut, "asked again, it is done");
        at = (at.1, at.0);
    }
    writer.await.unwrap();
    assert_eq!(at.0, "new");
    assert_eq!(history(&mut client, &log, channel_id).await, expected(400));
    let old = two.old.store.read_head(&log).await.unwrap().unwrap();
    assert_eq!(old.moved_to, "storage:new");
    let listed = client.list_heads(ListHeadsRequest { limit: 10, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!(listed.heads[0].moved_to, "", "what the operator sees follows the pointer");
    assert_eq!(listed.heads[0].term, term(&mut client, &log).await);

    // The copy in the old store is released: it can be neither gone on with nor cut over to by this run.
    let serving = term(&mut client, &log).await;
    let end = EndCopyRequest { log: log.clone(), run_id: "run-1".into(), source: "old".into(), target: "new".into() };
    let ended = client.end_copy(end.clone()).await.unwrap().into_inner();
    assert!(ended.done, "{ended:?}");
    assert!(term(&mut client, &log).await > serving, "the serving head's term was raised first");
    assert!(client.end_copy(end).await.unwrap().into_inner().done);
    assert_eq!(ship(&mut client, &log).await.refusal.unwrap().why(), Reason::Invalid);
    let now = term(&mut client, &log).await;
    assert_eq!(cut_over(&mut client, &log, ("new", "old"), now).await.refusal.unwrap().why(), Reason::Wait);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m400"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, expected(401));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_owner_is_followed_in_the_store_that_serves_and_goes_on_shipping() {
    let (two, first, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    for n in 0..10 {
        insist(&mut client, two.fleet.request(&log, message(channel_id, &format!("m{n}")))).await;
    }
    let reply = shipped(&mut client, &log).await;
    assert!(cut_over(&mut client, &log, ("old", "new"), reply.term).await.cut);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m10"))).await;
    first.kill();

    let second = two.data("a-data-1").await;
    let mut client = second.client().await;
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m11"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, expected(12));
    // Nobody asked it to: the directory did.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while two.old.store.read_cursor(&log, "applied").await.unwrap() < 13 {
        assert!(tokio::time::Instant::now() < deadline, "the old store is not shipped to");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A service whose own StorageCell is the new one finds the log as well.
    second.kill();
    let third = two.fleet.data_on("a", "a-data-2", Limits::default(), two.stores("new")).await;
    assert_eq!(history(&mut third.client().await, &log, channel_id).await, expected(12));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cutover_that_finds_its_log_claimed_at_another_term_is_refused() {
    let (two, first, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    let before = shipped(&mut client, &log).await;
    first.kill();
    // The head still has the term that the order names; whoever carries it out has to claim the log first.
    let second = two.data("a-data-1").await;
    let mut client = second.client().await;
    let stale = cut_over(&mut client, &log, ("old", "new"), before.term).await;
    assert!(!stale.cut);
    assert_eq!(stale.refusal.unwrap().why(), Reason::StaleTerm);
    let now = shipped(&mut client, &log).await;
    assert_eq!((now.serving.as_str(), now.term), ("old", before.term + 1));
    assert!(cut_over(&mut client, &log, ("old", "new"), now.term).await.cut);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_hangs_or_fails_holds_the_origin_up_in_nothing() {
    let (two, _data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    shipped(&mut client, &log).await;
    for (mood, from) in [(1, 0), (2, 20)] {
        two.new.mood.store(mood, Ordering::Relaxed);
        for n in from..from + 20 {
            let sent = submit(&mut client, two.fleet.request(&log, message(channel_id, &format!("m{n}")))).await;
            assert!(sent.is_ok(), "{sent:?}");
        }
    }
    let status = CopyStatusRequest { run_id: "run-1".into() };
    let status = client.copy_status(status).await.unwrap().into_inner();
    assert_eq!((status.logs, status.behind), (1, 1));
    let reply = ship(&mut client, &log).await;
    let mut refused = CutOverRequest { hold_limit_ms: 300, ..forward(&log, reply.term) };
    let cut = client.cut_over(refused.clone()).await.unwrap().into_inner();
    assert!(!cut.cut && cut.refusal.unwrap().why().is_retryable());
    refused.accept_loss = true;
    let cut = client.cut_over(refused).await.unwrap().into_inner();
    assert_eq!(cut.refusal.unwrap().why(), Reason::Invalid, "the origin answers");
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m40"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, expected(41));
    let split = SplitGuildRequest { bucket_log: log.clone(), guild_id: GUILD, run_id: "s".into() };
    let split = client.split_guild(split).await.unwrap().into_inner();
    assert_eq!(split.refusal.unwrap().why(), Reason::Migrating);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_origin_is_failed_over_from_with_the_entries_at_risk_named() {
    let (two, data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    let reply = shipped(&mut client, &log).await;
    two.new.mood.store(1, Ordering::Relaxed);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m1"))).await;
    two.new.mood.store(0, Ordering::Relaxed);
    shipped(&mut client, &log).await;
    two.old.mood.store(1, Ordering::Relaxed);
    let request = CutOverRequest { hold_limit_ms: 1000, accept_loss: true, ..forward(&log, reply.term) };
    let cut = client.cut_over(request).await.unwrap().into_inner();
    assert!(cut.cut, "{cut:?}");
    assert_eq!((cut.at_risk, cut.at_risk_unknown), (0, false), "its owner knows that the copy had everything");
    let mut retried = two.fleet.request(&log, message(channel_id, "m2"));
    retried.deadline_unix_ms += 1;
    insist(&mut client, retried).await;
    assert_eq!(history(&mut client, &log, channel_id).await, ["m2", "m1", "m0"]);
    // The origin comes back: its head is fenced, and it becomes the copy.
    two.old.mood.store(0, Ordering::Relaxed);
    data.tend_copies();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let head = two.old.store.read_head(&log).await.unwrap().unwrap();
        if head.moved_to == "storage:new" && head.appender.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{head:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reply = shipped(&mut client, &log).await;
    assert_eq!(reply.restarts, 1, "it is begun anew, so it must be backfilled again");
    // What the target acknowledged before that is not in the origin, so the log cannot go back there.
    let back = cut_over(&mut client, &log, ("new", "old"), reply.term).await;
    assert!(!back.cut);
    assert_eq!(back.refusal.unwrap().why(), Reason::CopyNotReady);
}

/// A log whose origin is lost, and whose copy another process may be told to serve.
async fn lost_origin() -> (Two, Data, String, i64, CutOverRequest) {
    let (two, first, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    let reply = shipped(&mut client, &log).await;
    let request = CutOverRequest { hold_limit_ms: 1000, accept_loss: true, ..forward(&log, reply.term) };
    (two, first, log, channel_id, request)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_comes_back_unfenced_is_not_served_again() {
    let (two, first, log, channel_id, request) = lost_origin().await;
    two.old.mood.store(1, Ordering::Relaxed);
    let mut client = first.client().await;
    assert!(client.cut_over(request).await.unwrap().into_inner().cut);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m1"))).await;
    // Whoever would have fenced the origin is gone before it comes back.
    first.kill();
    two.old.mood.store(0, Ordering::Relaxed);
    let head = two.old.store.read_head(&log).await.unwrap().unwrap();
    assert_eq!(head.moved_to, "");
    let second = two.data("a-data-1").await;
    let mut client = second.client().await;
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m2"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, expected(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_still_reaches_the_origin_gives_the_log_up_after_another_failed_it_over() {
    let (two, first, log, channel_id, request) = lost_origin().await;
    let second = two.data("a-data-1").await;
    two.old.mood.store(1, Ordering::Relaxed);
    let cut = second.client().await.cut_over(request).await.unwrap().into_inner();
    assert!(cut.cut, "{cut:?}");
    second.kill();
    two.old.mood.store(0, Ordering::Relaxed);
    let mut client = first.client().await;
    let sent = submit(&mut client, two.fleet.request(&log, message(channel_id, "m1"))).await;
    assert!(sent.is_ok() || sent.is_err_and(|refusal| refusal.why().is_retryable()));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let reply = ship(&mut client, &log).await;
        if reply.refusal.is_none() && reply.serving == "new" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{reply:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_does_not_wait_for_a_claim_at_the_lost_origin() {
    let (two, first, log, channel_id, request) = lost_origin().await;
    first.kill();
    let second = two.data("a-data-1").await;
    two.old.trap.store(3, Ordering::SeqCst);
    let (mut claiming, message_1) = (second.client().await, two.fleet.request(&log, message(channel_id, "m1")));
    let waiting = tokio::spawn(async move { submit(&mut claiming, message_1).await });
    tokio::time::timeout(Duration::from_secs(20), two.old.sprung.notified()).await.unwrap();
    two.old.mood.store(1, Ordering::Relaxed);
    let mut client = second.client().await;
    let cut = client.cut_over(request).await.unwrap().into_inner();
    assert!(cut.cut, "{cut:?}");
    assert!(waiting.await.unwrap().unwrap_err().why().is_retryable());
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m2"))).await;
    assert_eq!(history(&mut client, &log, channel_id).await, ["m2", "m0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_begun_anew_since_it_was_verified_is_not_cut_over_to() {
    let (two, data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    let verified = shipped(&mut client, &log).await;
    assert_eq!(verified.restarts, 0);
    // As when it has fallen behind the retention: its head is marked, and the next owner begins it anew.
    let head = two.new.store.read_head(&log).await.unwrap().unwrap();
    let marked = cell_proto::v1::Head { appender: "!released:behind-0".into(), ..head.clone() };
    assert!(two.new.store.cas_head(Some(head), marked).await.unwrap().applied);
    data.kill();
    let data = two.data("a-data-1").await;
    let mut client = data.client().await;
    let anew = shipped(&mut client, &log).await;
    assert_eq!(anew.restarts, 1);
    let mut request = forward(&log, anew.term);
    let late = client.cut_over(request.clone()).await.unwrap().into_inner();
    assert_eq!(late.refusal.unwrap().why(), Reason::CopyNotReady);
    // Nor when the origin is lost: the copy lacks what is older.
    two.old.mood.store(1, Ordering::Relaxed);
    request.accept_loss = true;
    let late = client.cut_over(request.clone()).await.unwrap().into_inner();
    assert_eq!(late.refusal.unwrap().why(), Reason::CopyNotReady);
    two.old.mood.store(0, Ordering::Relaxed);
    request.accept_loss = false;
    request.expected_restarts = 1;
    let cut = client.cut_over(request).await.unwrap().into_inner();
    assert!(cut.cut, "{cut:?}");
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m1"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_is_closed_once_its_copy_was_begun_anew_after_the_cutover() {
    let (two, data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    let there = shipped(&mut client, &log).await;
    assert!(cut_over(&mut client, &log, ("old", "new"), there.term).await.cut);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m1"))).await;
    shipped(&mut client, &log).await;
    // The former origin was away for longer than the retention: what it lacks is dropped, and it is begun anew.
    let head = two.old.store.read_head(&log).await.unwrap().unwrap();
    assert!(head.moved_at > 0, "{head:?}");
    let marked = cell_proto::v1::Head { appender: "!released:behind-0".into(), moved_at: 0, ..head.clone() };
    assert!(two.old.store.cas_head(Some(head), marked).await.unwrap().applied);
    data.kill();
    let data = two.data("a-data-1").await;
    let mut client = data.client().await;
    assert_eq!(shipped(&mut client, &log).await.restarts, 1);
    // It does not start at the log's first entry, which is not retained any more.
    two.old.store.write_cursor(&log, "started:1", 1).await.unwrap();
    data.kill();
    let data = two.data("a-data-2").await;
    let mut client = data.client().await;
    let anew = shipped(&mut client, &log).await;
    assert_eq!((anew.serving.as_str(), anew.restarts), ("new", 1));
    for accept_loss in [false, true] {
        two.new.mood.store(u64::from(accept_loss), Ordering::Relaxed);
        let request = CutOverRequest {
            log: log.clone(),
            run_id: "run-1".into(),
            from: "new".into(),
            to: "old".into(),
            expected_term: anew.term,
            hold_limit_ms: 1000,
            accept_loss,
            expected_restarts: 1,
        };
        let back = client.cut_over(request).await.unwrap().into_inner();
        assert!(!back.cut);
        assert_eq!(back.refusal.unwrap().why(), Reason::CopyNotReady, "accept_loss: {accept_loss}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_reads_compare_and_find_a_missing_message() {
    let (two, _data, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 10_000);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    shipped(&mut client, &log).await;
    history(&mut client, &log, channel_id).await;
    let status = |mut client: Client| async move {
        client.copy_status(CopyStatusRequest { run_id: "run-1".into() }).await.unwrap().into_inner()
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while status(client.clone()).await.shadow_samples < 2 {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", status(client.clone()).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(status(client.clone()).await.shadow_mismatches.is_empty());
    // Somebody deletes the channel's rows behind our backs.
    let gone = cell_proto::v1::RowMutation {
        table: "messages".into(),
        partition: cell_data::domain::tables::message_partition(
            channel_id,
            cell_proto::snowflake::message_bucket(channel_id),
        ),
        clustering: vec![0],
        range_end: vec![255],
        timestamp_us: i64::MAX / 2,
        ..Default::default()
    };
    let write = cell_proto::v1::WriteRequest { timestamp_us: 1, mutations: vec![gone], ttl_seconds: 0 };
    two.new.store.write(write).await.unwrap();
    while !status(client.clone()).await.shadow_mismatches.contains_key("missing") {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", status(client.clone()).await);
        history(&mut client, &log, channel_id).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends one cutover and kills the owner as soon as a seal of its is in the origin's store; whoever comes next goes on from there.
async fn killed_after(seal: u64) {
    let (two, first, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    for n in 0..10 {
        insist(&mut client, two.fleet.request(&log, message(channel_id, &format!("m{n}")))).await;
    }
    let before = shipped(&mut client, &log).await;
    two.old.trap.store(seal, Ordering::SeqCst);
    let mut cutting = client.clone();
    let asked = log.clone();
    let cut = tokio::spawn(async move {
        let request = forward(&asked, before.term);
        cutting.cut_over(request).await
    });
    tokio::time::timeout(Duration::from_secs(20), two.old.sprung.notified()).await.unwrap();
    first.kill();
    assert!(cut.await.unwrap().is_err(), "nobody was told how it went");

    let second = two.data("a-data-1").await;
    let mut client = second.client().await;
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m10"))).await;
    let reply = shipped(&mut client, &log).await;
    assert_eq!(reply.serving, if seal == 1 { "old" } else { "new" }, "the head's seal decides");
    assert!(reply.term > before.term);
    if seal == 1 {
        let stale = cut_over(&mut client, &log, ("old", "new"), before.term).await;
        assert_eq!(stale.refusal.unwrap().why(), Reason::StaleTerm);
        assert!(cut_over(&mut client, &log, ("old", "new"), reply.term).await.cut);
    } else {
        assert!(cut_over(&mut client, &log, ("old", "new"), before.term).await.cut, "asked again, it is done");
    }
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m11"))).await;
    assert_eq!(shipped(&mut client, &log).await.serving, "new");
    assert_eq!(history(&mut client, &log, channel_id).await, expected(12));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_killed_after_it_sealed_the_origins_segment_leaves_the_log_where_it_was() {
    killed_after(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_killed_after_it_sealed_the_origins_head_leaves_the_log_at_the_target() {
    killed_after(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_a_head_here_is_not_taken_for_one_without_messages() {
    let two = Two::start().await;
    let data = two.data("a-data-0").await;
    let mut client = data.client().await;
    let log = bucket_log();
    let query = Query::MessagePage(MessagePageQuery { channel_id: 5, limit: 10, ..Default::default() });
    let request = QueryRequest { log: log.clone(), query: Some(query), ..QueryRequest::default() };
    match client.query(request).await.unwrap().into_inner().answer {
        Some(Answer::Refusal(refusal)) => assert!(refusal.why().is_retryable(), "{refusal:?}"),
        other => panic!("{other:?}"),
    }
    let refused = submit(&mut client, two.fleet.request(&log, message(5, "m"))).await.unwrap_err();
    assert!(refused.why().is_retryable(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_owned_a_lost_log_says_that_it_does_not_know_what_is_at_risk() {
    let (two, first, mut client, log, channel_id) = guild_in_the_old_store().await;
    two.migration(true, 0);
    let reply = shipped(&mut client, &log).await;
    two.new.mood.store(1, Ordering::Relaxed);
    insist(&mut client, two.fleet.request(&log, message(channel_id, "m0"))).await;
    // The owner and its store are lost together, and with them what the copy lacks.
    first.kill();
    two.old.mood.store(1, Ordering::Relaxed);
    two.new.mood.store(0, Ordering::Relaxed);
    let second = two.data("a-data-1").await;
    let mut client = second.client().await;
    let request = CutOverRequest { hold_limit_ms: 1000, accept_loss: true, ..forward(&log, reply.term) };
    for _ in 0..2 {
        let cut = client.cut_over(request.clone()).await.unwrap().into_inner();
        assert!(cut.cut && cut.at_risk_unknown && cut.at_risk == 0, "{cut:?}");
    }
    assert_eq!(history(&mut client, &log, channel_id).await, Vec::<String>::new());
}

fn message_id(committed: &Committed) -> i64 {
    match committed.entry.as_ref().unwrap().change.as_ref().unwrap().kind.as_ref().unwrap() {
        Kind::MessageCreated(created) => created.message.as_ref().unwrap().id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_deletes_by_range_what_its_origin_does_and_a_late_backfill_brings_nothing_back() {
    let (two, _data, mut client, log, channel_id) = guild_in_the_old_store().await;
    let mut ids = Vec::new();
    for n in 0..6 {
        let committed = insist(&mut client, two.fleet.request(&log, message(channel_id, &format!("m{n}")))).await;
        ids.push(message_id(&committed));
    }
    two.migration(true, 0);
    shipped(&mut client, &log).await;
    // What a worker of the backfill holds while the run is deleted.
    let scan = ScanRowsRequest {
        table: "messages".into(),
        first_token: i64::MIN,
        last_token: i64::MAX,
        limit: 100,
        ..ScanRowsRequest::default()
    };
    let batch = two.old.store.scan_rows(scan).await.unwrap().rows;
    assert_eq!(batch.len(), 6);
    let gone = MessagesDeleted { guild_id: GUILD, channel_id, message_ids: ids[1..5].to_vec(), ..Default::default() };
    insist(&mut client, two.fleet.request(&log, Kind::MessagesDeleted(gone))).await;
    shipped(&mut client, &log).await;
    for scanned in &batch {
        let row = scanned.row.as_ref().unwrap();
        for cell in &row.cells {
            let write = cell_proto::v1::CellWrite { column: cell.column.clone(), value: cell.value.clone() };
            let mutation = RowMutation {
                table: "messages".into(),
                partition: scanned.partition.clone(),
                clustering: row.clustering.clone(),
                cells: vec![write],
                ..RowMutation::default()
            };
            let timestamp_us = cell.timestamp_us;
            let request = WriteRequest { timestamp_us, mutations: vec![mutation], ttl_seconds: 0 };
            two.new.store.write(request).await.unwrap();
        }
    }
    let partition = batch[0].partition.clone();
    let read = ReadRowsRequest { table: "messages".into(), partition, limit: 100, ..ReadRowsRequest::default() };
    for store in [&two.old.store, &two.new.store] {
        assert_eq!(store.read_rows(read.clone()).await.unwrap().rows.len(), 2);
    }
    let now = shipped(&mut client, &log).await.term;
    assert!(cut_over(&mut client, &log, ("old", "new"), now).await.cut);
    assert_eq!(history(&mut client, &log, channel_id).await, ["m5", "m0"]);
}
