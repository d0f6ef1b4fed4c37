//! Promises about deletes of ranges and of whole partitions: by write time, whatever comes in which order.

use std::collections::BTreeMap;

use cell_proto::v1::{ReadRowsRequest, RowMutation, WriteRequest};
use cell_runtime::unix_ms;
use cell_store::Store;

use super::{all, put, rows, write};

/// Above every key these promises use.
const ABOVE: [u8; 9] = [0xff; 9];

fn range(start: &[u8], end: &[u8]) -> RowMutation {
    RowMutation { cells: Vec::new(), range_end: end.to_vec(), ..put(start, "", "") }
}

fn message(number: i64, bucket: i64) -> RowMutation {
    let partition = [7_i64.to_be_bytes(), bucket.to_be_bytes()].concat();
    RowMutation { table: "messages".into(), partition, ..put(&number.to_be_bytes(), "body", "x") }
}

async fn messages(store: &dyn Store, bucket: i64) -> Vec<i64> {
    let RowMutation { table, partition, .. } = message(0, bucket);
    let request = ReadRowsRequest { table, partition, limit: 1000, ..ReadRowsRequest::default() };
    let rows = store.read_rows(request).await.unwrap().rows;
    rows.iter().map(|row| i64::from_be_bytes(row.clustering.as_slice().try_into().unwrap())).collect()
}

pub async fn a_partition_is_deleted_whole_by_one_tombstone(store: &dyn Store) {
    for number in 1..=300 {
        write(store, 10 + number, message(number, 3)).await;
    }
    write(store, 10, message(1, 4)).await;
    let purge = RowMutation { clustering: Vec::new(), cells: Vec::new(), range_end: ABOVE.into(), ..message(0, 3) };
    write(store, 1000, purge.clone()).await;
    assert_eq!((messages(store, 3).await, messages(store, 4).await), (vec![], vec![1]));
    // What was written before it and comes late stays deleted, whether it was there before or not; what is newer lives.
    write(store, 999, message(5, 3)).await;
    write(store, 999, message(900, 3)).await;
    write(store, 1001, message(6, 3)).await;
    write(store, 998, purge).await;
    assert_eq!(messages(store, 3).await, [6]);
}

pub async fn ranges_that_overlap_hide_each_as_of_its_own_time(store: &dyn Store) {
    for (time, key) in [(10, b"a"), (10, b"b"), (25, b"c"), (10, b"d"), (35, b"e")] {
        write(store, time, put(key, "v", "x")).await;
    }
    write(store, 30, range(b"b", b"d")).await;
    write(store, 20, range(b"a", b"e")).await;
    assert_eq!(rows(store, all()).await, ["e.v=x@35"]);
    for (time, key) in [(25, b"a"), (25, b"b"), (31, b"c"), (20, b"d")] {
        write(store, time, put(key, "w", "y")).await;
    }
    assert_eq!(rows(store, all()).await, ["a.w=y@25", "c.w=y@31", "e.v=x@35"]);
    // A wider one takes all that is older, and the narrower ones with it.
    write(store, 33, range(b"", &ABOVE)).await;
    write(store, 32, put(b"b", "v", "late")).await;
    assert_eq!(rows(store, all()).await, ["e.v=x@35"]);
}

pub async fn a_write_and_a_range_of_one_request_keep_their_own_times(store: &dyn Store) {
    write(store, 10, put(b"a", "v", "old")).await;
    write(store, 10, put(b"b", "v", "old")).await;
    let at = |timestamp_us, mutation: RowMutation| RowMutation { timestamp_us, ..mutation };
    let mutations = vec![
        at(21, put(b"a", "w", "new")),
        at(20, range(b"a", b"z")),
        at(22, put(b"b", "w", "new")),
        at(19, put(b"c", "v", "before")),
    ];
    store.write(WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }).await.unwrap();
    assert_eq!(rows(store, all()).await, ["a.w=new@21", "b.w=new@22"]);
}

/// A sequence that is the same on every run and every engine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const KEYS: &[u8] = b"abcdef";

/// What a table is by its definition: the newest write of each cell, unless a newer deletion covers it.
#[derive(Default)]
struct Model {
    /// By cell: time, value, whether it has expired.
    cells: BTreeMap<(u8, &'static str), (i64, String, bool)>,
    /// Range of keys, and when it was deleted.
    deleted: Vec<(std::ops::Range<u8>, i64)>,
}

impl Model {
    fn put(&mut self, cell: (u8, &'static str), time: i64, (value, expired): (&str, bool)) {
        if self.cells.get(&cell).is_none_or(|(known, ..)| *known < time) {
            self.cells.insert(cell, (time, value.to_owned(), expired));
        }
    }

    fn rows(&self) -> Vec<String> {
        let hidden = |key: u8, time: i64| self.deleted.iter().any(|(keys, at)| keys.contains(&key) && *at >= time);
        let live = self.cells.iter().filter(|((key, _), (time, _, expired))| !expired && !hidden(*key, *time));
        live.map(|((key, column), (time, value, _))| format!("{}.{column}={value}@{time}", char::from(*key))).collect()
    }
}

pub async fn random_writes_and_deletes_end_as_their_times_say(store: &dyn Store) {
    let seed = 20_261_130;
    let mut dice = Dice(seed);
    // Far enough back that one kind of time to live has passed, and the other has not.
    let base_us = unix_ms() * 1000 - 1_000_000_000;
    let mut model = Model::default();
    let mut times: Vec<i64> = (1..=300).map(|offset| base_us + offset).collect();
    for index in (1..times.len()).rev() {
        times.swap(index, dice.below(index as u64 + 1) as usize);
    }
    for (step, time) in times.into_iter().enumerate() {
        let key = KEYS[dice.below(KEYS.len() as u64) as usize];
        let (mutation, ttl_seconds) = match dice.below(10) {
            0 => {
                model.deleted.push((key..key + 1, time));
                (RowMutation { cells: Vec::new(), delete_row: true, ..put(&[key], "", "") }, 0)
            }
            1 => {
                let end = key + 1 + dice.below(3) as u8;
                model.deleted.push((key..end, time));
                (range(&[key], &[end]), 0)
            }
            kind => {
                let (column, value) = (if dice.below(2) == 0 { "v" } else { "w" }, format!("{step}"));
                let ttl_seconds = [0, 0, 600, 1_000_000][dice.below(4) as usize * usize::from(kind < 5)];
                model.put((key, column), time, (&value, ttl_seconds == 600));
                (put(&[key], column, &value), ttl_seconds)
            }
        };
        let request = WriteRequest { timestamp_us: time, mutations: vec![mutation], ttl_seconds };
        store.write(request.clone()).await.unwrap();
        if dice.below(8) == 0 {
            store.write(request).await.unwrap();
        }
        if step % 20 == 0 || step > 280 {
            let mut found = rows(store, all()).await;
            found.sort();
            assert_eq!(found, model.rows(), "seed {seed}, step {step}");
        }
    }
}
