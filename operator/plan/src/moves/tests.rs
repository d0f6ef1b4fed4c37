//! A run reaches the same end whatever is lost, refused, late or crashed on the way, or says what it waits for.

use std::collections::BTreeSet;

use rand::Rng;

use super::simulation::{Faults, Run, guild_move, refusal};
use super::{
    Context, Direction, Outcome, Record, RefusalKind, Response, RollbackWindow, Spec, Step, Subject, Wish, Wishes,
    advance,
};
use crate::checks::MoveRefusal;

fn undisturbed(spec: Spec) -> Run {
    let mut run = Run::new(spec, 0);
    assert!(run.end());
    run
}

#[test]
fn a_guild_in_its_bucket_is_split_warmed_proven_switched_and_taken_over() {
    let run = undisturbed(guild_move());
    let order = [
        "Inspect",
        "Inspect",
        "Split",
        "Inspect",
        "Warm",
        "AnnounceStandby",
        "Inspect",
        "Reach",
        "Switch",
        "TakeOver",
        "PointAway",
        "Forget",
        "Forget",
    ];
    assert_eq!(run.fleet.asked, order);
    let both = [("a", "g7"), ("b", "g7")].map(|(cell, log)| (cell.to_owned(), log.to_owned()));
    assert_eq!(run.fleet.released, both.into(), "both sides let the run go, so that another may begin");
    assert_eq!(run.outcome(), "Completed");
    assert_eq!((run.fleet.head_cell_changes, run.fleet.splits), (1, 1));
    assert_eq!(run.fleet.owners["g7"], "b");
    assert_eq!(run.stored.held_us, 40_000);
    assert!(run.now_ms >= 5_000, "the rollback window was kept");
}

#[test]
fn a_crash_after_any_request_reaches_the_same_end() {
    let calm = undisturbed(guild_move());
    for after in 1..=calm.sent {
        let mut run = Run::new(guild_move(), 0);
        run.crash_after = Some(after);
        assert!(run.end(), "crash after request {after}");
        assert_eq!(run.stored.outcome, calm.stored.outcome, "crash after request {after}");
        assert_eq!(run.fleet.heads, calm.fleet.heads, "crash after request {after}");
        assert_eq!(run.fleet.owners, calm.fleet.owners, "crash after request {after}");
        assert_eq!(run.fleet.head_cell_changes, 1, "crash after request {after}");
    }
}

#[test]
fn a_crash_after_any_request_of_an_aborted_or_rolled_back_run_reaches_the_same_end() {
    for (wishes, wish_from) in
        [(Wishes { abort: true, ..Wishes::default() }, 1_u32), (Wishes { rollback: true, ..Wishes::default() }, 9)]
    {
        for after in 1..=24 {
            for when in wish_from..=11 {
                let mut run = Run::new(guild_move(), 0);
                run.crash_after = Some(after);
                let mut heard = None;
                while run.sent < when && run.stored.outcome.is_none() {
                    heard = run.step(heard.as_ref());
                }
                run.wishes = wishes;
                assert!(run.end(), "wish at {when}, crash after {after}: {:?}", run.stored.blocked_by);
                let home = if run.fleet.head_cell_changes == 1 { "b" } else { "a" };
                if let Some(head) = run.fleet.heads.get("g7") {
                    assert_eq!(head.cell, home, "wish at {when}, crash after {after}");
                }
                let expected: &[&str] = if wishes.rollback { &["RolledBack"] } else { &["Aborted", "Completed"] };
                assert!(expected.contains(&run.outcome()), "wish at {when}, crash after {after}: {}", run.outcome());
                assert_eq!(run.outcome() == "Completed", home == "b", "wish at {when}, crash after {after}");
            }
        }
    }
}

#[test]
fn random_faults_end_in_one_clean_placement() {
    for seed in 0..400 {
        let mut run = Run::new(guild_move(), seed);
        run.faults = Faults { lost_request: 12, lost_reply: 12, refusal: 12, late: 50, crash: 10 };
        let abort_at = run.random.random_range(0..60);
        let rollback_at = run.random.random_range(10..90);
        let mut heard = None;
        for look in 0..2_000 {
            run.wishes.abort |= seed % 3 == 0 && look == abort_at;
            run.wishes.rollback |= seed % 3 == 1 && look == rollback_at;
            heard = run.step(heard.as_ref());
            if run.stored.outcome.is_some() {
                break;
            }
        }
        assert!(run.stored.outcome.is_some(), "seed {seed} ends: {:?}", run.stored);
        // A switch thought lost may arrive at any time later: it must be refused by its term.
        let before = run.fleet.head_cell_changes;
        for request in std::mem::take(&mut run.fleet.late) {
            run.fleet.perform(&request);
        }
        let heads = run.fleet.heads.get("g7").map(|head| head.cell.as_str());
        let (place, changes) = match run.outcome() {
            "Completed" => (Some("b"), 1),
            "RolledBack" => (Some("a"), 2),
            "Aborted" => (heads.map(|_| "a"), 0),
            other => panic!("seed {seed} ends as {other}"),
        };
        assert_eq!((heads, before), (place, changes), "seed {seed}: {:?}", run.stored);
        assert_eq!(run.fleet.head_cell_changes, changes, "seed {seed}: a late switch changed the head");
        if let Some(cell) = heads {
            assert_eq!(run.fleet.owners["g7"], cell, "seed {seed}");
        }
    }
}

#[test]
fn a_dead_source_is_failed_over_by_a_claim() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while run.stored.step != Step::Standby {
        heard = run.step(heard.as_ref());
    }
    run.fleet.dead.insert("a".into());
    assert!(run.end());
    assert_eq!(run.outcome(), "Completed");
    assert_eq!((run.fleet.heads["g7"].cell.as_str(), run.fleet.head_cell_changes), ("b", 1));
    assert!(run.fleet.asked.contains(&"Failover"));
}

#[test]
fn a_dead_target_before_the_commit_point_is_waited_for_until_the_deadline() {
    let mut run = Run::new(guild_move(), 0);
    run.fleet.dead.insert("b".into());
    assert!(run.end());
    assert!(run.now_ms >= 120_000);
    match &run.stored.outcome {
        Some(Outcome::Aborted { reason, message }) => {
            assert_eq!(reason, "DeadlineExceeded");
            assert!(message.contains("cell b has no live guild node"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run.fleet.head_cell_changes, 0);
}

#[test]
fn a_dead_target_after_the_commit_point_is_said_and_a_rollback_brings_the_unit_home() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while !run.stored.is_committed() {
        heard = run.step(heard.as_ref());
    }
    run.fleet.dead.insert("b".into());
    assert!(!run.end(), "only forward: it waits");
    assert!(run.stored.blocked_by.as_ref().unwrap().message.contains("cell b"), "{:?}", run.stored.blocked_by);
    run.wishes.rollback = true;
    assert!(run.end());
    assert_eq!(run.outcome(), "RolledBack");
    assert_eq!(run.fleet.heads["g7"].cell, "a");
}

#[test]
fn an_abort_is_possible_at_every_step_before_the_commit_point() {
    for requests in 0..9 {
        let mut run = Run::new(guild_move(), 0);
        let mut heard = None;
        while run.sent < requests {
            heard = run.step(heard.as_ref());
        }
        run.wishes.abort = true;
        let committed_meanwhile = run.fleet.head_cell_changes > 0;
        assert!(run.end());
        if committed_meanwhile {
            assert_eq!(run.outcome(), "Completed", "after request {requests}");
        } else {
            assert_eq!((run.outcome(), run.fleet.head_cell_changes), ("Aborted", 0), "after request {requests}");
        }
        assert!(!run.fleet.warm.contains(&("b".to_owned(), "g7".to_owned())) || committed_meanwhile);
    }
}

#[test]
fn an_abort_waits_out_a_switch_whose_owner_keeps_its_term() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while run.stored.step != Step::Prove {
        heard = run.step(heard.as_ref());
    }
    // Sent, lost on the way, and the operator crashes before it hears so.
    run.faults = Faults { lost_request: 100, ..Faults::default() };
    run.step(heard.as_ref());
    run.faults = Faults::default();
    (run.fleet.keeps_term, run.wishes.abort) = (true, true);
    let begun = run.now_ms;
    assert!(run.end());
    assert_eq!((run.outcome(), run.fleet.head_cell_changes), ("Aborted", 0));
    assert!(run.now_ms - begun >= 20_000, "it was waited until no switch could be under way");
}

#[test]
fn after_the_commit_point_an_abort_is_refused_with_the_reason() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while !run.stored.is_committed() {
        heard = run.step(heard.as_ref());
    }
    run.wishes.abort = true;
    run.step(heard.as_ref());
    assert_eq!(run.stored.wish, Some(Wish::TooLateToAbort));
    assert!(run.end());
    assert_eq!(run.outcome(), "Completed");
}

#[test]
fn a_rollback_is_refused_before_the_commit_point_and_after_the_window() {
    let mut run = Run::new(guild_move(), 0);
    run.wishes.rollback = true;
    run.step(None);
    assert_eq!(run.stored.wish, Some(Wish::TooEarlyToRollBack));
    assert_eq!(run.stored.rollback_window(), RollbackWindow::NotYet);
    let mut over = undisturbed(guild_move()).stored;
    assert_eq!(over.rollback_window(), RollbackWindow::Over);
    (over.outcome, over.step) = (None, Step::Forget);
    let wishes = Wishes { rollback: true, ..Wishes::default() };
    let transition = advance(&over, &Context { now_ms: 9_999, wishes, refusal: None }, None);
    assert_eq!(transition.record.wish, Some(Wish::TooLateToRollBack));
}

#[test]
fn every_transition_asks_at_most_once_and_labels_are_known() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let mut run = Run::new(guild_move(), seed);
        run.faults = Faults { refusal: 30, ..Faults::default() };
        let mut heard = None;
        while run.stored.outcome.is_none() {
            let before = run.fleet.asked.len();
            heard = run.step(heard.as_ref());
            assert!(run.fleet.asked.len() <= before + 1);
            seen.insert(run.stored.step_label());
        }
    }
    let all = ["Complete", "Done", "Hold", "Prove", "Split", "Switch", "TakeOver", "Validate", "Warm"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn a_target_that_lost_its_warm_copy_is_warmed_again() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while run.stored.step != Step::Prove {
        heard = run.step(heard.as_ref());
    }
    run.fleet.warm.clear();
    assert!(run.end());
    assert_eq!(run.outcome(), "Completed");
    assert_eq!(run.fleet.asked.iter().filter(|asked| **asked == "Warm").count(), 2);
}

#[test]
fn buckets_move_one_after_another_and_a_rollback_brings_all_back() {
    let bucket = |log: &str| Subject::Bucket { log: log.into() };
    let spec = Spec { subjects: vec![bucket("b0042"), bucket("b0001")], ..guild_move() };
    let calm = undisturbed(spec.clone());
    assert_eq!(calm.fleet.head_cell_changes, 2);
    let mut run = Run::new(spec, 0);
    let mut heard = None;
    while run.stored.step != Step::Hold {
        heard = run.step(heard.as_ref());
    }
    run.wishes.rollback = true;
    assert!(run.end());
    assert_eq!((run.outcome(), run.fleet.head_cell_changes), ("RolledBack", 4));
    assert!(run.fleet.heads.values().all(|head| head.cell == "a"));
    assert_eq!(run.stored.direction, Direction::Back);
}

#[test]
fn a_half_switched_run_can_be_rolled_back_but_not_aborted() {
    let bucket = |log: &str| Subject::Bucket { log: log.into() };
    let spec = Spec { subjects: vec![bucket("b0042"), bucket("b0001")], ..guild_move() };
    let mut run = Run::new(spec, 0);
    let mut heard = None;
    while run.stored.cursor != 1 || !run.stored.is_committed() {
        heard = run.step(heard.as_ref());
    }
    run.wishes = Wishes { abort: true, rollback: true };
    heard = run.step(heard.as_ref());
    assert_eq!(run.stored.wish, Some(Wish::TooLateToAbort));
    drop(heard);
    assert!(run.end());
    assert_eq!(run.outcome(), "RolledBack");
    assert!(run.fleet.heads.values().all(|head| head.cell == "a"));
}

#[test]
fn a_released_guild_goes_to_its_buckets_cell_and_is_merged() {
    let mut run = Run::new(Spec { merge: true, from: "b".into(), to: "a".into(), ..guild_move() }, 0);
    let head = super::simulation::Head { cell: "b".into(), term: 9, merged: false };
    run.fleet.heads.insert("g7".into(), head);
    assert!(run.end());
    assert_eq!((run.outcome(), run.fleet.merges, run.fleet.head_cell_changes), ("Completed", 1, 1));
    let mut elsewhere = Run::new(Spec { merge: true, from: "b".into(), to: "c".into(), ..guild_move() }, 0);
    elsewhere.fleet.heads.insert("g7".into(), super::simulation::Head { cell: "b".into(), term: 9, merged: false });
    assert!(elsewhere.end());
    assert!(matches!(&elsewhere.stored.outcome, Some(Outcome::Refused { reason, .. }) if reason == "NotBucketCell"));
}

fn merge_in_place() -> Run {
    let mut run = Run::new(Spec { merge: true, to: "a".into(), ..guild_move() }, 0);
    run.fleet.heads.insert("g7".into(), super::simulation::Head { cell: "a".into(), term: 9, merged: false });
    run
}

#[test]
fn a_guild_in_its_buckets_cell_is_merged_without_a_switch() {
    let mut run = merge_in_place();
    assert!(run.end());
    assert_eq!(run.fleet.asked, ["Inspect", "Inspect", "Merge"]);
    assert_eq!((run.outcome(), run.fleet.merges, run.fleet.head_cell_changes), ("Completed", 1, 0));
    for after in 1..=run.sent {
        let mut crashed = merge_in_place();
        crashed.crash_after = Some(after);
        assert!(crashed.end(), "crash after request {after}");
        assert_eq!((crashed.outcome(), crashed.fleet.merges), ("Completed", 1), "crash after request {after}");
    }
}

#[test]
fn a_merge_in_place_is_refused_elsewhere_and_aborted_only_before_it_is_asked_for() {
    let mut elsewhere = merge_in_place();
    elsewhere.fleet.heads.get_mut("b0042").unwrap().cell = "c".into();
    assert!(elsewhere.end());
    assert!(matches!(&elsewhere.stored.outcome, Some(Outcome::Refused { reason, .. }) if reason == "NotBucketCell"));
    let mut early = merge_in_place();
    early.wishes.abort = true;
    assert!(early.end());
    assert_eq!((early.outcome(), early.fleet.merges), ("Aborted", 0));
    let mut late = merge_in_place();
    let mut heard = None;
    while late.stored.step != Step::Merge {
        heard = late.step(heard.as_ref());
    }
    late.wishes.abort = true;
    late.step(None);
    assert_eq!(late.stored.wish, Some(Wish::TooLateToAbort));
    assert!(late.end());
    assert_eq!((late.outcome(), late.fleet.merges), ("Completed", 1));
}

#[test]
fn a_live_guild_node_is_asked_to_let_the_run_go_for_minutes_and_not_for_ever() {
    let mut run = Run::new(guild_move(), 0);
    run.fleet.deaf.insert("a".into());
    let mut heard = None;
    while run.stored.step != Step::Forget || run.stored.attempt < 10 {
        heard = run.step(heard.as_ref());
    }
    let blocked = run.stored.blocked_by.clone().unwrap();
    assert!(blocked.message.contains("has not let the run go"), "{blocked:?}");
    assert!(run.stored.outcome.is_none(), "a few lost tries are not enough to give up");
    run.fleet.deaf.clear();
    assert!(run.end());
    let both = [("a", "g7"), ("b", "g7")].map(|(cell, log)| (cell.to_owned(), log.to_owned()));
    assert_eq!(run.fleet.released, both.into(), "it heard in the end");

    let mut deaf = Run::new(guild_move(), 0);
    deaf.fleet.deaf.insert("a".into());
    assert!(deaf.end());
    assert_eq!(deaf.outcome(), "Completed");
    assert!(deaf.now_ms >= 300_000 && deaf.now_ms < 400_000, "{}", deaf.now_ms);
}

#[test]
fn a_route_that_names_an_old_term_is_refused_and_made_anew_from_the_head() {
    let mut run = Run::new(guild_move(), 0);
    run.fleet.claims_anew = true;
    assert!(run.end());
    assert_eq!(run.outcome(), "Completed");
    let tail: Vec<_> = run.fleet.asked.iter().skip_while(|asked| **asked != "Switch").copied().collect();
    assert_eq!(tail, ["Switch", "TakeOver", "Inspect", "TakeOver", "PointAway", "Forget", "Forget"]);
    for after in 1..=run.sent {
        let mut crashed = Run::new(guild_move(), 0);
        (crashed.fleet.claims_anew, crashed.crash_after) = (true, Some(after));
        assert!(crashed.end(), "crash after request {after}");
        assert_eq!((crashed.outcome(), crashed.fleet.head_cell_changes), ("Completed", 1), "after request {after}");
    }
}

#[test]
fn a_guild_node_that_died_is_not_waited_for_to_let_the_run_go() {
    let mut run = Run::new(guild_move(), 0);
    let mut heard = None;
    while run.stored.step != Step::Forget {
        heard = run.step(heard.as_ref());
    }
    run.fleet.dead.insert("a".into());
    let before = run.now_ms;
    assert!(run.end());
    assert_eq!(run.outcome(), "Completed");
    assert!(run.now_ms - before < 10_000, "its hold ended with it");
}

#[test]
fn a_run_that_the_guild_node_gave_up_for_another_is_let_go() {
    let mut record = Record::new(guild_move(), 0);
    record.units[0].moved = true;
    record.step = Step::Forget;
    let context = Context { now_ms: 10, wishes: Wishes::default(), refusal: None };
    let heard = advance(&record, &context, Some(&refusal(RefusalKind::OtherRun)));
    assert_eq!((heard.record.step, heard.record.blocked_by), (Step::Release, None));
}

#[test]
fn a_unit_that_is_elsewhere_or_unknown_is_refused_and_nothing_is_changed() {
    let mut elsewhere = Run::new(Spec { from: "c".into(), ..guild_move() }, 0);
    assert!(elsewhere.end());
    assert!(matches!(&elsewhere.stored.outcome, Some(Outcome::Refused { reason, .. }) if reason == "NotAtSource"));
    let unknown = Subject::Bucket { log: "b4000".into() };
    let mut run = Run::new(Spec { subjects: vec![unknown], ..guild_move() }, 0);
    assert!(run.end());
    assert!(matches!(&run.stored.outcome, Some(Outcome::Refused { reason, .. }) if reason == "NoHead"));
    assert_eq!((run.fleet.splits, run.fleet.head_cell_changes), (0, 0));
}

#[test]
fn a_check_that_may_pass_is_waited_for_and_another_ends_the_run() {
    let record = Record::new(guild_move(), 0);
    let context = |refusal| Context { now_ms: 10, wishes: Wishes::default(), refusal: Some(refusal) };
    let waiting = advance(&record, &context(MoveRefusal::TargetNotLive("b".into())), None);
    assert_eq!(waiting.record.blocked_by.unwrap().reason, "TargetNotLive");
    assert!(waiting.request.is_none() && waiting.wake_at_ms.unwrap() > 10);
    let refused = advance(&record, &context(MoveRefusal::Cordoned("b".into())), None);
    assert_eq!(refused.record.outcome.unwrap().label(), "Refused");
}

#[test]
fn retries_pause_longer_each_time_and_never_longer_than_the_bound() {
    let mut record = Record::new(guild_move(), 0);
    let (mut now_ms, mut pauses, mut heard) = (0, Vec::new(), None);
    for _ in 0..30 {
        let transition =
            advance(&record, &Context { now_ms, wishes: Wishes::default(), refusal: None }, heard.as_ref());
        record = transition.record;
        match transition.wake_at_ms {
            Some(wake) => {
                pauses.push(wake - now_ms);
                (now_ms, heard) = (wake, None);
            }
            None => heard = Some(refusal(RefusalKind::Retry)),
        }
        assert!(heard.is_some() || record.blocked_by.is_some(), "a waiting run says for what");
    }
    assert!(pauses.is_sorted() && *pauses.last().unwrap() == 5_000, "{pauses:?}");
}

#[test]
fn an_answer_to_another_question_changes_nothing() {
    let record = Record::new(guild_move(), 0);
    let context = Context { now_ms: 0, wishes: Wishes::default(), refusal: None };
    let answer = Response::Switched { term: 9, at: 9, held_us: 9 };
    let transition = advance(&record, &context, Some(&answer));
    assert_eq!((transition.record.step, transition.record.is_committed()), (Step::Validate, false));
}
