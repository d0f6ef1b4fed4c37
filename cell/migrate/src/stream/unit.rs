//! The partitions of some units in a table of the platform, by name instead of by a scan: a unit's channels are in the catalogue
//! (`channel_guild`), a channel's messages in a partition for each ten days since it was made. So a small unit costs what it holds,
//! whatever else lies in the table. Which tables can be gone through so, the schema decides; what is copied, others decide.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use cell_proto::snowflake::{AHEAD_MS, first_of_ms, message_bucket};
use cell_proto::v1::ReadRowsRequest;
use cell_store::Store;
use cell_store::schema::Schema;
use tokio::time::Instant;

use super::store::{Part as Read, StoreTable, failed};
use super::{Cursor, Page, Source, StreamError, Target};
use crate::ranges::Tokens;
use crate::row::{Cell, Row};

/// With more units than this a scan of the table costs less.
pub const MOST_UNITS: usize = 64;
/// Partitions of one lease; a unit that has more is scanned for.
const MOST_PARTS: usize = 500_000;
/// Rows of the catalogue in one answer.
const CHANNELS: i32 = 1_000;
/// Partitions read at once where the ones before were empty.
const READS: usize = 16;
/// Partitions of one page.
const PARTS_A_PAGE: usize = 256;

/// Whether the partitions of these units in a table can be named.
pub fn is_enumerated(table: &str, units: usize) -> bool {
    (1..=MOST_UNITS).contains(&units) && matches!(table, "messages" | "channel_guild")
}

/// Which partition comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The newest messages first: what is read most is there first.
    NewestFirst,
    /// By token, as both sides of a comparison must agree.
    ByToken,
}

struct Part {
    token: i64,
    key: Vec<u8>,
    /// Higher is newer.
    age: i64,
}

/// The partitions of one lease, in order.
pub struct Plan {
    parts: Vec<Part>,
    order: Order,
}

impl Plan {
    /// Lists the partitions of some buckets in a token range, as the catalogues of these stores know them. None: too many, scan instead.
    ///
    /// # Errors
    /// [`StreamError`] when a catalogue cannot be read.
    pub async fn of(
        catalogues: &[Arc<dyn Store>],
        table: &str,
        buckets: &BTreeSet<u16>,
        tokens: Tokens,
        order: Order,
    ) -> Result<Option<Self>, StreamError> {
        Self::within(catalogues, table, buckets, tokens, (order, MOST_PARTS)).await
    }

    /// As [`Plan::of`], with at most so many partitions, and channels: none as soon as there are more.
    async fn within(
        catalogues: &[Arc<dyn Store>],
        table: &str,
        buckets: &BTreeSet<u16>,
        tokens: Tokens,
        (order, most): (Order, usize),
    ) -> Result<Option<Self>, StreamError> {
        let Some(schema) = Schema::platform().get(table).filter(|_| is_enumerated(table, buckets.len())) else {
            return Ok(None);
        };
        let mut parts = Vec::new();
        // Answers whether there is room for more.
        let mut add = |key: Vec<u8>, age: i64| -> Result<bool, StreamError> {
            let token = schema.token(&key).map_err(failed)?;
            if tokens.contains(token) {
                parts.push(Part { token, key, age });
            }
            Ok(parts.len() <= most)
        };
        if table == "channel_guild" {
            for bucket in buckets {
                if !add(bucket.to_be_bytes().to_vec(), 0)? {
                    return Ok(None);
                }
            }
        } else {
            let newest = message_bucket(first_of_ms(cell_runtime::unix_ms() + AHEAD_MS));
            let Some(channels) = channels(catalogues, buckets, most).await? else { return Ok(None) };
            for channel in channels {
                // No message is older than its channel, but clocks of two owners may differ.
                let oldest = message_bucket(channel).saturating_sub(1).max(0);
                for bucket in oldest..=newest.max(oldest) {
                    if !add([channel.to_be_bytes(), bucket.to_be_bytes()].concat(), bucket)? {
                        return Ok(None);
                    }
                }
            }
        }
        match order {
            Order::NewestFirst => parts.sort_by_key(|part| (std::cmp::Reverse(part.age), part.token)),
            Order::ByToken => parts.sort_by_key(|part| part.token),
        }
        Ok(Some(Self { parts, order }))
    }

    /// Which place a partition has in the order.
    fn place(&self, part: &Part) -> (std::cmp::Reverse<i64>, i64) {
        (std::cmp::Reverse(if self.order == Order::NewestFirst { part.age } else { 0 }), part.token)
    }

    /// Says that every partition before this one is done. Partitions of one place are done together or not at all.
    fn mark_before(&self, index: usize) -> Option<Bytes> {
        let next = self.place(self.parts.get(index)?);
        let last = self.parts.get(..index)?.iter().rfind(|part| self.place(part) < next)?;
        Some(Bytes::from([last.age.to_be_bytes(), last.token.to_be_bytes()].concat()))
    }

    /// The first partition after a mark, which may be of a plan that knew other partitions.
    fn first_after(&self, mark: &[u8]) -> Option<usize> {
        let (age, token) = mark.split_first_chunk::<8>()?;
        let (age, token) = (i64::from_be_bytes(*age), i64::from_be_bytes(token.try_into().ok()?));
        let done = self.place(&Part { token, key: Vec::new(), age });
        Some(self.parts.partition_point(|part| self.place(part) <= done))
    }

    /// How many partitions it names.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// It names none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// The channels of some buckets that any of the catalogues knows; none as soon as there are more than so many.
async fn channels(
    catalogues: &[Arc<dyn Store>],
    buckets: &BTreeSet<u16>,
    most: usize,
) -> Result<Option<BTreeSet<i64>>, StreamError> {
    let mut channels = BTreeSet::new();
    for store in catalogues {
        for bucket in buckets {
            let mut start = Vec::new();
            loop {
                let request = ReadRowsRequest {
                    table: "channel_guild".to_owned(),
                    partition: bucket.to_be_bytes().to_vec(),
                    start,
                    limit: CHANNELS,
                    ..ReadRowsRequest::default()
                };
                let reply = store.read_rows(request).await.map_err(failed)?;
                channels.extend(reply.rows.iter().filter_map(|row| row.clustering.first_chunk().copied()));
                if channels.len() > most {
                    return Ok(None);
                }
                let Some(last) = reply.rows.last().filter(|_| reply.more) else { break };
                start = [last.clustering.as_slice(), &[0]].concat();
            }
        }
    }
    Ok(Some(channels.into_iter().map(i64::from_be_bytes).collect()))
}

/// A table of a StorageCell, gone through by a plan.
pub struct UnitTable {
    table: StoreTable,
    plan: Arc<Plan>,
    /// The partition that is being read.
    at: AtomicUsize,
}

impl UnitTable {
    /// Reads `table` by the plan.
    pub fn new(table: StoreTable, plan: Arc<Plan>) -> Self {
        Self { table, plan, at: AtomicUsize::new(0) }
    }

    async fn part(&self, index: usize, end: Vec<u8>, limit: i32) -> Result<Read, StreamError> {
        let Some(part) = self.plan.parts.get(index) else { return Ok(Read { rows: vec![], more: false, wall: None }) };
        match self.table.partition(part.token, &part.key, end, limit).await {
            Err(StreamError::Refused(text)) => {
                self.at.store(index, Ordering::Release);
                Err(StreamError::Refused(format!("partition {}: {text}", self.table.key_text(&part.key))))
            }
            read => read,
        }
    }
}

fn mark(index: usize, end: &[u8]) -> Option<Cursor> {
    let mark = [&(index as u64).to_be_bytes(), end].concat();
    Some(Cursor { mark: Bytes::from(mark), partition: None })
}

fn place(cursor: &Cursor) -> (usize, Vec<u8>) {
    let Some((index, end)) = cursor.mark.split_first_chunk::<8>() else { return (0, vec![]) };
    (usize::try_from(u64::from_be_bytes(*index)).unwrap_or(usize::MAX), end.to_vec())
}

#[async_trait]
impl Source for UnitTable {
    async fn scan(&self, tokens: Tokens, cursor: Cursor, at_most: u32) -> Result<Page, StreamError> {
        let read_at = Instant::now();
        let limit = i32::try_from(at_most).unwrap_or(i32::MAX).clamp(1, super::store::PAGE_ROWS);
        let enough = usize::try_from(limit).unwrap_or(1);
        let (first, mut end) = place(&cursor);
        let within = |index: &usize| self.plan.parts.get(*index).is_some_and(|part| tokens.contains(part.token));
        let mut left = (first..self.plan.parts.len()).filter(within).peekable();
        let (mut rows, mut read, mut parts, mut at_once) = (Vec::new(), 0, 0, 1);
        let (mut next, mut tombstones) = (None, None);
        while next.is_none() && left.peek().is_some() {
            let several: Vec<usize> = left.by_ref().take(at_once).collect();
            let mut reads = Vec::with_capacity(several.len());
            for index in &several {
                reads.push(self.part(*index, std::mem::take(&mut end), limit));
            }
            let before = rows.len();
            for (index, found) in several.iter().zip(futures::future::join_all(reads).await) {
                let Read { rows: found, more, wall } = found?;
                read += found.len() as u64;
                // What is not given now is read again then: rows must not grow old while they wait for their turn.
                if next.is_none() && rows.len() >= enough {
                    next = mark(*index, &[]);
                }
                if next.is_some() {
                    continue;
                }
                let last = found.last().and_then(|row| row.clustering.as_ref()?.first().cloned()).unwrap_or_default();
                rows.extend(found);
                tombstones = tombstones.or(wall);
                if more {
                    next = mark(*index, &last);
                }
            }
            // Empty partitions cost only the way there and back: many at once. Full ones are read one after the other.
            at_once = if rows.len() == before { (at_once * 2).min(READS) } else { 1 };
            parts += several.len();
            if next.is_none() && (rows.len() >= enough || parts >= PARTS_A_PAGE) {
                next = left.peek().and_then(|index| mark(*index, &[]));
                break;
            }
        }
        let mark = next.as_ref().filter(|_| !self.is_by_token()).and_then(|next| self.plan.mark_before(place(next).0));
        Ok(Page { rows, next, read, read_at, took: read_at.elapsed(), tombstones, mark })
    }

    async fn read(&self, key: &Row) -> Result<Option<Row>, StreamError> {
        self.table.read(key).await
    }

    async fn partitions(&self, tokens: Tokens, _limit: i32) -> Result<Vec<i64>, StreamError> {
        let at = self.plan.parts.get(self.at.load(Ordering::Acquire)).map(|part| part.token);
        Ok(at.filter(|token| tokens.contains(*token)).into_iter().collect())
    }

    fn partition_text(&self, row: &Row) -> String {
        self.table.partition_text(row)
    }

    fn compaction(&self, tokens: Tokens) -> String {
        self.table.compaction(tokens)
    }

    fn after(&self, mark: &[u8]) -> Cursor {
        let first = self.plan.first_after(mark).filter(|_| !self.is_by_token());
        first.and_then(|index| self::mark(index, &[])).unwrap_or_default()
    }

    fn is_by_token(&self) -> bool {
        self.plan.order == Order::ByToken
    }
}

#[async_trait]
impl Target for UnitTable {
    async fn write(&self, rows: &[Row]) -> Result<(), StreamError> {
        self.table.write(rows).await
    }

    async fn delete_row(&self, row: &Row, at_us: i64) -> Result<(), StreamError> {
        self.table.delete_row(row, at_us).await
    }

    async fn delete_cells(&self, row: &Row, cells: &[Cell]) -> Result<(), StreamError> {
        self.table.delete_cells(row, cells).await
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::snowflake::EPOCH_MS;
    use cell_proto::unit::bucket_of;
    use cell_proto::v1::{CellWrite, RowMutation, WriteRequest};
    use cell_store::{MemoryStore, Reply, Request, StoreError};

    use super::*;

    /// Counts what is read of it.
    #[derive(Default)]
    struct Counted {
        store: MemoryStore,
        reads: AtomicUsize,
    }

    #[async_trait]
    impl Store for Counted {
        async fn call(&self, request: Request) -> Result<Reply, StoreError> {
            self.reads.fetch_add(usize::from(matches!(request, Request::ReadRows(_))), Ordering::Relaxed);
            self.store.call(request).await
        }
    }

    #[tokio::test]
    async fn a_plan_of_too_many_partitions_or_channels_is_given_up_before_it_is_made() {
        let store = Arc::new(Counted::default());
        // Made long ago: each has a partition for every ten days since.
        let first = first_of_ms(EPOCH_MS + 5 * 24 * 3_600_000);
        let bucket = bucket_of(first + 1);
        let channels: Vec<i64> = (first + 1..).filter(|id| bucket_of(*id) == bucket).take(3_000).collect();
        for some in channels.chunks(500) {
            let mutations = some.iter().map(|channel| RowMutation {
                table: "channel_guild".to_owned(),
                partition: bucket.to_be_bytes().to_vec(),
                clustering: channel.to_be_bytes().to_vec(),
                cells: vec![CellWrite { column: "guild".to_owned(), value: b"g".to_vec() }],
                ..RowMutation::default()
            });
            let request = WriteRequest { timestamp_us: 1, mutations: mutations.collect(), ttl_seconds: 0 };
            store.store.write(request).await.unwrap();
        }
        let catalogues: [Arc<dyn Store>; 1] = [store.clone()];
        let buckets = BTreeSet::from([bucket]);
        let plan = async |most| {
            store.reads.store(0, Ordering::Relaxed);
            let plan = Plan::within(&catalogues, "messages", &buckets, Tokens::ALL, (Order::ByToken, most)).await;
            (plan.unwrap().map(|plan| plan.len()), store.reads.load(Ordering::Relaxed))
        };
        assert_eq!(plan(999).await, (None, 1), "more channels than that are in the first page of the catalogue");
        assert_eq!(plan(5_000).await, (None, 3), "its channels fit, their partitions do not");
        let (parts, _) = plan(10_000_000).await;
        let parts = parts.unwrap();
        assert!(parts > 3_000 * 100, "{parts}");
        assert_eq!((plan(parts).await.0, plan(parts - 1).await.0), (Some(parts), None));
    }
}
