//! Giving a log away: switch (rule 16), copy, cutover and rollback (rules 10, 12 and 13), release of a copy (rule 15).

use super::state::{COPY, Head, Migration, ORIGIN, Owner, Phase, Segment, SegmentState, State, Store};
use super::{LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// What an owner with nothing in flight may be told to begin.
    pub(super) fn moves(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        if state.budget.switches > 0 {
            let wish = self.switched(owner.head);
            next.to(Step::ClosesForSwitch { owner: process }, |state| {
                state.budget.switches -= 1;
                state.owners[process as usize] = Owner { phase: Phase::Switching, wish, ..owner };
            });
        }
        if self.copies && state.migration == Migration::None && owner.store == ORIGIN {
            self.start_copy(state, process, next);
        }
        if state.budget.cutovers > 0 && state.migration == Migration::Copied {
            next.to(Step::ClosesForCutover { owner: process, to: 1 - owner.store }, |state| {
                state.budget.cutovers -= 1;
                state.owners[process as usize].phase = Phase::Closing;
            });
        }
    }

    fn switched(&self, head: Head) -> Head {
        let cell = 1 - head.cell;
        if self.rules.has(Rule::SwitchRaisesTerm) {
            Head { cell, term: head.term + 1, appender: None, ..head }
        } else {
            Head { cell, ..head }
        }
    }

    /// Rules 10 and 12: an empty log that nobody can claim, beginning far enough back.
    fn start_copy(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let origin = &state.stores[ORIGIN as usize];
        let first = origin.existing().next().map_or(0, |(_, segment)| segment.before);
        let after = if self.rules.has(Rule::CopyStartsBack) { first } else { owner.last };
        let moved_at = self.rules.has(Rule::CopyStartsPointed).then_some(0);
        next.to(Step::StartsCopy { owner: process, after }, |state| {
            state.migration = Migration::Shipping;
            let copy = &mut state.stores[COPY as usize];
            *copy = Store { applied: after, ..Store::default() };
            copy.head = Head { term: 0, cell: origin.head.cell, appender: None, moved_at };
            copy.segments[0] = Segment { state: SegmentState::Open, before: after, ..Segment::default() };
        });
    }

    /// What happens beside the owners: the older rows are copied; a copy that does not serve is released.
    pub(super) fn operator_steps(&self, state: &State, next: &mut Next) {
        if state.migration == Migration::Shipping {
            next.to(Step::Backfills, |state| {
                let rows = state.stores[ORIGIN as usize].table;
                state.stores[COPY as usize].table.merge(&rows);
                state.migration = Migration::Copied;
            });
        }
        let (serving, other) = (state.current(), 1 - state.current());
        if state.is_shipping() && state.budget.drops > 0 && state.stores[serving as usize].head.moved_at.is_none() {
            next.to(Step::DropsCopy { store: other }, |state| {
                state.budget.drops -= 1;
                state.migration = Migration::Dropped;
                if self.rules.has(Rule::RaiseBeforeDrop) {
                    let head = &mut state.stores[serving as usize].head;
                    (head.term, head.appender) = (head.term + 1, None);
                }
                let head = state.stores[other as usize].head;
                state.stores[other as usize] = Store { head, ..Store::default() };
            });
        }
    }

    /// Rule 16: one compare-and-set; until it may have been sent, undoing is local.
    pub(super) fn switch(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let mut after = *state;
        if self.compare_and_set(&mut after, owner.store, owner.head, owner.wish) {
            next.to(Step::Switches { owner: process, term: owner.wish.term }, |state| {
                *state = after;
                state.owners[process as usize] = Owner::default();
            });
        } else {
            next.steps_back(process);
        }
        undo(process, Owner { phase: Phase::Serving, wish: Head::default(), ..owner }, next);
        self.doubt_head(state, process, Step::SwitchUnknown { owner: process }, Phase::SwitchUnknown, next);
    }

    /// Rule 13, first half: ship to the end, then seal the last segment under it.
    pub(super) fn close(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        self.apply(state, process, next);
        self.ship(state, process, next);
        undo(process, Owner { phase: Phase::Serving, ..owner }, next);
        let target = &state.stores[1 - owner.store as usize];
        let shipped = target.last() == owner.last && target.applied == owner.last;
        if owner.applied != owner.last || (!shipped && self.rules.has(Rule::ShipToTheEnd)) {
            return;
        }
        let term = if self.rules.has(Rule::SealRaisesTerm) { owner.head.term + 1 } else { owner.head.term };
        let wish = Head { term, moved_at: Some(owner.last), ..owner.head };
        let cutting = Owner { phase: Phase::Cutting, wish, ..owner };
        let (store, segment) = (owner.store, owner.segment);
        let found = state.stores[store as usize].segments[segment as usize];
        let mine = found.state == SegmentState::Open && found.term == owner.head.term;
        if !self.rules.has(Rule::SealSegmentFirst) {
            next.owner(Step::SealsForCutover { owner: process, segment }, process, |owner| *owner = cutting);
        } else if found.takes(owner.head.term, owner.last) {
            next.to(Step::SealsForCutover { owner: process, segment }, |state| {
                state.stores[store as usize].segments[segment as usize].state = SegmentState::Sealed;
                state.owners[process as usize] = cutting;
            });
        } else if mine {
            // A late append of its own landed: it must be shipped too.
            next.owner(Step::Settles { owner: process }, process, |owner| owner.phase = Phase::Settling);
        } else {
            next.steps_back(process);
        }
    }

    /// Rule 13, second half: the head, with the pointer. Undoing after the segment's seal is a new claim.
    pub(super) fn cut(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let mut after = *state;
        if self.compare_and_set(&mut after, owner.store, owner.head, owner.wish) {
            next.to(Step::CutsOver { owner: process, at: owner.last, term: owner.wish.term }, |state| {
                *state = after;
                state.owners[process as usize] = Owner::default();
            });
        } else {
            next.steps_back(process);
        }
        let undone = if self.rules.has(Rule::SealSegmentFirst) {
            Owner::default()
        } else {
            Owner { phase: Phase::Serving, wish: Head::default(), ..owner }
        };
        undo(process, undone, next);
        self.doubt_head(state, process, Step::CutUnknown { owner: process }, Phase::CutUnknown, next);
    }
}

fn undo(process: u8, undone: Owner, next: &mut Next) {
    next.owner(Step::Undoes { owner: process }, process, |owner| *owner = undone);
}
