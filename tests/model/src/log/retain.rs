//! Retention: the oldest segment is marked as gone and then dropped, once it is sealed, behind the applied cursor, and older than any
//! deadline its operations could still meet.

use super::state::{Answer, Entry, SegmentState, State};
use super::{LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// An owner looks at the oldest segment.
    pub(super) fn retention(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let store = &state.stores[owner.store as usize];
        let oldest = store.retained;
        let mark_first = self.rules.has(Rule::MarkBeforeDrop);
        let (index, gone) = (owner.store as usize, SegmentState::Absent);
        if mark_first {
            // What is marked is dropped, by this owner or a later one.
            for segment in (0..oldest).filter(|segment| store.segments[*segment as usize].state != gone) {
                next.to(Step::DropsSegment { owner: process, segment }, |state| {
                    state.stores[index].segments[segment as usize] = Default::default();
                });
            }
        } else if oldest < owner.segment && store.segments[oldest as usize].state == gone {
            next.to(Step::Marks { owner: process, retained: oldest + 1 }, |state| {
                state.stores[index].retained = oldest + 1;
            });
        }
        if !self.may_drop(state, process) {
            return;
        }
        let step = if mark_first {
            Step::Marks { owner: process, retained: oldest + 1 }
        } else {
            Step::DropsSegment { owner: process, segment: oldest }
        };
        next.to(step, |state| {
            state.budget.retentions -= 1;
            if self.rules.has(Rule::RetainTheWindow) {
                let old = state.stores[index].segments[oldest as usize].entries;
                old.iter().flatten().for_each(|entry| expire(state, entry));
            }
            let store = &mut state.stores[index];
            if mark_first {
                store.retained = oldest + 1;
            } else {
                store.segments[oldest as usize] = Default::default();
            }
        });
    }

    /// Sealed, not the last, and behind the cursor.
    fn may_drop(&self, state: &State, process: u8) -> bool {
        let owner = state.owners[process as usize];
        let store = &state.stores[owner.store as usize];
        let segment = &store.segments[store.retained as usize];
        state.budget.retentions > 0
            && store.retained < owner.segment
            && segment.state == SegmentState::Sealed
            && (segment.last() <= owner.applied || !self.rules.has(Rule::DropBehindCursor))
    }
}

/// The retention is far longer than any deadline: whoever asked for this has been told or has given up.
fn expire(state: &mut State, entry: &Entry) {
    state.expired.add(entry.operation);
    let answer = &mut state.answers[entry.operation as usize];
    if *answer == Answer::Open {
        *answer = Answer::GaveUp;
    }
}
