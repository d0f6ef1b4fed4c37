//! Scenarios of a migrated row, and for each rule the one that needs it.

use super::RowsModel;
use super::state::Budget;
use super::state::Kind::{self, Delete, DeleteRange, Edit, Put, PutBriefly};
use crate::rules::Rule::{self, *};
use crate::rules::Rules;

const LASTING: &[Kind] = &[Put, Edit, Delete];
const BRIEF: &[Kind] = &[Put, PutBriefly];
const RANGES: &[Kind] = &[Put, Edit, DeleteRange];
const EVERY: &[Kind] = &[Put, PutBriefly, Edit, Delete, DeleteRange];

const fn rows(kinds: &'static [Kind], writes: u8, unknowns: u8, drops: u8, until: u8) -> RowsModel {
    RowsModel { rules: Rules::ALL, kinds, budget: Budget { writes, unknowns, drops, until } }
}

/// Name and model; small enough for every test run.
pub fn small() -> Vec<(&'static str, RowsModel)> {
    vec![
        ("rows-deletes", rows(LASTING, 3, 1, 0, 5)),
        ("rows-range-deletes", rows(RANGES, 3, 1, 0, 5)),
        ("rows-times-to-live", rows(BRIEF, 3, 1, 0, 5)),
        ("rows-behind-retention", rows(LASTING, 3, 1, 2, 4)),
        ("rows-brief-behind-retention", rows(BRIEF, 2, 1, 1, 5)),
    ]
}

/// The same, larger.
pub fn large() -> Vec<(&'static str, RowsModel)> {
    vec![("rows-everything", rows(EVERY, 3, 2, 1, 7)), ("rows-four-writes", rows(EVERY, 4, 1, 2, 5))]
}

/// For each rule the smallest scenario that needs it.
pub fn ablations() -> Vec<(&'static [Rule], RowsModel)> {
    let deletes = rows(LASTING, 3, 1, 0, 5);
    let ranges = rows(RANGES, 3, 1, 0, 5);
    let brief = rows(BRIEF, 2, 1, 1, 5);
    let behind = rows(LASTING, 3, 0, 2, 4);
    let lost_delete = rows(LASTING, 2, 1, 2, 3);
    vec![
        (&[ShipBeforeBackfill], deletes),
        (&[RereadStale], deletes),
        (&[GraceOutlastsBatch], deletes),
        (&[OriginalWriteTimes], deletes),
        (&[ShipBeforeBackfill], ranges),
        (&[RereadStale], ranges),
        (&[GraceOutlastsBatch], ranges),
        (&[OriginalWriteTimes], ranges),
        (&[MergeByCell], behind),
        (&[RefillBehindRetention], behind),
        (&[RepairExtraRows], lost_delete),
        (&[RepairAtOwnWriteTime], behind),
        (&[VerifySettled], lost_delete),
        (&[CopyRemainingTtl], brief),
        (&[SkipExpired], brief),
        (&[ShipExpiredAsDelete], brief),
        (&[ShipRemainingTtl], brief),
    ]
}
