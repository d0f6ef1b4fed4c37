//! Walking a log's segments from a hint to the last, sealing what is not sealed when the walker is a claimant, then reading back the
//! entries that it needs: those not applied, and the dedupe window.

use cell_proto::v1::{CasSegmentRequest, ReadSegmentRequest, SegmentReply, Statics, StoredEntry};
use cell_store::{Request, StoreError};

/// Entries asked for at once; the store may stop earlier.
const PAGE: i32 = 2000;

/// What a walker needs.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The term to seal with; none for a log that is only read.
    pub(crate) seal_term: Option<u64>,
    /// A found segment's term must be lower than `seal_term`.
    pub(crate) check_term: bool,
    /// Or equal: the walker's own.
    pub(crate) own_term: bool,
    /// Entries above this number.
    pub(crate) above: u64,
    /// And entries at least this new.
    pub(crate) since_us: i64,
    /// Segments below were dropped.
    pub(crate) retained: u64,
}

#[derive(Clone, Debug)]
enum Phase {
    Look,
    Seal { expected: Statics },
    Load { segment: u64, from: u64 },
}

/// A walk under way.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    log: String,
    wanted: Wanted,
    /// The segment looked at.
    at: u64,
    phase: Phase,
    doubted: bool,
    /// The last segment found, with its statics after sealing.
    pub(crate) tail: Option<(u64, Statics)>,
    /// Entries loaded, with their segment; in no order until [`Walk::entries`].
    loaded: Vec<(u64, StoredEntry)>,
}

/// What a walk says after an answer.
pub(crate) enum Step {
    /// Ask again.
    Go,
    /// Ask the same again after a pause.
    Pause,
    /// All found.
    Done,
    /// A segment has a term that is not lower.
    Outrun,
}

impl Walk {
    pub(crate) fn new(log: String, first: u64, wanted: Wanted) -> Self {
        Self { log, wanted, at: first.max(1), phase: Phase::Look, doubted: false, tail: None, loaded: Vec::new() }
    }

    /// The first segment number after the tail.
    pub(crate) fn next_segment(&self) -> u64 {
        self.tail.map_or(self.at, |(segment, _)| segment + 1)
    }

    /// A segment was found after the tail: go on from there.
    pub(crate) fn resume(&mut self) {
        self.at = self.next_segment();
        self.phase = Phase::Look;
        self.doubted = false;
        self.loaded.clear();
    }

    /// Entries in log order with their segments; of those not wanted whole, large bodies are missing.
    pub(crate) fn entries(mut self) -> Vec<(u64, StoredEntry)> {
        self.loaded.sort_by_key(|(_, entry)| entry.number);
        self.loaded.dedup_by_key(|(_, entry)| entry.number);
        self.loaded
    }

    /// Entries in no order.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = &StoredEntry> {
        self.loaded.iter().map(|(_, stored)| stored)
    }

    /// What the walked log leaves to the one that takes over.
    pub(crate) fn inheritance(self) -> super::Inheritance {
        let tail = self.tail.map(|(_, statics)| statics).unwrap_or_default();
        let log = self.log.clone();
        let operation = |(segment, entry): &(u64, StoredEntry)| {
            let operation_id = entry.operation_id.as_slice().try_into().ok()?;
            Some((operation_id, entry.number, *segment, entry.timestamp_us))
        };
        super::Inheritance {
            operations: self.entries().iter().filter_map(operation).collect(),
            log,
            store: String::new(),
            last_timestamp_us: tail.last_timestamp_us,
            last_snowflake: tail.last_snowflake,
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        let log = self.log.clone();
        vec![match &self.phase {
            Phase::Look => ReadSegmentRequest { log, segment: self.at, from: 0, limit: 0, bodies_from: 0 }.into(),
            Phase::Seal { expected } => {
                let term = self.wanted.seal_term.unwrap_or(expected.term);
                let new = Statics { term, sealed: true, ..*expected };
                CasSegmentRequest { log, segment: self.at, expected: Some(*expected), new: Some(new) }.into()
            }
            Phase::Load { segment, from } => {
                // Of what is applied only the operation ids are wanted.
                let bodies_from = self.wanted.above.saturating_add(1);
                ReadSegmentRequest { log, segment: *segment, from: *from, limit: PAGE, bodies_from }.into()
            }
        }]
    }

    pub(crate) fn answered(&mut self, result: Result<SegmentReply, StoreError>) -> Step {
        let reply = match result {
            Ok(reply) => reply,
            Err(_) => {
                if matches!(self.phase, Phase::Seal { .. }) {
                    // It may have been sealed, or be sealed later: the statics tell.
                    self.phase = Phase::Look;
                    self.doubted = true;
                }
                return Step::Pause;
            }
        };
        match self.phase.clone() {
            Phase::Look => self.looked(reply.statics),
            Phase::Seal { .. } => match reply.statics {
                Some(statics) if reply.applied => {
                    self.found(statics);
                    Step::Go
                }
                // Something was appended in between: look again.
                _ => {
                    self.phase = Phase::Look;
                    Step::Go
                }
            },
            Phase::Load { segment, .. } => self.load(segment, reply),
        }
    }

    fn looked(&mut self, statics: Option<Statics>) -> Step {
        let Some(statics) = statics else {
            let Some((tail, _)) = self.tail else { return Step::Done };
            self.phase = Phase::Load { segment: tail, from: 0 };
            return Step::Go;
        };
        let Some(term) = self.wanted.seal_term else {
            self.found(statics);
            return Step::Go;
        };
        let own_seal = statics.term == term && (self.wanted.own_term || (self.doubted && statics.sealed));
        if self.wanted.check_term && statics.term >= term && !own_seal {
            return Step::Outrun;
        }
        if statics.sealed {
            self.found(statics);
        } else {
            self.phase = Phase::Seal { expected: statics };
        }
        Step::Go
    }

    fn found(&mut self, statics: Statics) {
        self.tail = Some((self.at, statics));
        self.at += 1;
        self.phase = Phase::Look;
        self.doubted = false;
    }

    fn load(&mut self, segment: u64, reply: SegmentReply) -> Step {
        // Dropped: nothing older is kept either.
        let Some(statics) = reply.statics else { return Step::Done };
        let wanted = statics.last > self.wanted.above || statics.last_timestamp_us >= self.wanted.since_us;
        if !wanted {
            return Step::Done;
        }
        let last_read = reply.entries.last().map(|stored| stored.number);
        for stored in reply.entries {
            if stored.number <= self.wanted.above && stored.timestamp_us < self.wanted.since_us {
                continue;
            }
            self.loaded.push((segment, stored));
        }
        match last_read {
            Some(number) if number < statics.last => {
                self.phase = Phase::Load { segment, from: number + 1 };
                Step::Go
            }
            _ if segment > self.wanted.retained.max(1) => {
                self.phase = Phase::Load { segment: segment - 1, from: 0 };
                Step::Go
            }
            _ => Step::Done,
        }
    }
}
