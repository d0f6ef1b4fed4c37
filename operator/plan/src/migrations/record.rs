//! What is remembered of a run between two requests. The driver stores it as it is; a new operator goes on from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::request::{ReceiptFact, Side};
pub use super::words::{
    Blocked, Direction, Figures, Finding, InHand, Log, Outcome, RollbackWindow, Shadowed, Spec, Stage, Step, Wish,
    Wishes,
};
use super::{Tuning, gates};

/// Processes whose shadow reads are told apart.
const MOST_PROCESSES: usize = 256;

/// Everything remembered of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What was asked.
    pub spec: Spec,
    /// Where it stands.
    pub step: Step,
    /// Which way logs go.
    pub direction: Direction,
    /// All logs in scope that the source served. The target serves the first `cut` of them, the source the others.
    pub logs: Arc<Vec<Log>>,
    /// Logs in scope that the target served before: their copies are only released.
    pub there: Arc<Vec<Log>>,
    /// How many the target serves.
    pub cut: usize,
    /// The most that it ever served.
    pub most_cut: usize,
    /// The log that a cutover is about.
    pub in_hand: InHand,
    /// Place in the sweep under way, how many were passed over, and the first of them.
    pub sweep: (usize, u32, usize),
    /// How often the copy of a log was begun anew, where it ever was.
    pub restarts: BTreeMap<String, u32>,
    /// How often the copy in the source had been begun anew when its log was cut over, where it ever was.
    pub back: BTreeMap<String, u32>,
    /// The copy in the source of every log was seen since its cutover, so that none in `back` means never.
    pub back_known: bool,
    /// From this log on the source lacks what the target acknowledged: the loss was accepted, or its copy was begun anew.
    pub no_way_back: Option<usize>,
    /// Since when a copy could not be released; the lowest number for one that was given up. A restart counts anew.
    pub unreleased: BTreeMap<String, i64>,
    /// Units that must be copied again.
    pub again: BTreeSet<String>,
    /// Round of the coordinator's phase; it only rises.
    pub round: u32,
    /// The phase of this round has been begun.
    pub begun: bool,
    /// Round of the probe.
    pub probe_round: u32,
    /// Everything was copied once, so that only units begun anew have to be copied again.
    pub copied: bool,
    /// Everything was copied, and nothing was begun anew since.
    pub backfilled: bool,
    /// The last receipt that counts.
    pub receipt: Option<ReceiptFact>,
    /// Repairs since somebody asked to compare.
    pub repairs: u32,
    /// Requests to compare that were followed.
    pub verified_requests: u32,
    /// Shadow reads of every process that ever counted some.
    pub shadow: BTreeMap<String, Shadowed>,
    /// What was compared before the next look does not count.
    pub shadow_anew: bool,
    /// Where each log stood when the comparison of the receipt, or the one under way, began: it covers everything up to there.
    pub positions: Arc<Vec<u64>>,
    /// The announcement was made, so it must be taken back.
    pub announced: bool,
    /// Coordinator and workers were asked for, so they must go.
    pub staffed: bool,
    /// Copies that could not be released.
    pub left_behind: u32,
    /// Entries that were at risk.
    pub at_risk: u64,
    /// Logs that were failed over by who could not know what was at risk.
    pub at_risk_unknown: u32,
    /// Tries of this request so far that did not succeed.
    pub attempt: u32,
    /// No request before this. Unix milliseconds.
    pub not_before_ms: i64,
    /// What it waits for.
    pub blocked_by: Option<Blocked>,
    /// Why it is being undone, or is to be once what is under way is settled.
    pub undo_reason: Option<Blocked>,
    /// A wish that could not be granted.
    pub wish: Option<Wish>,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// When the run began. Unix milliseconds.
    pub started_ms: i64,
    /// When the stage began.
    pub stage_since_ms: i64,
    /// When every log had been cut over.
    pub hold_since_ms: Option<i64>,
    /// When the run ended.
    pub finished_ms: Option<i64>,
    /// The longest time commands were held by a cutover, in microseconds.
    pub held_us: u64,
    /// Requests so far.
    pub requests: u32,
    /// What is shown of the work of others.
    pub figures: Figures,
}

impl Record {
    /// A run that has asked nothing yet.
    pub fn new(spec: Spec, now_ms: i64) -> Self {
        Self {
            spec,
            step: Step::ProbeSource,
            direction: Direction::Forward,
            logs: Arc::default(),
            there: Arc::default(),
            cut: 0,
            most_cut: 0,
            in_hand: InHand::default(),
            sweep: (0, 0, 0),
            restarts: BTreeMap::new(),
            back: BTreeMap::new(),
            back_known: false,
            no_way_back: None,
            unreleased: BTreeMap::new(),
            again: BTreeSet::new(),
            round: 0,
            begun: false,
            probe_round: 1,
            copied: false,
            backfilled: false,
            receipt: None,
            repairs: 0,
            verified_requests: 0,
            shadow: BTreeMap::new(),
            shadow_anew: false,
            positions: Arc::default(),
            announced: false,
            staffed: false,
            left_behind: 0,
            at_risk: 0,
            at_risk_unknown: 0,
            attempt: 0,
            not_before_ms: 0,
            blocked_by: None,
            undo_reason: None,
            wish: None,
            outcome: None,
            started_ms: now_ms,
            stage_since_ms: now_ms,
            hold_since_ms: None,
            finished_ms: None,
            held_us: 0,
            requests: 0,
            figures: Figures::default(),
        }
    }

    /// The record without what a restart finds again by itself.
    pub(super) fn bones(&self) -> Self {
        Self {
            sweep: (0, 0, 0),
            attempt: 0,
            not_before_ms: 0,
            blocked_by: None,
            wish: None,
            stage_since_ms: 0,
            requests: 0,
            in_hand: InHand { dead_since_ms: None, ..self.in_hand },
            figures: Figures::default(),
            unreleased: BTreeMap::new(),
            positions: Arc::default(),
            ..self.clone()
        }
    }

    /// The stage of the step; none while it is being undone.
    pub fn stage(&self) -> Option<Stage> {
        if self.direction == Direction::Back {
            return None;
        }
        // A run that is held before a stage has not reached it.
        let held = self.blocked_by.as_ref().is_some_and(|blocked| blocked.reason == gates::TARGET_STAGE_REACHED);
        Some(match self.step {
            Step::Announce if held => Stage::Prepare,
            Step::Staff if held => Stage::DualWrite,
            Step::AnnounceShadow if held => Stage::Verify,
            Step::AnnounceCutover if held => Stage::ShadowRead,
            Step::ProbeSource | Step::ProbeTarget | Step::List => Stage::Prepare,
            Step::Announce | Step::Ship | Step::Relist => Stage::DualWrite,
            Step::Staff | Step::Backfill | Step::Resweep => Stage::Backfill,
            Step::Verify | Step::Repair => Stage::Verify,
            Step::AnnounceShadow | Step::Shadow => Stage::ShadowRead,
            Step::AnnounceCutover
            | Step::ReverseProbe
            | Step::Recount
            | Step::Measure
            | Step::Cut
            | Step::Settle
            | Step::Canary => Stage::Cutover,
            Step::ReverseSweep | Step::Hold => Stage::Reverse,
            Step::Silence | Step::End | Step::Retract | Step::Serve | Step::Dismiss | Step::Done => Stage::Complete,
        })
    }

    /// The stage's name in status, API and CLI.
    pub fn stage_label(&self) -> &'static str {
        match (self.step, self.stage()) {
            (Step::Done, _) => "Done",
            (_, Some(stage)) => stage.label(),
            (_, None) if self.was_all_cut() => "Rollback",
            (_, None) => "Abort",
        }
    }

    /// Every log was cut over once.
    pub fn was_all_cut(&self) -> bool {
        self.hold_since_ms.is_some()
    }

    /// Whether a log that the target serves cannot be brought back without losing what the target acknowledged.
    pub fn has_no_way_back(&self) -> bool {
        self.direction == Direction::Forward && self.no_way_back.is_some_and(|from| from < self.cut)
    }

    /// Whether a rollback is possible now.
    pub fn rollback_window(&self) -> RollbackWindow {
        if self.outcome.is_some() || self.direction == Direction::Back || self.stage() == Some(Stage::Complete) {
            return RollbackWindow::Over;
        }
        if self.has_no_way_back() {
            return RollbackWindow::Over;
        }
        if self.cut == 0 && self.in_hand.sent_ms.is_none() {
            return RollbackWindow::NotYet;
        }
        RollbackWindow::Open(self.hold_since_ms.map(|since| since + self.spec.rollback_window_ms))
    }

    /// The side that serves the log in hand, and its index.
    pub(super) fn next_cut(&self) -> Option<(usize, Side)> {
        match self.direction {
            Direction::Forward => (self.cut < self.logs.len()).then_some((self.cut, Side::Source)),
            Direction::Back => self.cut.checked_sub(1).map(|index| (index, Side::Target)),
        }
    }

    /// Goes to a step, with a clean slate for its tries.
    pub(super) fn go(&mut self, step: Step) {
        self.step = step;
        self.attempt = 0;
        self.not_before_ms = 0;
        self.blocked_by = None;
        self.sweep = (0, 0, 0);
    }

    /// Begins a phase of the coordinator.
    pub(super) fn go_phase(&mut self, step: Step) {
        self.go(step);
        self.round = self.round.saturating_add(1);
        self.begun = false;
        self.figures = Figures { copies: std::mem::take(&mut self.figures.copies), ..Figures::default() };
    }

    /// Stays and tries again after a pause that grows.
    pub(super) fn retry(&mut self, now_ms: i64, hint_ms: u32, reason: &str, message: &str) {
        let pause = Tuning::FIRST_PAUSE_MS << self.attempt.min(10);
        let pause = pause.min(Tuning::LONGEST_PAUSE_MS).max(i64::from(hint_ms).min(Tuning::LONGEST_PAUSE_MS));
        self.attempt = self.attempt.saturating_add(1);
        self.wait(now_ms, pause, reason, message);
    }

    /// Stays and looks again after a pause.
    pub(super) fn wait(&mut self, now_ms: i64, pause_ms: i64, reason: &str, message: &str) {
        self.not_before_ms = now_ms + pause_ms;
        self.blocked_by = Some(Blocked { reason: reason.to_owned(), message: message.to_owned() });
    }

    /// What a receipt said counts no more.
    pub(super) fn discard_receipt(&mut self) {
        self.receipt = None;
        self.shadow_anew |= !self.shadow.is_empty();
    }

    /// Takes in what processes counted. One that is not heard of any more keeps its counts: what it found is not forgotten.
    pub(super) fn count_shadows(&mut self, counted: &BTreeMap<String, (u64, u64)>, all_answered: bool) {
        for (process, (samples, mismatches)) in counted {
            let one = self.shadow.entry(process.clone()).or_default();
            one.most = (one.most.0.max(*samples), one.most.1.max(*mismatches));
        }
        if self.shadow_anew && all_answered {
            self.shadow_anew = false;
            self.shadow.values_mut().for_each(|one| one.base = one.most);
        }
        // Of processes that ended long ago only what they found counts.
        while self.shadow.len() > MOST_PROCESSES {
            let gone =
                self.shadow.keys().find(|process| !process.is_empty() && !counted.contains_key(*process)).cloned();
            let Some(one) = gone.and_then(|gone| self.shadow.remove(&gone)) else { break };
            let all = self.shadow.entry(String::new()).or_default();
            let counts = one.counts();
            all.most = (all.most.0 + counts.0, all.most.1 + counts.1);
        }
    }

    /// Shadow reads that count: samples, mismatches.
    pub fn shadow_counts(&self) -> (u64, u64) {
        if self.shadow_anew {
            return (0, 0);
        }
        let counts = self.shadow.values().map(Shadowed::counts);
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Goes on with what was tried so often, so that tries in turn slow down too.
    pub(super) fn go_on(&mut self, step: Step) {
        let attempt = self.attempt;
        self.go(step);
        self.attempt = attempt;
    }

    pub(super) fn finish(&mut self, outcome: Outcome, now_ms: i64) {
        self.go(Step::Done);
        self.outcome = Some(outcome);
        self.finished_ms = Some(now_ms);
    }
}
