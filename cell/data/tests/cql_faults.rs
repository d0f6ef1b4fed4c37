//! Three real nodes, of which one and then two are killed: what was acknowledged stays, and what cannot be done is said to be so. Without
//! `CELL_CQL_NODES` (address=folder for each node, as tests/real/cassandra.py sets it) nothing is run, and a line says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cell_data::cql::{CqlStore, Settings, connect, migrations};
use cell_proto::v1::{
    AppendRequest, CellWrite, OpenSegmentRequest, ReadRowsRequest, ReadSegmentRequest, RowMutation, Statics,
    StoredEntry, WriteRequest,
};
use cell_store::schema::Schema;
use cell_store::{Store, StoreError};

const LOGS: usize = 3;

struct Node {
    address: String,
    folder: String,
}

fn nodes() -> Option<Vec<Node>> {
    let Some(text) = std::env::var("CELL_CQL_NODES").ok().filter(|text| !text.is_empty()) else {
        println!("skipped: CELL_CQL_NODES is not set; tests/real/cassandra.py sets it");
        return None;
    };
    let node = |part: &str| {
        let (address, folder) = part.split_once('=').unwrap();
        Node { address: address.into(), folder: folder.into() }
    };
    Some(text.split(',').map(node).collect())
}

fn runner(arguments: &[&str]) {
    let runner = std::env::var("CELL_CQL_RUNNER").unwrap();
    assert!(Command::new(runner).args(arguments).status().unwrap().success(), "{arguments:?}");
}

/// Appends of one log, each settled: what was acknowledged, what could not be done.
struct Writer {
    store: Arc<CqlStore>,
    log: String,
    acknowledged: Vec<u64>,
    refused: usize,
}

impl Writer {
    async fn last(&self) -> Result<(u64, Vec<StoredEntry>), StoreError> {
        let mut entries = Vec::new();
        loop {
            let from = entries.last().map_or(0, |entry: &StoredEntry| entry.number + 1);
            let request = ReadSegmentRequest { log: self.log.clone(), segment: 1, from, limit: 1000, bodies_from: 0 };
            let reply = self.store.read_segment(request).await?;
            let last = reply.statics.unwrap().last;
            entries.extend(reply.entries);
            if entries.len() as u64 >= last {
                return Ok((last, entries));
            }
        }
    }

    /// One entry, until it is known to be there; false when even its settling failed for as long as a caller would wait.
    async fn append(&mut self, operation: u64) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        let id = operation.to_be_bytes().to_vec();
        while Instant::now() < deadline {
            let Ok((last, entries)) = self.last().await else { continue };
            if entries.iter().any(|entry| entry.operation_id == id) {
                self.acknowledged.push(operation);
                return true;
            }
            let entry = StoredEntry { number: last + 1, timestamp_us: 1, operation_id: id.clone(), body: vec![7; 200] };
            let request = AppendRequest {
                log: self.log.clone(),
                segment: 1,
                term: 1,
                last,
                entries: vec![entry],
                last_timestamp_us: 1,
                last_snowflake: 1,
            };
            match self.store.append(request).await {
                Ok(reply) if reply.applied => {
                    self.acknowledged.push(operation);
                    return true;
                }
                // Refused or unknown: the next turn settles it.
                Ok(_) => {}
                Err(StoreError::UnknownOutcome(_) | StoreError::Unavailable(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        self.refused += 1;
        false
    }
}

fn user(id: u64) -> RowMutation {
    RowMutation {
        table: "users".into(),
        partition: id.to_be_bytes().to_vec(),
        cells: vec![CellWrite { column: "body".into(), value: id.to_be_bytes().to_vec() }],
        ..RowMutation::default()
    }
}

/// Plain writes and reads all along; counts those that failed.
async fn plain(store: Arc<CqlStore>, stop: Arc<AtomicBool>, failed: Arc<AtomicUsize>) -> Vec<u64> {
    let mut written = Vec::new();
    let mut id = 0;
    while !stop.load(Ordering::Acquire) {
        id += 1;
        match store.write(WriteRequest { timestamp_us: 5, mutations: vec![user(id)], ttl_seconds: 0 }).await {
            Ok(()) => written.push(id),
            Err(_) => drop(failed.fetch_add(1, Ordering::AcqRel)),
        }
        if read(&store, id.saturating_sub(1).max(1)).await.is_err() {
            failed.fetch_add(1, Ordering::AcqRel);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    written
}

async fn read(store: &CqlStore, id: u64) -> Result<usize, StoreError> {
    let partition = id.to_be_bytes().to_vec();
    let request = ReadRowsRequest { table: "users".into(), partition, limit: 10, ..ReadRowsRequest::default() };
    Ok(store.read_rows(request).await?.rows.len())
}

async fn phase(writers: &mut [Writer], from: u64, count: u64) {
    let each = writers.iter_mut().map(|writer| async move {
        for operation in from..from + count {
            writer.append(operation).await;
        }
    });
    futures::future::join_all(each).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_killed_node_is_not_noticed_and_two_lose_nothing_acknowledged() {
    let Some(nodes) = nodes() else { return };
    let points: Vec<_> = nodes.iter().map(|node| format!("{}:9042", node.address)).collect();
    let file = serde_json::json!({
        "name": "three", "engine": "cassandra", "contactPoints": points, "keyspace": "cellplane_faults",
        "replication": {"class": "SimpleStrategy", "replication_factor": 3},
    });
    let settings = Settings::parse("three", &file.to_string()).unwrap();
    let admin = connect(settings.clone()).await.unwrap();
    migrations::ensure(&admin, Schema::platform()).await.unwrap();
    let store = Arc::new(CqlStore::open(settings).await.unwrap());
    let mut writers = Vec::new();
    for number in 0..LOGS {
        let log = format!("b{number}");
        let statics = Statics { term: 1, ..Statics::default() };
        let open = OpenSegmentRequest { log: log.clone(), segment: 1, statics: Some(statics) };
        store.open_segment(open).await.unwrap();
        writers.push(Writer { store: store.clone(), log, acknowledged: Vec::new(), refused: 0 });
    }
    let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writing = tokio::spawn(plain(store.clone(), stop.clone(), failed.clone()));
    phase(&mut writers, 0, 20).await;

    runner(&["stop", &nodes[2].folder, "kill"]);
    phase(&mut writers, 20, 40).await;
    assert_eq!(failed.load(Ordering::Acquire), 0, "plain reads and writes failed with one of three nodes killed");
    for writer in &writers {
        assert_eq!((writer.acknowledged.len(), writer.refused), (60, 0), "{}", writer.log);
    }

    runner(&["stop", &nodes[1].folder, "kill"]);
    stop.store(true, Ordering::Release);
    let written = writing.await.unwrap();
    let error = store.read_head("b0").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let write = WriteRequest { timestamp_us: 6, mutations: vec![user(1)], ttl_seconds: 0 };
    assert!(store.write(write).await.unwrap_err().may_have_happened());
    // Appends that cannot be settled now: they may turn up later, and nothing may be lost by that.
    let pending = AppendRequest {
        log: "b0".into(),
        segment: 1,
        term: 1,
        last: 60,
        entries: vec![StoredEntry { number: 61, timestamp_us: 1, operation_id: vec![9; 8], body: vec![1] }],
        last_timestamp_us: 1,
        last_snowflake: 1,
    };
    let error = store.append(pending).await.unwrap_err();
    println!("an append with two of three nodes killed: {error}");

    let cluster = std::env::var("CELL_CQL_CLUSTER").unwrap();
    for node in &nodes[1..] {
        runner(&["start", &node.address, &node.folder, &nodes[0].address, &cluster]);
    }
    let deadline = Instant::now() + Duration::from_secs(120);
    while store.read_head("b0").await.is_err() {
        assert!(Instant::now() < deadline, "the store did not come back");
    }
    phase(&mut writers, 100, 10).await;
    for writer in &writers {
        let (last, entries) = writer.last().await.unwrap();
        assert!(entries.iter().map(|entry| entry.number).eq(1..=last), "{}: holes", writer.log);
        for operation in &writer.acknowledged {
            let id = operation.to_be_bytes();
            let times = entries.iter().filter(|entry| entry.operation_id == id).count();
            assert_eq!(times, 1, "{}: acknowledged operation {operation} is there {times} times", writer.log);
        }
        assert_eq!((writer.acknowledged.len(), writer.refused), (70, 0), "{}", writer.log);
    }
    for id in written {
        assert_eq!(read(&store, id).await.unwrap(), 1, "acknowledged row {id}");
    }
}
