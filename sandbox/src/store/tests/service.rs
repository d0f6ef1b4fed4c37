//! The store as a service: transactions under contention, leases that end, compaction, deadlines.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_with_one_condition_exactly_one_wins_each_round() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "counter", "0").await;
    let writers: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut won = 0u32;
                while won < 10 {
                    let found = store.range(&Range::single("counter")).unwrap();
                    let kv = &found.kvs[0];
                    let count: u32 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
                    let put = Put::new("counter", (count + 1).to_string());
                    let txn = Txn::when(Compare::mod_revision("counter", kv.mod_revision), vec![Op::Put(put)]);
                    won += u32::from(store.txn(txn).await.unwrap().succeeded);
                }
            })
        })
        .collect();
    for writer in writers {
        soon(writer).await.unwrap();
    }
    assert_eq!(value(&store, "counter").as_deref(), Some("160"));
    assert_eq!(store.revision(), 162);
    assert!(store.stats().commits < 162, "writes shared syncs: {}", store.stats().commits);
}

#[tokio::test]
async fn a_transaction_that_only_reads_needs_no_sync() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "a", "1").await;
    let commits = store.stats().commits;
    let txn = Txn::when(Compare::mod_revision("a", 2), vec![Op::Range(Range::single("a"))]);
    let result = store.txn(txn).await.unwrap();
    assert!(result.succeeded);
    assert_eq!(result.revision, 2);
    assert_eq!(store.stats().commits, commits);
}

#[tokio::test]
async fn an_ended_lease_takes_its_keys_and_a_renewed_one_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    // The renewed one is long enough for a busy machine; that renewal counts is tested on the pure machine.
    for (id, ttl_seconds) in [(1, 1), (2, 30)] {
        store.lease_grant(LeaseGrant { id: Some(id), ttl_seconds, owner: LeaseOwner::Etcd }).await.unwrap();
        let ops = ["x", "y"].map(|name| Op::Put(Put::new(format!("{id}/{name}"), "v").lease(id)));
        store.txn(Txn::always(ops.to_vec())).await.unwrap();
    }
    let mut watch = store.watch(WatchFrom::prefix("1/", None)).unwrap();
    let ended = async {
        loop {
            tokio::select! {
                batch = watch.next() => return batch.unwrap(),
                () = tokio::time::sleep(Duration::from_millis(50)) => drop(store.lease_keep_alive(2).unwrap()),
            }
        }
    };
    let batch = soon(ended).await;
    assert_eq!(batch.events.len(), 2, "both keys go in one revision");
    assert!(batch.events.iter().all(|event| event.kind == EventKind::Delete));
    assert_eq!(store.lease(1), None);
    assert_eq!(store.lease_keep_alive(1), Err(StoreError::LeaseNotFound { id: 1 }));
    assert_eq!(store.range(&Range::prefix("2/")).unwrap().count, 2);
    store.lease_revoke(2).await.unwrap();
    assert_eq!(store.range(&Range::prefix("")).unwrap().count, 0);
}

#[tokio::test]
async fn history_is_dropped_by_the_policy_while_writing() {
    let dir = tempfile::tempdir().unwrap();
    let policy = AutoCompaction { keep_revisions: 20, keep_for: Duration::from_secs(3600), keep_bytes: u64::MAX };
    let store = Store::open(dir.path(), StoreOptions { auto_compaction: Some(policy), ..options() }).unwrap();
    for number in 0..200 {
        put(&store, "a", &number.to_string()).await;
    }
    let stats = store.stats();
    assert!(stats.compacted >= stats.revision - 23, "{stats:?}");
    assert_eq!(stats.keys, 1);
    drop(store);
    assert_eq!(value(&open(dir.path()), "a").as_deref(), Some("199"));
}

#[tokio::test]
async fn both_prefixes_share_revisions_and_nothing_else() {
    assert!(!ETCD_PREFIX.starts_with(KUBE_PREFIX) && !KUBE_PREFIX.starts_with(ETCD_PREFIX));
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(put(&store, "e/a", "1").await, 2);
    assert_eq!(put(&store, "k/a", "1").await, 3);
    assert_eq!(store.range(&Range::prefix(ETCD_PREFIX)).unwrap().count, 1);
}
