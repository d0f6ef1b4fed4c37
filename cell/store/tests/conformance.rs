//! One suite of the trait's promises, run against memory, the embedded engine, and the embedded engine behind gRPC.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::sync::Arc;

use cell_proto::v1::{
    AppendRequest, CasSegmentRequest, CellWrite, Head, ListHeadsRequest, OpenSegmentRequest, ReadRowsRequest,
    ReadSegmentRequest, RowMutation, Statics, StoredEntry, WriteRequest,
};
use cell_runtime::{Channels, unix_ms};
use cell_store::{EmbeddedConfig, EmbeddedStore, MemoryStore, RemoteStore, Store, StoreError, StoreServer};
use prometheus_client::registry::Registry;
use tokio_stream::wrappers::TcpListenerStream;

fn embedded(folder: &tempfile::TempDir) -> EmbeddedStore {
    let data_dir = folder.path().join("data");
    EmbeddedStore::open(EmbeddedConfig { data_dir, storage_cell: "main".into(), reserve_bytes: 0 }).unwrap()
}

async fn remote(store: Arc<dyn Store>) -> RemoteStore {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = StoreServer::new(store, &mut Registry::default()).into_service();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    RemoteStore::at(&address, Arc::new(Channels::default()))
}

/// Each promise as a test against each engine.
macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::MemoryStore::default()).await;
            })*
        }
        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                super::$name(&super::embedded(&folder)).await;
            })*
        }
        mod grpc {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let store = std::sync::Arc::new(super::embedded(&folder));
                super::$name(&super::remote(store).await).await;
            })*
        }
    };
}

suite! {
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
    cells_expire_by_their_write_time,
    rows_are_paged_both_ways,
    one_append_of_many_racing_ones_wins,
    bad_requests_are_refused_and_change_nothing,
}

fn head(log: &str, cell: &str, term: u64) -> Head {
    Head { log: log.into(), cell: cell.into(), term, ..Head::default() }
}

async fn a_head_is_changed_only_from_its_whole_row(store: &dyn Store) {
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

async fn heads_are_listed_in_pages_by_name_and_cell(store: &dyn Store) {
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

fn statics(term: u64, last: u64) -> Statics {
    Statics { term, last, ..Statics::default() }
}

async fn open(store: &dyn Store, segment: u64, statics: Statics) -> bool {
    let request = OpenSegmentRequest { log: "l".into(), segment, statics: Some(statics) };
    store.open_segment(request).await.unwrap().applied
}

fn append_of(segment: u64, term: u64, last: u64, count: u64) -> AppendRequest {
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

async fn append(store: &dyn Store, segment: u64, term: u64, last: u64, count: u64) -> bool {
    store.append(append_of(segment, term, last, count)).await.unwrap().applied
}

async fn numbers(store: &dyn Store, segment: u64, from: u64, limit: i32) -> Vec<u64> {
    let request = ReadSegmentRequest { log: "l".into(), segment, from, limit, bodies_from: 0 };
    store.read_segment(request).await.unwrap().entries.iter().map(|entry| entry.number).collect()
}

async fn read_statics(store: &dyn Store, segment: u64) -> Option<Statics> {
    let request = ReadSegmentRequest { log: "l".into(), segment, from: 0, limit: 0, bodies_from: 0 };
    store.read_segment(request).await.unwrap().statics
}

async fn a_segment_is_opened_once(store: &dyn Store) {
    assert!(open(store, 1, statics(1, 0)).await);
    let other = OpenSegmentRequest { log: "l".into(), segment: 1, statics: Some(statics(9, 4)) };
    let reply = store.open_segment(other).await.unwrap();
    assert_eq!((reply.applied, reply.statics), (false, Some(statics(1, 0))));
}

async fn an_append_needs_term_unsealed_and_last(store: &dyn Store) {
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

async fn a_seal_fails_when_anything_was_appended_in_between(store: &dyn Store) {
    assert!(!seal(store, 1, statics(1, 0), 2).await, "no such segment");
    open(store, 1, statics(1, 0)).await;
    let read = read_statics(store, 1).await.unwrap();
    append(store, 1, 1, 0, 1).await;
    assert!(!seal(store, 1, read, 2).await);
    let read = read_statics(store, 1).await.unwrap();
    assert!(seal(store, 1, read, 2).await);
    assert_eq!(read_statics(store, 1).await.unwrap(), Statics { term: 2, sealed: true, ..read });
}

async fn long_segments_are_read_in_pages(store: &dyn Store) {
    open(store, 1, statics(1, 0)).await;
    append(store, 1, 1, 0, 200).await;
    assert_eq!(numbers(store, 1, 0, 3).await, [1, 2, 3]);
    assert_eq!(numbers(store, 1, 199, 50).await, [199, 200]);
    assert_eq!(numbers(store, 1, 201, 50).await, Vec::<u64>::new());
    // Entries of 3 MiB: an answer stops early rather than outgrow a message.
    let mut large = append_of(1, 1, 200, 4);
    large.entries.iter_mut().for_each(|entry| entry.body = vec![1; 3 << 20]);
    assert!(store.append(large).await.unwrap().applied);
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

async fn a_dropped_segment_is_gone_whole(store: &dyn Store) {
    for segment in [1, 2] {
        open(store, segment, statics(1, 0)).await;
        append(store, segment, 1, 0, 20).await;
    }
    store.drop_segment("l", 1).await.unwrap();
    store.drop_segment("l", 1).await.unwrap();
    assert_eq!((read_statics(store, 1).await, numbers(store, 1, 0, 100).await.len()), (None, 0));
    assert_eq!(numbers(store, 2, 0, 100).await.len(), 20);
}

async fn cursors_only_rise(store: &dyn Store) {
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 0);
    assert_eq!(store.write_cursor("l", "applied", 7).await.unwrap(), 7);
    assert_eq!(store.write_cursor("l", "applied", 5).await.unwrap(), 7);
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 7);
    assert_eq!(store.read_cursor("l", "feed").await.unwrap(), 0);
}

fn put(clustering: &[u8], column: &str, value: &str) -> RowMutation {
    RowMutation {
        table: "t".into(),
        partition: b"p".to_vec(),
        clustering: clustering.to_vec(),
        cells: vec![CellWrite { column: column.into(), value: value.into() }],
        ..RowMutation::default()
    }
}

async fn write(store: &dyn Store, timestamp_us: i64, mutation: RowMutation) {
    store.write(WriteRequest { timestamp_us, mutations: vec![mutation], ttl_seconds: 0 }).await.unwrap();
}

fn all() -> ReadRowsRequest {
    ReadRowsRequest { table: "t".into(), partition: b"p".to_vec(), limit: 1000, ..ReadRowsRequest::default() }
}

/// Rows as `clustering.column=value@time`.
async fn rows(store: &dyn Store, request: ReadRowsRequest) -> Vec<String> {
    let reply = store.read_rows(request).await.unwrap();
    let cell = |clustering: &[u8], cell: &cell_proto::v1::CellRead| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}.{}={}@{}", text(clustering), cell.column, text(&cell.value), cell.timestamp_us)
    };
    reply.rows.iter().flat_map(|row| row.cells.iter().map(|c| cell(&row.clustering, c))).collect()
}

async fn the_last_write_wins_in_any_order(store: &dyn Store) {
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

async fn a_row_tombstone_hides_what_was_written_before_it(store: &dyn Store) {
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

async fn a_range_tombstone_hides_its_range_and_nothing_else(store: &dyn Store) {
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

async fn cells_expire_by_their_write_time(store: &dyn Store) {
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

async fn rows_are_paged_both_ways(store: &dyn Store) {
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

async fn one_append_of_many_racing_ones_wins(store: &dyn Store) {
    open(store, 1, statics(1, 0)).await;
    let race = futures::future::join_all((0..32).map(|_| append(store, 1, 1, 0, 2))).await;
    assert_eq!(race.iter().filter(|applied| **applied).count(), 1);
    assert_eq!(numbers(store, 1, 0, 100).await, [1, 2]);
}

async fn bad_requests_are_refused_and_change_nothing(store: &dyn Store) {
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

#[tokio::test]
async fn a_restart_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(&folder);
    store.cas_head(None, head("l", "a", 3)).await.unwrap();
    open(&store, 1, statics(1, 0)).await;
    append(&store, 1, 1, 0, 5).await;
    store.write_cursor("l", "applied", 4).await.unwrap();
    write(&store, 10, put(b"k", "v", "x")).await;
    store.close();
    let store = embedded(&folder);
    assert_eq!(store.read_head("l").await.unwrap().unwrap().term, 3);
    assert_eq!(numbers(&store, 1, 0, 100).await, [1, 2, 3, 4, 5]);
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 4);
    assert_eq!(rows(&store, all()).await, ["k.v=x@10"]);
    assert!(append(&store, 1, 1, 5, 1).await);
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let folder = tempfile::tempdir().unwrap();
    let _first = embedded(&folder);
    let config = EmbeddedConfig { data_dir: folder.path().join("data"), storage_cell: "main".into(), reserve_bytes: 0 };
    let error = EmbeddedStore::open(config).err().unwrap();
    assert!(error.to_string().contains("another process"), "{error}");
}

#[tokio::test]
async fn a_full_volume_refuses_writes_and_goes_on_reading() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(&folder);
    open(&store, 1, statics(1, 0)).await;
    append(&store, 1, 1, 0, 1).await;
    store.close();
    let data_dir = folder.path().join("data");
    let store =
        EmbeddedStore::open(EmbeddedConfig { data_dir, storage_cell: "main".into(), reserve_bytes: u64::MAX }).unwrap();
    let error = store.append(append_of(1, 1, 1, 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }) && !error.may_have_happened(), "{error:?}");
    assert!(error.to_string().contains("free space"), "{error}");
    assert_eq!(numbers(&store, 1, 0, 10).await, [1]);
    assert!(!store.is_broken());
    // What makes room is still done.
    store.drop_segment("l", 1).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_not_there_is_an_unknown_outcome_soon() {
    let store = RemoteStore::at("127.0.0.1:1", Arc::new(Channels::default()));
    assert!(store.read_head("b0001").await.unwrap_err().may_have_happened());
}

#[tokio::test]
async fn a_store_of_another_storage_cell_at_the_address_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let store: Arc<dyn Store> = Arc::new(embedded(&folder));
    let service = StoreServer::new(store.clone(), &mut Registry::default()).into_service();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    for (name, right) in [("main", true), ("other", false)] {
        let there = RemoteStore::expecting(name, &address, Arc::new(Channels::default()));
        let written = there.write_cursor("b0001", "applied", 7).await;
        assert_eq!(written.is_ok(), right, "{name}: {written:?}");
        assert!(right || matches!(written, Err(StoreError::Unavailable(_))));
    }
}
