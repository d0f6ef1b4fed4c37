//! What is told to people: ranges that take long, those that are given up, and everything that workers found.

use super::machine::{Failed, Lease, MAX_FINDINGS, Machine, Took};
use super::record::{Finding, FindingKind, Record};

/// From so many ranges on it can be said what is usual.
const LEAST_RANGES: u32 = 8;
/// A range is no news below this, nor below so many times the usual.
const LEAST_SLOW_MS: i64 = 2_000;
const MUCH_LONGER: i64 = 5;
/// Ranges of one lane named so in one phase.
const MOST_NAMED: u32 = 10;

impl Machine {
    pub(super) fn name_if_slow(&mut self, lease: &mut Lease, now_ms: i64, records: &mut Vec<Record>) {
        let seconds = (now_ms - lease.since_ms) / 1000;
        let long = now_ms - lease.since_ms > self.settings.slow_ms;
        if lease.named_slow || !long || self.is_held_back(lease, now_ms) {
            return;
        }
        lease.named_slow = true;
        let so_far = format!("at work for {seconds} s after {} rows", lease.counted.rows);
        self.found(self.slow(lease, &so_far), records);
    }

    /// A range that takes long, and what there is to say of it.
    fn slow(&self, lease: &Lease, so_far: &str) -> Finding {
        Finding {
            table: self.lanes[lease.lane].name.table.clone(),
            first_token: lease.tokens.first,
            last_token: lease.tokens.last,
            partition: String::new(),
            kind: FindingKind::Slow,
            message: format!("{so_far}; look for large partitions and tombstones in it"),
        }
    }

    /// It goes about as fast as it may: what takes long then is no fault of the range.
    fn is_held_back(&self, lease: &Lease, now_ms: i64) -> bool {
        let rate = i64::from(self.rate_of_a_lease());
        let rows = i64::try_from(lease.counted.rows).unwrap_or(i64::MAX);
        rate > 0 && rows.saturating_mul(2_000) >= (now_ms - lease.since_ms).saturating_mul(rate)
    }

    /// A range that took much longer than the others is named when it is done, however fast all of them are.
    pub(super) fn name_if_slower(&mut self, lease: &Lease, now_ms: i64, records: &mut Vec<Record>) {
        let took_ms = now_ms - lease.since_ms;
        let Took { ranges, all_ms, named, .. } = self.lanes[lease.lane].took;
        let mean_ms = all_ms / i64::from(ranges).max(1);
        let slow = ranges >= LEAST_RANGES && took_ms >= LEAST_SLOW_MS && took_ms >= mean_ms.saturating_mul(MUCH_LONGER);
        if slow && named < MOST_NAMED && !lease.named_slow && !self.is_held_back(lease, now_ms) {
            self.lanes[lease.lane].took.named += 1;
            let (took, mean, rows) = (took_ms as f64 / 1000.0, mean_ms as f64 / 1000.0, lease.counted.rows);
            let so_far = format!("took {took:.1} s for {rows} rows, the others {mean:.1} s");
            self.found(self.slow(lease, &so_far), records);
        }
        let took = &mut self.lanes[lease.lane].took;
        (took.ranges, took.all_ms) = (ranges.saturating_add(1), all_ms.saturating_add(took_ms));
        took.width = took.width.saturating_add(lease.tokens.width());
    }

    pub(super) fn give_up(
        &mut self,
        lease: &Lease,
        (attempts, failure): (u32, String),
        now_ms: i64,
        records: &mut Vec<Record>,
    ) {
        let tokens = lease.tokens;
        let finding = Finding {
            table: self.lanes[lease.lane].name.table.clone(),
            first_token: tokens.first,
            last_token: tokens.last,
            partition: progress_partition(&failure),
            kind: FindingKind::Failing,
            message: failure.clone(),
        };
        self.found(finding, records);
        self.lanes[lease.lane].failed.push(Failed { tokens, attempts, at_ms: now_ms, failure });
    }

    pub(super) fn found(&mut self, finding: Finding, records: &mut Vec<Record>) {
        let same = |other: &Finding| {
            other.kind == finding.kind
                && other.table == finding.table
                && (other.first_token, other.last_token) == (finding.first_token, finding.last_token)
        };
        if self.findings.iter().any(same) {
            return;
        }
        if self.findings.len() >= MAX_FINDINGS {
            self.findings_dropped += 1;
            return;
        }
        self.findings.push(finding.clone());
        records.push(Record::Found(finding));
    }
}

/// A failure begins with the partition in brackets where the worker knows it.
fn progress_partition(failure: &str) -> String {
    let named = failure.strip_prefix("partition ").and_then(|rest| rest.split_once(": "));
    named.map(|(partition, _)| partition.to_owned()).unwrap_or_default()
}
