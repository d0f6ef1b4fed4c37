//! Who works on what: leases with deadlines, what a report makes of them, and the bisection of what is slow or fails down to the
//! partition.

use super::digest::Digest;
use super::interval::Tokens;
use super::machine::{Lane, Lease, Machine, Piece};
use super::marks::MAX_MARK;
use super::record::{Counts, Finding, Phase, Record, SavedLease};
use super::throttle::Sample;
use super::{LaneName, Receipt};

/// A range to work on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Names the lease.
    pub lease: u64,
    /// What to do.
    pub phase: Phase,
    /// Round.
    pub round: u32,
    /// Where.
    pub lane: LaneName,
    /// Which tokens.
    pub tokens: Tokens,
    /// Everything of them up to this mark, in the worker's own order, was done by whoever had them before. Empty: nothing is known.
    pub after: Vec<u8>,
    /// Read side.
    pub source: String,
    /// Written side.
    pub target: String,
    /// Rows a second for this lease; 0 for no bound.
    pub rows_per_second: u32,
    /// A report is due within this time.
    pub lease_ms: i64,
}

/// Why a range was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A side does not answer: the same range again, later, without end.
    Unavailable,
    /// What was read had grown too old: the rest again, at once.
    Stale,
    /// This range, or something in it.
    Range,
}

/// What a worker says about its lease. Counts are since the lease began, so that a report that is lost or said twice changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Lease.
    pub lease: u64,
    /// Who.
    pub worker: String,
    /// It is over, one way or the other.
    pub ended: bool,
    /// Why the range was not done; none: all of it was.
    pub failure: Option<(FailureKind, String)>,
    /// Everything of the lease up to this token, inclusive, is done.
    pub done_until: Option<i64>,
    /// Everything of the lease up to this mark is done, where its rows do not come by token; empty: nothing, or nothing to be said so.
    pub mark: Vec<u8>,
    /// The one partition that fails, when it is known.
    pub failing_token: Option<i64>,
    /// Sums since the lease began.
    pub counts: Counts,
    /// Things for people.
    pub findings: Vec<Finding>,
    /// Latencies since the last report.
    pub sample: Sample,
    /// What source and target hold in it, when it was compared to its end.
    pub digests: Option<(Digest, Digest)>,
}

/// The answer to a report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// The lease is not known (any more): drop the work.
    pub stop: bool,
    /// Rows a second for this lease; 0 for no bound.
    pub rows_per_second: u32,
    /// The lease ends at this token now.
    pub last_token: Option<i64>,
}

const BACKOFF_MS: i64 = 1_000;
/// What a lease of several small pieces may take, by what they took so far, and how much of the queue is left for everybody's next turns.
const MOMENT_MS: u128 = 500;
const SHARE: usize = 4;
/// With so many given up it is not one partition that fails: what fails then is passed over whole, not cut down further.
const MOST_CUT_DOWN: usize = 100;
/// What was given up is tried again after this long, when nothing else is left to do.
const TRIED_AGAIN_MS: i64 = 60_000;
pub(super) const WORKER_GONE_MS: i64 = 15_000;

impl Machine {
    /// A range for a worker; none when nothing is ready.
    pub fn lease(&mut self, worker: &str, now_ms: i64) -> (Option<Grant>, Vec<Record>) {
        let mut records = self.expire(now_ms);
        self.workers.insert(worker.to_owned(), now_ms);
        self.workers.retain(|_, seen| *seen >= now_ms - WORKER_GONE_MS);
        if self.paused || self.phase == Phase::Idle {
            return (None, records);
        }
        self.try_again(now_ms);
        let ready = |piece: &Piece| piece.not_before_ms <= now_ms;
        let found = self
            .lanes
            .iter()
            .enumerate()
            .find_map(|(lane, state)| state.queue.iter().position(ready).map(|position| (lane, position)));
        let taken = found.and_then(|(lane, at)| Some((lane, at, self.lanes[lane].queue.remove(at)?)));
        let Some((lane, found_at, piece)) = taken else {
            return (None, records);
        };
        let piece = self.with_neighbours(lane, piece, found_at);
        self.last_lease += 1;
        let lease = self.last_lease;
        let name = self.lanes[lane].name.clone();
        self.leases.insert(
            lease,
            Lease {
                lane,
                tokens: piece.tokens,
                attempts: piece.attempts,
                worker: worker.to_owned(),
                since_ms: now_ms,
                deadline_ms: now_ms + self.settings.lease_ms,
                counted: Counts::default(),
                named_slow: false,
            },
        );
        records.push(Record::Leased(SavedLease { lease, lane: name.clone(), tokens: piece.tokens }));
        let grant = Grant {
            lease,
            phase: self.phase,
            round: self.round,
            lane: name,
            tokens: piece.tokens,
            after: self.lanes[lane].marks.of(piece.tokens).map(<[u8]>::to_vec).unwrap_or_default(),
            source: self.source.clone(),
            target: self.target.clone(),
            rows_per_second: self.rate_of_a_lease(),
            lease_ms: self.settings.lease_ms,
        };
        (Some(grant), records)
    }

    /// Where pieces take next to no time, several are given at once: as many as keep a worker busy for a moment, and never so many that
    /// the others would have nothing to do.
    fn with_neighbours(&mut self, lane: usize, mut piece: Piece, at: usize) -> Piece {
        let workers = self.workers.len().max(1);
        let Lane { queue, took, marks, .. } = &mut self.lanes[lane];
        let most = queue.len() / (workers * SHARE);
        // Several with marks have none together.
        if piece.attempts > 0 || took.ranges < 2 || !marks.is_empty() {
            return piece;
        }
        // The width that is done in a moment, by what was done so far.
        let moment = took.width / u128::try_from(took.all_ms.max(1)).unwrap_or(1) * MOMENT_MS;
        for _ in 0..most {
            let follows = |next: &Piece| {
                let whole = Tokens { first: piece.tokens.first, last: next.tokens.last };
                let touches = piece.tokens.last.checked_add(1) == Some(next.tokens.first);
                touches && next.attempts == 0 && next.not_before_ms == piece.not_before_ms && whole.width() <= moment
            };
            match queue.get(at) {
                Some(next) if follows(next) => piece.tokens.last = next.tokens.last,
                _ => break,
            }
            queue.remove(at);
        }
        piece
    }

    /// Queues what was given up, once nothing else is left: its cause may have gone. What is done stays done.
    fn try_again(&mut self, now_ms: i64) {
        if !self.has_ended() {
            return;
        }
        for lane in &mut self.lanes {
            let due = lane.failed.extract_if(.., |failed| now_ms - failed.at_ms >= TRIED_AGAIN_MS);
            let again = due.map(|failed| Piece { tokens: failed.tokens, attempts: failed.attempts, not_before_ms: 0 });
            lane.queue.extend(again);
        }
    }

    pub(super) fn rate_of_a_lease(&self) -> u32 {
        let bound = self.throttle.bound(self.rate);
        let leases = u32::try_from(self.leases.len()).unwrap_or(u32::MAX).max(1);
        if bound == 0 { 0 } else { (bound / leases).max(1) }
    }

    /// Gives what was not renewed in time to others.
    pub fn expire(&mut self, now_ms: i64) -> Vec<Record> {
        let late: Vec<u64> =
            self.leases.iter().filter(|(_, lease)| lease.deadline_ms < now_ms).map(|(id, _)| *id).collect();
        let mut records = Vec::new();
        for id in late {
            if let Some(lease) = self.leases.remove(&id) {
                records.push(Record::Over { lease: id });
                records.push(self.count(Counts { redone: 1, ..Counts::default() }));
                self.requeue(lease.lane, lease.tokens, lease.attempts, 0);
            }
        }
        records
    }

    fn requeue(&mut self, lane: usize, tokens: Tokens, attempts: u32, not_before_ms: i64) {
        self.lanes[lane].queue.push_front(Piece { tokens, attempts, not_before_ms });
    }

    /// Takes a report in. Only one that says "ended" without a failure makes the whole range done.
    pub fn report(&mut self, progress: Progress, now_ms: i64) -> (Verdict, Vec<Record>) {
        let mut records = self.expire(now_ms);
        self.workers.insert(progress.worker.clone(), now_ms);
        let known = self.leases.get(&progress.lease).is_some_and(|lease| lease.worker == progress.worker);
        let Some(mut lease) = known.then(|| self.leases.remove(&progress.lease)).flatten() else {
            return (Verdict { stop: true, ..Verdict::default() }, records);
        };
        let grown = progress.counts.since(&lease.counted);
        self.throttle.observe(grown.rows, progress.sample, now_ms);
        if grown != Counts::default() {
            lease.counted.add(&grown);
            records.push(self.count(grown));
        }
        for finding in progress.findings.iter().cloned() {
            self.found(finding, &mut records);
        }
        self.advance(&mut lease, &progress, &mut records);
        self.mark(&lease, &progress, &mut records);
        self.name_if_slow(&mut lease, now_ms, &mut records);
        if progress.ended {
            self.end(lease, progress, now_ms, &mut records);
            return (Verdict { rows_per_second: self.rate_of_a_lease(), ..Verdict::default() }, records);
        }
        let last_token = self.split_if_slow(progress.lease, &mut lease, now_ms, &mut records);
        lease.deadline_ms = now_ms + self.settings.lease_ms;
        self.leases.insert(progress.lease, lease);
        (Verdict { stop: false, rows_per_second: self.rate_of_a_lease(), last_token }, records)
    }

    fn advance(&mut self, lease: &mut Lease, progress: &Progress, records: &mut Vec<Record>) {
        let Some(until) = progress.done_until.filter(|until| *until >= lease.tokens.first) else { return };
        // The last token is done only by an end without failure.
        let until = until.min(lease.tokens.last.saturating_sub(1));
        if until < lease.tokens.first {
            return;
        }
        let done = Tokens { first: lease.tokens.first, last: until };
        self.lanes[lease.lane].done.insert(done);
        lease.tokens.first = until + 1;
        records.push(Record::Done { lane: self.lanes[lease.lane].name.clone(), tokens: done });
        records.push(Record::Shrunk { lease: progress.lease, tokens: lease.tokens });
    }

    /// Remembers how far a lease has come that does not go by token.
    fn mark(&mut self, lease: &Lease, progress: &Progress, records: &mut Vec<Record>) {
        let Lane { marks, name, .. } = &mut self.lanes[lease.lane];
        let is_new = !progress.mark.is_empty() && marks.of(lease.tokens) != Some(&progress.mark);
        // A comparison goes by token, and counts what it finds only at its end.
        if is_new && progress.mark.len() <= MAX_MARK && self.phase == Phase::Backfill {
            marks.set(lease.tokens, progress.mark.clone());
            records.push(Record::Marked { lane: name.clone(), marks: marks.clone() });
        }
    }

    /// Others have nothing to do while this one is slow: the second half of what is left is for them.
    fn split_if_slow(&mut self, id: u64, lease: &mut Lease, now_ms: i64, records: &mut Vec<Record>) -> Option<i64> {
        // A comparison that is cut in two would count the mismatches of its second half twice.
        let idle = self.phase == Phase::Backfill && self.lanes.iter().all(|lane| lane.queue.is_empty());
        if !idle || now_ms - lease.since_ms <= self.settings.slow_ms {
            return None;
        }
        let (low, high) = lease.tokens.halves()?;
        lease.tokens = low;
        lease.since_ms = now_ms;
        records.push(Record::Shrunk { lease: id, tokens: low });
        self.requeue(lease.lane, high, lease.attempts, 0);
        Some(low.last)
    }

    fn end(&mut self, lease: Lease, progress: Progress, now_ms: i64, records: &mut Vec<Record>) {
        records.push(Record::Over { lease: progress.lease });
        let Some((kind, failure)) = progress.failure else {
            self.throttle.observe_available();
            self.name_if_slower(&lease, now_ms, records);
            if let Some((source, target)) = progress.digests.filter(|_| self.phase == Phase::Verify) {
                self.lanes[lease.lane].digests.insert(lease.tokens.first, (lease.tokens.last, source, target));
                let lane = self.lanes[lease.lane].name.clone();
                records.push(Record::Compared { lane, tokens: lease.tokens, source, target });
            }
            let lane = &mut self.lanes[lease.lane];
            lane.done.insert(lease.tokens);
            records.push(Record::Done { lane: lane.name.clone(), tokens: lease.tokens });
            if !lane.marks.is_empty() {
                lane.marks.forget(lease.tokens);
                records.push(Record::Marked { lane: lane.name.clone(), marks: lane.marks.clone() });
            }
            records.push(self.count(Counts { ranges: 1, ..Counts::default() }));
            self.conclude(now_ms, records);
            return;
        };
        match kind {
            FailureKind::Unavailable => {
                self.throttle.observe_unavailable(now_ms);
                self.requeue(lease.lane, lease.tokens, lease.attempts, now_ms + BACKOFF_MS);
            }
            FailureKind::Stale => self.requeue(lease.lane, lease.tokens, lease.attempts, now_ms),
            FailureKind::Range => self.bisect(lease, progress.failing_token, failure, now_ms, records),
        }
    }

    fn bisect(&mut self, lease: Lease, culprit: Option<i64>, failure: String, now_ms: i64, records: &mut Vec<Record>) {
        let attempts = lease.attempts + 1;
        let later = now_ms + BACKOFF_MS * i64::from(attempts.min(10));
        let tokens = lease.tokens;
        let many = self.lanes.iter().map(|lane| lane.failed.len()).sum::<usize>() >= MOST_CUT_DOWN;
        if many {
            self.give_up(&lease, (attempts, failure), now_ms, records);
        } else if let Some(token) = culprit.filter(|token| tokens.contains(*token) && tokens.width() > 1) {
            let before = token.checked_sub(1).and_then(|last| Tokens::new(tokens.first, last));
            let after = token.checked_add(1).and_then(|first| Tokens::new(first, tokens.last));
            for piece in [after, before].into_iter().flatten() {
                self.requeue(lease.lane, piece, 0, now_ms);
            }
            self.requeue(lease.lane, Tokens { first: token, last: token }, 1, later);
        } else if let (Some((low, high)), true) = (tokens.halves(), attempts > 1) {
            self.requeue(lease.lane, high, attempts, now_ms);
            self.requeue(lease.lane, low, attempts, now_ms);
        } else if attempts < self.settings.tries || tokens.width() > 1 {
            self.requeue(lease.lane, tokens, attempts, later);
        } else {
            self.give_up(&lease, (attempts, failure), now_ms, records);
        }
    }

    fn conclude(&mut self, now_ms: i64, records: &mut Vec<Record>) {
        if self.phase != Phase::Verify || !self.is_complete() || self.receipt.is_some() {
            return;
        }
        let receipt = Receipt {
            run_id: self.settings.run_id.clone(),
            round: self.round,
            began_unix_ms: self.began_ms,
            ended_unix_ms: now_ms,
            source: self.source.clone(),
            target: self.target.clone(),
            ranges: self.counts.ranges,
            rows_compared: self.counts.rows,
            mismatches: self.counts.mismatches.clone(),
            repaired: self.counts.repaired,
            clean: super::summary::is_clean(&self.counts),
            tables: self.lanes.iter().filter_map(Lane::digest).collect(),
        };
        self.receipt = Some(receipt.clone());
        records.push(Record::Receipt(receipt));
    }
}
