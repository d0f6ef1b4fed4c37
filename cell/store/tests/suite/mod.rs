//! The promises of the Store trait, each as a function over any store that is empty. Whoever writes an engine runs all of them.

#![allow(dead_code, reason = "each test binary uses the helpers it needs")]

mod deletes;
mod scanning;

use cell_proto::v1::{
    AppendRequest, CasSegmentRequest, CellWrite, Head, ListHeadsRequest, OpenSegmentRequest, ReadRowsRequest,
    ReadSegmentRequest, RowMutation, Statics, StoredEntry, WriteRequest,
};
use cell_runtime::unix_ms;
use cell_store::{Store, StoreError};

pub use deletes::*;
pub use scanning::*;

/// Gives the names of all promises to a macro.
#[macro_export]
macro_rules! promises {
    ($callback:ident) => {
        $callback! {
            a_head_is_changed_only_from_its_whole_row,
            heads_are_listed_in_pages_by_name_and_cell,
            a_segment_is_opened_once,
            an_append_needs_term_unsealed_and_last,
            a_seal_fails_when_anything_was_appended_in_between,
            long_segments_are_read_in_pages,
            a_dropped_segment_is_gone_whole,
            cursors_only_rise,
            the_last_write_wins_in_any_order,
            a_row_tombstone_hides_what_was_written_before_it,
            a_range_tombstone_hides_its_range_and_nothing_else,
            a_partition_is_deleted_whole_by_one_tombstone,
            ranges_that_overlap_hide_each_as_of_its_own_time,
            a_write_and_a_range_of_one_request_keep_their_own_times,
            random_writes_and_deletes_end_as_their_times_say,
            cells_expire_by_their_write_time,
            what_has_expired_hides_what_was_written_before_it,
            rows_are_paged_both_ways,
            one_append_of_many_racing_ones_wins,
            bad_requests_are_refused_and_change_nothing,
            a_dropped_segment_can_be_opened_anew,
            keys_of_the_platforms_tables_come_back_as_they_were,
            bounds_that_are_no_whole_keys_hold_all_the_same,
            a_scan_gives_every_row_once_in_token_order,
            a_scan_goes_on_where_it_stopped_inside_a_partition,
            a_scan_of_a_range_gives_that_range_only,
            a_scan_under_writes_gives_what_lived_throughout_once,
            a_scan_shows_times_and_hides_what_is_dead,
            a_write_repeated_or_reordered_ends_the_same,
            bad_scans_are_refused,
        }
    };
}

pub fn head(log: &str, cell: &str, term: u64) -> Head {
    Head { log: log.into(), cell: cell.into(), term, ..Head::default() }
}

pub async fn a_head_is_changed_only_from_its_whole_row(store: &dyn Store) {
    assert_eq!(store.read_head("b0001").await.unwrap(), None);
    let first = head("b0001", "a", 0);
    assert!(store.cas_head(None, first.clone()).await.unwrap().applied);
    let again = store.cas_head(None, head("b0001", "b", 9)).await.unwrap();
    assert_eq!((again.applied, again.current), (false, Some(first.clone())));
    // Same term, another field differs: the whole row is compared.
    let almost = Head { segment: 3, ..first.clone() };
    assert!(!store.cas_head(Some(almost), head("b0001", "b", 1)).await.unwrap().applied);
    let second = head("b0001", "b", 1);
    assert!(store.cas_head(Some(first), second.clone()).await.unwrap().applied);
    assert_eq!(store.read_head("b0001").await.unwrap(), Some(second));
}

pub async fn heads_are_listed_in_pages_by_name_and_cell(store: &dyn Store) {
    for number in 0..10 {
        let cell = if number % 2 == 0 { "a" } else { "b" };
        store.cas_head(None, head(&format!("b000{number}"), cell, 0)).await.unwrap();
    }
    let page = |after: &str, limit, cell: &str| ListHeadsRequest { after: after.into(), limit, cell: cell.into() };
    let first = store.list_heads(page("", 4, "")).await.unwrap();
    assert_eq!((first.heads.len(), first.more, first.heads[3].log.as_str()), (4, true, "b0003"));
    let rest = store.list_heads(page("b0003", 100, "")).await.unwrap();
    assert_eq!((rest.heads.len(), rest.more, rest.heads[0].log.as_str()), (6, false, "b0004"));
    let of_b = store.list_heads(page("b0005", 1, "b")).await.unwrap();
    assert_eq!((of_b.heads[0].log.as_str(), of_b.more), ("b0007", true));
}

pub fn statics(term: u64, last: u64) -> Statics {
    Statics { term, last, ..Statics::default() }
}

pub async fn open(store: &dyn Store, segment: u64, statics: Statics) -> bool {
    let request = OpenSegmentRequest { log: "l".into(), segment, statics: Some(statics) };
    store.open_segment(request).await.unwrap().applied
}

pub fn append_of(segment: u64, term: u64, last: u64, count: u64) -> AppendRequest {
    let entry = |number| StoredEntry {
        number,
        timestamp_us: number as i64,
        operation_id: vec![number as u8; 16],
        body: vec![7; 100],
    };
    AppendRequest {
        log: "l".into(),
        segment,
        term,
        last,
        entries: (last + 1..=last + count).map(entry).collect(),
        last_timestamp_us: (last + count) as i64,
        last_snowflake: 5,
    }
}

pub async fn append(store: &dyn Store, segment: u64, term: u64, last: u64, count: u64) -> bool {
    store.append(append_of(segment, term, last, count)).await.unwrap().applied
}

pub async fn numbers(store: &dyn Store, segment: u64, from: u64, limit: i32) -> Vec<u64> {
    let request = ReadSegmentRequest { log: "l".into(), segment, from, limit, bodies_from: 0 };
    store.read_segment(request).await.unwrap().entries.iter().map(|entry| entry.number).collect()
}

pub async fn read_statics(store: &dyn Store, segment: u64) -> Option<Statics> {
    let request = ReadSegmentRequest { log: "l".into(), segment, from: 0, limit: 0, bodies_from: 0 };
    store.read_segment(request).await.unwrap().statics
}

pub async fn a_segment_is_opened_once(store: &dyn Store) {
    assert!(open(store, 1, statics(1, 0)).await);
    let other = OpenSegmentRequest { log: "l".into(), segment: 1, statics: Some(statics(9, 4)) };
    let reply = store.open_segment(other).await.unwrap();
    assert_eq!((reply.applied, reply.statics), (false, Some(statics(1, 0))));
}

pub async fn an_append_needs_term_unsealed_and_last(store: &dyn Store) {
    assert!(!append(store, 1, 1, 0, 1).await, "no such segment");
    open(store, 1, statics(2, 10)).await;
    assert!(!append(store, 1, 1, 10, 1).await, "a lower term");
    assert!(!append(store, 1, 3, 10, 1).await, "a higher term");
    assert!(!append(store, 1, 2, 9, 1).await, "another last number");
    assert!(append(store, 1, 2, 10, 3).await);
    assert!(!append(store, 1, 2, 10, 3).await, "the same again");
    let after = read_statics(store, 1).await.unwrap();
    assert_eq!((after.last, after.last_timestamp_us, after.last_snowflake), (13, 13, 5));
    assert_eq!(numbers(store, 1, 0, 100).await, [11, 12, 13]);
    assert!(seal(store, 1, after, 2).await);
    assert!(!append(store, 1, 2, 13, 1).await, "sealed");
}

async fn seal(store: &dyn Store, segment: u64, expected: Statics, term: u64) -> bool {
    let new = Statics { term, sealed: true, ..expected };
    let request = CasSegmentRequest { log: "l".into(), segment, expected: Some(expected), new: Some(new) };
    store.cas_segment(request).await.unwrap().applied
}

pub async fn a_seal_fails_when_anything_was_appended_in_between(store: &dyn Store) {
    assert!(!seal(store, 1, statics(1, 0), 2).await, "no such segment");
    open(store, 1, statics(1, 0)).await;
    let read = read_statics(store, 1).await.unwrap();
    append(store, 1, 1, 0, 1).await;
    assert!(!seal(store, 1, read, 2).await);
    let read = read_statics(store, 1).await.unwrap();
    assert!(seal(store, 1, read, 2).await);
    assert_eq!(read_statics(store, 1).await.unwrap(), Statics { term: 2, sealed: true, ..read });
}

pub async fn long_segments_are_read_in_pages(store: &dyn Store) {
    open(store, 1, statics(1, 0)).await;
    append(store, 1, 1, 0, 200).await;
    assert_eq!(numbers(store, 1, 0, 3).await, [1, 2, 3]);
    assert_eq!(numbers(store, 1, 199, 50).await, [199, 200]);
    assert_eq!(numbers(store, 1, 201, 50).await, Vec::<u64>::new());
    // Entries of 3 MiB: an answer stops early rather than outgrow a message.
    for last in 200..204 {
        let mut large = append_of(1, 1, last, 1);
        large.entries.iter_mut().for_each(|entry| entry.body = vec![1; 3 << 20]);
        assert!(store.append(large).await.unwrap().applied);
    }
    let first = numbers(store, 1, 201, 100).await;
    assert!(!first.is_empty() && first.len() < 4, "{first:?}");
    // Without the bodies of what is below, everything fits; small ones come all the same.
    let mut request = ReadSegmentRequest { log: "l".into(), segment: 1, from: 199, limit: 100, bodies_from: 204 };
    let reply = store.read_segment(request.clone()).await.unwrap();
    assert_eq!(reply.entries.iter().map(|entry| entry.body.len()).collect::<Vec<_>>(), [100, 100, 0, 0, 0, 3 << 20]);
    request.bodies_from = 0;
    assert!(store.read_segment(request).await.unwrap().entries.len() < 6);
    let next = first.last().unwrap() + 1;
    assert_eq!(numbers(store, 1, next, 100).await[0], next);
}

pub async fn a_dropped_segment_is_gone_whole(store: &dyn Store) {
    for segment in [1, 2] {
        open(store, segment, statics(1, 0)).await;
        append(store, segment, 1, 0, 20).await;
    }
    store.drop_segment("l", 1).await.unwrap();
    store.drop_segment("l", 1).await.unwrap();
    assert_eq!((read_statics(store, 1).await, numbers(store, 1, 0, 100).await.len()), (None, 0));
    assert_eq!(numbers(store, 2, 0, 100).await.len(), 20);
}

pub async fn a_dropped_segment_can_be_opened_anew(store: &dyn Store) {
    open(store, 1, statics(1, 0)).await;
    append(store, 1, 1, 0, 20).await;
    store.drop_segment("l", 1).await.unwrap();
    assert!(open(store, 1, statics(4, 7)).await);
    assert_eq!((read_statics(store, 1).await, numbers(store, 1, 0, 100).await.len()), (Some(statics(4, 7)), 0));
    assert!(append(store, 1, 4, 7, 2).await);
    assert_eq!(numbers(store, 1, 0, 100).await, [8, 9]);
}

pub async fn cursors_only_rise(store: &dyn Store) {
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 0);
    assert_eq!(store.write_cursor("l", "applied", 7).await.unwrap(), 7);
    assert_eq!(store.write_cursor("l", "applied", 5).await.unwrap(), 7);
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 7);
    assert_eq!(store.read_cursor("l", "feed").await.unwrap(), 0);
}

pub fn put(clustering: &[u8], column: &str, value: &str) -> RowMutation {
    RowMutation {
        table: "t".into(),
        partition: b"p".to_vec(),
        clustering: clustering.to_vec(),
        cells: vec![CellWrite { column: column.into(), value: value.into() }],
        ..RowMutation::default()
    }
}

pub async fn write(store: &dyn Store, timestamp_us: i64, mutation: RowMutation) {
    store.write(WriteRequest { timestamp_us, mutations: vec![mutation], ttl_seconds: 0 }).await.unwrap();
}

pub fn all() -> ReadRowsRequest {
    ReadRowsRequest { table: "t".into(), partition: b"p".to_vec(), limit: 1000, ..ReadRowsRequest::default() }
}

/// Rows as `clustering.column=value@time`.
pub async fn rows(store: &dyn Store, request: ReadRowsRequest) -> Vec<String> {
    let reply = store.read_rows(request).await.unwrap();
    let cell = |clustering: &[u8], cell: &cell_proto::v1::CellRead| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}.{}={}@{}", text(clustering), cell.column, text(&cell.value), cell.timestamp_us)
    };
    reply.rows.iter().flat_map(|row| row.cells.iter().map(|c| cell(&row.clustering, c))).collect()
}

pub async fn the_last_write_wins_in_any_order(store: &dyn Store) {
    write(store, 20, put(b"k", "v", "new")).await;
    write(store, 10, put(b"k", "v", "old")).await;
    write(store, 5, put(b"k", "w", "other")).await;
    assert_eq!(rows(store, all()).await, ["k.v=new@20", "k.w=other@5"]);
    // Equal times: the greater value, whoever comes first.
    write(store, 20, put(b"k", "v", "zzz")).await;
    write(store, 20, put(b"k", "v", "aaa")).await;
    assert_eq!(rows(store, all()).await[0], "k.v=zzz@20");
    // A mutation's own time comes before the request's.
    write(store, 1, RowMutation { timestamp_us: 30, ..put(b"k", "v", "own") }).await;
    assert_eq!(rows(store, all()).await[0], "k.v=own@30");
}

pub async fn a_row_tombstone_hides_what_was_written_before_it(store: &dyn Store) {
    let delete = RowMutation { cells: Vec::new(), delete_row: true, ..put(b"k", "", "") };
    write(store, 10, put(b"k", "v", "a")).await;
    write(store, 20, delete.clone()).await;
    write(store, 15, put(b"k", "v", "late")).await;
    write(store, 20, put(b"k", "v", "same time")).await;
    assert_eq!(rows(store, all()).await, Vec::<String>::new());
    write(store, 21, put(b"k", "v", "b")).await;
    assert_eq!(rows(store, all()).await, ["k.v=b@21"]);
    write(store, 20, delete).await;
    assert_eq!(rows(store, all()).await, ["k.v=b@21"]);
}

pub async fn a_range_tombstone_hides_its_range_and_nothing_else(store: &dyn Store) {
    for key in [&b"a"[..], b"b", b"b\0", b"c", b"\xff"] {
        write(store, 10, put(key, "v", "x")).await;
    }
    let range = RowMutation { cells: Vec::new(), range_end: b"c".to_vec(), ..put(b"b", "", "") };
    write(store, 20, range.clone()).await;
    write(store, 15, put(b"b", "v", "late")).await;
    let left = rows(store, all()).await;
    assert_eq!(left.len(), 3, "{left:?}");
    assert_eq!((left[0].as_str(), left[1].as_str()), ("a.v=x@10", "c.v=x@10"));
    write(store, 30, put(b"b", "v", "again")).await;
    write(store, 12, range).await;
    assert!(rows(store, all()).await.contains(&"b.v=again@30".to_owned()));
    let other = ReadRowsRequest { partition: b"p2".to_vec(), ..all() };
    write(store, 10, RowMutation { partition: b"p2".to_vec(), ..put(b"b", "v", "elsewhere") }).await;
    assert_eq!(rows(store, other).await, ["b.v=elsewhere@10"]);
}

pub async fn cells_expire_by_their_write_time(store: &dyn Store) {
    let now_us = unix_ms() * 1000;
    let write = |timestamp_us: i64, key: &'static [u8]| WriteRequest {
        timestamp_us,
        mutations: vec![put(key, "v", "x")],
        ttl_seconds: 600,
    };
    store.write(write(now_us - 1000 * 1_000_000, b"old")).await.unwrap();
    store.write(write(now_us, b"young")).await.unwrap();
    let reply = store.read_rows(all()).await.unwrap();
    assert_eq!(reply.rows.len(), 1);
    assert_eq!(reply.rows[0].clustering, b"young");
    assert!((500..=600).contains(&reply.rows[0].cells[0].ttl_seconds));
}

pub async fn what_has_expired_hides_what_was_written_before_it(store: &dyn Store) {
    let written_us = (unix_ms() - 700_000) * 1000;
    write(store, 10, put(b"before", "v", "old")).await;
    for key in [&b"before"[..], b"late"] {
        let expired = WriteRequest { timestamp_us: written_us, mutations: vec![put(key, "v", "x")], ttl_seconds: 600 };
        store.write(expired).await.unwrap();
    }
    write(store, 11, put(b"late", "v", "old")).await;
    assert_eq!(rows(store, all()).await, Vec::<String>::new());
    write(store, written_us + 1, put(b"late", "v", "new")).await;
    assert_eq!(rows(store, all()).await, [format!("late.v=new@{}", written_us + 1)]);
}

pub async fn rows_are_paged_both_ways(store: &dyn Store) {
    for key in 0..10_u8 {
        write(store, 10, put(&[key], "v", "x")).await;
    }
    let page = |start: Vec<u8>, end: Vec<u8>, limit, reverse| ReadRowsRequest { start, end, limit, reverse, ..all() };
    let keys =
        |reply: cell_proto::v1::ReadRowsReply| reply.rows.iter().map(|row| row.clustering[0]).collect::<Vec<_>>();
    let first = store.read_rows(page(vec![2], vec![8], 4, false)).await.unwrap();
    assert!(first.more);
    assert_eq!(keys(first), [2, 3, 4, 5]);
    let rest = store.read_rows(page(vec![5, 0], vec![8], 4, false)).await.unwrap();
    assert!(!rest.more);
    assert_eq!(keys(rest), [6, 7]);
    let back = store.read_rows(page(vec![2], vec![8], 3, true)).await.unwrap();
    assert!(back.more);
    assert_eq!(keys(back), [7, 6, 5]);
    assert!(store.read_rows(page(vec![8], vec![8], 3, false)).await.unwrap().rows.is_empty());
}

pub async fn one_append_of_many_racing_ones_wins(store: &dyn Store) {
    open(store, 1, statics(1, 0)).await;
    let race = futures::future::join_all((0..32).map(|_| append(store, 1, 1, 0, 2))).await;
    assert_eq!(race.iter().filter(|applied| **applied).count(), 1);
    assert_eq!(numbers(store, 1, 0, 100).await, [1, 2]);
}

pub async fn bad_requests_are_refused_and_change_nothing(store: &dyn Store) {
    let invalid = |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::Invalid(_))), "{result:?}");
    invalid(store.read_head("").await.map(drop));
    invalid(store.read_head(&"x".repeat(65)).await.map(drop));
    invalid(store.read_head("é").await.map(drop));
    invalid(store.list_heads(ListHeadsRequest::default()).await.map(drop));
    open(store, 1, statics(1, 0)).await;
    let mut holes = append_of(1, 1, 0, 3);
    holes.entries.remove(1);
    invalid(store.append(holes).await.map(drop));
    invalid(store.append(AppendRequest { entries: Vec::new(), ..append_of(1, 1, 0, 1) }).await.map(drop));
    assert_eq!(read_statics(store, 1).await, Some(statics(1, 0)));
    // A write is all or nothing, also when its last mutation is bad.
    let mutations = vec![put(b"k", "v", "x"), RowMutation { clustering: vec![0; 2000], ..put(b"k", "v", "x") }];
    invalid(store.write(WriteRequest { timestamp_us: 5, mutations, ttl_seconds: 0 }).await);
    invalid(store.write(WriteRequest { timestamp_us: 0, mutations: vec![put(b"k", "v", "x")], ttl_seconds: 0 }).await);
    assert_eq!(rows(store, all()).await, Vec::<String>::new());
}
