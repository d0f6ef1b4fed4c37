//! Reads of message pages at a real data role: many identical ones at once beside as many that differ only in a bound (the ablation: nothing
//! can be shared), what both do to readers of other channels, and a page by the number of ten-day buckets it crosses.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cell_data::domain::tables::{CHANNEL_GUILD, MESSAGES, channel_guild_partition, id_key, message_partition};
use cell_proto::directory::Role;
use cell_proto::snowflake::{first_of_ms, message_bucket};
use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{CellWrite, Message, MessagePageQuery, QueryRequest, RowMutation, WriteRequest};
use cell_runtime::unix_ms;
use cell_store::{RemoteStore, Store};
use futures::StreamExt;
use prost::Message as _;
use tonic::transport::Channel;

use crate::fleet::{Fleet, GUILD};
use crate::measure;

const AT_ONCE: u64 = 20_000;
const PAGE: usize = 48;
const BUCKET_MS: i64 = 10 * 24 * 3600 * 1000;
const COLD_READS: usize = 300;
const PAGE_READS: usize = 300;
/// Reads of the hot channel in flight while others are read.
const HOT: usize = 512;

type Client = DataServiceClient<Channel>;

struct World {
    fleet: Fleet,
    client: Client,
    newest: i64,
}

/// Ids of channels of the guild's bucket.
fn channels(count: usize) -> Vec<i64> {
    (5_000_000..).filter(|id| bucket_of(*id) == bucket_of(GUILD)).take(count).collect()
}

fn mutation(table: &str, partition: Vec<u8>, clustering: Vec<u8>, column: &str, value: Vec<u8>) -> RowMutation {
    let cells = vec![CellWrite { column: column.into(), value }];
    RowMutation { table: table.into(), partition, clustering, cells, ..RowMutation::default() }
}

impl World {
    async fn new() -> anyhow::Result<Self> {
        let fleet = Fleet::start(&["a"]).await?;
        fleet.populate("a", 1).await?;
        let client = Client::new(fleet.channel(Role::Data, "a").await?);
        Ok(Self { fleet, client, newest: first_of_ms(unix_ms() - 60_000) })
    }

    /// A channel whose newest page lies in so many buckets.
    async fn fill(&self, store: &RemoteStore, channel_id: i64, buckets: usize) -> anyhow::Result<()> {
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
            store.write(WriteRequest { timestamp_us: unix_ms() * 1000, mutations: vec![row], ttl_seconds: 0 }).await?;
        }
        Ok(())
    }

    async fn queries(&self) -> anyhow::Result<u64> {
        let view = self.fleet.directory.view();
        let member = view.members_of(Role::Data, "a").next().context("no data role")?;
        let text = crate::process::get(&format!("http://{}/metrics", member.admin_address)).await?;
        let line = text.lines().find_map(|line| line.strip_prefix("data_queries_total "));
        line.context("no data_queries_total")?.trim().parse().context("data_queries_total")
    }

    /// Whether a page came whole; a refusal is no error here.
    async fn page(&self, channel_id: i64, before: i64) -> anyhow::Result<bool> {
        let page = MessagePageQuery { channel_id, before, limit: i32::try_from(PAGE)?, ..MessagePageQuery::default() };
        let request = QueryRequest {
            log: Unit::bucket(GUILD).log(),
            query: Some(Query::MessagePage(page)),
            ..QueryRequest::default()
        };
        match self.client.clone().query(request).await?.into_inner().answer {
            Some(Answer::MessagePage(page)) if page.messages.len() == PAGE => Ok(true),
            Some(Answer::Refusal(_)) => Ok(false),
            other => bail!("a page was answered {other:?}"),
        }
    }

    /// Many reads of one channel at once; `differ`: no two alike.
    async fn crowd(&self, channel_id: i64, differ: bool) -> anyhow::Result<(u64, u64, Duration)> {
        let (before, began) = (self.queries().await?, Instant::now());
        let all = (0..AT_ONCE).map(|number| self.page(channel_id, self.bound(number, differ)));
        let answers = futures::future::join_all(all).await;
        let took = began.elapsed();
        let mut refused = 0;
        for answer in answers {
            refused += u64::from(!answer?);
        }
        Ok((self.queries().await? - before, refused, took))
    }

    /// The same page for all, or asked for in a way that nobody else asks.
    fn bound(&self, number: u64, differ: bool) -> i64 {
        if differ { self.newest + 1 + i64::try_from(number).unwrap_or(0) } else { 0 }
    }

    /// Reads of others, one after the other, while the hot channel is read by many.
    async fn cold(&self, hot: Option<(i64, bool)>, cold: &[i64]) -> anyhow::Result<Vec<Duration>> {
        let heat = async {
            let Some((channel_id, differ)) = hot else { return std::future::pending().await };
            let reads = futures::stream::iter(0_u64..)
                .map(|number| self.page(channel_id, self.bound(number % 1_000_000, differ)))
                .buffer_unordered(HOT);
            futures::pin_mut!(reads);
            while reads.next().await.is_some() {}
        };
        let read = async {
            let mut took = Vec::new();
            for number in 0..COLD_READS {
                let began = Instant::now();
                if !self.page(cold[number % cold.len()], 0).await? {
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

/// So long as a difference of ids.
fn span_of_ids(ms: i64) -> i64 {
    ms << 22
}

fn quantiles(took: &[Duration]) -> String {
    let millis = |percent| measure::quantile(took, percent).as_secs_f64() * 1e3;
    format!("{:.1}/{:.1} ms", millis(50), millis(99))
}

pub async fn run() -> anyhow::Result<()> {
    let world = World::new().await?;
    let address = world.fleet.address(Role::Store, "main")?;
    let store = RemoteStore::at(&address, std::sync::Arc::default());
    let spans = [1, 2, 4, 8, 16];
    let ids = channels(spans.len() + 1 + 16);
    let (paged, rest) = ids.split_at(spans.len());
    let (hot, cold) = rest.split_at(1);
    for (channel_id, buckets) in paged.iter().zip(spans) {
        world.fill(&store, *channel_id, buckets).await?;
    }
    for channel_id in rest {
        world.fill(&store, *channel_id, 1).await?;
    }
    let (queries, refused, took) = world.crowd(hot[0], false).await?;
    let (differing, turned_away, longer) = world.crowd(hot[0], true).await?;
    measure::row(
        &format!("reads, {AT_ONCE} alike at once, queries of the store"),
        &format!("{queries}, {refused} refused, {:.2} s", took.as_secs_f64()),
        &format!("{differing}, {turned_away} refused, {:.2} s (none alike)", longer.as_secs_f64()),
        differing as f64 / queries.max(1) as f64,
    );
    let quiet = world.cold(None, cold).await?;
    for (name, differ) in [("alike", false), ("none alike", true)] {
        let beside = world.cold(Some((hot[0], differ)), cold).await?;
        let ratio = measure::quantile(&beside, 99).as_secs_f64() / measure::quantile(&quiet, 99).as_secs_f64();
        let name = format!("reads, cold channels beside {HOT} hot ({name}), p50/p99");
        measure::row(&name, &quantiles(&beside), &format!("{} (alone)", quantiles(&quiet)), ratio);
    }
    let mut one = Duration::ZERO;
    for (channel_id, buckets) in paged.iter().zip(spans) {
        let mut took = Vec::new();
        for _ in 0..PAGE_READS {
            let began = Instant::now();
            if !world.page(*channel_id, 0).await? {
                bail!("a page was refused");
            }
            took.push(began.elapsed());
        }
        let median = measure::quantile(&took, 50);
        if buckets == 1 {
            one = median;
        }
        let peer = format!("{:.1} ms (1 bucket)", one.as_secs_f64() * 1e3);
        let ratio = median.as_secs_f64() / one.as_secs_f64();
        measure::row(
            &format!("reads, a page of {PAGE} over {buckets} buckets, p50/p99"),
            &quantiles(&took),
            &peer,
            ratio,
        );
    }
    Ok(())
}
