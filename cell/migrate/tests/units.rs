//! A run about some units: their partitions are named by the catalogue and read newest first, and a comparison sees what either side's
//! catalogue knows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_migrate::compare::{Comparison, compare};
use cell_migrate::copy::copy;
use cell_migrate::job::Job;
use cell_migrate::ranges::{Grant, LaneName, Phase, Tokens};
use cell_migrate::service::StoreTables;
use cell_migrate::worker::Tables;
use cell_proto::snowflake::{first_of_ms, message_bucket};
use cell_proto::unit::Unit;
use cell_proto::v1::{CellWrite, RowMutation, WriteRequest};
use cell_store::{MemoryStore, Reply, Request, Store, StoreError};
use parking_lot::Mutex;

/// Remembers which tables were scanned and which partitions of messages were read.
#[derive(Default)]
struct Watched {
    store: MemoryStore,
    scanned: Mutex<BTreeSet<String>>,
    read: Mutex<Vec<i64>>,
}

#[async_trait]
impl Store for Watched {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        match &request {
            Request::ScanRows(scan) => drop(self.scanned.lock().insert(scan.table.clone())),
            Request::ReadRows(read) if read.table == "messages" => {
                self.read.lock().push(i64::from_be_bytes(*read.partition.last_chunk().unwrap()));
            }
            _ => {}
        }
        self.store.call(request).await
    }
}

fn mutation(table: &str, partition: Vec<u8>, clustering: Vec<u8>, column: &str) -> RowMutation {
    let cells = vec![CellWrite { column: column.to_owned(), value: b"v".to_vec() }];
    RowMutation { table: table.to_owned(), partition, clustering, cells, timestamp_us: 7, ..RowMutation::default() }
}

/// Two messages of a channel in each of some ten-day buckets, and its row in the catalogue.
async fn channel(store: &dyn Store, id: i64, buckets: std::ops::Range<i64>, listed: bool) {
    let mut rows = Vec::new();
    for bucket in buckets {
        for number in 0..2_i64 {
            let partition = [id.to_be_bytes(), bucket.to_be_bytes()].concat();
            rows.push(mutation("messages", partition, (bucket * 1_000 + number).to_be_bytes().to_vec(), "body"));
        }
    }
    if listed {
        let bucket = cell_proto::unit::bucket_of(id).to_be_bytes().to_vec();
        rows.push(mutation("channel_guild", bucket, id.to_be_bytes().to_vec(), "guild"));
    }
    for chunk in rows.chunks(100) {
        store.write(WriteRequest { timestamp_us: 7, mutations: chunk.to_vec(), ttl_seconds: 0 }).await.unwrap();
    }
}

/// The id of a channel of a unit that was made in a ten-day bucket.
fn id_in(unit: Unit, bucket: i64) -> i64 {
    let first = first_of_ms(cell_proto::snowflake::EPOCH_MS + bucket * 10 * 24 * 3_600_000);
    (first + 1..).find(|id| Unit::bucket(*id) == unit).unwrap()
}

fn job(phase: Phase, table: &str, unit: Unit) -> (Grant, Job) {
    let grant = Grant {
        lease: 1,
        phase,
        round: 1,
        lane: LaneName { table: table.to_owned(), unit: unit.to_string() },
        tokens: Tokens::ALL,
        after: vec![],
        source: "a".into(),
        target: "b".into(),
        rows_per_second: 0,
        lease_ms: 15_000,
    };
    let job = Job::new(&grant);
    (grant, job)
}

fn tables(source: &Arc<Watched>, target: &Arc<Watched>) -> StoreTables {
    let (source, target) = (source.clone(), target.clone());
    let stores = move |name: &str| Ok(if name == "a" { source.clone() } else { target.clone() } as Arc<dyn Store>);
    StoreTables { stores: Arc::new(stores) }
}

#[tokio::test]
async fn a_unit_is_read_by_its_channels_newest_first_and_nothing_else_is() {
    let (source, target) = (Arc::<Watched>::default(), Arc::<Watched>::default());
    let unit = Unit::Bucket(77);
    let now = message_bucket(first_of_ms(cell_runtime::unix_ms()));
    for made in [now - 5, now - 30, now - 31] {
        channel(&source.store, id_in(unit, made), made..now + 1, true).await;
    }
    for other in 0..200 {
        channel(&source.store, id_in(Unit::Bucket(1_000 + other), now - 9), now - 9..now, true).await;
    }
    for (table, copied) in [("messages", 2 * (6 + 31 + 32)), ("channel_guild", 3)] {
        let (grant, job) = job(Phase::Backfill, table, unit);
        let pair = tables(&source, &target).pair(&grant).await.unwrap();
        copy(&pair, &job).await.unwrap();
        let counts = job.counts();
        println!("{table}: {} rows copied, {} read", counts.rows, counts.read);
        assert_eq!((counts.rows, counts.read), (copied, copied), "{table}: no row of another unit is read");
        assert_eq!(job.done_until(), None, "what is not in the order of tokens is done only when all of it is");
    }
    assert_eq!(*source.scanned.lock(), BTreeSet::new(), "nothing is scanned");
    let read = source.read.lock().clone();
    assert!(read.is_sorted_by(|a, b| a >= b), "newest buckets first: {read:?}");
    assert_eq!((read.first(), read.last()), (Some(&now), Some(&(now - 32))));
    let (grant, job) = job(Phase::Backfill, "users", unit);
    let pair = tables(&source, &target).pair(&grant).await.unwrap();
    copy(&pair, &job).await.unwrap();
    assert!(source.scanned.lock().contains("users"), "users of a unit are in no catalogue");
}

#[tokio::test]
async fn whoever_goes_on_after_a_mark_reads_all_that_was_not_done_and_little_that_was() {
    let (source, target) = (Arc::<Watched>::default(), Arc::<Watched>::default());
    let unit = Unit::Bucket(77);
    let now = message_bucket(first_of_ms(cell_runtime::unix_ms()));
    let made = |number: i64| now - 40 - number;
    for number in 0..12 {
        channel(&source.store, id_in(unit, made(number)), made(number)..now + 1, true).await;
    }
    let total: i64 = (0..12).map(|number| 2 * (now + 1 - made(number))).sum();
    let (mut after, mut done, mut read, mut turns) = (Vec::new(), BTreeSet::new(), 0, 0);
    'turns: loop {
        turns += 1;
        let (grant, _) = job(Phase::Backfill, "messages", unit);
        let pair = tables(&source, &target).pair(&grant).await.unwrap();
        let mut cursor = if after.is_empty() { Default::default() } else { pair.source.after(&after) };
        // Of three pages that are read two are written before the worker is killed.
        for page in 0..3 {
            let found = pair.source.scan(Tokens::ALL, cursor, 50).await.unwrap();
            read += found.read;
            let Some(next) = found.next else {
                done.extend(found.rows.iter().map(|row| row.key_hash()));
                break 'turns;
            };
            cursor = next;
            if page < 2 {
                done.extend(found.rows.iter().map(|row| row.key_hash()));
                after = found.mark.map_or(after, |mark| mark.to_vec());
            }
        }
        // Meanwhile a channel came: it is shipped, so that it matters to nobody whether it is read as well.
        channel(&source.store, id_in(unit, now) + turns * 4_096, now..now + 1, true).await;
    }
    println!("{total} rows, {read} read in {turns} turns");
    assert!(turns > 5 && done.len() as i64 >= total, "{turns} turns, {} of {total} rows", done.len());
    assert!(read as i64 <= total + turns * (50 + 2 * 12), "{read} rows were read where there are {total}");
    let (grant, job) = job(Phase::Backfill, "messages", unit);
    let pair = tables(&source, &target).pair(&grant).await.unwrap();
    copy(&pair, &job).await.unwrap();
    assert!(!job.mark().is_empty(), "a copy says how far it is");
}

#[tokio::test]
async fn a_comparison_of_a_unit_sees_what_only_the_targets_catalogue_knows_and_digests_tell_the_sides_apart() {
    let (source, target) = (Arc::<Watched>::default(), Arc::<Watched>::default());
    let unit = Unit::Bucket(77);
    let now = message_bucket(first_of_ms(cell_runtime::unix_ms()));
    for store in [&source.store, &target.store] {
        channel(store, id_in(unit, now - 3), now - 3..now, true).await;
    }
    let how = Comparison { mend: false, settle: Duration::ZERO };
    let look = async || {
        let (grant, job) = job(Phase::Verify, "messages", unit);
        let pair = tables(&source, &target).pair(&grant).await.unwrap();
        compare(&pair, &job, how).await.unwrap();
        let (ours, theirs) = job.digests().unwrap();
        (job.counts().mismatches, ours == theirs)
    };
    assert_eq!(look().await, (Default::default(), true));
    channel(&target.store, id_in(unit, now - 2), now - 1..now, true).await;
    assert_eq!(look().await, ([("extra".to_owned(), 2)].into(), false));
}
