//! Late arrivals: a write thought settled reaches the store, and is taken if its condition still holds.

use super::state::{Entry, Flight, State};
use super::{LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// Each thing under way may land now.
    pub(super) fn landings(&self, state: &State, next: &mut Next) {
        for index in 0..state.flights.len() {
            let mut after = *state;
            let Some(flight) = after.landed(index) else { continue };
            let applied = self.land(&mut after, flight);
            next.to(Step::Lands { flight, applied }, |state| *state = after);
        }
    }

    fn land(&self, state: &mut State, flight: Flight) -> bool {
        match flight {
            Flight::Append { to, term, last, batch } => {
                let segment = state.stores[to.0 as usize].segments[to.1 as usize];
                let entries: Vec<Entry> = batch.iter().flatten().copied().collect();
                if !self.takes(&segment, term, last) {
                    return false;
                }
                if self.rules.has(Rule::BatchAllOrNone) || entries.len() == 1 {
                    state.commit(to.0, to.1, &entries);
                } else {
                    // The statics and the first entry arrive, the second does not.
                    state.commit(to.0, to.1, &entries[..1]);
                    state.stores[to.0 as usize].segments[to.1 as usize].count += 1;
                }
                true
            }
            Flight::Head { store, expected, new } => self.compare_and_set(state, store, expected, new),
            Flight::Ship { to, term, last, entry } => self.land_shipped(state, to, term, last, entry),
            Flight::Write { store, entry } => {
                state.stores[store as usize].table.apply(entry);
                true
            }
        }
    }
}
