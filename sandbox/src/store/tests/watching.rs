//! Watches: order, history, slow watchers, compaction, progress, many at once.

use super::*;

async fn collect(watch: &mut Watch, until: i64) -> Vec<i64> {
    let mut revisions = Vec::new();
    while revisions.last().is_none_or(|last| *last < until) {
        revisions.push(soon(watch.next()).await.unwrap().revision);
    }
    revisions
}

#[tokio::test]
async fn a_watch_sees_each_revision_of_its_range_whole_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "before", "1").await;
    let mut watch = store.watch(WatchFrom { prev_kv: true, ..WatchFrom::prefix("p/", None) }).unwrap();
    put(&store, "p/a", "1").await;
    put(&store, "elsewhere", "1").await;
    let ops = ["p/a", "q/a", "p/b"].map(|key| Op::Put(Put::new(key, "2")));
    store.txn(Txn::always(ops.to_vec())).await.unwrap();
    delete(&store, "p/a").await;

    let first = soon(watch.next()).await.unwrap();
    assert_eq!((first.revision, first.events.len()), (3, 1));
    assert_eq!(first.events[0].prev, None);
    let second = soon(watch.next()).await.unwrap();
    assert_eq!(second.revision, 5);
    let keys: Vec<_> = second.events.iter().map(|event| event.kv.key.as_ref()).collect();
    assert_eq!(keys, [b"p/a", b"p/b"]);
    let third = soon(watch.next()).await.unwrap();
    assert_eq!((third.events[0].kind, third.events[0].kv.mod_revision), (EventKind::Delete, 6));
    assert_eq!(third.events[0].prev.as_ref().unwrap().value, "2");
}

#[tokio::test]
async fn a_watch_from_the_past_reads_history_then_lives_on_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for number in 0..50 {
        put(&store, "a", &number.to_string()).await;
    }
    let mut watch = store.watch(WatchFrom::prefix("", Some(10))).unwrap();
    let writer = store.clone();
    let writes = tokio::spawn(async move {
        for number in 0..200 {
            put(&writer, "a", &number.to_string()).await;
        }
    });
    assert_eq!(collect(&mut watch, 251).await, (10..=251).collect::<Vec<_>>());
    writes.await.unwrap();
}

#[tokio::test]
async fn a_watch_from_the_future_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch(WatchFrom::prefix("", Some(5))).unwrap();
    for _ in 0..6 {
        put(&store, "a", "v").await;
    }
    assert_eq!(collect(&mut watch, 7).await, [5, 6, 7]);
}

#[tokio::test]
async fn a_slow_watcher_catches_up_and_hurts_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreOptions { watch_queue: 4, ..options() }).unwrap();
    let mut slow = store.watch(WatchFrom::prefix("", None)).unwrap();
    let mut quick = store.watch(WatchFrom::prefix("", None)).unwrap();
    for number in 2..=60 {
        put(&store, "a", "v").await;
        assert_eq!(soon(quick.next()).await.unwrap().revision, number);
    }
    assert_eq!(store.stats().watch_overflows, 1);
    assert_eq!(slow.progress(), 1);
    assert_eq!(collect(&mut slow, 60).await, (2..=60).collect::<Vec<_>>());
    put(&store, "a", "v").await;
    assert_eq!(soon(slow.next()).await.unwrap().revision, 61);
    assert_eq!(slow.progress(), 61);
}

#[tokio::test]
async fn a_watcher_whose_history_was_compacted_is_told_from_where_it_can_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreOptions { watch_queue: 4, ..options() }).unwrap();
    let mut slow = store.watch(WatchFrom::prefix("", None)).unwrap();
    let mut idle = store.watch(WatchFrom::prefix("nothing/", None)).unwrap();
    for _ in 0..20 {
        put(&store, "a", "v").await;
    }
    store.compact(15).await.unwrap();
    // What was queued is still delivered, then the gap is reported instead of skipped.
    for revision in 2..=5 {
        assert_eq!(soon(slow.next()).await.unwrap().revision, revision);
    }
    assert_eq!(soon(slow.next()).await, Err(WatchEnd::Compacted { compacted: 15 }));
    let refused = store.watch(WatchFrom::prefix("", Some(14))).err();
    assert_eq!(refused, Some(StoreError::Compacted { requested: 14, compacted: 15 }));
    let mut exact = store.watch(WatchFrom::prefix("", Some(15))).unwrap();
    assert_eq!(soon(exact.next()).await.unwrap().revision, 15);
    put(&store, "nothing/a", "v").await;
    assert_eq!(soon(idle.next()).await.unwrap().revision, 22, "a live watch does not mind compaction");
}

#[tokio::test]
async fn progress_never_runs_ahead_of_what_was_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch(WatchFrom::prefix("p/", Some(2))).unwrap();
    let progress = watch.progress_handle();
    put(&store, "p/a", "1").await;
    put(&store, "other", "1").await;
    assert_eq!(progress.revision(), 1);
    assert_eq!(soon(watch.next()).await.unwrap().revision, 2);
    assert_eq!(progress.revision(), 3, "what does not concern it counts as seen");
    put(&store, "other", "2").await;
    assert_eq!(watch.progress(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watchers_all_see_everything_of_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let watchers: Vec<_> = (0..1000)
        .map(|number| {
            let mut watch = store.watch(WatchFrom::prefix(format!("{}/", number % 10), None)).unwrap();
            tokio::spawn(async move {
                let mut values = Vec::new();
                while values.len() < 20 {
                    let batch = watch.next().await.unwrap();
                    values.extend(batch.events.iter().map(|event| event.kv.version));
                }
                values
            })
        })
        .collect();
    for _ in 0..20 {
        let ops = (0..10).map(|prefix| Op::Put(Put::new(format!("{prefix}/key"), "v"))).collect();
        store.txn(Txn::always(ops)).await.unwrap();
    }
    for watcher in watchers {
        assert_eq!(soon(watcher).await.unwrap(), (1..=20).collect::<Vec<_>>());
    }
    assert_eq!(store.stats().watches, 0);
}

#[tokio::test]
async fn watches_are_counted_bounded_and_ended_by_closing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreOptions { max_watches: 2, ..options() }).unwrap();
    let mut first = store.watch(WatchFrom::prefix("", None)).unwrap();
    let second = store.watch(WatchFrom::prefix("", None)).unwrap();
    let refused = store.watch(WatchFrom::prefix("", None)).err();
    assert_eq!(refused, Some(StoreError::TooManyWatches { max: 2 }));
    drop(second);
    let mut third = store.watch(WatchFrom::prefix("", None)).unwrap();
    let waiting = tokio::spawn(async move { third.next().await });
    tokio::task::yield_now().await;
    store.close().await;
    assert_eq!(soon(waiting).await.unwrap(), Err(WatchEnd::Closed));
    assert_eq!(soon(first.next()).await, Err(WatchEnd::Closed));
    let late = store.watch(WatchFrom::prefix("", None));
    if let Ok(mut late) = late {
        assert_eq!(soon(late.next()).await, Err(WatchEnd::Closed));
    }
}
