//! What only this server does: hidden prefixes, refusals by name, restarts, stopping.

use std::collections::BTreeMap;

use etcd_client::{CompareOp, GetOptions, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp, WatchOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use super::*;
use crate::store::{LeaseGrant, LeaseOwner, Op, Put, Range};

#[tokio::test]
async fn keys_and_leases_of_the_kubernetes_api_cannot_be_seen_or_touched() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let grant = LeaseGrant { id: None, ttl_seconds: 60, owner: LeaseOwner::Internal };
    let (lease, _) = server.store.lease_grant(grant).await.unwrap();
    let hidden = crate::store::Txn::always(vec![Op::Put(Put::new("k/pods/a", "secret").lease(lease))]);
    server.store.txn(hidden).await.unwrap();
    client.put("a", "mine", None).await.unwrap();

    let all = || Some(GetOptions::new().with_all_keys());
    let got = client.get("", all()).await.unwrap();
    assert_eq!((got.count(), got.kvs()[0].key_str().unwrap()), (1, "a"));
    let got = client.get("\0", Some(GetOptions::new().with_from_key())).await.unwrap();
    assert_eq!(got.count(), 1);
    let got = client.get("a", Some(GetOptions::new().with_range(vec![0xff; 4]))).await.unwrap();
    assert_eq!(got.count(), 1);
    assert_eq!(client.get("k/pods/a", None).await.unwrap().count(), 0);
    assert!(client.leases().await.unwrap().leases().is_empty());
    assert_eq!(client.lease_time_to_live(lease, None).await.unwrap().ttl(), -1);
    assert_eq!(refusal(client.lease_revoke(lease).await).0, Code::NotFound);
    let attach = client.put("b", "v", Some(PutOptions::new().with_lease(lease))).await;
    assert_eq!(refusal(attach).0, Code::NotFound);
    client.delete("", Some(etcd_client::DeleteOptions::new().with_all_keys())).await.unwrap();
    assert_eq!(server.store.range(&Range::prefix("k/")).unwrap().count, 1);

    let mut stream = client.watch("", Some(WatchOptions::new().with_all_keys())).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().unwrap().created());
    let hidden = crate::store::Txn::always(vec![Op::Put(Put::new("k/pods/a", "2")), Op::Put(Put::new("e/c", "seen"))]);
    server.store.txn(hidden).await.unwrap();
    let response = soon(stream.message()).await.unwrap().unwrap();
    assert_eq!(response.events().len(), 1);
    assert_eq!(response.events()[0].kv().unwrap().key(), b"c");
    server.stop().await;
}

#[tokio::test]
async fn what_it_does_not_have_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let refused = |(code, text): (Code, String), what: &str| {
        assert_eq!(code, Code::Unimplemented, "{text}");
        assert!(text.contains(what) && text.ends_with("use a real etcd for that"), "{text}");
    };
    refused(refusal(client.auth_enable().await), "/etcdserverpb.Auth/AuthEnable");
    refused(refusal(client.user_list().await), "/etcdserverpb.Auth/UserList");
    refused(refusal(client.lock("l", None).await), "/v3lockpb.Lock/Lock");
    refused(refusal(client.campaign("e", "me", 1).await), "/v3electionpb.Election/Campaign");
    refused(refusal(client.snapshot().await), "snapshots");
    refused(refusal(client.defragment().await), "defragmentation");
    refused(refusal(client.member_add(["http://127.0.0.1:1"], None).await), "a second member");
    server.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_request_cost_only_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let noise: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), noise.clone(), [preface, noise].concat()] {
        let mut socket = tokio::net::TcpStream::connect(&server.endpoint).await.unwrap();
        // The server may well hang up before all of it is written.
        let _ = socket.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = soon(socket.read_to_end(&mut answer)).await;
    }
    let huge = client.put("a", vec![0; 9 * 1024 * 1024], None).await;
    assert_eq!(refusal(huge).0, Code::OutOfRange);
    assert_eq!(client.put("a", "1", None).await.unwrap().header().unwrap().revision(), 2);
    server.stop().await;
}

#[tokio::test]
async fn status_and_members_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    client.put("a", "1", None).await.unwrap();
    let status = client.status().await.unwrap();
    assert_eq!(status.header().unwrap().revision(), 2);
    assert_eq!(status.leader(), status.header().unwrap().member_id());
    assert!(status.db_size() > 0 && status.version().starts_with("3."));
    let members = client.member_list().await.unwrap();
    assert_eq!(members.members()[0].client_urls(), [format!("http://{}", server.endpoint)]);
    server.stop().await;
}

#[tokio::test]
async fn a_restart_keeps_keys_revisions_and_leases() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let lease = client.lease_grant(600, None).await.unwrap().id();
    client.put("a", "1", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    let put = client.put("b", "2", None).await.unwrap();
    server.stop().await;

    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let got = client.get("b", None).await.unwrap();
    assert_eq!(got.kvs()[0].mod_revision(), put.header().unwrap().revision());
    let info = client.lease_time_to_live(lease, Some(LeaseTimeToLiveOptions::new().with_keys())).await.unwrap();
    assert_eq!((info.granted_ttl(), info.keys()), (600, &[b"a".to_vec()][..]));
    assert!(info.ttl() > 590, "its time begins anew");
    let mut stream = client.watch("a", Some(WatchOptions::new().with_start_revision(2))).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().unwrap().created());
    assert_eq!(soon(stream.message()).await.unwrap().unwrap().events().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn stopping_ends_open_streams_and_returns() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let mut stream = client.watch("a", None).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().unwrap().created());
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let (_keeper, mut answers) = client.lease_keep_alive(lease).await.unwrap();
    let store = server.store.clone();
    server.stop().await;
    match soon(stream.message()).await {
        Err(etcd_client::Error::GRpcStatus(status)) => assert_eq!(status.code(), Code::Unavailable),
        other => assert!(matches!(other, Ok(None) | Err(_)), "{other:?}"),
    }
    assert!(!matches!(soon(answers.message()).await, Ok(Some(_))));
    drop(store);
    drop(Store::open(dir.path(), StoreOptions::sandbox()).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn elections_by_lease_and_create_never_have_two_winners() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut watcher = server.client().await;
    let mut stream = watcher.watch("leader", Some(WatchOptions::new().with_prev_key())).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().unwrap().created());
    let candidates: Vec<_> = (0..6)
        .map(|number| {
            let endpoint = server.endpoint.clone();
            tokio::spawn(async move {
                let mut client = Client::connect([endpoint], None).await.unwrap();
                let lease = client.lease_grant(60, None).await.unwrap().id();
                loop {
                    let claim = TxnOp::put("leader", format!("{number}"), Some(PutOptions::new().with_lease(lease)));
                    let absent = etcd_client::Compare::create_revision("leader", CompareOp::Equal, 0);
                    if client.txn(Txn::new().when([absent]).and_then([claim])).await.unwrap().succeeded() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                client.lease_revoke(lease).await.unwrap();
            })
        })
        .collect();
    for candidate in candidates {
        soon(candidate).await.unwrap();
    }
    let mut terms: BTreeMap<i64, usize> = BTreeMap::new();
    let mut last_was_put = false;
    while terms.len() < 12 {
        for event in soon(stream.message()).await.unwrap().unwrap().events() {
            let is_put = event.event_type() == etcd_client::EventType::Put;
            assert_ne!(is_put, last_was_put, "two leaders at once");
            last_was_put = is_put;
            *terms.entry(event.kv().unwrap().mod_revision()).or_default() += 1;
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_watches_on_one_stream_each_get_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut client = server.client().await;
    let mut stream = client.watch("key/0/", Some(WatchOptions::new().with_prefix())).await.unwrap();
    assert!(soon(stream.message()).await.unwrap().unwrap().created());
    let mut ids = BTreeMap::from([(0, 0)]);
    for number in 1..300 {
        stream.watch(format!("key/{number}/"), Some(WatchOptions::new().with_prefix())).await.unwrap();
        let response = soon(stream.message()).await.unwrap().unwrap();
        assert!(response.created());
        ids.insert(response.watch_id(), number);
    }
    assert_eq!(ids.len(), 300);
    let mut writer = server.client().await;
    for number in 0..300 {
        writer.put(format!("key/{number}/x"), format!("{number}"), None).await.unwrap();
    }
    let mut seen = 0;
    while seen < 300 {
        let response = soon(stream.message()).await.unwrap().unwrap();
        for event in response.events() {
            assert_eq!(event.kv().unwrap().value_str().unwrap(), ids[&response.watch_id()].to_string());
            seen += 1;
        }
    }
    server.stop().await;
}
