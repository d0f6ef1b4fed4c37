//! Names what is heavy to read: partitions that hold much or take long, walls of tombstones, and the partition that cannot be read at
//! all. It looks at what is being copied anyway; only for a wall it reads a little again.

use std::time::Duration;

use super::WorkError;
use crate::job::Job;
use crate::ranges::{FailureKind, FindingKind, Tokens};
use crate::row::Row;
use crate::stream::{Cursor, Page, Source, StreamError, Wall};

const LARGE_BYTES: usize = 64 * 1024 * 1024;
/// Reading one partition for longer is worth a word.
const SLOW: Duration = Duration::from_secs(3);
/// Walls of a range that are looked for; what is beyond is named by the pages it was met in.
const MOST_WALLS: u32 = 5;

/// Finds the partition that cannot be read, among the next few.
pub(crate) async fn culprit(source: &dyn Source, job: &Job, seen: i64, text: String) -> WorkError {
    let rest = Tokens { first: seen, last: job.last_token().max(seen) };
    let mut found = None;
    if rest.width() == 1 {
        found = Some((rest.first, text.clone()));
    } else {
        for token in source.partitions(rest, 4).await.unwrap_or_default() {
            let one = Tokens { first: token, last: token };
            if let Err(StreamError::Refused(text)) = source.scan(one, Cursor::default(), u32::MAX).await {
                found = Some((token, text));
                break;
            }
        }
    }
    let Some((token, text)) = found else {
        return WorkError { kind: FailureKind::Range, text, failing_token: None };
    };
    if text.to_ascii_lowercase().contains("tombstone") {
        let one = Tokens { first: token, last: token };
        let message = format!("it has too many tombstones to be read ({text}); compact it: {}", source.compaction(one));
        job.find(FindingKind::Tombstones, one, String::new(), message);
    }
    WorkError { kind: FailureKind::Range, text, failing_token: Some(token) }
}

/// Names what is heavy to read.
#[derive(Default)]
pub(super) struct PartitionWatch {
    partition: Option<Row>,
    bytes: usize,
    rows: u64,
    took: Duration,
    large: bool,
    slow: bool,
    walls: u32,
}

/// A wall that is somewhere in a page, and the page's partitions, each as a row without cells.
pub(super) struct Suspects {
    wall: Wall,
    partitions: Vec<Row>,
}

impl PartitionWatch {
    /// Names what the page shows. What is left has to be looked for by reading again, after the page was handed on: it must not grow
    /// too old to be written meanwhile.
    pub(super) fn look(&mut self, source: &dyn Source, job: &Job, page: &Page) -> Option<Suspects> {
        for row in &page.rows {
            if self.partition.as_ref().is_none_or(|partition| partition.partition != row.partition) {
                let partition = Some(Row { cells: vec![], ..row.clone() });
                *self = Self { partition, walls: self.walls, ..Self::default() };
            }
            self.bytes += row.bytes();
            self.rows += 1;
            if self.bytes > LARGE_BYTES && !self.large {
                self.large = true;
                let mib = self.bytes / 1024 / 1024;
                let message = format!("more than {mib} MiB in one partition; it is copied by one worker, page by page");
                let tokens = Tokens { first: row.token, last: row.token };
                job.find(FindingKind::LargePartition, tokens, source.partition_text(row), message);
            }
        }
        self.time(source, job, page);
        let wall = page.tombstones.clone()?;
        let mut partitions: Vec<Row> = Vec::new();
        for row in &page.rows {
            if partitions.last().is_none_or(|last| last.token != row.token) {
                let (partition, clustering) = (row.partition.clone(), row.clustering.clone());
                partitions.push(Row { token: row.token, partition, clustering, cells: vec![] });
            }
        }
        Some(Suspects { wall, partitions })
    }

    /// Of a page that lies in one partition its time is the partition's.
    fn time(&mut self, source: &dyn Source, job: &Job, page: &Page) {
        let whole = page
            .rows
            .first()
            .is_some_and(|row| self.partition.as_ref().is_some_and(|partition| partition.partition == row.partition));
        if !whole {
            return;
        }
        self.took += page.took;
        let Some(partition) = self.partition.as_ref().filter(|_| self.took >= SLOW && !self.slow) else { return };
        self.slow = true;
        let tokens = Tokens { first: partition.token, last: partition.token };
        let (seconds, mib) = (self.took.as_secs_f32(), self.bytes / 1024 / 1024);
        let message =
            format!("reading this partition took {seconds:.1} s so far, for {} rows and {mib} MiB", self.rows);
        job.find(FindingKind::Slow, tokens, source.partition_text(partition), message);
    }

    /// A wall is somewhere in a page: its halves are read again until one partition, or nothing but tombstones, is left.
    pub(super) async fn search(&mut self, source: &dyn Source, job: &Job, suspects: Suspects) {
        let Suspects { wall: Wall { warning, partition }, partitions } = suspects;
        if let Some((token, partition)) = partition {
            let one = Tokens { first: token, last: token };
            let message = format!("{warning}; compact it: {}", source.compaction(one));
            return job.find(FindingKind::Tombstones, one, partition, message);
        }
        let tokens: Vec<i64> = partitions.iter().map(|row| row.token).collect();
        let (first, last) = (tokens.first().copied(), tokens.last().copied());
        let mut at = Tokens { first: first.unwrap_or(job.tokens.first), last: last.unwrap_or(job.tokens.last) };
        self.walls += 1;
        if self.walls <= MOST_WALLS {
            let mut inside = tokens.as_slice();
            while inside.len() > 1 {
                let (low, high) = inside.split_at(inside.len() / 2);
                let middle = low.last().copied().unwrap_or(at.first);
                let lower = Tokens { first: at.first, last: middle };
                let upper = Tokens { first: middle.saturating_add(1), last: at.last };
                (at, inside) = if warns(source, lower).await { (lower, low) } else { (upper, high) };
            }
            // One partition is left, and the gap before it.
            let one = inside.first().map(|token| Tokens { first: *token, last: *token });
            if let Some(one) = one.filter(|one| *one != at)
                && warns(source, one).await
            {
                at = one;
            }
        }
        let row = partitions.iter().find(|row| row.token == at.first).filter(|_| at.width() == 1);
        let partition = row.map(|row| source.partition_text(row)).unwrap_or_default();
        let message = format!("{warning}; compact it: {}", source.compaction(at));
        job.find(FindingKind::Tombstones, at, partition, message);
    }
}

async fn warns(source: &dyn Source, tokens: Tokens) -> bool {
    source.scan(tokens, Cursor::default(), u32::MAX).await.is_ok_and(|page| page.tombstones.is_some())
}
