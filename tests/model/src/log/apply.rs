//! Applying committed entries to the tables (rules 5 and 7), and shipping them to the other store (rule 11).

use super::state::{Answer, Entry, Flight, SEGMENTS, Segment, SegmentState, State};
use super::{LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// The next committed entry goes into the table, and its operation may be answered.
    pub(super) fn apply(&self, state: &State, process: u8, next: &mut Next) {
        let owner = &state.owners[process as usize];
        let (store, number) = (owner.store, owner.applied + 1);
        if number > owner.last {
            return;
        }
        // What an owner read when it claimed stays in its memory, though the segment may be gone.
        let Some(entry) = state.entry(store, number) else { return };
        let mut after = *state;
        let target = &mut after.stores[store as usize];
        target.table.apply(entry);
        target.applied = target.applied.max(number);
        after.owners[process as usize].applied = number;
        after.answers[entry.operation as usize] = Answer::Done;
        next.to(Step::Applies { owner: process, store, number }, |state| *state = after);
        let mut after = *state;
        if state.budget.late_writes > 0 && after.send(Flight::Write { store, entry }) {
            // It lands some time; the owner, which does not know, will write again.
            next.to(Step::ApplyUnknown { owner: process, number }, |state| {
                *state = after;
                state.budget.late_writes -= 1;
            });
        }
    }

    /// The other store's copy of the log gets the next entry, or its table what was shipped.
    pub(super) fn ship(&self, state: &State, process: u8, next: &mut Next) {
        if !state.is_shipping() {
            return;
        }
        let owner = &state.owners[process as usize];
        let to = 1 - owner.store;
        let target = &state.stores[to as usize];
        let shipped = target.last();
        if let Some(newest) = target.newest()
            && shipped < owner.last
            && let Some(entry) = state.stores[owner.store as usize].entry(shipped + 1)
        {
            self.ship_entry(state, process, (to, newest as u8), entry, next);
        }
        let number = target.applied + 1;
        if number <= shipped
            && number <= owner.last
            && let Some(entry) = target.entry(number)
        {
            next.to(Step::AppliesShipped { owner: process, to, number }, |state| {
                let target = &mut state.stores[to as usize];
                target.table.apply(entry);
                target.applied = number;
            });
        }
    }

    fn ship_entry(&self, state: &State, process: u8, to: (u8, u8), entry: Entry, next: &mut Next) {
        let term = state.owners[process as usize].head.term;
        let segment = &state.stores[to.0 as usize].segments[to.1 as usize];
        let last = segment.last();
        if segment.state == SegmentState::Sealed {
            if (to.1 as usize) + 1 < SEGMENTS {
                next.to(Step::OpensInCopy { owner: process, to: to.0, segment: to.1 + 1 }, |state| {
                    let opened = Segment {
                        state: SegmentState::Open,
                        term,
                        before: last,
                        handed_timestamp: segment.last_timestamp(),
                        ..Segment::default()
                    };
                    state.stores[to.0 as usize].segments[to.1 as usize + 1] = opened;
                });
            }
            return;
        }
        if segment.term > term || !segment.has_room(1) {
            return;
        }
        let mut after = *state;
        self.land_shipped(&mut after, to, term, last, entry);
        let step = |again| Step::Ships { owner: process, to: to.0, number: last + 1, again };
        next.to(step(false), |state| *state = after);
        if state.budget.late_ships > 0 && after.send(Flight::Ship { to, term, last, entry }) {
            next.to(step(true), |state| {
                *state = after;
                state.budget.late_ships -= 1;
            });
        }
    }

    /// A shipped entry reaches the store; answers whether it was taken.
    pub(super) fn land_shipped(&self, state: &mut State, to: (u8, u8), term: u8, last: u8, entry: Entry) -> bool {
        let segment = &mut state.stores[to.0 as usize].segments[to.1 as usize];
        if !self.rules.has(Rule::ShipConditionally) {
            if segment.state == SegmentState::Absent || last < segment.before {
                return false;
            }
            // A plain write of the row and of the last number.
            let at = (last - segment.before) as usize;
            segment.entries[at] = Some(entry);
            segment.entries[at + 1..].fill(None);
            segment.count = at as u8 + 1;
            return true;
        }
        if segment.state != SegmentState::Open || segment.last() != last || segment.term > term {
            return false;
        }
        segment.term = term;
        state.commit(to.0, to.1, &[entry]);
        true
    }
}
