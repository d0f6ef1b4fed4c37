//! What one lease's work and its reporter share: sums, findings, how far it is, how fast it may go. It decides only when a row may pass.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ranges::{Counts, Digest, Finding, FindingKind, Grant, Sample, Tokens};

/// Findings of one report.
const MAX_FINDINGS: usize = 20;
/// How long the rows of one page may take to pass where there is a rate.
const PAGE_SECONDS: u32 = 8;
const LEAST_PAGE_ROWS: u32 = 10;
/// Latencies remembered between two reports.
const MAX_SAMPLES: usize = 1_024;

/// A lease at work.
pub struct Job {
    /// Its table.
    pub table: String,
    /// Its tokens as leased.
    pub tokens: Tokens,
    /// Where to go on in the source's own order; empty: from its beginning.
    pub after: Vec<u8>,
    last: AtomicI64,
    rate: AtomicU32,
    next_row_at: Mutex<Instant>,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    counts: Counts,
    findings: Vec<Finding>,
    done_until: Option<i64>,
    mark: Vec<u8>,
    reads_us: Vec<u32>,
    writes_us: Vec<u32>,
    digests: Option<(Digest, Digest)>,
}

impl Job {
    /// For a lease.
    pub fn new(grant: &Grant) -> Self {
        Self {
            table: grant.lane.table.clone(),
            tokens: grant.tokens,
            after: grant.after.clone(),
            last: AtomicI64::new(grant.tokens.last),
            rate: AtomicU32::new(grant.rows_per_second),
            next_row_at: Mutex::new(Instant::now()),
            shared: Mutex::default(),
        }
    }

    /// The last token that is still this lease's.
    pub fn last_token(&self) -> i64 {
        self.last.load(Ordering::Acquire)
    }

    /// What a report was answered.
    pub fn set(&self, rows_per_second: u32, last_token: Option<i64>) {
        self.rate.store(rows_per_second, Ordering::Release);
        if let Some(last) = last_token {
            self.last.store(last, Ordering::Release);
        }
    }

    /// Rows of a page that pass within seconds at the rate there is: they are written long before they are too old.
    pub fn page_rows(&self) -> u32 {
        match self.rate.load(Ordering::Acquire) {
            0 => u32::MAX,
            rate => rate.saturating_mul(PAGE_SECONDS).max(LEAST_PAGE_ROWS),
        }
    }

    /// Waits until so many rows may pass.
    pub async fn pass(&self, rows: usize) {
        let rate = self.rate.load(Ordering::Acquire);
        if rate == 0 {
            return;
        }
        let until = {
            let mut next = self.next_row_at.lock();
            let from = (*next).max(Instant::now());
            *next = from + Duration::from_secs_f64(rows as f64 / f64::from(rate));
            from
        };
        tokio::time::sleep_until(until).await;
    }

    /// Adds to the sums.
    pub fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.shared.lock().counts);
    }

    /// The sums so far.
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts.clone()
    }

    /// Everything up to here is done.
    pub fn set_done_until(&self, token: i64) {
        self.shared.lock().done_until = Some(token);
    }

    /// How far it is.
    pub fn done_until(&self) -> Option<i64> {
        self.shared.lock().done_until
    }

    /// Everything up to here, in the source's own order, is done.
    pub fn set_mark(&self, mark: &[u8]) {
        self.shared.lock().mark = mark.to_vec();
    }

    /// How far it is in the source's own order; empty: not even what was done before is known.
    pub fn mark(&self) -> Vec<u8> {
        self.shared.lock().mark.clone()
    }

    /// What either side holds, once all of it was compared.
    pub fn set_digests(&self, source: Digest, target: Digest) {
        self.shared.lock().digests = Some((source, target));
    }

    /// What either side holds, source first.
    pub fn digests(&self) -> Option<(Digest, Digest)> {
        self.shared.lock().digests
    }

    /// A read took so long.
    pub fn read(&self, took: Duration) {
        push(&mut self.shared.lock().reads_us, took);
    }

    /// A write took so long.
    pub fn wrote(&self, took: Duration) {
        push(&mut self.shared.lock().writes_us, took);
    }

    /// Something for people; beyond a bound it is dropped, and the counts still hold it.
    pub fn find(&self, kind: FindingKind, tokens: Tokens, partition: String, message: String) {
        let findings = &mut self.shared.lock().findings;
        if findings.len() < MAX_FINDINGS {
            let (table, first_token, last_token) = (self.table.clone(), tokens.first, tokens.last);
            findings.push(Finding { table, first_token, last_token, partition, kind, message });
        }
    }

    /// Findings so far; they are said again until the lease ends, which changes nothing.
    pub fn findings(&self) -> Vec<Finding> {
        self.shared.lock().findings.clone()
    }

    /// p99 of both since the last call.
    pub fn take_sample(&self) -> Sample {
        let mut shared = self.shared.lock();
        let (mut reads, mut writes) = (std::mem::take(&mut shared.reads_us), std::mem::take(&mut shared.writes_us));
        Sample { read_us: p99(&mut reads), write_us: p99(&mut writes) }
    }
}

fn push(samples: &mut Vec<u32>, took: Duration) {
    if samples.len() < MAX_SAMPLES {
        samples.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }
}

fn p99(samples: &mut [u32]) -> u32 {
    samples.sort_unstable();
    samples.get(samples.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(0)
}
