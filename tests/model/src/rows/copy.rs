//! How rows reach the target: shipped entries, and batches that a worker reads at the origin.

use super::state::{ARRIVES_WITHIN, BRIEF, Batch, CLOCK, Cell, Entry, Flight, Kind, Row, STALE_AFTER, State};
use super::{Next, RowsModel, Step};
use crate::rules::Rule;

impl RowsModel {
    pub(super) fn shipping(&self, state: &State, next: &mut Next) {
        let Some(shipped) = state.shipped else {
            let after = if self.rules.has(Rule::ShipBeforeBackfill) { state.dropped } else { state.last };
            return next.to(Step::StartsShipping { after }, |state| state.shipped = Some(after));
        };
        if shipped < state.dropped {
            let after = state.dropped;
            return next.to(Step::FallsBehind { after }, |state| {
                state.shipped = Some(after);
                if self.rules.has(Rule::RefillBehindRetention) {
                    (state.covered, state.batch) = (false, None);
                }
                state.refilled = true;
                state.receipt = false;
            });
        }
        if let Some(Some(entry)) = state.log.get(shipped as usize).copied() {
            let number = shipped + 1;
            next.to(Step::Ships { number }, |state| {
                state.shipped = Some(number);
                self.apply_shipped(&mut state.target, number, entry, state.now);
            });
        }
    }

    fn apply_shipped(&self, target: &mut Row, number: u8, mut entry: Entry, now: u8) {
        let expired = entry.expires != 0 && entry.expires <= now;
        if entry.expires != 0 && !self.rules.has(Rule::ShipRemainingTtl) {
            entry.expires = now + BRIEF;
        } else if expired && !self.rules.has(Rule::ShipExpiredAsDelete) {
            return;
        } else if expired && entry.kind == Kind::PutBriefly {
            // It replaced what was there, and is gone itself.
            entry.kind = Kind::Delete;
        }
        target.apply(number, entry, now);
    }

    pub(super) fn copying(&self, state: &State, next: &mut Next) {
        let begun = state.shipped.is_some() || !self.rules.has(Rule::ShipBeforeBackfill);
        if begun && !state.covered {
            // First or again: a worker that finds its batch stale drops it so.
            let batch = Batch { cells: state.origin.visible(state.now), read_at: state.now };
            next.to(Step::Reads, |state| state.batch = Some(batch));
        }
        if let Some(batch) = state.batch {
            self.write_batch(state, batch, next);
        }
        let Some(flight) = state.flight else { return };
        if state.now - flight.sent_at <= ARRIVES_WITHIN {
            next.to(Step::CopyLands, |state| {
                state.flight = None;
                self.merge(&mut state.target, &flight.cells, state.now);
            });
        }
        next.to(Step::CopyIsLost, |state| state.flight = None);
    }

    fn write_batch(&self, state: &State, batch: Batch, next: &mut Next) {
        if state.now - batch.read_at > STALE_AFTER && self.rules.has(Rule::RereadStale) {
            return;
        }
        let cells = batch.cells.map(|cell| self.outgoing(cell?, state.now));
        next.to(Step::Copies, |state| {
            (state.batch, state.covered) = (None, true);
            self.merge(&mut state.target, &cells, state.now);
        });
        if state.budget.unknowns > 0 && state.flight.is_none() {
            next.to(Step::CopyUnknown, |state| {
                state.budget.unknowns -= 1;
                state.batch = None;
                state.flight = Some(Flight { cells, sent_at: state.now });
            });
        }
    }

    /// A cell as it is sent: its write time, and what remains of its time to live.
    fn outgoing(&self, cell: Cell, now: u8) -> Option<Cell> {
        let mut sent = cell;
        if cell.expires != 0 {
            let remaining = cell.expires.saturating_sub(now);
            if remaining == 0 && self.rules.has(Rule::SkipExpired) {
                return None;
            }
            sent.expires = if self.rules.has(Rule::CopyRemainingTtl) { remaining } else { 0 };
        }
        if !self.rules.has(Rule::OriginalWriteTimes) {
            sent.written = CLOCK + now;
        }
        Some(sent)
    }

    fn merge(&self, target: &mut Row, cells: &[Option<Cell>; 2], now: u8) {
        if !self.rules.has(Rule::MergeByCell) && target.visible(now).iter().any(Option::is_some) {
            return;
        }
        for (index, cell) in cells.iter().enumerate() {
            if let Some(mut cell) = *cell {
                if cell.expires != 0 {
                    cell.expires += now;
                }
                target.write(index, cell);
            }
        }
    }
}
