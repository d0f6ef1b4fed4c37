//! Scripted runs: one fault each, named for the behaviour.

use super::fake::{Fleet, SOURCE, TARGET, refuse, spec, wishes};
use super::*;

/// A run against a fake fleet, one request at a time.
struct Run {
    fleet: Fleet,
    record: Record,
    wishes: Wishes,
    now_ms: i64,
}

impl Run {
    fn new() -> Self {
        Self::of(&["b0001", "b0002", "b0003"])
    }

    fn of(names: &[&str]) -> Self {
        Self { fleet: Fleet::new(names), record: Record::new(spec(), 0), wishes: wishes(), now_ms: 0 }
    }

    /// One transition, with its request answered.
    fn step(&mut self, heard: Option<&Response>) -> (Option<Request>, Option<Response>) {
        let context = Context { now_ms: self.now_ms, wishes: self.wishes.clone() };
        let next = advance(&self.record, &context, heard);
        self.record = next.record;
        match (&next.request, next.wake_at_ms) {
            (None, Some(wake)) => {
                assert!(self.record.blocked_by.is_some(), "it waits at {:?} without saying why", self.record.step);
                self.now_ms = wake.max(self.now_ms + 1);
            }
            (Some(_), _) => self.now_ms += 1,
            (None, None) => assert!(self.record.outcome.is_some(), "it neither asks nor waits nor has ended"),
        }
        let answer = next.request.as_ref().map(|request| self.fleet.answer(request, self.now_ms));
        (next.request, answer)
    }

    /// Runs until `until` holds; fails when it does not within many transitions.
    fn until(&mut self, what: &str, mut until: impl FnMut(&Self) -> bool) {
        let mut heard = None;
        for _ in 0..5_000 {
            if until(self) {
                return;
            }
            heard = self.step(heard.as_ref()).1;
        }
        panic!("{what} did not come about: {:?}", self.record);
    }

    fn end(&mut self) -> &'static str {
        self.until("the end", |run| run.record.outcome.is_some());
        self.record.outcome.as_ref().map(Outcome::label).unwrap_or_default()
    }

    fn at(&mut self, step: Step) {
        self.until(&format!("{step:?}"), |run| run.record.step == step);
    }

    fn blocked(&self) -> &str {
        self.record.blocked_by.as_ref().map(|why| why.reason.as_str()).unwrap_or_default()
    }

    fn blocked_by(&mut self, reason: &str) {
        self.until(reason, |run| run.blocked() == reason);
    }

    fn tidy(&self) -> bool {
        self.fleet.announced.is_none()
            && !self.fleet.staffed
            && self.fleet.logs.values().all(|log| !log.shipping && log.ended)
    }
}

#[test]
fn a_run_goes_through_all_stages_and_leaves_nothing_behind() {
    let mut run = Run::new();
    let mut stages = Vec::new();
    run.until("the end", |run| {
        let label = run.record.stage_label();
        if stages.last() != Some(&label) {
            stages.push(label);
        }
        run.record.outcome.is_some()
    });
    assert_eq!(
        stages,
        ["Prepare", "DualWrite", "Backfill", "Verify", "ShadowRead", "Cutover", "Reverse", "Complete", "Done"]
    );
    assert_eq!(run.record.outcome, Some(Outcome::Completed));
    assert_eq!(run.fleet.names_on_target().len(), 3);
    assert!(run.tidy() && run.fleet.served, "{:?}", run.fleet);
    assert!(run.fleet.logs.values().all(|log| log.cut_overs == 1));
    assert_eq!(run.record.held_us, 1_500);
}

#[test]
fn it_goes_no_further_than_told_and_says_so() {
    for (target, stage) in [
        (Stage::Prepare, "Prepare"),
        (Stage::DualWrite, "DualWrite"),
        (Stage::Backfill, "Backfill"),
        (Stage::Verify, "Verify"),
        (Stage::ShadowRead, "ShadowRead"),
        (Stage::Cutover, "Reverse"),
    ] {
        let mut run = Run::new();
        run.wishes.target_stage = target;
        run.blocked_by("TargetStageReached");
        assert_eq!(run.record.stage_label(), stage, "{target:?}");
        assert_eq!(run.fleet.names_on_target().is_empty(), target < Stage::Cutover);
        run.wishes.target_stage = Stage::Complete;
        assert_eq!(run.end(), "Completed");
    }
}

#[test]
fn the_first_log_ships_back_before_the_second_is_cut_over() {
    let mut run = Run::new();
    run.at(Step::Canary);
    assert_eq!(run.fleet.names_on_target().len(), 1);
    run.fleet.source_dead = true;
    run.blocked_by("CopyBehind");
    assert_eq!(run.fleet.names_on_target().len(), 1);
    run.fleet.source_dead = false;
    assert_eq!(run.end(), "Completed");
}

#[test]
fn a_cutover_is_not_begun_before_everything_is_copied() {
    // The coordinator says complete though ranges failed, or though there was none.
    for wrong in [
        CoordinatorFact { round: 1, complete: true, failed: 1, done: 3, total: 3, ..CoordinatorFact::default() },
        CoordinatorFact { round: 1, complete: true, ..CoordinatorFact::default() },
        CoordinatorFact { round: 1, complete: true, done: 2, total: 3, ..CoordinatorFact::default() },
        CoordinatorFact { round: 0, complete: true, done: 3, total: 3, ..CoordinatorFact::default() },
    ] {
        let mut run = Run::new();
        run.at(Step::Backfill);
        run.step(None);
        run.step(Some(&Response::Coordinator(Box::new(wrong))));
        assert_eq!(run.record.step, Step::Backfill);
        assert!(!run.record.backfilled && !run.blocked().is_empty());
    }
}

#[test]
fn a_copy_begun_anew_is_copied_again_and_compared_again() {
    for step in [Step::Verify, Step::Shadow, Step::ReverseProbe, Step::Canary] {
        let mut run = Run::new();
        run.at(step);
        let verified = run.record.round;
        run.fleet.restart_copy("b0003");
        assert_eq!(run.end(), "Completed", "{step:?}");
        assert!(run.record.round > verified, "{step:?}");
        assert_eq!(run.fleet.names_on_target().len(), 3);
    }
}

#[test]
fn a_repair_is_made_once_and_then_someone_must_ask() {
    let mut run = Run::new();
    run.fleet.dirty = 1;
    assert_eq!(run.end(), "Completed");
    let mut run = Run::new();
    run.fleet.dirty = 2;
    run.blocked_by("ReceiptDirty");
    // A crash or a wait does not open it.
    run.now_ms += 100_000;
    run.blocked_by("ReceiptDirty");
    assert!(run.fleet.names_on_target().is_empty());
    run.wishes.verify_requests = 1;
    assert_eq!(run.end(), "Completed");
}

#[test]
fn a_receipt_grows_old_or_is_of_other_sides() {
    let mut run = Run::new();
    run.wishes.target_stage = Stage::ShadowRead;
    run.blocked_by("TargetStageReached");
    run.now_ms += 2 * 3_600_000;
    run.wishes.target_stage = Stage::Complete;
    run.blocked_by("ReceiptStale");
    run.wishes.verify_requests = 1;
    assert_eq!(run.end(), "Completed");

    let mut run = Run::new();
    run.at(Step::Shadow);
    if let Some(receipt) = &mut run.record.receipt {
        (receipt.source, receipt.target) = (TARGET.into(), SOURCE.into());
    }
    run.blocked_by("ReceiptStale");
    assert!(run.fleet.names_on_target().is_empty());
}

#[test]
fn no_shadow_read_is_no_pass_and_a_mismatch_is_not_forgotten() {
    let mut run = Run::new();
    run.wishes.shadow_per_10000 = 0;
    run.blocked_by("ShadowSamplesMissing");
    run.wishes.shadow_per_10000 = 100;
    let mut run = Run::new();
    run.fleet.mismatches = 1;
    run.blocked_by("ShadowMismatch");
    // The counting process restarts: what it counted is still known.
    (run.fleet.mismatches, run.fleet.samples) = (0, 0);
    run.now_ms += 60_000;
    run.blocked_by("ShadowMismatch");
    assert!(run.fleet.names_on_target().is_empty());
    run.wishes.verify_requests = 1;
    assert_eq!(run.end(), "Completed");
}

#[test]
fn what_was_compared_before_a_second_verification_does_not_count_whoever_began_anew_meanwhile() {
    let mut run = Run::new();
    run.at(Step::Shadow);
    let look = |run: &mut Run, counted: &[(&str, u64, u64)]| {
        let shadows = counted.iter().map(|(name, samples, wrong)| ((*name).to_owned(), (*samples, *wrong))).collect();
        let fact = CopyFact { answered: 2, shadows, ..CopyFact::default() };
        run.step(None);
        run.step(Some(&Response::Copies(fact)));
        run.now_ms += 60_000;
        run.record.shadow_counts()
    };
    run.wishes.min_samples = 1_000;
    assert_eq!(look(&mut run, &[("a/1", 50, 0), ("b/1", 50, 1)]), (100, 1));
    assert_eq!(look(&mut run, &[("a/1", 60, 0), ("b/2", 5, 0)]), (115, 1), "b began anew: what it found stays");
    run.wishes.verify_requests = 1;
    run.at(Step::Verify);
    run.at(Step::Shadow);
    assert_eq!(run.record.shadow_counts(), (0, 0));
    assert_eq!(look(&mut run, &[("a/1", 70, 0), ("b/2", 6, 0)]), (0, 0));
    assert_eq!(look(&mut run, &[("a/2", 3, 0), ("b/2", 8, 0)]), (5, 0));
}

#[test]
fn a_log_that_ends_before_what_was_compared_of_it_needs_another_comparison() {
    let mut run = Run::new();
    run.at(Step::Measure);
    assert_eq!(run.record.positions.len(), run.record.logs.len());
    let covered = run.record.positions[0];
    assert!(covered > 0);
    let fact = ShipFact { serving: SOURCE.into(), term: 1, last: covered - 1, ..ShipFact::default() };
    run.step(None);
    run.step(Some(&Response::Shipped(fact)));
    assert_eq!((run.blocked(), run.record.receipt.is_some()), ("ReceiptStale", false));
}

#[test]
fn data_services_that_do_not_answer_are_no_pass() {
    let mut run = Run::new();
    run.at(Step::Shadow);
    for fact in [CopyFact::default(), CopyFact { answered: 1, silent: 1, samples: 99, ..CopyFact::default() }] {
        run.step(None);
        run.step(Some(&Response::Copies(fact)));
        assert_eq!((run.record.step, run.blocked()), (Step::Shadow, "Waiting"));
        run.now_ms += 60_000;
    }
}

#[test]
fn an_abort_undoes_every_stage_before_the_last_cutover() {
    let steps = [
        Step::ProbeSource,
        Step::ProbeTarget,
        Step::List,
        Step::Announce,
        Step::Ship,
        Step::Relist,
        Step::Staff,
        Step::Backfill,
        Step::Resweep,
        Step::Verify,
        Step::AnnounceShadow,
        Step::Shadow,
        Step::AnnounceCutover,
        Step::ReverseProbe,
        Step::Recount,
        Step::Measure,
        Step::Canary,
    ];
    for step in steps {
        for target_dead in [false, true] {
            let mut run = Run::new();
            run.at(step);
            // With logs on it a dead target needs more than an abort.
            run.fleet.target_dead = target_dead && run.fleet.names_on_target().is_empty();
            run.wishes.abort = true;
            assert_eq!(run.end(), "Aborted", "{step:?}");
            assert!(run.fleet.names_on_target().is_empty(), "{step:?}");
            assert!(run.fleet.announced.is_none() && !run.fleet.staffed, "{step:?}");
            assert!(run.tidy() || run.fleet.target_dead || run.fleet.phase.is_none(), "{step:?}");
        }
    }
}

#[test]
fn half_a_cutover_is_brought_back_by_an_abort_and_by_a_rollback() {
    for rollback in [false, true] {
        let mut run = Run::new();
        run.until("two cut over", |run| run.fleet.names_on_target().len() == 2);
        (run.wishes.abort, run.wishes.rollback) = (!rollback, rollback);
        assert_eq!(run.end(), if rollback { "RolledBack" } else { "Aborted" });
        assert!(run.fleet.names_on_target().is_empty() && run.tidy());
    }
}

#[test]
fn a_rollback_works_in_the_window_and_after_it_until_complete() {
    let mut run = Run::new();
    run.wishes.target_stage = Stage::Cutover;
    run.blocked_by("TargetStageReached");
    run.now_ms += 10 * 60_000;
    run.wishes.abort = true;
    run.step(None);
    assert_eq!(run.record.wish, Some(Wish::TooLateToAbort));
    assert!(matches!(run.record.rollback_window(), RollbackWindow::Open(Some(_))));
    run.wishes.rollback = true;
    assert_eq!(run.end(), "RolledBack");
    assert!(run.fleet.names_on_target().is_empty() && run.tidy() && !run.fleet.served);
}

#[test]
fn wishes_that_cannot_be_granted_are_answered() {
    let mut run = Run::new();
    run.wishes.rollback = true;
    run.at(Step::Shadow);
    run.step(None);
    assert_eq!(run.record.wish, Some(Wish::TooEarlyToRollBack));
    run.wishes.rollback = false;
    run.at(Step::End);
    run.wishes.rollback = true;
    run.step(None);
    assert_eq!(run.record.wish, Some(Wish::TooLateToRollBack));
    assert_eq!(run.end(), "Completed");
}

#[test]
fn shipping_is_stopped_before_the_copies_are_released() {
    let mut run = Run::new();
    run.end();
    let last = |name: &str| run.fleet.asked.iter().rposition(|asked| *asked == name);
    let first = |name: &str| run.fleet.asked.iter().position(|asked| *asked == name);
    assert!(last("Announce") < first("EndCopy"), "{:?}", run.fleet.asked);
    assert!(last("EndCopy") < first("Retract") && last("Retract") < last("Dismiss"));
}

#[test]
fn a_cutover_of_unknown_outcome_is_settled_by_who_serves() {
    for happened in [false, true] {
        let mut run = Run::new();
        run.at(Step::Measure);
        let (mut heard, mut sent) = (None, None);
        while sent.is_none() {
            let (request, answer) = run.step(heard.as_ref());
            sent = request.filter(Request::is_commit_point);
            heard = answer;
        }
        if !happened {
            for log in run.fleet.logs.values_mut() {
                (log.on_target, log.cut_overs, log.shipping, log.term) = (false, 0, true, 1);
            }
        }
        run.step(Some(&Response::Unknown { message: "timed out".into() }));
        assert_eq!(run.record.step, Step::Settle);
        assert_eq!(run.end(), "Completed");
        assert!(run.fleet.logs.values().all(|log| log.cut_overs == 1), "{:?}", run.fleet.logs);
    }
}

#[test]
fn an_abort_waits_for_a_cutover_that_may_be_under_way() {
    let mut run = Run::new();
    run.at(Step::Cut);
    run.step(None);
    run.step(Some(&Response::Unknown { message: "timed out".into() }));
    assert!(run.record.in_hand.sent_ms.is_some());
    run.wishes.abort = true;
    assert_eq!(run.end(), "Aborted");
    assert!(run.fleet.names_on_target().is_empty(), "what the late cutover did is undone too");
}

#[test]
fn a_refused_cutover_after_an_unknown_one_settles_nothing() {
    let mut run = Run::new();
    run.at(Step::Cut);
    run.step(None);
    run.step(Some(&Response::Unknown { message: "timed out".into() }));
    run.record.go(Step::Cut);
    run.step(None);
    run.step(Some(&refuse(RefusalKind::Retry, "Wait")));
    assert_eq!(run.record.step, Step::Settle);
    assert!(run.record.in_hand.sent_ms.is_some());
}

#[test]
fn a_dead_target_is_left_only_with_the_loss_accepted() {
    let mut run = Run::new();
    run.wishes.target_stage = Stage::Cutover;
    run.blocked_by("TargetStageReached");
    run.fleet.target_dead = true;
    run.wishes.rollback = true;
    run.blocked_by("LossNotAccepted");
    assert_eq!(run.fleet.names_on_target().len(), 3);
    run.wishes.accept_loss = true;
    assert_eq!(run.end(), "RolledBack");
    assert!(run.fleet.names_on_target().is_empty());
    assert_eq!(run.record.at_risk, 21);
    assert_eq!(run.record.left_behind, 3, "the dead side's copies are named");
}

#[test]
fn accepting_loss_changes_nothing_while_both_sides_live() {
    let mut run = Run::new();
    run.wishes.accept_loss = true;
    assert_eq!(run.end(), "Completed");
    assert_eq!(run.record.at_risk, 0);
}

#[test]
fn a_source_that_is_gone_holds_the_end_until_it_is_ignored() {
    let mut run = Run::new();
    run.at(Step::Silence);
    run.fleet.source_dead = true;
    run.blocked_by("StoreUnavailable");
    run.now_ms += 3_600_000;
    run.blocked_by("StoreUnavailable");
    run.wishes.ignore_unreachable = true;
    assert_eq!(run.end(), "Completed");
    assert_eq!(run.record.left_behind, 3);
}

#[test]
fn a_pause_holds_what_begins_and_lets_undoing_go_on() {
    for step in [Step::Ship, Step::Verify, Step::Shadow, Step::Measure] {
        let mut run = Run::new();
        run.at(step);
        run.wishes.paused = true;
        run.blocked_by("MigrationPaused");
        assert!(run.fleet.names_on_target().is_empty());
        run.wishes.abort = true;
        assert_eq!(run.end(), "Aborted", "{step:?}");
    }
    let mut run = Run::new();
    run.at(Step::Backfill);
    run.wishes.paused = true;
    run.blocked_by("MigrationPaused");
    assert!(run.fleet.paused_told, "the workers are told");
    run.wishes.paused = false;
    assert_eq!(run.end(), "Completed");
}

#[test]
fn one_log_that_is_not_ready_does_not_keep_the_others_waiting() {
    let mut run = Run::of(&["b0001", "b0002", "b0003", "b0004"]);
    run.at(Step::Ship);
    run.step(None);
    let stuck = ShipFact { serving: SOURCE.into(), term: 1, blocked_by: "slow".into(), ..ShipFact::default() };
    run.step(Some(&Response::Shipped(stuck)));
    assert_eq!(run.record.sweep, (1, 1, 0));
    assert_eq!(run.end(), "Completed");
}

#[test]
fn a_log_that_shows_up_late_is_shipped_and_copied_too() {
    let mut run = Run::new();
    run.fleet.late = vec!["g77".into()];
    assert_eq!(run.end(), "Completed");
    assert_eq!(run.fleet.names_on_target().len(), 4);
}

#[test]
fn a_log_that_was_there_before_is_only_released() {
    let mut run = Run::new();
    if let Some(log) = run.fleet.logs.get_mut("b0002") {
        log.on_target = true;
    }
    assert_eq!(run.end(), "Completed");
    assert_eq!(run.fleet.logs["b0002"].cut_overs, 0);
    assert!(run.tidy());
}

#[test]
fn nothing_in_scope_is_refused_and_changes_nothing() {
    let mut run = Run::of(&[]);
    assert_eq!(run.end(), "Refused");
    assert!(run.fleet.announced.is_none() && !run.fleet.staffed);
}

#[test]
fn a_failed_probe_waits_for_someone_and_goes_on_when_it_passes() {
    let mut run = Run::new();
    run.fleet.target_dead = true;
    run.blocked_by("ProbeFailed");
    let round = run.record.probe_round;
    assert!(round > 1, "the next probe is a new one");
    run.fleet.target_dead = false;
    assert_eq!(run.end(), "Completed");
}

#[test]
fn a_coordinator_at_a_later_round_is_not_believed() {
    let mut run = Run::new();
    run.at(Step::Verify);
    run.fleet.phase = Some((Phase::Verify, run.record.round + 5));
    assert_eq!(run.end(), "Completed");
    let mut run = Run::new();
    run.at(Step::Backfill);
    run.step(None);
    let far = CoordinatorFact { round: 9, complete: true, done: 3, total: 3, ..CoordinatorFact::default() };
    run.step(Some(&Response::Coordinator(Box::new(far))));
    assert_eq!((run.record.step, run.record.round), (Step::Backfill, 10));
}

#[test]
fn only_what_matters_is_urgent() {
    let mut run = Run::new();
    run.at(Step::Ship);
    let context = Context { now_ms: run.now_ms, wishes: run.wishes.clone() };
    let asked = advance(&run.record, &context, None);
    assert!(!asked.urgent && asked.request.is_some());
    run.at(Step::Measure);
    run.until("a cutover", |run| run.record.in_hand.sent_ms.is_some());
    let context = Context { now_ms: run.now_ms, wishes: run.wishes.clone() };
    assert!(advance(&run.record, &context, None).urgent);
}

#[test]
fn a_source_that_dies_at_the_first_cutover_keeps_no_other_log_and_is_not_rolled_back_to() {
    // Right after the first cutover, and right before it.
    for (step, no_way_back) in [(Step::Cut, Some(1)), (Step::Measure, Some(0))] {
        let mut run = Run::new();
        run.wishes.accept_loss = true;
        run.at(step);
        run.fleet.source_dead = true;
        run.at(Step::ReverseSweep);
        assert_eq!((run.fleet.names_on_target().len(), run.record.no_way_back), (3, no_way_back));
    }
    let mut run = Run::new();
    run.wishes.accept_loss = true;
    run.at(Step::Measure);
    run.fleet.source_dead = true;
    run.at(Step::ReverseSweep);
    run.fleet.source_dead = false;
    run.at(Step::Hold);
    run.blocked_by("CopyNotReady");
    assert_eq!(run.record.rollback_window(), RollbackWindow::Over);
    run.wishes.rollback = true;
    run.until("the wish is refused", |run| run.record.wish == Some(Wish::NoWayBack));
    assert_eq!(run.end(), "Completed");
}

#[test]
fn a_copy_in_the_source_that_was_begun_anew_in_the_window_is_not_rolled_back_to() {
    let mut run = Run::new();
    // It was a copy before, and begun anew then: that does not count.
    run.fleet.restart_way_back("b0002");
    run.at(Step::Hold);
    run.fleet.restart_way_back("b0003");
    run.wishes.rollback = true;
    run.until("the wish is refused", |run| run.record.wish == Some(Wish::NoWayBack));
    assert_eq!(run.record.rollback_window(), RollbackWindow::Over);
    assert_eq!((run.end(), run.fleet.names_on_target().len()), ("Completed", 3));
    // Found when one log is back already: it stops there.
    let mut run = Run::new();
    run.at(Step::Hold);
    run.fleet.restart_way_back("b0001");
    run.wishes.rollback = true;
    run.blocked_by("CopyNotReady");
    assert_eq!(run.fleet.names_on_target().len(), 1);
    let mut run = Run::new();
    run.fleet.restart_way_back("b0002");
    run.at(Step::Hold);
    run.wishes.rollback = true;
    assert_eq!(run.end(), "RolledBack");
}

#[test]
fn a_copy_that_takes_long_to_release_is_not_left_behind() {
    let mut run = Run::new();
    run.at(Step::Shadow);
    run.wishes.abort = true;
    run.at(Step::End);
    let pending = Response::Pending { message: "it is being released".into() };
    for _ in 0..20 {
        run.step(Some(&pending));
        run.now_ms += Tuning::RELEASE_FOR_MS;
    }
    assert_eq!((run.end(), run.record.left_behind), ("Aborted", 0));
}
