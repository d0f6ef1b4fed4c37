//! What an owner of either log does: commit, apply, answer, split, seal, merge.

use super::state::{BUCKET, Damage, Entry, Flight, GUILD, Kind, Owner, Process, State};
use super::{CLOCKS, Next, SplitModel, Step};
use crate::rules::Rule;

impl SplitModel {
    /// Whether an owner would take the guild's commands into a log.
    pub(super) fn accepts(&self, state: &State, process: usize, log: usize) -> bool {
        let bucket = &state.logs[BUCKET];
        let known = state.processes[process].owns[BUCKET].last;
        log == GUILD || !matches!(bucket.marker(known), Some(Kind::Split { .. }))
    }

    pub(super) fn own(&self, state: &State, process: usize, log: usize, next: &mut Next) {
        let owner = state.processes[process].owns[log];
        if owner.term == 0 {
            return;
        }
        self.answer(state, process, log, next);
        if !state.is_owner(process, log) {
            let late = owner.term == state.logs[log].term && owner.segment == state.logs[log].segment;
            if late && state.logs[log].open {
                self.settle(state, process, next);
            } else {
                next.to(Step::StepsBack { process, log }, |state| {
                    state.processes[process].owns[log] = Owner::default()
                });
            }
            return;
        }
        if state.logs[log].applied < state.logs[log].last {
            return next.to(Step::Applies { process, log }, |state| state.logs[log].applied += 1);
        }
        if owner.in_doubt && log == GUILD {
            self.settle_by_seal(process, next);
        }
        self.commands(state, process, log, next);
        if log == BUCKET {
            self.markers(state, process, next);
        } else {
            self.seal(state, process, next);
        }
    }

    fn timestamp(&self, process: usize, owner: &Owner) -> u8 {
        CLOCKS[process].max(owner.newest + 1)
    }

    fn commands(&self, state: &State, process: usize, log: usize, next: &mut Next) {
        let owner = state.processes[process].owns[log];
        if !self.accepts(state, process, log) || !state.logs[log].has_room() {
            return;
        }
        let timestamp = self.timestamp(process, &owner);
        for operation in (0..self.operations).filter(|operation| owner.known & 1 << operation == 0) {
            let entry = Entry { kind: Kind::Command(operation), timestamp };
            next.to(Step::Commits { process, log, operation, timestamp }, |state| {
                state.commit(log, entry);
                learn(&mut state.processes[process].owns[log], entry);
            });
            if log == GUILD && state.budget.unknowns > 0 && state.flight.is_none() {
                let (segment, last) = (owner.segment, owner.last);
                next.to(Step::CommitUnknown { process, operation }, |state| {
                    state.budget.unknowns -= 1;
                    state.flight = Some(Flight { segment, last, entry });
                    state.processes[process].owns[GUILD].in_doubt = true;
                });
            }
        }
    }

    /// The late append, under its conditions.
    pub(super) fn landing(&self, state: &State, next: &mut Next) {
        let Some(flight) = state.flight else { return };
        let guild = &state.logs[GUILD];
        let applied =
            guild.segment_open && guild.segment == flight.segment && guild.last == flight.last && guild.has_room();
        next.to(Step::Lands { applied }, |state| {
            state.flight = None;
            if applied {
                state.commit(GUILD, flight.entry);
            }
        });
    }

    /// An owner whose number is behind reads what landed.
    fn settle(&self, state: &State, process: usize, next: &mut Next) {
        let guild = state.logs[GUILD];
        next.to(Step::Settles { process }, |state| {
            let owner = &mut state.processes[process].owns[GUILD];
            (owner.last, owner.newest, owner.in_doubt) = (guild.last, owner.newest.max(guild.newest()), false);
            owner.known |= guild.window(guild.last);
        });
    }

    /// Nobody waits for what may still land: sealing the segment under it settles that it never will.
    fn settle_by_seal(&self, process: usize, next: &mut Next) {
        next.to(Step::Rolls { process }, |state| {
            state.logs[GUILD].segment += 1;
            let owner = &mut state.processes[process].owns[GUILD];
            (owner.segment, owner.in_doubt) = (owner.segment + 1, false);
        });
    }

    /// Rule 7: what is applied is answered, and what was taken over counts as applied.
    fn answer(&self, state: &State, process: usize, log: usize, next: &mut Next) {
        let owner = state.processes[process].owns[log];
        let applied = state.logs[log].window(state.logs[log].applied);
        let shown = state.logs.iter().map(|log| log.window(log.applied)).fold(0, |all, window| all | window);
        for operation in 0..self.operations {
            let bit = 1 << operation;
            if state.answered & bit != 0 || (owner.known & applied | owner.inherited) & bit == 0 {
                continue;
            }
            next.to(Step::Answers { process, log, operation }, |state| {
                state.answered |= bit;
                if shown & bit == 0 {
                    state.damage.get_or_insert(Damage::AnsweredEarly);
                }
            });
        }
    }

    /// SPLIT and MERGE, by the bucket's owner.
    fn markers(&self, state: &State, process: usize, next: &mut Next) {
        let (bucket, guild) = (&state.logs[BUCKET], &state.logs[GUILD]);
        let Process { owns, seal, .. } = state.processes[process];
        let owner = owns[BUCKET];
        if !bucket.has_room() {
            return;
        }
        let Some(Kind::Split { term: split_term }) = bucket.marker(bucket.last) else {
            if state.budget.splits > 0 && !guild.open {
                let timestamp = self.timestamp(process, &owner);
                let entry = Entry { kind: Kind::Split { term: guild.term }, timestamp };
                next.to(Step::Splits { process }, |state| {
                    state.budget.splits -= 1;
                    state.commit(BUCKET, entry);
                    learn(&mut state.processes[process].owns[BUCKET], entry);
                });
            }
            return;
        };
        let early = !self.rules.has(Rule::SealBeforeMerge) && state.budget.merges > 0;
        let above = |term: u8| term > split_term || !self.rules.has(Rule::MergeAboveSplit);
        let Some(seal) = seal.filter(|seal| above(seal.term)).or(early.then_some(Default::default())) else { return };
        let mut heir = owner;
        if self.rules.has(Rule::InheritWindow) && self.rules.has(Rule::InheritWithMerge) {
            (heir.known, heir.inherited) = (heir.known | seal.window, heir.inherited | seal.window);
        }
        if self.rules.has(Rule::InheritTimestamps) {
            heir.newest = heir.newest.max(seal.newest);
        }
        let kind = Kind::Merge { sealed_term: seal.term, sealed_at: seal.last };
        let entry = Entry { kind, timestamp: self.timestamp(process, &heir) };
        next.to(Step::Merges { process }, |state| {
            state.budget.merges -= u8::from(early);
            state.commit(BUCKET, entry);
            learn(&mut heir, entry);
            (state.processes[process].owns[BUCKET], state.processes[process].seal) = (heir, None);
        });
    }

    /// The guild's log is sealed for a merge: its last segment, then its head.
    fn seal(&self, state: &State, process: usize, next: &mut Next) {
        let owner = state.processes[process].owns[GUILD];
        let waits = owner.in_doubt && self.rules.has(Rule::SettleBeforeHandover);
        if state.budget.merges == 0 || waits || !self.rules.has(Rule::SealBeforeMerge) {
            return;
        }
        next.to(Step::Seals { process, term: owner.term + 1 }, |state| {
            state.budget.merges -= 1;
            let guild = &mut state.logs[GUILD];
            (guild.open, guild.term) = (false, guild.term + 1);
            if self.rules.has(Rule::MergeSealsSegment) {
                guild.segment_open = false;
            }
            state.processes[process].owns[GUILD] = Owner::default();
        });
    }
}

fn learn(owner: &mut Owner, entry: Entry) {
    owner.last += 1;
    owner.newest = owner.newest.max(entry.timestamp);
    owner.in_doubt = false;
    if let Kind::Command(operation) = entry.kind {
        owner.known |= 1 << operation;
    }
}
