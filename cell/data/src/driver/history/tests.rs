//! Pages over many buckets, held against one flat list.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cell_proto::v1::{CellWrite, RowMutation, WriteRequest};
use cell_store::{MemoryStore, Reply, Request, StoreError};
use prometheus_client::metrics::counter::Counter;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::domain::tables::BODY;

const DAY_MS: i64 = 24 * 3_600_000;
/// The channel is this old: it has 40 buckets and the one of today.
const DAYS: i64 = 400;

#[derive(Default)]
struct Counted {
    store: MemoryStore,
    reads: AtomicU64,
    in_flight: AtomicU64,
    most: AtomicU64,
}

#[async_trait]
impl Store for Counted {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.most.fetch_max(self.in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Whoever may read beside it begins meanwhile.
        tokio::task::yield_now().await;
        let reply = self.store.call(request).await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        reply
    }
}

#[tokio::test]
async fn an_old_channel_without_messages_is_searched_once() {
    let counted = Arc::new(Counted::default());
    let store: Arc<dyn Store> = counted.clone();
    let channel_id = first_of_ms(unix_ms() - 200 * DAY_MS);
    let query = MessagePageQuery { channel_id, limit: 50, ..MessagePageQuery::default() };
    let empty = EmptyBuckets::new(Counter::default(), Counter::default());
    assert!(page(&store, &query, Some(&empty)).await.unwrap().messages.is_empty());
    let first = counted.reads.swap(0, Ordering::Relaxed);
    assert!(first >= 20, "{first}");
    page(&store, &query, Some(&empty)).await.unwrap();
    let again = counted.reads.swap(0, Ordering::Relaxed);
    assert!(again <= 3, "only what may still fill is read again, not {again} buckets");
    page(&store, &query, None).await.unwrap();
    assert_eq!(counted.reads.load(Ordering::Relaxed), first, "a copy is read as it is");
    assert_eq!(counted.most.load(Ordering::Relaxed), PARALLEL as u64, "a few at a time, and no more");
}

/// Writes messages of these ages, in hours; their ids, oldest first.
async fn write(store: &MemoryStore, channel_id: i64, ages: &[i64]) -> Vec<i64> {
    let now_ms = unix_ms();
    let mut ids: Vec<i64> = ages.iter().map(|hours| first_of_ms(now_ms - hours * 3_600_000)).collect();
    ids.sort_unstable();
    ids.dedup();
    let row = |id: &i64| RowMutation {
        table: MESSAGES.to_owned(),
        partition: message_partition(channel_id, message_bucket(*id)),
        clustering: id_key(*id),
        cells: vec![CellWrite {
            column: BODY.to_owned(),
            value: Message { id: *id, channel_id, ..Message::default() }.encode_to_vec(),
        }],
        ..RowMutation::default()
    };
    let mutations = ids.iter().map(row).collect();
    store.write(WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }).await.unwrap();
    ids
}

/// The same page from a flat list of ids, oldest first.
fn expected(ids: &[i64], query: &MessagePageQuery) -> Vec<i64> {
    let limit = usize::try_from(query.limit).unwrap();
    let newest_first = |found: Vec<i64>| found.into_iter().rev().collect::<Vec<_>>();
    let upwards = |from: i64, most: usize| ids.iter().copied().filter(|id| *id >= from).take(most).collect::<Vec<_>>();
    let below = |to: i64, most: usize| ids.iter().rev().copied().filter(|id| *id < to).take(most).collect::<Vec<_>>();
    match query {
        MessagePageQuery { around: 1.., .. } => {
            let mut found = newest_first(upwards(query.around, limit.div_ceil(2)));
            found.extend(below(query.around, limit - limit.div_ceil(2)));
            found
        }
        MessagePageQuery { after: 1.., .. } => newest_first(upwards(query.after + 1, limit)),
        MessagePageQuery { before: 1.., .. } => below(query.before, limit),
        _ => below(i64::MAX, limit),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_page_over_many_buckets_is_the_page_of_one_list(
        ages in prop::collection::vec(0..DAYS * 24, 0..60),
        way in 0..4,
        mark in 0..DAYS * 24,
        limit in 1..=100,
        twice in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let counted = Arc::new(Counted::default());
            let store: Arc<dyn Store> = counted.clone();
            let channel_id = first_of_ms(unix_ms() - DAYS * DAY_MS);
            let ids = write(&counted.store, channel_id, &ages).await;
            // A mark is often a message's own id.
            let near = first_of_ms(unix_ms() - mark * 3_600_000);
            let mark = ids.iter().copied().find(|id| *id >= near && way % 2 == 0).unwrap_or(near);
            let mut query = MessagePageQuery { channel_id, limit, ..MessagePageQuery::default() };
            match way {
                0 => query.before = mark,
                1 => query.after = mark,
                2 => query.around = mark,
                _ => {}
            }
            // What was found to be empty is left out the second time, and nothing else.
            let empty = EmptyBuckets::new(Counter::default(), Counter::default());
            if twice {
                page(&store, &query, Some(&empty)).await.unwrap();
            }
            let found = page(&store, &query, Some(&empty)).await.unwrap();
            let found: Vec<i64> = found.messages.iter().map(|message| message.id).collect();
            prop_assert_eq!(found, expected(&ids, &query));
            prop_assert!(counted.most.load(Ordering::Relaxed) <= PARALLEL as u64);
            Ok(())
        })?;
    }
}
