//! Scenarios of a log: with every rule each holds; with a rule left out one of them shows the damage.

use super::LogModel;
use super::state::Budget;
use crate::rules::Rule::{self, *};
use crate::rules::Rules;

const NOTHING: Budget = Budget {
    crashes: 0,
    unknowns: 0,
    claims: 0,
    late_writes: 0,
    late_ships: 0,
    rolls: 0,
    switches: 0,
    cutovers: 0,
    drops: 0,
    retentions: 0,
    batches: 0,
};

const PLAIN: LogModel = LogModel { rules: Rules::ALL, owners: 2, operations: 2, copies: false, budget: NOTHING };
const COPIES: LogModel = LogModel { copies: true, ..PLAIN };

/// Name and model; small enough for every test run.
pub fn small() -> Vec<(&'static str, LogModel)> {
    let plain = |budget| LogModel { budget, ..PLAIN };
    let three = |budget| LogModel { budget, operations: 3, ..PLAIN };
    let copies = |budget| LogModel { budget, ..COPIES };
    vec![
        ("log", plain(Budget { crashes: 1, unknowns: 1, claims: 1, late_writes: 1, rolls: 1, ..NOTHING })),
        ("log-unforced-claims", plain(Budget { unknowns: 1, claims: 2, rolls: 1, ..NOTHING })),
        ("log-batches", three(Budget { unknowns: 1, claims: 1, batches: 1, ..NOTHING })),
        ("log-retention", plain(Budget { claims: 2, rolls: 1, retentions: 2, crashes: 1, ..NOTHING })),
        ("log-switch", LogModel { owners: 3, ..plain(Budget { switches: 1, unknowns: 1, claims: 1, ..NOTHING }) }),
        ("log-cutover", copies(Budget { cutovers: 1, unknowns: 1, claims: 1, ..NOTHING })),
        (
            "log-rollback",
            LogModel { operations: 1, ..copies(Budget { cutovers: 2, claims: 1, crashes: 1, ..NOTHING }) },
        ),
        ("log-late-ships", LogModel { operations: 2, ..copies(Budget { cutovers: 1, late_ships: 1, ..NOTHING }) }),
        ("log-release", LogModel { operations: 1, ..copies(Budget { cutovers: 2, drops: 1, crashes: 1, ..NOTHING }) }),
    ]
}

/// The same, larger: minutes, and gigabytes.
pub fn large() -> Vec<(&'static str, LogModel)> {
    let plain = |budget| LogModel { budget, operations: 3, ..PLAIN };
    let copies = |budget| LogModel { budget, ..COPIES };
    let faults = Budget { crashes: 1, unknowns: 2, claims: 2, late_writes: 1, ..NOTHING };
    vec![
        ("large-log", plain(Budget { rolls: 1, ..faults })),
        ("large-batches", plain(Budget { batches: 1, ..faults })),
        ("large-retention", plain(Budget { claims: 2, rolls: 1, retentions: 2, crashes: 1, unknowns: 1, ..NOTHING })),
        ("large-switch", LogModel { owners: 3, ..plain(Budget { switches: 2, ..faults }) }),
        ("large-cutover", copies(Budget { cutovers: 1, crashes: 1, unknowns: 1, claims: 1, ..NOTHING })),
        ("large-rollback", copies(Budget { cutovers: 2, crashes: 1, unknowns: 1, claims: 1, ..NOTHING })),
        (
            "large-thrice",
            LogModel { operations: 1, ..copies(Budget { cutovers: 3, crashes: 1, claims: 1, ..NOTHING }) },
        ),
        ("large-release", copies(Budget { cutovers: 2, drops: 1, crashes: 1, unknowns: 1, ..NOTHING })),
        ("large-late-ships", copies(Budget { cutovers: 2, late_ships: 1, claims: 1, crashes: 1, ..NOTHING })),
    ]
}

/// A rule left out, and the model in which that shows.
pub type Ablation = (&'static [Rule], LogModel);

/// For each rule the smallest scenario that needs it. Where two rules cover for each other, both are left out.
pub fn ablations() -> Vec<Ablation> {
    let mut all = of_claims();
    all.extend(of_appends());
    all.extend(of_copies());
    all
}

fn of_claims() -> Vec<Ablation> {
    let plain = |budget| LogModel { budget, ..PLAIN };
    let forced = plain(Budget { claims: 2, rolls: 1, unknowns: 1, crashes: 1, ..NOTHING });
    let dropping = plain(Budget { claims: 2, rolls: 1, retentions: 2, crashes: 1, ..NOTHING });
    let switching = LogModel { owners: 3, ..plain(Budget { switches: 1, unknowns: 1, claims: 1, ..NOTHING }) };
    vec![
        (&[CompareWholeRow], forced),
        (&[ClaimSeals], forced),
        (&[VerifyRetained], dropping),
        (&[VerifyRoll], dropping),
        (&[OpenIfAbsent], forced),
        (&[WalkPastHint], forced),
        (&[WalkChecksTerm, VerifyHead], forced),
        (&[HandOn], LogModel { operations: 3, ..forced }),
        (&[Reapply], forced),
        (&[LoadWindow], forced),
        (&[SwitchRaisesTerm], switching),
        (&[MarkBeforeDrop], dropping),
        (&[DropBehindCursor], dropping),
        (&[RetainTheWindow], dropping),
    ]
}

fn of_appends() -> Vec<Ablation> {
    let plain = |budget| LogModel { budget, ..PLAIN };
    let three = |budget| LogModel { operations: 3, budget, ..PLAIN };
    let forced = plain(Budget { claims: 2, crashes: 1, ..NOTHING });
    let unknown = Budget { unknowns: 2, ..NOTHING };
    let batches = LogModel { operations: 4, ..plain(Budget { batches: 1, unknowns: 1, ..NOTHING }) };
    vec![
        (&[AppendChecksTerm], forced),
        (&[Settle], plain(unknown)),
        (&[SettleByOperation], three(unknown)),
        (&[BatchAllOrNone], batches),
        (&[TimestampsRise], forced),
        (&[BatchTimestampsRise], batches),
        (&[JudgeUnapplied], batches),
        (&[AnswerAfterApply], forced),
        (&[DuplicatesWait], forced),
        (&[ProveRefusals], plain(Budget { claims: 1, late_writes: 1, ..NOTHING })),
        (&[NeverRefuseProposed], plain(unknown)),
    ]
}

fn of_copies() -> Vec<Ablation> {
    let copies = |budget| LogModel { budget, ..COPIES };
    let cutover = copies(Budget { cutovers: 1, claims: 1, unknowns: 1, ..NOTHING });
    let rollback = LogModel { operations: 1, ..copies(Budget { cutovers: 2, claims: 1, unknowns: 1, ..NOTHING }) };
    let late = copies(Budget { cutovers: 1, late_ships: 1, claims: 1, ..NOTHING });
    let release = LogModel { operations: 1, ..copies(Budget { cutovers: 2, drops: 1, crashes: 1, ..NOTHING }) };
    vec![
        (&[SealRaisesTerm], rollback),
        (&[CopyStartsPointed], cutover),
        (&[ShipConditionally], late),
        (&[CopyStartsBack], cutover),
        (&[ShipToTheEnd], cutover),
        (&[SealSegmentFirst], cutover),
        (&[PointerHoldsTerm], rollback),
        (&[HigherPointerHolds], cutover),
        (&[TargetBelowPointer], rollback),
        (&[RaiseBeforeDrop], release),
    ]
}

impl LogModel {
    /// The same with rules left out.
    pub fn without(self, rules: &[Rule]) -> Self {
        Self { rules: rules.iter().fold(self.rules, |left, rule| left.without(*rule)), ..self }
    }
}
