//! What must survive a crash, as values: the machine hands them out, the ledger keeps them, and the next machine is made of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::interval::{IntervalSet, Tokens};
use super::machine::LaneName;
use super::marks::Marks;
use super::summary::Receipt;

/// What the ranges are gone through for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing.
    #[default]
    Idle,
    /// Copying.
    Backfill,
    /// Comparing.
    Verify,
    /// Comparing and mending.
    Repair,
}

impl Phase {
    /// The word in ledgers, logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Backfill => "backfill",
            Self::Verify => "verify",
            Self::Repair => "repair",
        }
    }

    /// The phase of a word.
    pub fn of_label(label: &str) -> Option<Self> {
        [Self::Idle, Self::Backfill, Self::Verify, Self::Repair].into_iter().find(|phase| phase.label() == label)
    }
}

/// What is wrong with a range or a partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// It took much longer than the others.
    Slow,
    /// It could not be done.
    Failing,
    /// Reading it goes over many tombstones.
    Tombstones,
    /// One partition holds very much.
    LargePartition,
    /// The target holds newer writes than the source: somebody else writes there.
    ForeignWrites,
    /// A row that differs: an example of what the counts say.
    Mismatch,
}

impl FindingKind {
    /// The word in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Tombstones => "tombstones",
            Self::LargePartition => "large-partition",
            Self::ForeignWrites => "foreign-writes",
            Self::Mismatch => "mismatch",
        }
    }

    /// The kind of a word.
    pub fn of_label(label: &str) -> Option<Self> {
        [Self::Slow, Self::Failing, Self::Tombstones, Self::LargePartition, Self::ForeignWrites, Self::Mismatch]
            .into_iter()
            .find(|kind| kind.label() == label)
    }
}

/// A range or a partition that needs someone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its table.
    pub table: String,
    /// Where.
    pub first_token: i64,
    /// Where to, inclusive.
    pub last_token: i64,
    /// The decoded partition key, when it is one partition.
    pub partition: String,
    /// What.
    pub kind: FindingKind,
    /// What to do, for people.
    pub message: String,
}

/// Sums of a phase and round.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Rows copied or compared.
    pub rows: u64,
    /// Rows of the source that were read, those of other units included.
    #[serde(default)]
    pub read: u64,
    /// Ranges that ended well.
    pub ranges: u64,
    /// Ranges that were in flight when a worker or the coordinator ended, and were done again.
    pub redone: u64,
    /// Rows mended.
    pub repaired: u64,
    /// Rows without a cell: their write time cannot be read.
    pub without_cells: u64,
    /// Batches that had grown too old before they were written, and were read again.
    pub reread: u64,
    /// Mismatches by class.
    pub mismatches: BTreeMap<String, u64>,
}

impl Counts {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.read += other.read;
        self.ranges += other.ranges;
        self.redone += other.redone;
        self.repaired += other.repaired;
        self.without_cells += other.without_cells;
        self.reread += other.reread;
        for (class, count) in &other.mismatches {
            *self.mismatches.entry(class.clone()).or_default() += count;
        }
    }

    /// What this has more than an earlier state of itself.
    pub fn since(&self, earlier: &Self) -> Self {
        let mismatches = self
            .mismatches
            .iter()
            .map(|(class, count)| {
                (class.clone(), count.saturating_sub(earlier.mismatches.get(class).copied().unwrap_or(0)))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        Self {
            rows: self.rows.saturating_sub(earlier.rows),
            read: self.read.saturating_sub(earlier.read),
            ranges: self.ranges.saturating_sub(earlier.ranges),
            redone: self.redone.saturating_sub(earlier.redone),
            repaired: self.repaired.saturating_sub(earlier.repaired),
            without_cells: self.without_cells.saturating_sub(earlier.without_cells),
            reread: self.reread.saturating_sub(earlier.reread),
            mismatches,
        }
    }
}

/// One change to keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A phase and round begins: what was done in the round before counts no more.
    Began {
        /// Phase.
        phase: Phase,
        /// Round.
        round: u32,
        /// When, in Unix milliseconds.
        at_ms: i64,
    },
    /// Settings of a control request.
    Set {
        /// Rows a second; 0 for no bound.
        rows_per_second: u32,
        /// Leases nothing.
        paused: bool,
        /// Read side.
        source: String,
        /// Written side.
        target: String,
    },
    /// A lane was added after the start.
    Lane(LaneName),
    /// A range was leased.
    Leased(SavedLease),
    /// The lease's tokens are these now.
    Shrunk {
        /// Lease.
        lease: u64,
        /// What is left of it.
        tokens: Tokens,
    },
    /// These tokens are done.
    Done {
        /// Lane.
        lane: LaneName,
        /// Tokens.
        tokens: Tokens,
    },
    /// These tokens were compared, and held this on either side.
    Compared {
        /// Lane.
        lane: LaneName,
        /// Tokens.
        tokens: Tokens,
        /// Of the source's rows.
        source: Digest,
        /// Of the target's.
        target: Digest,
    },
    /// This is how far leases of the lane have come that do not go by token.
    Marked {
        /// Lane.
        lane: LaneName,
        /// All of its marks.
        marks: Marks,
    },
    /// The lease is over, whichever way.
    Over {
        /// Lease.
        lease: u64,
    },
    /// Sums grew.
    Counted(Counts),
    /// Something for people.
    Found(Finding),
    /// A verification ended.
    Receipt(Receipt),
    /// The receipt holds no more.
    NoReceipt,
}

/// A lease as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedLease {
    /// Never given twice in a ledger.
    pub lease: u64,
    /// Lane.
    pub lane: LaneName,
    /// Tokens left.
    pub tokens: Tokens,
}

/// What a ledger held when it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Saved {
    /// Phase.
    pub phase: Phase,
    /// Round.
    pub round: u32,
    /// When it began, in Unix milliseconds.
    pub began_ms: i64,
    /// Rows a second; 0 for no bound.
    pub rows_per_second: u32,
    /// Leases nothing.
    pub paused: bool,
    /// Read side.
    pub source: String,
    /// Written side.
    pub target: String,
    /// Tokens done in this phase and round.
    pub done: BTreeMap<LaneName, IntervalSet>,
    /// What was compared in this phase and round, by its first token: its last one, and what source and target hold.
    pub digests: BTreeMap<LaneName, BTreeMap<i64, (i64, Digest, Digest)>>,
    /// How far leases have come that do not go by token.
    pub marks: BTreeMap<LaneName, Marks>,
    /// Leases that were out.
    pub leases: Vec<SavedLease>,
    /// Highest lease id ever given.
    pub last_lease: u64,
    /// Sums of this phase and round.
    pub counts: Counts,
    /// Findings.
    pub findings: Vec<Finding>,
    /// The last receipt, while it holds.
    pub receipt: Option<Receipt>,
}

impl Saved {
    /// What a ledger holds after one more record.
    pub fn apply(&mut self, record: &Record) {
        match record.clone() {
            Record::Began { phase, round, at_ms } => {
                (self.phase, self.round, self.began_ms) = (phase, round, at_ms);
                self.counts = Counts::default();
                self.done.clear();
                self.digests.clear();
                self.marks.clear();
                self.findings.clear();
            }
            Record::Set { rows_per_second, paused, source, target } => {
                (self.rows_per_second, self.paused) = (rows_per_second, paused);
                (self.source, self.target) = (source, target);
            }
            Record::Lane(lane) => {
                self.done.entry(lane).or_default();
            }
            Record::Leased(lease) => {
                self.last_lease = self.last_lease.max(lease.lease);
                self.leases.push(lease);
            }
            Record::Shrunk { lease, tokens } => {
                self.leases.iter_mut().filter(|saved| saved.lease == lease).for_each(|saved| saved.tokens = tokens);
            }
            Record::Done { lane, tokens } => self.done.entry(lane).or_default().insert(tokens),
            Record::Compared { lane, tokens, source, target } => {
                self.digests.entry(lane).or_default().insert(tokens.first, (tokens.last, source, target));
            }
            Record::Marked { lane, marks } if marks.is_empty() => drop(self.marks.remove(&lane)),
            Record::Marked { lane, marks } => drop(self.marks.insert(lane, marks)),
            Record::Over { lease } => self.leases.retain(|saved| saved.lease != lease),
            Record::Counted(counts) => self.counts.add(&counts),
            Record::Found(finding) => self.findings.push(finding),
            Record::Receipt(receipt) => self.receipt = Some(receipt),
            Record::NoReceipt => self.receipt = None,
        }
    }
}
