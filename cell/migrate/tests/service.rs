//! A coordinator over real gRPC and workers over stores in memory: killed at random, nothing is skipped and what is redone is counted;
//! a verification finds what differs and a repair mends it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cell_migrate::desk::Desk;
use cell_migrate::ranges::{Control, Phase, State};
use cell_migrate::service::{Coordinator, CoordinatorConfig, Place, RemoteDesk, StoreTables, open_desk};
use cell_migrate::worker::Worker;
use cell_proto::v1::migrate_service_client::MigrateServiceClient;
use cell_proto::v1::{
    CellWrite, MigrateControlRequest, MigratePhase, Reason, RowMutation, ScanRowsRequest, WriteRequest,
};
use cell_runtime::{CancellationToken, Channels, DirectoryConfig};
use cell_store::schema::Schema;
use cell_store::{MemoryStore, Reply, Request, Store, StoreError};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::Server;

/// Answers late, so that something is in flight when a process is killed.
struct Slow(MemoryStore, Duration);

#[async_trait]
impl Store for Slow {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        tokio::time::sleep(self.1).await;
        self.0.call(request).await
    }
}

fn mutation(table: &str, partition: Vec<u8>, clustering: Vec<u8>, column: &str, timestamp_us: i64) -> RowMutation {
    let cells = vec![CellWrite { column: column.to_owned(), value: timestamp_us.to_be_bytes().to_vec() }];
    RowMutation { table: table.to_owned(), partition, clustering, cells, timestamp_us, ..RowMutation::default() }
}

fn message(channel: i64, id: i64, at: i64) -> RowMutation {
    mutation("messages", [channel.to_be_bytes(), 7_i64.to_be_bytes()].concat(), id.to_be_bytes().to_vec(), "body", at)
}

async fn write(store: &dyn Store, mutations: Vec<RowMutation>, ttl_seconds: u32) {
    store.write(WriteRequest { timestamp_us: 1, mutations, ttl_seconds }).await.unwrap();
}

async fn fill(store: &dyn Store) {
    for channel in 1..=120_i64 {
        let rows = (0..channel % 23).map(|id| message(channel, id, 1_000 + id)).collect();
        write(store, rows, if channel % 3 == 0 { 100_000 } else { 0 }).await;
        let edits = (0..channel % 5).map(|id| {
            let mut edit = message(channel, id, 9_000 + id);
            edit.cells[0].column = "content".to_owned();
            edit
        });
        write(store, edits.collect(), 0).await;
        let user = mutation("users", channel.to_be_bytes().to_vec(), vec![], "body", channel);
        let bucket = cell_proto::unit::bucket_of(channel).to_be_bytes().to_vec();
        let guild = mutation("channel_guild", bucket, channel.to_be_bytes().to_vec(), "guild", channel);
        write(store, vec![user, guild], 0).await;
    }
}

type Rows = BTreeMap<(String, Vec<u8>, Vec<u8>, String), (Vec<u8>, i64, bool)>;

async fn rows(store: &dyn Store) -> Rows {
    let mut all = Rows::new();
    for table in Schema::platform().tables() {
        let mut after = vec![];
        loop {
            let (first_token, last_token) = (i64::MIN, i64::MAX);
            let request = ScanRowsRequest { table: table.name.clone(), first_token, last_token, after, limit: 1000 };
            let reply = store.scan_rows(request).await.unwrap();
            for scanned in reply.rows {
                let row = scanned.row.unwrap();
                for cell in row.cells {
                    let key = (table.name.clone(), scanned.partition.clone(), row.clustering.clone(), cell.column);
                    all.insert(key, (cell.value, cell.timestamp_us, cell.ttl_seconds > 0));
                }
            }
            after = reply.next;
            if after.is_empty() {
                break;
            }
        }
    }
    all
}

struct Fleet {
    config: CoordinatorConfig,
    address: Arc<Mutex<Option<String>>>,
    channels: Arc<Channels>,
    tables: Arc<StoreTables>,
    /// In a runtime of its own: with it end its connections too, as at a kill.
    coordinator: Option<(Runtime, Desk)>,
    workers: Vec<JoinHandle<()>>,
    started: u32,
    _folder: tempfile::TempDir,
}

impl Fleet {
    fn new(source: Arc<dyn Store>, target: Arc<dyn Store>, units: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let place = Place {
            migration: "m".into(),
            run_id: "run-1".into(),
            member_id: "c".into(),
            address: local,
            listen_address: local,
            grpc_port: 0,
            admin_port: 0,
            directory: DirectoryConfig { endpoints: vec![], prefix: "/x/".into(), state_dir: None },
            plaintext: false,
        };
        let config = CoordinatorConfig {
            place,
            state_dir: folder.path().to_owned(),
            source: "a".into(),
            target: "b".into(),
            units: units.iter().map(|unit| (*unit).to_owned()).collect(),
        };
        let stores = move |name: &str| Ok(if name == "a" { source.clone() } else { target.clone() });
        Self {
            config,
            address: Arc::default(),
            channels: Arc::new(Channels::default()),
            tables: Arc::new(StoreTables { stores: Arc::new(stores) }),
            coordinator: None,
            workers: vec![],
            started: 0,
            _folder: folder,
        }
    }

    async fn start_coordinator(&mut self) {
        // The file is free only when the last answer of the one before has been given.
        let mut desk = None;
        for _ in 0..500 {
            desk = open_desk(&self.config).ok();
            if desk.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let desk = desk.expect("the ledger opens again");
        let service = Coordinator::new(desk.clone(), &self.config, CancellationToken::new()).into_service();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        *self.address.lock() = Some(listener.local_addr().unwrap().to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
        self.coordinator = Some((runtime, desk));
    }

    async fn kill_coordinator(&mut self) {
        *self.address.lock() = None;
        if let Some((runtime, desk)) = self.coordinator.take() {
            runtime.shutdown_background();
            drop(desk);
        }
    }

    fn start_worker(&mut self) {
        self.started += 1;
        let mut worker = Worker::named(format!("w{}", self.started));
        (worker.report_every, worker.ask_again) = (Duration::from_millis(50), Duration::from_millis(10));
        worker.settle = Duration::from_millis(10);
        let address = self.address.clone();
        let desk = Arc::new(RemoteDesk::new(move || address.lock().clone(), self.channels.clone(), "run-1"));
        let tables = self.tables.clone();
        self.workers
            .push(tokio::spawn(async move { worker.run(desk, tables, CancellationToken::new()).await.unwrap() }));
    }

    fn desk(&self) -> &Desk {
        &self.coordinator.as_ref().unwrap().1
    }

    async fn begin(&self, phase: Phase, round: u32) {
        let (source, target) = ("a".to_owned(), "b".to_owned());
        let control = Control { phase: Some(phase), round, source, target, ..Control::default() };
        self.desk().control(control).await.unwrap();
    }

    async fn finish(&self) -> State {
        for _ in 0..6_000 {
            let state = self.desk().state().await.unwrap();
            if state.ended {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it does not end: {:?}", self.desk().state().await.unwrap());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
        if let Some((runtime, _)) = self.coordinator.take() {
            runtime.shutdown_background();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinator_and_workers_killed_twenty_times_skip_nothing_and_count_what_was_redone() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (source, target) =
        (Arc::new(Slow(MemoryStore::default(), Duration::from_millis(4))), Arc::new(MemoryStore::default()));
    fill(&source.0).await;
    let mut fleet = Fleet::new(source.clone(), target.clone(), &[]);
    fleet.start_coordinator().await;
    for _ in 0..4 {
        fleet.start_worker();
    }
    fleet.begin(Phase::Backfill, 1).await;
    let (mut kills, mut coordinators) = (0, 0);
    while kills < 20 {
        tokio::time::sleep(Duration::from_millis(random.random_range(20..90))).await;
        if fleet.desk().state().await.unwrap().ended {
            // Too fast to be killed often enough: once more over the same data.
            let round = fleet.desk().state().await.unwrap().round + 1;
            fleet.begin(Phase::Backfill, round).await;
        }
        kills += 1;
        if random.random_bool(0.5) {
            coordinators += 1;
            fleet.kill_coordinator().await;
            fleet.start_coordinator().await;
        } else {
            fleet.workers.swap_remove(random.random_range(0..4)).abort();
            fleet.start_worker();
        }
    }
    assert!(coordinators > 0, "SEED={seed}");
    let state = fleet.finish().await;
    assert!(state.complete && state.ranges_failed == 0, "SEED={seed} {state:?}");
    assert_eq!(rows(&source.0).await, rows(&*target).await, "SEED={seed}");
    assert!(state.counts.redone > 0, "SEED={seed}: something was in flight at one of the kills");
    fleet.begin(Phase::Verify, state.round).await;
    let receipt = fleet.finish().await.receipt.unwrap();
    assert!(receipt.clean, "SEED={seed} {receipt:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verification_finds_what_differs_and_a_repair_mends_what_write_times_allow() {
    let (source, target) = (Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default()));
    fill(&*source).await;
    let mut fleet = Fleet::new(source.clone(), target.clone(), &[]);
    fleet.start_coordinator().await;
    fleet.start_worker();
    fleet.begin(Phase::Backfill, 1).await;
    assert!(fleet.finish().await.complete);
    // Missing, differing, extra; and one that a newer deletion hides in the target.
    write(&*source, vec![message(500, 1, 5), message(2, 0, 5_000)], 0).await;
    write(&*target, vec![message(501, 1, 5)], 0).await;
    write(&*source, vec![message(502, 1, 5)], 0).await;
    write(&*target, vec![RowMutation { delete_row: true, cells: vec![], timestamp_us: 8, ..message(502, 1, 8) }], 0)
        .await;
    fleet.begin(Phase::Verify, 1).await;
    let receipt = fleet.finish().await.receipt.unwrap();
    let expected = BTreeMap::from(
        [("missing", 2), ("extra", 1), ("differing", 1)].map(|(class, count)| (class.to_owned(), count)),
    );
    assert!(!receipt.clean);
    assert_eq!(receipt.mismatches, expected);
    fleet.begin(Phase::Repair, 1).await;
    let state = fleet.finish().await;
    assert_eq!((state.counts.repaired, state.counts.mismatches.get("tombstone")), (3, Some(&1)));
    fleet.begin(Phase::Verify, 2).await;
    let state = fleet.finish().await;
    let receipt = state.receipt.unwrap();
    assert_eq!(
        (receipt.clean, receipt.mismatches),
        (false, BTreeMap::from([("missing".to_owned(), 1)])),
        "what is hidden is not said to be there"
    );
    assert!(state.findings.iter().any(|finding| finding.message.contains("missing in the target")));
    write(&*source, vec![message(502, 1, 9)], 0).await;
    fleet.begin(Phase::Repair, 2).await;
    assert_eq!(fleet.finish().await.counts.repaired, 1);
    fleet.begin(Phase::Verify, 3).await;
    assert!(fleet.finish().await.receipt.unwrap().clean);
    assert_eq!(rows(&*source).await, rows(&*target).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_about_some_units_copies_their_rows_and_no_others() {
    let (source, target) = (Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default()));
    fill(&*source).await;
    let bucket = cell_proto::unit::bucket_of(22);
    let mut fleet = Fleet::new(source.clone(), target.clone(), &[format!("b{bucket:04}").as_str()]);
    fleet.start_coordinator().await;
    fleet.start_worker();
    fleet.begin(Phase::Backfill, 1).await;
    let state = fleet.finish().await;
    assert!(state.complete, "{state:?}");
    let in_scope = |(table, partition, _, _): &(String, Vec<u8>, Vec<u8>, String)| {
        cell_migrate::stream::store::bucket_of_partition(table, partition) == Some(bucket)
    };
    let expected: Rows = rows(&*source).await.into_iter().filter(|(key, _)| in_scope(key)).collect();
    assert!(expected.keys().any(|key| key.0 == "messages") && expected.keys().any(|key| key.0 == "channel_guild"));
    assert_eq!(rows(&*target).await, expected);
    fleet.begin(Phase::Verify, 1).await;
    assert!(fleet.finish().await.receipt.unwrap().clean, "rows of other units are no mismatch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_another_run_and_of_an_older_round_are_refused_with_the_reason() {
    let store = Arc::new(MemoryStore::default());
    let mut fleet = Fleet::new(store.clone(), store, &[]);
    fleet.start_coordinator().await;
    fleet.begin(Phase::Verify, 4).await;
    let address = fleet.address.lock().clone().unwrap();
    let mut client = MigrateServiceClient::new(fleet.channels.get(&address).unwrap());
    let mut ask = async |run_id: &str, round: u32, again: &[&str]| {
        let again = again.iter().map(|unit| (*unit).to_owned()).collect();
        let phase = MigratePhase::Backfill.into();
        let request = MigrateControlRequest {
            run_id: run_id.to_owned(),
            phase,
            round,
            again,
            ..MigrateControlRequest::default()
        };
        client.control(request).await.unwrap().into_inner().refusal.map(|refusal| refusal.reason())
    };
    assert_eq!(ask("another", 9, &[]).await, Some(Reason::OtherRun));
    assert_eq!(ask("run-1", 4, &[]).await, Some(Reason::StaleTerm));
    assert_eq!(ask("run-1", 9, &["g5"]).await, Some(Reason::Invalid));
    assert_eq!(ask("run-1", 9, &["b0005"]).await, None);
}
