//! Verify with its repairs, and what must hold: what settles is equal, and a receipt speaks the truth.

use super::state::{CLOCK, Cell, State};
use super::{Next, RowsModel, Step};
use crate::rules::Rule;

/// Everything is shipped and copied, and nothing is on its way.
pub(super) fn is_settled(state: &State) -> bool {
    is_covered(state) && state.flight.is_none()
}

fn is_covered(state: &State) -> bool {
    state.covered && state.batch.is_none() && state.shipped == Some(state.last)
}

/// How the target differs from the origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Difference {
    Extra,
    Missing,
    Differing,
}

/// The first difference. A time to live that ends one unit later, for the way its write took, is none.
pub(super) fn difference(state: &State) -> Option<Difference> {
    let ending = |cell: &Cell| cell.expires != 0 && cell.expires <= state.now + super::state::ARRIVES_WITHIN;
    (0..2).find_map(|index| {
        let (origin, target) = (state.origin.read(index, state.now), state.target.read(index, state.now));
        match (origin, target) {
            (None, Some(target)) if !ending(&target) => Some(Difference::Extra),
            (Some(origin), None) if !ending(&origin) => Some(Difference::Missing),
            (Some(origin), Some(target)) if origin.value != target.value => Some(Difference::Differing),
            _ => None,
        }
    })
}

impl RowsModel {
    pub(super) fn verifying(&self, state: &State, next: &mut Next) {
        let may = if self.rules.has(Rule::VerifySettled) { is_settled(state) } else { is_covered(state) };
        if !may {
            return;
        }
        match difference(state) {
            None => next.to(Step::GivesReceipt, |state| state.receipt = true),
            Some(Difference::Extra) if self.rules.has(Rule::RepairExtraRows) => {
                let own = state.target.cells.iter().map(|cell| cell.written).max().unwrap_or(0);
                let at = if self.rules.has(Rule::RepairAtOwnWriteTime) { own } else { CLOCK + state.now };
                next.to(Step::DeletesExtra { at }, |state| state.target.delete(at, state.now));
            }
            Some(Difference::Extra) => {}
            Some(_) => next.to(Step::CopiesAgain, |state| state.covered = false),
        }
    }

    pub(super) fn check(&self, state: &State) -> Option<String> {
        let difference = difference(state).filter(|_| is_settled(state))?;
        let what = match difference {
            Difference::Extra => "the target has a row that the origin has not",
            Difference::Missing => "the target lacks a row",
            Difference::Differing => "the target shows another value",
        };
        if state.receipt {
            return Some(format!("a receipt was given, and {what}"));
        }
        // Deletes that were never shipped leave rows behind, which verify finds; nothing else may.
        let excused = state.refilled && difference == Difference::Extra;
        (!excused).then(|| format!("everything is copied and shipped, and {what}"))
    }
}
