//! The stored form of a migration's record. Fields are only ever added, with a default, so that a newer operator goes on where an
//! older one stopped.

use std::collections::{BTreeMap, BTreeSet};

use cell_plan::migrations::{Figures, InHand, Outcome, ReceiptFact, Record, Shadowed, Spec, Step, Wish};
use serde::{Deserialize, Serialize};

use super::wire::{DirectionWire, WhyWire, mirror};

mirror!(
    StepWire = Step {
        ProbeSource,
        ProbeTarget,
        List,
        Announce,
        Ship,
        Relist,
        Staff,
        Backfill,
        Resweep,
        Verify,
        Repair,
        AnnounceShadow,
        Shadow,
        AnnounceCutover,
        ReverseProbe,
        Recount,
        Measure,
        Cut,
        Settle,
        Canary,
        ReverseSweep,
        Hold,
        Silence,
        End,
        Retract,
        Serve,
        Dismiss,
        Done,
    }
);
mirror!(WishWire = Wish { TooLateToAbort, TooEarlyToRollBack, TooLateToRollBack, TooLateToVerify, NoWayBack });

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecWire {
    run_id: String,
    source: String,
    target: String,
    units: Vec<String>,
    rollback_window_ms: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InHandWire {
    term: u64,
    sent_ms: Option<i64>,
    unsettled: bool,
    dead_since_ms: Option<i64>,
    #[serde(default)]
    loss_accepted: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptWire {
    round: u32,
    began_ms: i64,
    ended_ms: i64,
    source: String,
    target: String,
    rows: u64,
    repaired: u64,
    mismatches: BTreeMap<String, u64>,
    clean: bool,
    #[serde(default)]
    digests: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum OutcomeWire {
    Completed,
    Aborted,
    RolledBack,
    Refused { reason: String, message: String },
}

/// Samples and mismatches.
type CountsWire = (u64, u64);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordWire {
    spec: SpecWire,
    step: StepWire,
    direction: DirectionWire,
    cut: usize,
    most_cut: usize,
    in_hand: InHandWire,
    sweep: (usize, u32, usize),
    restarts: BTreeMap<String, u32>,
    #[serde(default)]
    back: BTreeMap<String, u32>,
    #[serde(default)]
    back_known: bool,
    #[serde(default)]
    no_way_back: Option<usize>,
    again: BTreeSet<String>,
    round: u32,
    begun: bool,
    probe_round: u32,
    copied: bool,
    backfilled: bool,
    receipt: Option<ReceiptWire>,
    repairs: u32,
    verified_requests: u32,
    /// By process: base and most.
    #[serde(default)]
    shadow: BTreeMap<String, (CountsWire, CountsWire)>,
    #[serde(default)]
    shadow_anew: bool,
    announced: bool,
    staffed: bool,
    left_behind: u32,
    at_risk: u64,
    #[serde(default)]
    at_risk_unknown: u32,
    attempt: u32,
    not_before_ms: i64,
    blocked_by: Option<WhyWire>,
    undo_reason: Option<WhyWire>,
    wish: Option<WishWire>,
    outcome: Option<OutcomeWire>,
    started_ms: i64,
    stage_since_ms: i64,
    hold_since_ms: Option<i64>,
    finished_ms: Option<i64>,
    held_us: u64,
    requests: u32,
}

impl From<&ReceiptFact> for ReceiptWire {
    fn from(fact: &ReceiptFact) -> Self {
        let ReceiptFact { round, began_ms, ended_ms, source, target, rows, repaired, mismatches, clean, digests } =
            fact.clone();
        Self { round, began_ms, ended_ms, source, target, rows, repaired, mismatches, clean, digests }
    }
}

impl From<ReceiptWire> for ReceiptFact {
    fn from(wire: ReceiptWire) -> Self {
        let ReceiptWire { round, began_ms, ended_ms, source, target, rows, repaired, mismatches, clean, digests } =
            wire;
        Self { round, began_ms, ended_ms, source, target, rows, repaired, mismatches, clean, digests }
    }
}

impl From<&Outcome> for OutcomeWire {
    fn from(outcome: &Outcome) -> Self {
        match outcome.clone() {
            Outcome::Completed => Self::Completed,
            Outcome::Aborted => Self::Aborted,
            Outcome::RolledBack => Self::RolledBack,
            Outcome::Refused { reason, message } => Self::Refused { reason, message },
        }
    }
}

impl From<OutcomeWire> for Outcome {
    fn from(wire: OutcomeWire) -> Self {
        match wire {
            OutcomeWire::Completed => Self::Completed,
            OutcomeWire::Aborted => Self::Aborted,
            OutcomeWire::RolledBack => Self::RolledBack,
            OutcomeWire::Refused { reason, message } => Self::Refused { reason, message },
        }
    }
}

impl From<&Record> for RecordWire {
    fn from(record: &Record) -> Self {
        let Spec { run_id, source, target, units, rollback_window_ms } = record.spec.clone();
        let InHand { term, sent_ms, unsettled, dead_since_ms, loss_accepted } = record.in_hand;
        Self {
            spec: SpecWire { run_id, source, target, units, rollback_window_ms },
            step: record.step.into(),
            direction: record.direction.into(),
            cut: record.cut,
            most_cut: record.most_cut,
            in_hand: InHandWire { term, sent_ms, unsettled, dead_since_ms, loss_accepted },
            sweep: record.sweep,
            restarts: record.restarts.clone(),
            back: record.back.clone(),
            back_known: record.back_known,
            no_way_back: record.no_way_back,
            again: record.again.clone(),
            round: record.round,
            begun: record.begun,
            probe_round: record.probe_round,
            copied: record.copied,
            backfilled: record.backfilled,
            receipt: record.receipt.as_ref().map(Into::into),
            repairs: record.repairs,
            verified_requests: record.verified_requests,
            shadow: record.shadow.iter().map(|(process, one)| (process.clone(), (one.base, one.most))).collect(),
            shadow_anew: record.shadow_anew,
            announced: record.announced,
            staffed: record.staffed,
            left_behind: record.left_behind,
            at_risk: record.at_risk,
            at_risk_unknown: record.at_risk_unknown,
            attempt: record.attempt,
            not_before_ms: record.not_before_ms,
            blocked_by: record.blocked_by.as_ref().map(Into::into),
            undo_reason: record.undo_reason.as_ref().map(Into::into),
            wish: record.wish.map(Into::into),
            outcome: record.outcome.as_ref().map(Into::into),
            started_ms: record.started_ms,
            stage_since_ms: record.stage_since_ms,
            hold_since_ms: record.hold_since_ms,
            finished_ms: record.finished_ms,
            held_us: record.held_us,
            requests: record.requests,
        }
    }
}

impl From<RecordWire> for Record {
    fn from(wire: RecordWire) -> Self {
        let SpecWire { run_id, source, target, units, rollback_window_ms } = wire.spec;
        let InHandWire { term, sent_ms, unsettled, dead_since_ms, loss_accepted } = wire.in_hand;
        Self {
            spec: Spec { run_id, source, target, units, rollback_window_ms },
            step: wire.step.into(),
            direction: wire.direction.into(),
            logs: std::sync::Arc::default(),
            there: std::sync::Arc::default(),
            cut: wire.cut,
            most_cut: wire.most_cut,
            in_hand: InHand { term, sent_ms, unsettled, dead_since_ms, loss_accepted },
            sweep: wire.sweep,
            restarts: wire.restarts,
            back: wire.back,
            back_known: wire.back_known,
            no_way_back: wire.no_way_back,
            unreleased: BTreeMap::new(),
            again: wire.again,
            round: wire.round,
            begun: wire.begun,
            probe_round: wire.probe_round,
            copied: wire.copied,
            backfilled: wire.backfilled,
            receipt: wire.receipt.map(Into::into),
            repairs: wire.repairs,
            verified_requests: wire.verified_requests,
            shadow: wire.shadow.into_iter().map(|(name, (base, most))| (name, Shadowed { base, most })).collect(),
            shadow_anew: wire.shadow_anew,
            positions: std::sync::Arc::default(),
            announced: wire.announced,
            staffed: wire.staffed,
            left_behind: wire.left_behind,
            at_risk: wire.at_risk,
            at_risk_unknown: wire.at_risk_unknown,
            attempt: wire.attempt,
            not_before_ms: wire.not_before_ms,
            blocked_by: wire.blocked_by.map(Into::into),
            undo_reason: wire.undo_reason.map(Into::into),
            wish: wire.wish.map(Into::into),
            outcome: wire.outcome.map(Into::into),
            started_ms: wire.started_ms,
            stage_since_ms: wire.stage_since_ms,
            hold_since_ms: wire.hold_since_ms,
            finished_ms: wire.finished_ms,
            held_us: wire.held_us,
            requests: wire.requests,
            figures: Figures::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cell_plan::migrations::Blocked;

    use super::*;

    #[test]
    fn a_record_survives_its_stored_form() {
        let spec = Spec {
            run_id: "run".into(),
            source: "a".into(),
            target: "b".into(),
            units: vec!["b0001".into()],
            rollback_window_ms: 6,
        };
        let mut record = Record::new(spec, 7);
        record.in_hand =
            InHand { term: u64::MAX, sent_ms: Some(1), unsettled: true, dead_since_ms: Some(2), loss_accepted: true };
        record.back.insert("b0002".into(), 1);
        (record.back_known, record.no_way_back) = (true, Some(1));
        record.restarts.insert("b0001".into(), 3);
        record.again.insert("b0001".into());
        record.receipt = Some(ReceiptFact { round: 4, clean: true, ..ReceiptFact::default() });
        record.outcome = Some(Outcome::Refused { reason: "R".into(), message: "m".into() });
        record.blocked_by = Some(Blocked { reason: "B".into(), message: "n".into() });
        record.wish = Some(Wish::TooLateToVerify);
        record.shadow.insert("d/1".into(), Shadowed { base: (1, 2), most: (3, 4) });
        record.shadow_anew = true;
        let text = serde_json::to_string(&RecordWire::from(&record)).unwrap();
        let back: RecordWire = serde_json::from_str(&text).unwrap();
        assert_eq!(Record::from(back), record);
    }
}
