//! Reads of message pages at a real data service, over gRPC on loopback, beside the embedded engine in the same process: many identical
//! ones at once beside as many that differ only in a bound (the ablation: nothing can be shared), what both do to readers of other
//! channels, and a page by the number of ten-day buckets it crosses. Queries are counted where they reach the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use async_trait::async_trait;
use cell_data::domain::tables::{CHANNEL_GUILD, MESSAGES, channel_guild_partition, id_key, message_partition};
use cell_data::driver::{DataServer, DataServerConfig, Stores};
use cell_data::machine::Limits;
use cell_proto::directory::{Member, Role};
use cell_proto::snowflake::{first_of_ms, message_bucket};
use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    CellWrite, CreateHeadsRequest, Head, Message, MessagePageQuery, QueryRequest, RowMutation, WriteRequest,
};
use cell_runtime::{CancellationToken, Directory, DirectoryConfig, View, unix_ms};
use cell_store::{EmbeddedConfig, EmbeddedStore, Reply, Request, Store, StoreError};
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;

use crate::fleet::GUILD;
use crate::measure;

const PAGE: usize = 48;
const BUCKET_MS: i64 = 10 * 24 * 3600 * 1000;
/// Readers of the hot channel while others are read, and how long each waits between two reads: what they offer is the same whether the
/// reads are shared or not.
const HOT: usize = 512;
const THINKS: Duration = Duration::from_millis(250);
/// How long the store takes for each query when all readers are to meet in one: longer than their requests take to arrive.
const SLOW_MS: u64 = 3000;
/// Reads before those that are timed.
const WARM_UP: usize = 20;
const STREAMS: u32 = 100_000;

type Client = DataServiceClient<Channel>;

/// The engine, which can be made slow, and how many queries reached it.
struct Counted {
    engine: EmbeddedStore,
    slow_ms: AtomicU64,
    queries: AtomicU64,
}

#[async_trait]
impl Store for Counted {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        // Every query of a page begins with one such read.
        if matches!(&request, Request::ReadRows(read) if read.table == CHANNEL_GUILD) {
            self.queries.fetch_add(1, Ordering::Relaxed);
            let slow_ms = self.slow_ms.load(Ordering::Relaxed);
            if slow_ms > 0 {
                tokio::time::sleep(Duration::from_millis(slow_ms)).await;
            }
        }
        self.engine.call(request).await
    }
}

struct World {
    store: Arc<Counted>,
    client: Client,
    /// The hot channel's readers have a connection of their own.
    crowded: Client,
    newest: i64,
    at_once: u64,
    timed: usize,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Ids of channels of the guild's bucket.
fn channels(count: usize) -> Vec<i64> {
    (5_000_000..).filter(|id| bucket_of(*id) == bucket_of(GUILD)).take(count).collect()
}

fn mutation(table: &str, partition: Vec<u8>, clustering: Vec<u8>, column: &str, value: Vec<u8>) -> RowMutation {
    let cells = vec![CellWrite { column: column.into(), value }];
    RowMutation { table: table.into(), partition, clustering, cells, ..RowMutation::default() }
}

fn directory(address: &str) -> Directory {
    let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/bench/".into(), state_dir: None };
    let mut view = View::default();
    view.set_member(Member {
        id: "a-data-0".into(),
        role: Role::Data,
        cell: "a".into(),
        storage_cell: "main".into(),
        incarnation: 1,
        grpc_address: address.into(),
        http_address: None,
        admin_address: "127.0.0.1:1".into(),
        draining: false,
    });
    Directory::with_view(config, view)
}

impl World {
    async fn new(at_once: u64, timed: usize) -> anyhow::Result<Self> {
        let (folder, stop) = (tempfile::tempdir()?, CancellationToken::new());
        let config =
            EmbeddedConfig { data_dir: folder.path().join("store"), storage_cell: "main".into(), reserve_bytes: 0 };
        let engine = EmbeddedStore::open(config)?;
        let store = Arc::new(Counted { engine, slow_ms: AtomicU64::new(0), queries: AtomicU64::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let limits = Limits::default();
        let config =
            DataServerConfig { cell: "a".into(), member_id: "a-data-0".into(), address: address.clone(), limits };
        let (stores, token) = (Stores::single(store.clone()), stop.clone());
        let server = DataServer::with_stores(config, stores, directory(&address), &mut Registry::default(), token);
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(Some(STREAMS))
            .add_service(server.into_service())
            .serve_with_incoming_shutdown(
                TcpIncoming::from(listener).with_nodelay(Some(true)),
                stop.clone().cancelled_owned(),
            );
        tokio::spawn(served);
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
        let mut client = Client::new(endpoint.connect().await?);
        let crowded = Client::new(endpoint.connect().await?);
        let head = Head { log: Unit::bucket(GUILD).log(), cell: "a".into(), ..Head::default() };
        let made = client.create_heads(CreateHeadsRequest { heads: vec![head] }).await?.into_inner();
        if let Some(refusal) = made.refusal {
            bail!("the head was not made: {refusal:?}");
        }
        let newest = first_of_ms(unix_ms() - 60_000);
        Ok(Self { store, client, crowded, newest, at_once, timed, stop, _folder: folder })
    }

    /// A channel whose newest page lies in so many buckets.
    async fn fill(&self, channel_id: i64, buckets: usize) -> anyhow::Result<()> {
        let guild = GUILD.to_be_bytes().to_vec();
        let at = channel_guild_partition(channel_id);
        let mut mutations = vec![mutation(CHANNEL_GUILD, at, id_key(channel_id), "guild", guild)];
        for number in 0..PAGE {
            let back = i64::try_from(number * buckets / PAGE)?;
            let id = self.newest - span_of_ids(back * BUCKET_MS) - i64::try_from(number)?;
            let message = Message { id, channel_id, guild_id: GUILD, content: "m".repeat(80), ..Message::default() };
            let partition = message_partition(channel_id, message_bucket(id));
            mutations.push(mutation(MESSAGES, partition, id_key(id), "body", message.encode_to_vec()));
        }
        for row in mutations {
            let request = WriteRequest { timestamp_us: unix_ms() * 1000, mutations: vec![row], ttl_seconds: 0 };
            self.store.write(request).await?;
        }
        Ok(())
    }

    /// Whether a page came whole; a refusal is no error here.
    async fn page(&self, client: &Client, channel_id: i64, before: i64) -> anyhow::Result<bool> {
        let page = MessagePageQuery { channel_id, before, limit: i32::try_from(PAGE)?, ..MessagePageQuery::default() };
        let request = QueryRequest {
            log: Unit::bucket(GUILD).log(),
            query: Some(Query::MessagePage(page)),
            ..QueryRequest::default()
        };
        match client.clone().query(request).await?.into_inner().answer {
            Some(Answer::MessagePage(page)) if page.messages.len() == PAGE => Ok(true),
            Some(Answer::Refusal(_)) => Ok(false),
            other => bail!("a page was answered {other:?}"),
        }
    }

    /// Many reads of one channel at once; `differ`: no two alike.
    async fn crowd(&self, channel_id: i64, differ: bool, slow_ms: u64) -> anyhow::Result<Crowd> {
        self.store.slow_ms.store(slow_ms, Ordering::Relaxed);
        let (before, began) = (self.store.queries.load(Ordering::Relaxed), Instant::now());
        let all = (0..self.at_once).map(|number| self.page(&self.crowded, channel_id, self.bound(number, differ)));
        let answers = futures::future::join_all(all).await;
        let took = began.elapsed();
        self.store.slow_ms.store(0, Ordering::Relaxed);
        let mut refused = 0;
        for answer in answers {
            refused += u64::from(!answer?);
        }
        Ok(Crowd { queries: self.store.queries.load(Ordering::Relaxed) - before, refused, took })
    }

    /// The same page for all, or asked for in a way that nobody else asks.
    fn bound(&self, number: u64, differ: bool) -> i64 {
        if differ { self.newest + 1 + i64::try_from(number).unwrap_or(0) } else { 0 }
    }

    /// Reads of others, one after the other, while the hot channel is read by many.
    async fn cold(&self, hot: Option<(i64, bool)>, cold: &[i64]) -> anyhow::Result<Vec<Duration>> {
        let heat = async {
            let Some((channel_id, differ)) = hot else { return std::future::pending().await };
            let reader = |reader: u64| async move {
                for round in 0_u64.. {
                    let number = round * HOT as u64 + reader;
                    // Refused or not: it comes again.
                    drop(self.page(&self.crowded, channel_id, self.bound(number % 1_000_000, differ)).await);
                    tokio::time::sleep(THINKS).await;
                }
            };
            futures::future::join_all((0..HOT as u64).map(reader)).await;
        };
        let read = async {
            let mut took = Vec::new();
            for number in 0..self.timed {
                let began = Instant::now();
                if !self.page(&self.client, cold[number % cold.len()], 0).await? {
                    bail!("a read of a cold channel was refused");
                }
                took.push(began.elapsed());
            }
            anyhow::Ok(took)
        };
        tokio::select! {
            () = heat => bail!("the hot reads ended"),
            took = read => took,
        }
    }
}

/// How many reads at once came out.
struct Crowd {
    queries: u64,
    refused: u64,
    took: Duration,
}

impl Crowd {
    fn words(&self) -> String {
        format!("{}, {} refused, {:.2} s", self.queries, self.refused, self.took.as_secs_f64())
    }
}

/// So long as a difference of ids.
fn span_of_ids(ms: i64) -> i64 {
    ms << 22
}

fn quantiles(took: &[Duration]) -> String {
    let millis = |percent| measure::quantile(took, percent).as_secs_f64() * 1e3;
    format!("{:.1}/{:.1} ms", millis(50), millis(99))
}

/// Many at once: all while one query is under way, and as fast as the engine answers.
async fn crowds(world: &World, hot: i64) -> anyhow::Result<()> {
    let differing = world.crowd(hot, true, 0).await?;
    for (how, slow_ms) in [("while one query is under way", SLOW_MS), ("as fast as the engine", 0)] {
        let alike = world.crowd(hot, false, slow_ms).await?;
        measure::row(
            &format!("reads, {} alike at once, {how}: queries", world.at_once),
            &alike.words(),
            &format!("{} (none alike)", differing.words()),
            differing.queries as f64 / alike.queries.max(1) as f64,
        );
    }
    Ok(())
}

async fn beside(world: &World, hot: i64, cold: &[i64]) -> anyhow::Result<()> {
    let quiet = world.cold(None, cold).await?;
    for (name, differ) in [("alike", false), ("none alike", true)] {
        let beside = world.cold(Some((hot, differ)), cold).await?;
        let ratio = measure::quantile(&beside, 99).as_secs_f64() / measure::quantile(&quiet, 99).as_secs_f64();
        let name = format!("reads, cold channels beside {HOT} hot ({name}), p50/p99");
        measure::row(&name, &quantiles(&beside), &format!("{} (alone)", quantiles(&quiet)), ratio);
    }
    Ok(())
}

async fn by_buckets(world: &World, channels: &[(i64, usize)]) -> anyhow::Result<()> {
    let mut one = Duration::ZERO;
    for (channel_id, buckets) in channels {
        let mut took = Vec::new();
        for _ in 0..WARM_UP {
            world.page(&world.client, *channel_id, 0).await?;
        }
        for _ in 0..world.timed {
            let began = Instant::now();
            if !world.page(&world.client, *channel_id, 0).await? {
                bail!("a page was refused");
            }
            took.push(began.elapsed());
        }
        let median = measure::quantile(&took, 50);
        if *buckets == 1 {
            one = median;
        }
        let peer = format!("{:.1} ms (1 bucket)", one.as_secs_f64() * 1e3);
        let ratio = median.as_secs_f64() / one.as_secs_f64();
        let name = format!("reads, a page of {PAGE} over {buckets} buckets, p50/p99");
        measure::row(&name, &quantiles(&took), &peer, ratio);
    }
    Ok(())
}

/// `at_once`: reads of one channel at the same time. `timed`: reads of each other kind, one after the other.
pub async fn run(at_once: u64, timed: usize) -> anyhow::Result<()> {
    let world = World::new(at_once, timed).await?;
    let spans = [1, 2, 4, 8, 16];
    let ids = channels(spans.len() + 1 + 16);
    let (paged, rest) = ids.split_at(spans.len());
    let paged: Vec<(i64, usize)> = paged.iter().copied().zip(spans).collect();
    let (hot, cold) = (rest[0], &rest[1..]);
    for (channel_id, buckets) in &paged {
        world.fill(*channel_id, *buckets).await?;
    }
    for channel_id in rest {
        world.fill(*channel_id, 1).await?;
    }
    crowds(&world, hot).await?;
    beside(&world, hot, cold).await?;
    by_buckets(&world, &paged).await
}
