//! Promises about typed keys and scans by token.

use std::collections::BTreeSet;

use cell_proto::v1::{
    CellWrite, ReadRowsRequest, RowMutation, ScanRowsReply, ScanRowsRequest, ScannedRow, WriteRequest,
};
use cell_runtime::unix_ms;
use cell_store::schema::Schema;
use cell_store::{Store, StoreError};

fn cell(column: &str, value: &[u8]) -> CellWrite {
    CellWrite { column: column.into(), value: value.into() }
}

fn row(table: &str, partition: &[u8], clustering: &[u8], column: &str) -> RowMutation {
    RowMutation {
        table: table.into(),
        partition: partition.into(),
        clustering: clustering.into(),
        cells: vec![cell(column, b"x")],
        ..RowMutation::default()
    }
}

fn id(value: i64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn message(channel: i64, bucket: i64, message: i64) -> RowMutation {
    row("messages", &[id(channel), id(bucket)].concat(), &id(message), "body")
}

async fn put_all(store: &dyn Store, timestamp_us: i64, mutations: Vec<RowMutation>) {
    for chunk in mutations.chunks(100) {
        store.write(WriteRequest { timestamp_us, mutations: chunk.to_vec(), ttl_seconds: 0 }).await.unwrap();
    }
}

async fn read(store: &dyn Store, table: &str, partition: &[u8], start: &[u8], end: &[u8]) -> Vec<Vec<u8>> {
    let request = ReadRowsRequest {
        table: table.into(),
        partition: partition.into(),
        start: start.into(),
        end: end.into(),
        limit: 1000,
        reverse: false,
    };
    store.read_rows(request).await.unwrap().rows.into_iter().map(|row| row.clustering).collect()
}

pub async fn keys_of_the_platforms_tables_come_back_as_they_were(store: &dyn Store) {
    let rows = vec![
        message(7, 3, 100),
        row("guild_objects", &id(1), &[&b"m"[..], &id(5)].concat(), "body"),
        row("guild_objects", &id(1), b"iabc", "uses"),
        row("users", &id(9), b"", "body"),
        row("user_guilds", &id(9), &id(1), "since"),
        row("read_states", &id(9), &id(7), "last"),
        row("channel_guild", &4095_u16.to_be_bytes(), &id(7), "guild"),
    ];
    put_all(store, 10, rows.clone()).await;
    for expected in &rows {
        let found = read(store, &expected.table, &expected.partition, &[], &[]).await;
        assert!(found.contains(&expected.clustering), "{}: {found:?}", expected.table);
        let scanned = scan_all(store, &expected.table, 10).await;
        assert!(scanned.iter().any(|found| key(found) == (expected.partition.clone(), expected.clustering.clone())));
    }
}

pub async fn bounds_that_are_no_whole_keys_hold_all_the_same(store: &dyn Store) {
    let object = |kind: u8, rest: &[u8]| [&[kind][..], rest].concat();
    let keys = [object(b'c', &id(1)), object(b'g', &id(0)), object(b'i', b"aa"), object(b's', &id(0))];
    put_all(store, 10, keys.iter().map(|key| row("guild_objects", &id(1), key, "body")).collect()).await;
    assert_eq!(read(store, "guild_objects", &id(1), b"g", b"s").await, keys[1..3]);
    assert_eq!(read(store, "guild_objects", &id(1), b"iaa\0", &[]).await, keys[3..]);
    assert_eq!(read(store, "guild_objects", &id(1), &[], b"iaa").await, keys[..2]);
    assert!(read(store, "guild_objects", &id(1), &[0xff], &[]).await.is_empty());
    // What deletes a guild: everything below one kind.
    let range =
        RowMutation { cells: Vec::new(), range_end: b"s".to_vec(), ..row("guild_objects", &id(1), b"c", "body") };
    put_all(store, 20, vec![range]).await;
    assert_eq!(read(store, "guild_objects", &id(1), &[], &[]).await, keys[3..]);
    put_all(store, 10, (1..=5).map(|number| message(7, 0, number)).collect()).await;
    let channel = [id(7), id(0)].concat();
    let ids = |numbers: std::ops::RangeInclusive<i64>| numbers.map(id).collect::<Vec<_>>();
    let after_two = [id(2), vec![0]].concat();
    assert_eq!(read(store, "messages", &channel, &after_two, &id(5)).await, ids(3..=4));
    assert_eq!(read(store, "messages", &channel, &id(3)[..4], &after_two).await, ids(1..=2));
    assert_eq!(read(store, "messages", &channel, &[], &[0xff; 8]).await, ids(1..=5));
}

fn key(row: &ScannedRow) -> (Vec<u8>, Vec<u8>) {
    (row.partition.clone(), row.row.as_ref().unwrap().clustering.clone())
}

fn range(table: &str, first_token: i64, last_token: i64, limit: i32) -> ScanRowsRequest {
    ScanRowsRequest { table: table.into(), first_token, last_token, after: Vec::new(), limit }
}

async fn scan_range(store: &dyn Store, mut request: ScanRowsRequest) -> Vec<ScannedRow> {
    let mut rows = Vec::new();
    loop {
        let ScanRowsReply { rows: page, next, .. } = store.scan_rows(request.clone()).await.unwrap();
        assert!(page.len() <= usize::try_from(request.limit).unwrap());
        rows.extend(page);
        if next.is_empty() {
            return rows;
        }
        assert_ne!(next, request.after, "a scan that does not move");
        request.after = next;
    }
}

async fn scan_all(store: &dyn Store, table: &str, limit: i32) -> Vec<ScannedRow> {
    scan_range(store, range(table, i64::MIN, i64::MAX, limit)).await
}

pub async fn a_scan_gives_every_row_once_in_token_order(store: &dyn Store) {
    let mutations: Vec<_> =
        (1..=60).flat_map(|channel| (1..=5).map(move |n| message(channel, channel % 3, n))).collect();
    put_all(store, 10, mutations.clone()).await;
    for limit in [1000, 7] {
        let rows = scan_all(store, "messages", limit).await;
        assert_eq!(rows.len(), 300);
        assert!(rows.windows(2).all(|pair| pair[0].token <= pair[1].token));
        let keys: BTreeSet<_> = rows.iter().map(key).collect();
        assert_eq!(keys.len(), 300);
        for row in &rows {
            assert_eq!(row.token, Schema::platform().token("messages", &row.partition).unwrap());
        }
        // Within a partition as the table lies: messages from new to old.
        for pair in rows.windows(2).filter(|pair| pair[0].partition == pair[1].partition) {
            assert!(key(&pair[0]).1 > key(&pair[1]).1);
        }
    }
    assert!(scan_all(store, "users", 10).await.is_empty());
}

pub async fn a_scan_goes_on_where_it_stopped_inside_a_partition(store: &dyn Store) {
    let members = (1..=50).map(|user| row("guild_objects", &id(1), &[&b"m"[..], &id(user)].concat(), "body"));
    let messages = (1..=50).map(|number| message(1, 1, number));
    put_all(store, 10, members.chain(messages).collect()).await;
    let ascending: Vec<_> = scan_all(store, "guild_objects", 3).await.iter().map(|row| key(row).1).collect();
    assert_eq!(ascending.len(), 50);
    assert!(ascending.is_sorted());
    let descending: Vec<_> = scan_all(store, "messages", 3).await.iter().map(|row| key(row).1).collect();
    assert_eq!(descending, (1..=50).rev().map(id).collect::<Vec<_>>());
}

pub async fn a_scan_of_a_range_gives_that_range_only(store: &dyn Store) {
    put_all(store, 10, (1..=40).map(|user| row("users", &id(user), b"", "body")).collect()).await;
    let all = scan_all(store, "users", 100).await;
    assert_eq!(all.len(), 40);
    let (first, last) = (all[10].token, all[20].token);
    let middle = scan_range(store, range("users", first, last, 4)).await;
    assert_eq!(middle, all[10..=20]);
    let below = scan_range(store, range("users", i64::MIN, first - 1, 100)).await;
    let above = scan_range(store, range("users", last + 1, i64::MAX, 100)).await;
    assert_eq!((below.len(), above.len()), (10, 19));
    assert_eq!(scan_range(store, range("users", first, first, 4)).await, all[10..=10]);
    assert!(scan_range(store, range("users", last, first, 4)).await.is_empty());
    assert!(scan_range(store, range("users", i64::MIN, i64::MIN, 4)).await.is_empty());
}

pub async fn a_scan_under_writes_gives_what_lived_throughout_once(store: &dyn Store) {
    let lasting: Vec<_> = (1..=30).flat_map(|channel| (0..10).map(move |n| message(channel, 0, n * 2 + 1))).collect();
    put_all(store, 10, lasting.clone()).await;
    let writing = async {
        for round in 0..20_i64 {
            let fresh = (1..=30).map(|channel| message(channel, 0, round * 2 + 2)).collect();
            put_all(store, 20 + round, fresh).await;
            let again = lasting.iter().take(50).cloned().collect();
            put_all(store, 20 + round, again).await;
        }
    };
    let scanning = async {
        for _ in 0..5 {
            let rows = scan_all(store, "messages", 11).await;
            let keys: Vec<_> = rows.iter().map(key).collect();
            let distinct: BTreeSet<_> = keys.iter().cloned().collect();
            assert_eq!(keys.len(), distinct.len(), "a row came twice");
            assert!(rows.windows(2).all(|pair| pair[0].token <= pair[1].token));
            for row in &lasting {
                assert!(distinct.contains(&(row.partition.clone(), row.clustering.clone())), "a row was left out");
            }
        }
    };
    futures::join!(writing, scanning);
}

pub async fn a_scan_shows_times_and_hides_what_is_dead(store: &dyn Store) {
    let now_us = unix_ms() * 1000;
    put_all(store, 10, (1..=4).map(|number| message(1, 0, number)).collect()).await;
    let mut edited = message(1, 0, 4);
    edited.cells = vec![cell("content", b"y")];
    put_all(store, 11, vec![edited]).await;
    let delete = RowMutation { cells: Vec::new(), delete_row: true, ..message(1, 0, 2) };
    let range = RowMutation { cells: Vec::new(), range_end: id(4), ..message(1, 0, 3) };
    put_all(store, 20, vec![delete, range]).await;
    let expiring =
        |number, timestamp_us| WriteRequest { timestamp_us, mutations: vec![message(1, 0, number)], ttl_seconds: 600 };
    store.write(expiring(5, now_us)).await.unwrap();
    store.write(expiring(6, now_us - 700 * 1_000_000)).await.unwrap();
    // A whole partition of dead rows.
    put_all(store, 10, (1..=20).map(|number| message(2, 0, number)).collect()).await;
    let gone = (1..=20).map(|number| RowMutation { cells: Vec::new(), delete_row: true, ..message(2, 0, number) });
    put_all(store, 30, gone.collect()).await;
    let rows = scan_all(store, "messages", 2).await;
    let shown: Vec<_> = rows.iter().map(|row| key(row).1).collect();
    assert_eq!(shown, [id(5), id(4), id(1)]);
    let cells = |index: usize| rows[index].row.as_ref().unwrap().cells.clone();
    assert!((500..=600).contains(&cells(0)[0].ttl_seconds) && cells(0)[0].timestamp_us == now_us, "{:?}", cells(0));
    let mut two: Vec<_> =
        cells(1).iter().map(|cell| (cell.column.clone(), cell.timestamp_us, cell.ttl_seconds)).collect();
    two.sort();
    assert_eq!(two, [("body".to_owned(), 10, 0), ("content".to_owned(), 11, 0)]);
}

pub async fn a_write_repeated_or_reordered_ends_the_same(store: &dyn Store) {
    let at = |timestamp_us, mutation: RowMutation| RowMutation { timestamp_us, ..mutation };
    let changed = |value: &[u8]| RowMutation { cells: vec![cell("body", value)], ..message(1, 0, 1) };
    let delete = RowMutation { cells: Vec::new(), delete_row: true, ..message(1, 0, 1) };
    let history = [at(10, changed(b"a")), at(20, delete), at(30, changed(b"b")), at(40, changed(b"c"))];
    let orders: [&[usize]; 3] = [&[3, 2, 1, 0], &[1, 3, 0, 2, 1, 0], &[0, 1, 2, 3, 1, 0]];
    for order in orders {
        // One request: each mutation has its own time.
        put_all(store, 1, order.iter().map(|index| history[*index].clone()).collect()).await;
        let rows = scan_all(store, "messages", 10).await;
        let cells = &rows[0].row.as_ref().unwrap().cells;
        assert_eq!((rows.len(), cells[0].value.as_slice(), cells[0].timestamp_us), (1, &b"c"[..], 40));
    }
}

pub async fn bad_scans_are_refused(store: &dyn Store) {
    for request in [range("", 0, 1, 1), range("users", 0, 1, 0), range("users", 0, 1, 10_001)] {
        let result = store.scan_rows(request).await;
        assert!(matches!(result, Err(StoreError::Invalid(_))), "{result:?}");
    }
    let short = row("users", b"short", b"", "body");
    let result = store.write(WriteRequest { timestamp_us: 5, mutations: vec![short], ttl_seconds: 0 }).await;
    assert!(matches!(result, Err(StoreError::Invalid(_))), "{result:?}");
}
