//! Watches through the client; those that name `Fixture` pass against a real etcd as they are.

use etcd_client::{
    CompactionOptions, DeleteOptions, EventType, GetOptions, PutOptions, Txn, TxnOp, WatchFilterType, WatchOptions,
    WatchResponse, WatchStream,
};
use tonic::Code;

use super::*;

async fn next(stream: &mut WatchStream) -> WatchResponse {
    soon(stream.message()).await.unwrap().unwrap()
}

async fn created(client: &mut Client, key: String, options: WatchOptions) -> (WatchStream, WatchResponse) {
    let mut stream = client.watch(key, Some(options)).await.unwrap();
    let response = next(&mut stream).await;
    assert!(response.created());
    (stream, response)
}

fn told(response: &WatchResponse) -> Vec<(EventType, String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let events = response.events().iter().map(|event| {
        let kv = event.kv().unwrap();
        let name = text(kv.key()).rsplit('/').next().unwrap().to_owned();
        (event.event_type(), name, text(kv.value()))
    });
    events.collect()
}

fn event(kind: EventType, name: &str, value: &str) -> (EventType, String, String) {
    (kind, name.to_owned(), value.to_owned())
}

#[tokio::test]
async fn a_watch_tells_every_change_of_its_range_with_what_was_before() {
    let mut etcd = Fixture::new("watch").await;
    etcd.client.put(etcd.key("a"), "before", None).await.unwrap();
    let options = WatchOptions::new().with_prefix().with_prev_key();
    let (mut stream, response) = created(&mut etcd.client, etcd.prefix.clone(), options).await;
    let started = response.header().unwrap().revision();

    etcd.client.put(etcd.key("a"), "1", None).await.unwrap();
    etcd.client.put(format!("elsewhere-{}", etcd.prefix), "1", None).await.unwrap();
    let both = Txn::new().and_then([TxnOp::put(etcd.key("b"), "2", None), TxnOp::delete(etcd.key("a"), None)]);
    etcd.client.txn(both).await.unwrap();

    let first = next(&mut stream).await;
    assert_eq!(told(&first), [event(EventType::Put, "a", "1")]);
    assert_eq!(first.events()[0].kv().unwrap().mod_revision(), started + 1);
    assert_eq!(first.events()[0].prev_kv().unwrap().value(), b"before");
    let second = next(&mut stream).await;
    assert_eq!(told(&second), [event(EventType::Put, "b", "2"), event(EventType::Delete, "a", "")]);
    assert_eq!(second.events()[1].kv().unwrap().mod_revision(), started + 3);
    assert_eq!(second.events()[1].prev_kv().unwrap().value(), b"1");
    assert!(second.events()[0].prev_kv().is_none());
    assert!(second.header().unwrap().revision() >= started + 3);
}

#[tokio::test]
async fn a_watch_from_a_past_revision_replays_it_and_goes_on() {
    let mut etcd = Fixture::new("replay").await;
    let first = etcd.client.put(etcd.key("a"), "1", None).await.unwrap().header().unwrap().revision();
    etcd.client.put(etcd.key("a"), "2", None).await.unwrap();
    etcd.client.delete(etcd.key("a"), None).await.unwrap();
    let options = WatchOptions::new().with_start_revision(first);
    let (mut stream, _) = created(&mut etcd.client.clone(), etcd.key("a"), options).await;
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(told(&next(&mut stream).await));
    }
    etcd.client.put(etcd.key("a"), "3", None).await.unwrap();
    events.extend(told(&next(&mut stream).await));
    let expected = [
        event(EventType::Put, "a", "1"),
        event(EventType::Put, "a", "2"),
        event(EventType::Delete, "a", ""),
        event(EventType::Put, "a", "3"),
    ];
    assert_eq!(events, expected);
}

#[tokio::test]
async fn one_stream_carries_many_watches_each_with_its_filter_and_its_end() {
    let mut etcd = Fixture::new("many").await;
    let puts = WatchOptions::new().with_filters([WatchFilterType::NoDelete]).with_watch_id(71);
    let (mut stream, response) = created(&mut etcd.client.clone(), etcd.key("a"), puts).await;
    assert_eq!(response.watch_id(), 71);
    let deletes = WatchOptions::new().with_filters([WatchFilterType::NoPut]).with_watch_id(72);
    stream.watch(etcd.key("a"), Some(deletes)).await.unwrap();
    let response = next(&mut stream).await;
    assert!(response.created() && response.watch_id() == 72);
    stream.watch(etcd.key("a"), Some(WatchOptions::new().with_watch_id(72))).await.unwrap();
    let duplicate = next(&mut stream).await;
    assert!(duplicate.created() && duplicate.canceled() && duplicate.watch_id() == -1);
    assert!(duplicate.cancel_reason().contains("duplicate watch ID"), "{}", duplicate.cancel_reason());

    etcd.client.put(etcd.key("a"), "1", None).await.unwrap();
    etcd.client.delete(etcd.key("a"), None).await.unwrap();
    let (put, delete) = (next(&mut stream).await, next(&mut stream).await);
    assert_eq!((put.watch_id(), told(&put)), (71, vec![event(EventType::Put, "a", "1")]));
    assert_eq!((delete.watch_id(), told(&delete)), (72, vec![event(EventType::Delete, "a", "")]));

    stream.cancel(71).await.unwrap();
    let cancelled = next(&mut stream).await;
    assert!(cancelled.canceled() && cancelled.watch_id() == 71 && cancelled.compact_revision() == 0);
    etcd.client.put(etcd.key("a"), "2", None).await.unwrap();
    etcd.client.delete(etcd.key("a"), None).await.unwrap();
    assert_eq!(next(&mut stream).await.watch_id(), 72, "a cancelled watch tells nothing more");
}

#[tokio::test]
async fn progress_on_request_covers_everything_sent_before() {
    let mut etcd = Fixture::new("progress").await;
    let (mut stream, _) = created(&mut etcd.client, etcd.prefix.clone(), WatchOptions::new().with_prefix()).await;
    let put = etcd.client.put(etcd.key("a"), "1", None).await.unwrap();
    assert_eq!(told(&next(&mut stream).await).len(), 1);
    soon(async {
        // A real etcd stays silent while a watch is still catching up: ask again.
        loop {
            stream.request_progress().await.unwrap();
            let answer = tokio::time::timeout(Duration::from_millis(500), stream.message()).await;
            let Ok(answer) = answer else { continue };
            let answer = answer.unwrap().unwrap();
            assert!(answer.events().is_empty());
            assert!(answer.header().unwrap().revision() >= put.header().unwrap().revision());
            break;
        }
    })
    .await;
}

#[tokio::test]
async fn compacted_history_is_refused_to_readers_and_watchers() {
    let mut etcd = Fixture::new("compact").await;
    let first = etcd.client.put(etcd.key("a"), "1", None).await.unwrap().header().unwrap().revision();
    etcd.client.put(etcd.key("a"), "2", None).await.unwrap();
    etcd.client.delete(etcd.key("b"), Some(DeleteOptions::new())).await.unwrap();
    let third = etcd.client.put(etcd.key("a"), "3", None).await.unwrap().header().unwrap().revision();
    etcd.client.compact(third, Some(CompactionOptions::new().with_physical())).await.unwrap();

    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let old = etcd.client.get(etcd.key("a"), Some(GetOptions::new().with_revision(first))).await;
    assert_eq!(refusal(old), (Code::OutOfRange, compacted.to_owned()));
    let again = etcd.client.compact(first, None).await;
    assert_eq!(refusal(again), (Code::OutOfRange, compacted.to_owned()));
    let future = etcd.client.compact(third + 100, None).await;
    assert_eq!(refusal(future).1, "etcdserver: mvcc: required revision is a future revision");
    let at = etcd.client.get(etcd.key("a"), Some(GetOptions::new().with_revision(third))).await.unwrap();
    assert_eq!(at.kvs()[0].value(), b"3");

    let options = WatchOptions::new().with_start_revision(first);
    let (mut stream, _) = created(&mut etcd.client.clone(), etcd.key("a"), options).await;
    let ended = next(&mut stream).await;
    assert!(ended.canceled());
    assert_eq!(ended.compact_revision(), third);
    let options = WatchOptions::new().with_start_revision(third);
    let (mut stream, _) = created(&mut etcd.client.clone(), etcd.key("a"), options).await;
    assert_eq!(told(&next(&mut stream).await), [event(EventType::Put, "a", "3")]);
}

#[tokio::test]
async fn a_revoked_lease_is_watched_as_one_revision() {
    let mut etcd = Fixture::new("revoke").await;
    let lease = etcd.client.lease_grant(60, None).await.unwrap().id();
    for name in ["a", "b"] {
        etcd.client.put(etcd.key(name), "v", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    }
    let (mut stream, _) = created(&mut etcd.client, etcd.prefix.clone(), WatchOptions::new().with_prefix()).await;
    etcd.client.lease_revoke(lease).await.unwrap();
    let response = next(&mut stream).await;
    assert_eq!(told(&response), [event(EventType::Delete, "a", ""), event(EventType::Delete, "b", "")]);
    let revisions: Vec<_> = response.events().iter().map(|event| event.kv().unwrap().mod_revision()).collect();
    assert_eq!(revisions[0], revisions[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_delays_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let (mut idle, mut reader, mut writer) = (server.client().await, server.client().await, server.client().await);
    let options = || WatchOptions::new().with_prefix();
    let (mut unread, _) = created(&mut idle, "p/".to_owned(), options()).await;
    let (mut read, _) = created(&mut reader, "p/".to_owned(), options()).await;
    let value = vec![b'v'; 64 * 1024];
    for number in 1..=400i64 {
        writer.put("p/a", value.clone(), None).await.unwrap();
        let response = next(&mut read).await;
        assert_eq!(response.events()[0].kv().unwrap().version(), number);
    }
    let mut version = 0;
    while version < 400 {
        for event in next(&mut unread).await.events() {
            version += 1;
            assert_eq!(event.kv().unwrap().version(), version, "late, but nothing is missing");
        }
    }
    server.stop().await;
}
