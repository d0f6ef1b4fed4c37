//! The machine's state and what begins, restarts and ends a phase. Leasing and reports are in `lease`, what it looks like from outside
//! in `summary`.

use std::collections::{BTreeMap, VecDeque};

use super::digest::Digest;
use super::interval::{IntervalSet, Tokens};
use super::marks::Marks;
use super::record::{Counts, Finding, Phase, Record, Saved};
use super::summary::{Receipt, TableDigest};
use super::throttle::Throttle;

/// A table, or one unit's part of a table.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct LaneName {
    /// The table.
    pub table: String,
    /// The unit; empty: all of the table.
    pub unit: String,
}

/// What stays the same over a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Names the run.
    pub run_id: String,
    /// A lease that is not renewed within this time is given to another.
    pub lease_ms: i64,
    /// A range at work for longer is slow: it is named, and split when others have nothing to do.
    pub slow_ms: i64,
    /// Answers slower than this (p99) slow the copy down, in microseconds.
    pub ceiling_us: u32,
    /// Tries for one partition before it is passed over until all else is done.
    pub tries: u32,
}

impl Settings {
    /// The usual ones.
    pub fn standard(run_id: &str) -> Self {
        Self { run_id: run_id.to_owned(), lease_ms: 15_000, slow_ms: 30_000, ceiling_us: 400_000, tries: 3 }
    }
}

/// Tokens waiting for a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub tokens: Tokens,
    pub attempts: u32,
    pub not_before_ms: i64,
}

/// Tokens that were given up: they are tried again once nothing else is left to do, after a pause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failed {
    pub tokens: Tokens,
    pub attempts: u32,
    pub at_ms: i64,
    pub failure: String,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub name: LaneName,
    pub pieces: u64,
    pub done: IntervalSet,
    pub queue: VecDeque<Piece>,
    pub failed: Vec<Failed>,
    /// What was compared, by its first token: its last one, and what source and target hold.
    pub digests: BTreeMap<i64, (i64, Digest, Digest)>,
    pub took: Took,
    /// How far leases came that do not go by token.
    pub marks: Marks,
}

impl Lane {
    fn new(name: LaneName, pieces: u64) -> Self {
        let pieces = pieces.max(1);
        let (done, queue, failed) = (IntervalSet::default(), VecDeque::new(), Vec::new());
        let (digests, took, marks) = (BTreeMap::new(), Took::default(), Marks::default());
        Self { name, pieces, done, queue, failed, digests, took, marks }
    }

    /// All of it in the order of tokens; none unless every token is in it once.
    pub fn digest(&self) -> Option<TableDigest> {
        let (mut source, mut target, mut next) = (Digest::default(), Digest::default(), Some(i64::MIN));
        for (first, (last, ours, theirs)) in &self.digests {
            if next != Some(*first) {
                return None;
            }
            (source, target, next) = (source.then(*ours), target.then(*theirs), last.checked_add(1));
        }
        let whole = next.is_none();
        whole.then(|| TableDigest {
            table: self.name.table.clone(),
            unit: self.name.unit.clone(),
            rows: source.rows,
            source: source.text(),
            target: target.text(),
        })
    }

    /// Queues everything that is not done.
    fn fill(&mut self) {
        self.failed.clear();
        self.queue.clear();
        for gap in self.done.gaps() {
            let share = u64::try_from((u128::from(self.pieces) * (gap.width() >> 1)) >> 63).unwrap_or(1).max(1);
            self.queue.extend(gap.pieces(share).into_iter().map(|tokens| Piece {
                tokens,
                attempts: 0,
                not_before_ms: 0,
            }));
        }
    }
}

/// How long ranges of a lane took in this phase, as far as this process saw them end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Took {
    pub ranges: u32,
    pub all_ms: i64,
    pub width: u128,
    pub named: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub lane: usize,
    pub tokens: Tokens,
    pub attempts: u32,
    pub worker: String,
    pub since_ms: i64,
    pub deadline_ms: i64,
    pub counted: Counts,
    pub named_slow: bool,
}

/// What a run is told to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Control {
    /// The phase; none: as it is.
    pub phase: Option<Phase>,
    /// The round.
    pub round: u32,
    /// Rows a second; 0 for no bound.
    pub rows_per_second: u32,
    /// Leases nothing.
    pub paused: bool,
    /// With a higher round: only these units are gone through again, all else stays done.
    pub again: Vec<String>,
    /// Read side; empty: as it is.
    pub source: String,
    /// Written side; empty: as it is.
    pub target: String,
}

/// Why a control request was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// Somebody who knows less asks.
    #[error("round {asked} of phase {phase} is older than round {round} of phase {current}, which is under way")]
    Older {
        /// Asked for.
        asked: u32,
        /// Asked for.
        phase: &'static str,
        /// Here.
        round: u32,
        /// Here.
        current: &'static str,
    },
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) settings: Settings,
    pub(super) phase: Phase,
    pub(super) round: u32,
    pub(super) began_ms: i64,
    pub(super) rate: u32,
    pub(super) paused: bool,
    pub(super) source: String,
    pub(super) target: String,
    pub(super) lanes: Vec<Lane>,
    pub(super) leases: BTreeMap<u64, Lease>,
    pub(super) last_lease: u64,
    pub(super) counts: Counts,
    pub(super) findings: Vec<Finding>,
    /// Findings beyond the bound.
    pub(super) findings_dropped: u64,
    pub(super) throttle: Throttle,
    pub(super) workers: BTreeMap<String, i64>,
    pub(super) receipt: Option<Receipt>,
}

/// Findings kept.
pub(super) const MAX_FINDINGS: usize = 100;

impl Machine {
    /// A machine over these lanes (with the number of pieces each is cut into), going on where `saved` stopped. What was in flight then
    /// is done again, and counted.
    pub fn restore(settings: Settings, lanes: Vec<(LaneName, u64)>, saved: Saved) -> (Self, Vec<Record>) {
        let ceiling_us = settings.ceiling_us;
        let mut machine = Self {
            settings,
            phase: saved.phase,
            round: saved.round,
            began_ms: saved.began_ms,
            rate: saved.rows_per_second,
            paused: saved.paused,
            source: saved.source,
            target: saved.target,
            lanes: lanes.into_iter().map(|(name, pieces)| Lane::new(name, pieces)).collect(),
            leases: BTreeMap::new(),
            last_lease: saved.last_lease,
            counts: saved.counts,
            findings: saved.findings,
            findings_dropped: 0,
            throttle: Throttle::new(ceiling_us),
            workers: BTreeMap::new(),
            receipt: saved.receipt,
        };
        for (name, done) in saved.done {
            let index = machine.lane_index(&name);
            machine.lanes[index].done = done;
        }
        for (name, digests) in saved.digests {
            let index = machine.lane_index(&name);
            machine.lanes[index].digests = digests;
        }
        for (name, marks) in saved.marks {
            let index = machine.lane_index(&name);
            machine.lanes[index].marks = marks;
        }
        let mut records = Vec::new();
        let mut redone = 0;
        for lease in saved.leases {
            let index = machine.lane_index(&lease.lane);
            redone += u64::from(!machine.lanes[index].done.covers(lease.tokens));
            records.push(Record::Over { lease: lease.lease });
        }
        if machine.phase != Phase::Idle {
            machine.lanes.iter_mut().for_each(Lane::fill);
        }
        if redone > 0 {
            records.push(machine.count(Counts { redone, ..Counts::default() }));
        }
        (machine, records)
    }

    /// The lane of this name, made if there is none.
    pub(super) fn lane_index(&mut self, name: &LaneName) -> usize {
        if let Some(index) = self.lanes.iter().position(|lane| lane.name == *name) {
            return index;
        }
        self.lanes.push(Lane::new(name.clone(), 1));
        self.lanes.len() - 1
    }

    pub(super) fn count(&mut self, counts: Counts) -> Record {
        self.counts.add(&counts);
        Record::Counted(counts)
    }

    /// Takes a control request in. The same one twice changes nothing.
    ///
    /// # Errors
    /// [`ControlError::Older`].
    pub fn control(&mut self, control: Control, now_ms: i64) -> Result<Vec<Record>, ControlError> {
        let phase = control.phase.unwrap_or(self.phase);
        let round = if control.phase.is_some() { control.round } else { self.round };
        let rank = |phase: Phase, round: u32| (round, phase);
        if phase != Phase::Idle && rank(phase, round) < rank(self.phase, self.round) {
            return Err(ControlError::Older {
                asked: round,
                phase: phase.label(),
                round: self.round,
                current: self.phase.label(),
            });
        }
        let mut records = Vec::new();
        let replaced = |old: &str, new: &str| if new.is_empty() { old.to_owned() } else { new.to_owned() };
        let (source, target) = (replaced(&self.source, &control.source), replaced(&self.target, &control.target));
        let moved = (&source, &target) != (&self.source, &self.target);
        if moved || (self.rate, self.paused) != (control.rows_per_second, control.paused) {
            (self.rate, self.paused) = (control.rows_per_second, control.paused);
            (self.source, self.target) = (source.clone(), target.clone());
            records.push(Record::Set { rows_per_second: self.rate, paused: self.paused, source, target });
        }
        let newer = (phase, round) != (self.phase, self.round);
        if newer || moved {
            self.begin(phase, round, &control.again, now_ms, &mut records);
        }
        Ok(records)
    }

    fn begin(&mut self, phase: Phase, round: u32, again: &[String], now_ms: i64, records: &mut Vec<Record>) {
        // Leases of the phase before are dropped: their workers are told to stop at their next report.
        records.extend(self.leases.keys().map(|lease| Record::Over { lease: *lease }));
        self.leases.clear();
        let partly = !again.is_empty() && phase == Phase::Backfill && self.phase != Phase::Idle;
        for lane in &mut self.lanes {
            (lane.took, lane.digests, lane.marks) = (Took::default(), BTreeMap::new(), Marks::default());
            if !partly {
                lane.done = IntervalSet::default();
            } else if self.phase != Phase::Backfill {
                // What was copied before a verification still is; only its record went with its phase.
                lane.done.insert(Tokens::ALL);
            }
        }
        (self.phase, self.round, self.began_ms) = (phase, round, now_ms);
        self.counts = Counts::default();
        self.findings.clear();
        records.push(Record::Began { phase, round, at_ms: now_ms });
        if self.receipt.take().is_some() {
            records.push(Record::NoReceipt);
        }
        if partly {
            self.undo(again);
        }
        for lane in &mut self.lanes {
            records.push(Record::Lane(lane.name.clone()));
            records.extend(lane.done.ranges().map(|tokens| Record::Done { lane: lane.name.clone(), tokens }));
            if phase == Phase::Idle {
                lane.queue.clear();
                lane.failed.clear();
            } else {
                lane.fill();
            }
        }
    }

    fn undo(&mut self, units: &[String]) {
        let tables: std::collections::BTreeSet<String> =
            self.lanes.iter().map(|lane| lane.name.table.clone()).collect();
        for unit in units {
            for table in &tables {
                let index = self.lane_index(&LaneName { table: table.clone(), unit: unit.clone() });
                self.lanes[index].done = IntervalSet::default();
            }
        }
    }
}
