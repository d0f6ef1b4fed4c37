//! Owning (rules 4 and 6–9): commands are judged, appended as a batch, settled when their outcome is not known, answered or refused.

use super::state::{
    Answer, Batch, Damage, Entry, Flight, Operation, Owner, Phase, SEGMENT_ENTRIES, SEGMENTS, SegmentState, State,
};
use super::{CLOCKS, LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// Everything an owner can do.
    pub(super) fn serve(&self, state: &State, process: u8, next: &mut Next) {
        let owner = &state.owners[process as usize];
        let store = &state.stores[owner.store as usize];
        let segment = &store.segments[owner.segment as usize];
        if store.head != owner.head || segment.state != SegmentState::Open || segment.term != owner.head.term {
            next.steps_back(process);
        }
        self.apply(state, process, next);
        self.ship(state, process, next);
        self.duplicates(state, process, next);
        self.retention(state, process, next);
        // What is committed is applied before anything more is judged.
        if owner.applied < owner.last {
            return;
        }
        for first in self.asks_for() {
            self.command(state, process, [Some(first), None], next);
            for second in self.asks_for().filter(|second| *second != first && state.budget.batches > 0) {
                self.command(state, process, [Some(first), Some(second)], next);
            }
        }
        self.roll(state, process, next);
        self.moves(state, process, next);
    }

    /// Rule 7: a duplicate is answered when its entry is applied.
    fn duplicates(&self, state: &State, process: u8, next: &mut Next) {
        let owner = &state.owners[process as usize];
        for operation in self.asks_for() {
            if state.answers[operation as usize] != Answer::Open || !owner.known.has(operation) {
                continue;
            }
            let holds =
                |number: &u8| state.entry(owner.store, *number).is_some_and(|entry| entry.operation == operation);
            let number = (1..=owner.last).find(holds);
            if number.is_none_or(|number| number <= owner.applied) || !self.rules.has(Rule::DuplicatesWait) {
                next.to(Step::AnswersDuplicate { owner: process, operation }, |state| {
                    state.answers[operation as usize] = Answer::Done;
                });
            }
        }
    }

    /// One or two commands arrive, new or again, and are judged and appended together.
    fn command(&self, state: &State, process: u8, wanted: [Option<Operation>; 2], next: &mut Next) {
        let owner = &state.owners[process as usize];
        let asked = |operation: &Operation| {
            let answered = state.answers[*operation as usize];
            let made = *operation == Operation::Create || state.answers[Operation::Create as usize] == Answer::Done;
            made && answered != Answer::Refused && !state.expired.has(*operation)
        };
        if !wanted.iter().flatten().all(asked) || wanted.iter().flatten().any(|wanted| owner.known.has(*wanted)) {
            return;
        }
        let mut batch: Batch = [None; 2];
        let mut timestamp = owner.last_timestamp;
        for (slot, operation) in wanted.into_iter().flatten().enumerate() {
            let before = batch.iter().flatten().map(|entry| entry.operation);
            if !self.is_there(state, process, before) && operation != Operation::Create {
                // A refusal among the batch does not keep the others from being appended; alone it is enough to show.
                if wanted[1].is_none() {
                    self.refuse(state, process, operation, next);
                }
                return;
            }
            timestamp = self.timestamp(process, timestamp, slot > 0);
            batch[slot] = Some(Entry { operation, timestamp });
        }
        self.append(state, process, batch, next);
    }

    fn timestamp(&self, process: u8, last: u8, in_batch: bool) -> u8 {
        let clock = CLOCKS[process as usize];
        if in_batch && !self.rules.has(Rule::BatchTimestampsRise) {
            last
        } else if self.rules.has(Rule::TimestampsRise) {
            clock.max(last + 1)
        } else {
            clock
        }
    }

    /// Rule 6: by the table, what is not applied, and what the same batch holds already.
    fn is_there(&self, state: &State, process: u8, before: impl Iterator<Item = Operation>) -> bool {
        let owner = &state.owners[process as usize];
        let table = state.stores[owner.store as usize].table.view().0;
        if !self.rules.has(Rule::JudgeUnapplied) {
            return table;
        }
        let mut there = table;
        for operation in before {
            match operation {
                Operation::Create => there = true,
                Operation::Delete => there = false,
                Operation::Edit | Operation::Amend => {}
            }
        }
        there
    }

    /// Rule 8: a refusal drawn from data needs a serial read that shows the owner still is one.
    fn refuse(&self, state: &State, process: u8, operation: Operation, next: &mut Next) {
        let owner = &state.owners[process as usize];
        let segment = &state.stores[owner.store as usize].segments[owner.segment as usize];
        if self.rules.has(Rule::ProveRefusals) && !segment.takes(owner.head.term, owner.last) {
            next.steps_back(process);
        } else if state.answers[operation as usize] == Answer::Open {
            next.to(Step::Refuses { owner: process, operation }, |state| {
                state.answers[operation as usize] = Answer::Refused;
            });
        }
    }

    /// Rule 4: one conditional batch.
    fn append(&self, state: &State, process: u8, batch: Batch, next: &mut Next) {
        let owner = state.owners[process as usize];
        let (store, segment) = (owner.store, owner.segment);
        let found = state.stores[store as usize].segments[segment as usize];
        let mine = found.state == SegmentState::Open && found.term == owner.head.term;
        let entries: Vec<Entry> = batch.iter().flatten().copied().collect();
        // A bound of the model, not of the protocol.
        if (owner.last - found.before) as usize + entries.len() > SEGMENT_ENTRIES {
            return;
        }
        if self.takes(&found, owner.head.term, owner.last) {
            let number = owner.last + 1;
            next.to(Step::Appends { owner: process, store, batch, number }, |state| {
                pay_batch(state, &batch);
                state.commit(store, segment, &entries);
                let answer_now = !self.rules.has(Rule::AnswerAfterApply);
                entries.iter().filter(|_| answer_now).for_each(|entry| {
                    state.answers[entry.operation as usize] = Answer::Done;
                });
                learn(&mut state.owners[process as usize], &entries);
            });
        } else if mine {
            next.to(Step::AppendRefused { owner: process, batch }, |state| {
                let owner = &mut state.owners[process as usize];
                if self.rules.has(Rule::Settle) {
                    doubt(owner, &batch);
                } else {
                    (owner.last, owner.last_timestamp) = (found.last(), found.last_timestamp());
                }
            });
        } else {
            next.steps_back(process);
        }
        let flight = Flight::Append { to: (store, segment), term: owner.head.term, last: owner.last, batch };
        let mut after = *state;
        if state.budget.unknowns > 0 && after.send(flight) {
            next.to(Step::AppendUnknown { owner: process, batch }, |state| {
                *state = after;
                state.budget.unknowns -= 1;
                pay_batch(state, &batch);
                if self.rules.has(Rule::Settle) {
                    doubt(&mut state.owners[process as usize], &batch);
                }
            });
        }
    }

    /// The store's condition of an append.
    pub(super) fn takes(&self, segment: &super::state::Segment, term: u8, last: u8) -> bool {
        if self.rules.has(Rule::AppendChecksTerm) {
            segment.takes(term, last)
        } else {
            segment.state != SegmentState::Absent && segment.last() == last
        }
    }

    /// A serial read of the segment: what is there is taken over by operation id, and the rest may be tried again.
    pub(super) fn settle(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let segment = &state.stores[owner.store as usize].segments[owner.segment as usize];
        let is_mine = segment.term == owner.head.term && segment.state == SegmentState::Open;
        if !is_mine {
            return next.steps_back(process);
        }
        let mut after = owner;
        let mut found = Vec::new();
        for number in owner.last + 1..=segment.last() {
            found.extend(segment.entries[(number - segment.before - 1) as usize]);
        }
        if !self.rules.has(Rule::SettleByOperation) {
            // Taken for this batch's own, because the numbers fit.
            for (entry, operation) in found.iter_mut().zip(owner.proposed.iter().flatten()) {
                entry.operation = *operation;
            }
        }
        learn(&mut after, &found);
        after.last = segment.last();
        (after.phase, after.proposed) = (Phase::Serving, [None; 2]);
        next.owner(Step::Settles { owner: process }, process, |owner| *owner = after);
        for operation in owner.proposed.into_iter().flatten().filter(|operation| !after.known.has(*operation)) {
            if !self.rules.has(Rule::NeverRefuseProposed) && state.answers[operation as usize] == Answer::Open {
                next.to(Step::RefusesProposed { owner: process, operation }, |state| {
                    state.answers[operation as usize] = Answer::Refused;
                    state.owners[process as usize] = after;
                });
            }
        }
    }

    fn roll(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let (store, segment) = (owner.store, owner.segment);
        let found = &state.stores[store as usize].segments[segment as usize];
        if state.budget.rolls > 0 && found.takes(owner.head.term, owner.last) {
            next.to(Step::Rolls { owner: process, segment }, |state| {
                state.budget.rolls -= 1;
                state.stores[store as usize].segments[segment as usize].state = SegmentState::Sealed;
                state.owners[process as usize].phase = Phase::Rolling;
            });
        }
    }

    /// The second half of a roll: create if absent.
    pub(super) fn open_next(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let (store, segment) = (owner.store, owner.segment + 1);
        if segment as usize >= SEGMENTS {
            return next.to(Step::StepsBack { owner: process }, |state| state.damage = Some(Damage::Bound));
        }
        let found = state.stores[store as usize].segments[segment as usize];
        if found.state != SegmentState::Absent && self.rules.has(Rule::OpenIfAbsent) {
            return next.steps_back(process);
        }
        next.to(Step::Opens { owner: process, store, segment, last: owner.last }, |state| {
            state.stores[store as usize].segments[segment as usize] = self.new_segment(&owner);
            let owner = &mut state.owners[process as usize];
            let verify = self.rules.has(Rule::VerifyRoll);
            (owner.segment, owner.phase) = (segment, if verify { Phase::Verifying } else { Phase::Serving });
        });
    }
}

fn pay_batch(state: &mut State, batch: &Batch) {
    if batch[1].is_some() {
        state.budget.batches -= 1;
    }
}

fn doubt(owner: &mut Owner, batch: &Batch) {
    owner.phase = Phase::Settling;
    owner.proposed = batch.map(|entry| entry.map(|entry| entry.operation));
}

fn learn(owner: &mut Owner, entries: &[Entry]) {
    for entry in entries {
        owner.last += 1;
        owner.last_timestamp = owner.last_timestamp.max(entry.timestamp);
        owner.known.add(entry.operation);
    }
}
