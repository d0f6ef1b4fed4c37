//! Scenarios of splits and merges, and for each rule the one that needs it.

use super::SplitModel;
use super::state::Budget;
use crate::rules::Rule::{self, *};
use crate::rules::Rules;

const fn split(operations: u8, budget: Budget) -> SplitModel {
    SplitModel { rules: Rules::ALL, operations, budget }
}

const QUIET: Budget = Budget { crashes: 0, claims: 0, splits: 1, merges: 1, unknowns: 0 };
const CLAIMS: Budget = Budget { claims: 1, ..QUIET };
const TWICE: Budget = Budget { splits: 2, ..CLAIMS };
const UNKNOWN: Budget = Budget { unknowns: 1, ..QUIET };

/// Name and model; small enough for every test run.
pub fn small() -> Vec<(&'static str, SplitModel)> {
    vec![
        ("split-claims", split(2, CLAIMS)),
        ("split-crashes", split(1, Budget { crashes: 1, claims: 1, ..TWICE })),
        ("split-unknown-outcomes", split(2, Budget { claims: 0, splits: 2, ..UNKNOWN })),
    ]
}

/// The same, larger.
pub fn large() -> Vec<(&'static str, SplitModel)> {
    vec![("split-everything", split(2, Budget { crashes: 1, claims: 1, splits: 2, merges: 2, unknowns: 1 }))]
}

/// For each rule the smallest scenario that needs it.
pub fn ablations() -> Vec<(&'static [Rule], SplitModel)> {
    let claims = split(2, CLAIMS);
    let twice = split(2, TWICE);
    let unknown = split(2, UNKNOWN);
    vec![
        (&[SplitNamesTerm], claims),
        (&[MergeAboveSplit], twice),
        (&[SealBeforeMerge], claims),
        (&[MergeSealsSegment, SettleBeforeHandover], unknown),
        (&[InheritWindow], claims),
        (&[InheritTimestamps], claims),
        (&[InheritOnlySealed], twice),
        (&[InheritWithMerge], claims),
    ]
}
