use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::*;
use crate::ranges::{Grant, LaneName, Phase};
use crate::row::Cell;
use crate::stream::Wall;

/// A table in memory whose faults are set by a test.
#[derive(Default)]
struct Fake {
    rows: Mutex<BTreeMap<(i64, u8), Row>>,
    /// How long ago pages were read, in seconds.
    age_s: u64,
    /// Scans that are answered before the connection is lost.
    scans: Option<AtomicUsize>,
    /// Everything is behind a wall of tombstones, and a second scan is not answered before this one has rows.
    wall: Option<Arc<Fake>>,
    scanned: AtomicUsize,
    /// Writing this token is refused.
    refused: Option<i64>,
    /// So many writes are answered "unavailable" first.
    away: AtomicUsize,
    /// Writes that were begun and have not ended, and the most there ever were.
    open: AtomicUsize,
    most_open: AtomicUsize,
}

fn row(token: i64, key: u8) -> Row {
    let cell = Cell { column: 0, value: Bytes::from_static(b"v"), written_us: 5, ttl_s: 0 };
    let partition = vec![Bytes::copy_from_slice(&token.to_be_bytes())];
    Row { token, partition, clustering: Some(vec![Bytes::copy_from_slice(&[key])]), cells: vec![cell] }
}

fn full() -> Fake {
    let rows = (0..50).flat_map(|token| (0..3).map(move |key| ((token, key), row(token, key))));
    Fake { rows: Mutex::new(rows.collect()), ..Fake::default() }
}

const PAGE: usize = 7;

#[async_trait]
impl Source for Fake {
    async fn scan(&self, tokens: Tokens, cursor: Cursor, at_most: u32) -> Result<Page, StreamError> {
        if let Some(scans) = &self.scans
            && scans.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
        {
            return Err(StreamError::Unavailable("connection lost".to_owned()));
        }
        if let Some(target) = self.wall.as_ref().filter(|_| self.scanned.fetch_add(1, Ordering::SeqCst) == 1) {
            let written = async {
                while target.rows.lock().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), written).await.expect("the page waits for the search");
        }
        let page = PAGE.min(usize::try_from(at_most).unwrap());
        let skip: usize = std::str::from_utf8(&cursor.mark).unwrap().parse().unwrap_or(0);
        let rows: Vec<Row> =
            self.rows.lock().values().filter(|row| tokens.contains(row.token)).skip(skip).take(page).cloned().collect();
        let mark = Bytes::from((skip + rows.len()).to_string());
        let next = (rows.len() == page).then_some(Cursor { mark, partition: None });
        let read_at = Instant::now() - Duration::from_secs(self.age_s);
        let read = rows.len() as u64;
        let tombstones = self.wall.as_ref().map(|_| Wall { warning: "a wall".to_owned(), partition: None });
        Ok(Page { rows, next, read, read_at, took: Duration::ZERO, tombstones, mark: None })
    }

    async fn read(&self, key: &Row) -> Result<Option<Row>, StreamError> {
        Ok(self.rows.lock().values().find(|row| row.key_hash() == key.key_hash()).cloned())
    }

    async fn partitions(&self, _tokens: Tokens, _limit: i32) -> Result<Vec<i64>, StreamError> {
        Ok(vec![])
    }

    fn partition_text(&self, row: &Row) -> String {
        format!("({})", row.token)
    }

    fn compaction(&self, _tokens: Tokens) -> String {
        String::new()
    }
}

#[async_trait]
impl Target for Fake {
    async fn write(&self, rows: &[Row]) -> Result<(), StreamError> {
        if self.away.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(StreamError::Unavailable("overloaded".to_owned()));
        }
        self.most_open.fetch_max(self.open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.open.fetch_sub(1, Ordering::SeqCst);
        for row in rows {
            if Some(row.token) == self.refused {
                return Err(StreamError::Refused("too large".to_owned()));
            }
            let key = row.clustering.as_ref().unwrap()[0][0];
            self.rows.lock().insert((row.token, key), row.clone());
        }
        Ok(())
    }

    async fn delete_row(&self, _row: &Row, _at_us: i64) -> Result<(), StreamError> {
        Ok(())
    }

    async fn delete_cells(&self, _row: &Row, _cells: &[Cell]) -> Result<(), StreamError> {
        Ok(())
    }
}

fn job() -> Job {
    Job::new(&Grant {
        lease: 1,
        phase: Phase::Backfill,
        round: 1,
        lane: LaneName { table: "t".to_owned(), unit: String::new() },
        tokens: Tokens::ALL,
        after: vec![],
        source: String::new(),
        target: String::new(),
        rows_per_second: 0,
        lease_ms: 1_000,
    })
}

async fn carry(source: Fake, target: Fake) -> (Result<(), WorkError>, Job, Arc<Fake>, Arc<Fake>) {
    let (source, target, job) = (Arc::new(source), Arc::new(target), job());
    let pair = Pair { source: source.clone(), target: target.clone() };
    (copy(&pair, &job).await, job, source, target)
}

#[tokio::test]
async fn every_row_arrives_as_it_was_even_when_the_target_is_away_for_a_moment() {
    let (copied, job, source, target) = carry(full(), Fake { away: AtomicUsize::new(2), ..Fake::default() }).await;
    assert_eq!(copied, Ok(()));
    assert_eq!(*source.rows.lock(), *target.rows.lock());
    assert_eq!(job.counts().rows, 150);
}

#[tokio::test]
async fn a_rate_is_kept_without_writes_that_wait_to_be_looked_at() {
    let (source, target, job) = (Arc::new(full()), Arc::new(Fake::default()), job());
    job.set(100, None);
    let pair = Pair { source: source.clone(), target: target.clone() };
    assert_eq!(copy(&pair, &job).await, Ok(()));
    assert_eq!(*source.rows.lock(), *target.rows.lock());
    let most_open = target.most_open.load(Ordering::SeqCst);
    assert!(
        most_open < IN_FLIGHT,
        "{most_open} writes were begun before one was let end: they would be taken for slow"
    );
}

#[test]
fn pages_are_so_small_that_no_rate_makes_their_rows_too_old() {
    let job = job();
    assert_eq!(job.page_rows(), u32::MAX);
    for rate in [1, 2, 25, 1_000, u32::MAX] {
        job.set(rate, None);
        // The page being written, the one that waits and the one being read.
        assert!(u64::from(job.page_rows()) * 3 / u64::from(rate) <= FRESH.as_secs(), "{rate}");
    }
}

#[tokio::test]
async fn what_was_read_more_than_a_minute_ago_is_not_written() {
    let (copied, job, _, target) = carry(Fake { age_s: 61, ..full() }, Fake::default()).await;
    assert_eq!(copied.unwrap_err().kind, FailureKind::Stale);
    assert!(target.rows.lock().is_empty());
    assert!(job.counts().reread > 0 && job.done_until().is_none());
    let (copied, _, _, target) = carry(Fake { age_s: 50, ..full() }, Fake::default()).await;
    assert_eq!((copied, target.rows.lock().len()), (Ok(()), 150));
}

#[tokio::test]
async fn a_page_is_written_before_a_wall_in_it_is_looked_for() {
    let target = Arc::new(Fake::default());
    let (source, job) = (Arc::new(Fake { wall: Some(target.clone()), ..full() }), job());
    let pair = Pair { source: source.clone(), target: target.clone() };
    assert_eq!(copy(&pair, &job).await, Ok(()));
    assert_eq!(*source.rows.lock(), *target.rows.lock());
    assert!(source.scanned.load(Ordering::SeqCst) > 22, "the walls were looked for");
    assert!(job.findings().iter().any(|finding| finding.partition == "(0)"), "{:?}", job.findings());
}

#[tokio::test]
async fn a_connection_lost_midway_is_no_end_and_what_is_said_to_be_done_is_there() {
    let (copied, job, source, target) =
        carry(Fake { scans: Some(AtomicUsize::new(4)), ..full() }, Fake::default()).await;
    assert_eq!(copied.unwrap_err().kind, FailureKind::Unavailable);
    let written = target.rows.lock();
    for (key, row) in
        source.rows.lock().iter().filter(|((token, _), _)| job.done_until().is_some_and(|until| *token <= until))
    {
        assert_eq!(written.get(key), Some(row), "said to be done, and is not there");
    }
}

#[tokio::test]
async fn a_partition_that_cannot_be_written_is_named() {
    let (copied, job, _, target) = carry(full(), Fake { refused: Some(20), ..Fake::default() }).await;
    let error = copied.unwrap_err();
    assert_eq!((error.kind, error.failing_token), (FailureKind::Range, Some(20)));
    assert!(error.text.starts_with("partition (20): "), "{}", error.text);
    assert!(job.done_until().is_none_or(|until| until < 20));
    assert!(!target.rows.lock().contains_key(&(20, 0)));
}

#[test]
fn a_batch_holds_one_partition_and_is_bounded() {
    let mut rows: Vec<Row> = (0..250_u8).map(|key| row(1, key)).collect();
    rows.extend((0..3).map(|key| row(2, key)));
    let mut large = row(3, 0);
    large.cells[0].value = Bytes::from(vec![0; BATCH_BYTES]);
    rows.extend([large.clone(), large]);
    let sizes: Vec<(i64, usize)> = batches(rows).iter().map(|batch| (batch[0].token, batch.len())).collect();
    assert_eq!(sizes, [(1, 100), (1, 100), (1, 50), (2, 3), (3, 1), (3, 1)]);
}
