//! What a run looks like from outside: progress, completeness, the receipt, the ranges one by one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::interval::Tokens;
use super::lease::WORKER_GONE_MS;
use super::machine::{LaneName, Machine};
use super::record::{Counts, Finding, Phase};

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Run.
    pub run_id: String,
    /// Round.
    pub round: u32,
    /// Begin.
    pub began_unix_ms: i64,
    /// End.
    pub ended_unix_ms: i64,
    /// What was taken as the truth.
    pub source: String,
    /// What was compared with it.
    pub target: String,
    /// Ranges compared; together they are the whole ring of every table.
    pub ranges: u64,
    /// Rows compared.
    pub rows_compared: u64,
    /// By class, after the recheck.
    pub mismatches: BTreeMap<String, u64>,
    /// Rows mended.
    pub repaired: u64,
    /// Every range was compared, and no row is missing, extra, differing or hidden.
    pub clean: bool,
    /// What either side held, table by table: the same text for the same rows in the same order, however they were cut into ranges.
    #[serde(default)]
    pub tables: Vec<TableDigest>,
}

/// What was compared of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableDigest {
    /// Table.
    pub table: String,
    /// Unit; empty for all of the run.
    pub unit: String,
    /// Rows of the source.
    pub rows: u64,
    /// Of the source's rows in order: keys, values, write times, and whether they expire.
    pub source: String,
    /// Of the target's. Another one beside a clean receipt: rows were written or expired meanwhile.
    pub target: String,
}

/// Classes that only say that something was going on; the rows were equal in the end, or will be.
const HARMLESS: [&str; 2] = ["write-race", "ttl-skew"];

/// Whether a receipt with this class is still clean.
pub fn is_harmless(class: &str) -> bool {
    HARMLESS.contains(&class)
}

pub(super) fn is_clean(counts: &Counts) -> bool {
    counts.mismatches.iter().all(|(class, count)| *count == 0 || is_harmless(class))
}

/// A range, for reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RangeRow {
    /// Table.
    pub table: String,
    /// Unit; empty for all.
    pub unit: String,
    /// Lowest token.
    pub first_token: i64,
    /// Highest token.
    pub last_token: i64,
    /// done, in-flight, failed, open
    pub state: String,
    /// Rows so far (in flight only).
    pub rows: u64,
    /// Tries that failed.
    pub attempts: u32,
    /// Why.
    pub failure: String,
}

/// Progress at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Run.
    pub run_id: String,
    /// Phase.
    pub phase: Phase,
    /// Round.
    pub round: u32,
    /// Parts per million of the token space of all lanes that is done; a million only when all is.
    pub done_ppm: u32,
    /// Leased.
    pub ranges_in_flight: u32,
    /// Given up, until they are tried again.
    pub ranges_failed: u32,
    /// Ended well.
    pub ranges_done: u64,
    /// Ended well, in flight, failed and waiting.
    pub ranges_total: u64,
    /// Sums.
    pub counts: Counts,
    /// Over the last 10 s.
    pub rows_per_second: u64,
    /// Why it is not faster, as a stable word; empty at full speed.
    pub throttle: String,
    /// The same for people.
    pub throttle_reason: String,
    /// Whole seconds; 0: not known.
    pub eta_seconds: u32,
    /// The last verification, while it holds.
    pub receipt: Option<Receipt>,
    /// For people.
    pub findings: Vec<Finding>,
    /// Findings beyond the bound.
    pub findings_dropped: u64,
    /// Every range is done; never with a failed one.
    pub complete: bool,
    /// Nothing is waiting or in flight: what is not done has failed, and is tried again later.
    pub ended: bool,
    /// Seen lately.
    pub workers: u32,
    /// Paused.
    pub paused: bool,
    /// Since when a side has not answered, in Unix milliseconds; 0: both do.
    pub unavailable_since_ms: i64,
}

/// No estimate before this much is done, in parts per million, and this long at work.
const ESTIMATE_FROM_PPM: u32 = 20_000;
const ESTIMATE_FROM_MS: i64 = 3_000;

impl Machine {
    /// Every token of every lane is done.
    pub fn is_complete(&self) -> bool {
        self.phase != Phase::Idle
            && self.leases.is_empty()
            && self.lanes.iter().all(|lane| lane.failed.is_empty() && lane.done.is_full())
    }

    /// Nothing is waiting or in flight.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Idle || (self.leases.is_empty() && self.lanes.iter().all(|lane| lane.queue.is_empty()))
    }

    /// Lanes of a table that are done.
    pub fn done_of(&self, name: &LaneName) -> u32 {
        self.lanes.iter().find(|lane| lane.name == *name).map_or(0, |lane| lane.done.ppm())
    }

    fn done_ppm(&self) -> u32 {
        let lanes = self.lanes.len().max(1) as u64;
        let sum: u64 = self.lanes.iter().map(|lane| u64::from(lane.done.ppm())).sum();
        u32::try_from(sum / lanes).unwrap_or(0)
    }

    /// What it looks like now.
    pub fn state(&self, now_ms: i64) -> State {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let failed = count(self.lanes.iter().map(|lane| lane.failed.len()).sum());
        let queued: usize = self.lanes.iter().map(|lane| lane.queue.len()).sum();
        let reason = self.throttle.reason(self.rate, self.paused, now_ms);
        let done_ppm = self.done_ppm();
        let complete = self.is_complete();
        State {
            run_id: self.settings.run_id.clone(),
            phase: self.phase,
            round: self.round,
            done_ppm,
            ranges_in_flight: count(self.leases.len()),
            ranges_failed: failed,
            ranges_done: self.counts.ranges,
            ranges_total: self.counts.ranges + u64::from(failed) + queued as u64 + self.leases.len() as u64,
            counts: self.counts.clone(),
            rows_per_second: self.throttle.rows_per_second(now_ms),
            throttle: reason.as_ref().map_or(String::new(), |(reason, _)| reason.label().to_owned()),
            throttle_reason: reason.map(|(_, text)| text).unwrap_or_default(),
            eta_seconds: if complete || failed > 0 { 0 } else { self.eta_seconds(done_ppm, now_ms) },
            receipt: self.receipt.clone(),
            findings: self.findings.clone(),
            findings_dropped: self.findings_dropped,
            complete,
            ended: self.has_ended(),
            workers: count(self.workers.values().filter(|seen| **seen >= now_ms - WORKER_GONE_MS).count()),
            paused: self.paused,
            unavailable_since_ms: self.throttle.unavailable_since().unwrap_or(0),
        }
    }

    fn eta_seconds(&self, done_ppm: u32, now_ms: i64) -> u32 {
        let elapsed = now_ms - self.began_ms;
        let stopped = self.paused || self.throttle.unavailable_since().is_some();
        if stopped || done_ppm < ESTIMATE_FROM_PPM || elapsed < ESTIMATE_FROM_MS {
            return 0;
        }
        let left = elapsed * i64::from(1_000_000 - done_ppm.min(1_000_000)) / i64::from(done_ppm);
        u32::try_from(left / 1000 + 1).unwrap_or(u32::MAX)
    }

    /// The ranges in order of lane and token, after a mark.
    pub fn ranges(&self, after: &str, limit: usize) -> (Vec<RangeRow>, String) {
        let mut rows: Vec<RangeRow> = Vec::new();
        for (index, lane) in self.lanes.iter().enumerate() {
            let row = |tokens: Tokens, state: &str, rows: u64, attempts: u32, failure: &str| RangeRow {
                table: lane.name.table.clone(),
                unit: lane.name.unit.clone(),
                first_token: tokens.first,
                last_token: tokens.last,
                state: state.to_owned(),
                rows,
                attempts,
                failure: failure.to_owned(),
            };
            let from = rows.len();
            rows.extend(lane.done.ranges().map(|tokens| row(tokens, "done", 0, 0, "")));
            rows.extend(
                lane.failed.iter().map(|failed| row(failed.tokens, "failed", 0, failed.attempts, &failed.failure)),
            );
            rows.extend(lane.queue.iter().map(|piece| row(piece.tokens, "open", 0, piece.attempts, "")));
            let leases = self.leases.values().filter(|lease| lease.lane == index);
            rows.extend(leases.map(|lease| row(lease.tokens, "in-flight", lease.counted.rows, lease.attempts, "")));
            rows[from..].sort_by_key(|row| row.first_token);
        }
        let start = after.parse::<usize>().unwrap_or(0).min(rows.len());
        let end = (start + limit.clamp(1, 1000)).min(rows.len());
        let next = if end < rows.len() { end.to_string() } else { String::new() };
        (rows[start..end].to_vec(), next)
    }
}
