use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::*;

fn lane(table: &str) -> LaneName {
    LaneName { table: table.to_owned(), unit: String::new() }
}

struct Run {
    machine: Machine,
    saved: Saved,
    lanes: Vec<(LaneName, u64)>,
}

impl Run {
    fn new(lanes: &[(&str, u64)]) -> Self {
        let lanes: Vec<(LaneName, u64)> = lanes.iter().map(|(name, pieces)| (lane(name), *pieces)).collect();
        let (machine, records) = Machine::restore(Settings::standard("r"), lanes.clone(), Saved::default());
        assert_eq!(records, []);
        Self { machine, saved: Saved::default(), lanes }
    }

    fn keep(&mut self, records: Vec<Record>) {
        records.iter().for_each(|record| self.saved.apply(record));
    }

    fn begin(&mut self, phase: Phase, round: u32) {
        let control = Control { phase: Some(phase), round, ..Control::default() };
        let records = self.machine.control(control, 0).unwrap();
        self.keep(records);
    }

    fn lease(&mut self, worker: &str, now: i64) -> Option<Grant> {
        let (grant, records) = self.machine.lease(worker, now);
        self.keep(records);
        grant
    }

    fn report(&mut self, progress: Progress, now: i64) -> Verdict {
        let (verdict, records) = self.machine.report(progress, now);
        self.keep(records);
        verdict
    }

    fn done(&mut self, grant: &Grant, now: i64) -> Verdict {
        self.report(progress(grant, true, None), now)
    }

    /// kill -9 and a start from what was committed.
    fn restart(&mut self) {
        let (machine, records) = Machine::restore(Settings::standard("r"), self.lanes.clone(), self.saved.clone());
        self.machine = machine;
        self.keep(records);
    }

    fn state(&self) -> State {
        self.machine.state(1_000_000)
    }
}

fn progress(grant: &Grant, ended: bool, failure: Option<(FailureKind, &str)>) -> Progress {
    Progress {
        lease: grant.lease,
        worker: "w".to_owned(),
        ended,
        failure: failure.map(|(kind, text)| (kind, text.to_owned())),
        ..Progress::default()
    }
}

#[test]
fn it_is_complete_only_when_every_range_of_every_table_ended_well() {
    let mut run = Run::new(&[("a", 3), ("b", 2)]);
    assert!(!run.state().complete, "nothing was asked for");
    run.begin(Phase::Backfill, 1);
    let mut grants = Vec::new();
    while let Some(grant) = run.lease("w", 0) {
        grants.push(grant);
    }
    assert_eq!(grants.len(), 5);
    for grant in &grants {
        assert!(!run.state().complete);
        run.done(grant, 1);
    }
    let state = run.state();
    assert!(state.complete && state.done_ppm == 1_000_000);
    assert_eq!((state.ranges_done, state.ranges_total), (5, 5));
}

#[test]
fn a_range_that_fails_is_cut_down_to_the_partition_and_named_and_it_is_never_complete() {
    let poison = 77_777_i64;
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let mut now = 0;
    for _ in 0..1000 {
        now += 20_000;
        let Some(grant) = run.lease("w", now) else { break };
        let failure = grant.tokens.contains(poison).then_some((FailureKind::Range, "partition (5): read failure"));
        run.report(progress(&grant, true, failure), now);
    }
    let state = run.state();
    assert!(state.ended && !state.complete && state.done_ppm < 1_000_000);
    assert_eq!(state.ranges_failed, 1);
    let finding = state.findings.iter().find(|finding| finding.kind == FindingKind::Failing).unwrap();
    assert_eq!((finding.first_token, finding.last_token, finding.partition.as_str()), (poison, poison, "(5)"));
    let (rows, _) = run.machine.ranges("", 1000);
    assert!(rows.iter().any(|row| row.state == "failed" && row.first_token == poison));
    // A later start tries it again: what failed is not done.
    run.restart();
    assert_eq!(run.lease("w", now).unwrap().tokens, Tokens { first: poison, last: poison });
}

#[test]
fn what_was_given_up_is_tried_again_after_a_pause_and_what_is_done_stays_done() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let mut now = 0;
    for _ in 0..1000 {
        now += 20_000;
        let Some(grant) = run.lease("w", now) else { break };
        let failure = grant.tokens.contains(9).then_some((FailureKind::Range, "read failure"));
        run.report(progress(&grant, true, failure), now);
    }
    let (failed_at, before) = (now - 20_000, run.state());
    assert_eq!((before.ranges_failed, before.ended), (1, true));
    assert_eq!(run.lease("w", failed_at + 59_999), None, "not at once");
    let again = run.lease("w", failed_at + 60_000).unwrap();
    assert_eq!(again.tokens, Tokens { first: 9, last: 9 });
    run.report(progress(&again, true, Some((FailureKind::Range, "read failure"))), failed_at + 60_000);
    assert_eq!(run.state().ranges_failed, 1);
    let again = run.lease("w", failed_at + 120_000).unwrap();
    run.done(&again, failed_at + 120_001);
    let after = run.state();
    assert!(after.complete && after.ranges_done == before.ranges_done + 1, "{after:?}");
}

#[test]
fn a_table_of_which_nothing_can_be_read_is_not_cut_down_without_end() {
    let mut run = Run::new(&[("a", 4)]);
    run.begin(Phase::Backfill, 1);
    let (mut now, mut tries) = (0, 0);
    while !run.state().ended {
        now += 10_000;
        let grant = run.lease("w", now).unwrap();
        run.report(progress(&grant, true, Some((FailureKind::Range, "not authorized"))), now);
        tries += 1;
        assert!(tries < 2_000, "{:?}", run.state());
    }
    assert!(run.state().ended && run.state().ranges_failed < 1_000, "{:?}", run.state());
}

#[test]
fn a_named_culprit_is_set_apart_at_once() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let grant = run.lease("w", 0).unwrap();
    let mut failed = progress(&grant, true, Some((FailureKind::Range, "partition (9): x")));
    failed.failing_token = Some(5);
    run.report(failed, 0);
    let tokens: Vec<Tokens> = std::iter::from_fn(|| run.lease("w", 60_000).map(|grant| grant.tokens)).collect();
    assert!(tokens.contains(&Tokens { first: 5, last: 5 }));
    assert!(
        tokens.contains(&Tokens { first: i64::MIN, last: 4 }) && tokens.contains(&Tokens { first: 6, last: i64::MAX })
    );
}

#[test]
fn a_side_that_is_away_never_makes_a_range_fail() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    for second in 0..500 {
        let now = second * 2_000;
        let Some(grant) = run.lease("w", now) else { continue };
        assert_eq!(grant.tokens, Tokens::ALL, "it is not cut either");
        run.report(progress(&grant, true, Some((FailureKind::Unavailable, "no connection"))), now);
    }
    let state = run.state();
    assert_eq!((state.ranges_failed, state.throttle.as_str()), (0, "unavailable"));
    let grant = run.lease("w", 2_000_000).unwrap();
    run.done(&grant, 2_000_000);
    assert!(run.state().complete && run.state().throttle.is_empty());
}

#[test]
fn a_lease_that_is_not_renewed_goes_to_another_and_the_first_is_told_to_stop() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let first = run.lease("w", 0).unwrap();
    assert!(!run.report(progress(&first, false, None), 10_000).stop, "renewed");
    assert_eq!(run.lease("w", 20_000), None);
    let second = run.lease("w", 26_000).unwrap();
    assert_eq!(second.tokens, first.tokens);
    assert!(run.done(&first, 26_001).stop, "a report that comes late makes nothing done");
    assert!(!run.state().complete);
    run.done(&second, 26_002);
    assert!(run.state().complete);
    assert_eq!(run.state().counts.redone, 1);
}

#[test]
fn a_slow_range_is_named_and_its_second_half_given_to_who_is_idle() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let grant = run.lease("w", 0).unwrap();
    let mut now = 0;
    while now <= 30_000 {
        now += 5_000;
        let verdict = run.report(Progress { done_until: Some(now), ..progress(&grant, false, None) }, now);
        assert_eq!(verdict.last_token.is_some(), now > 30_000);
    }
    assert_eq!(run.state().findings[0].kind, FindingKind::Slow);
    let half = run.lease("w", now).unwrap();
    assert_eq!(half.tokens.last, i64::MAX);
    run.done(&half, now);
    assert!(!run.state().complete, "the first half is still at work");
    run.done(&grant, now);
    assert!(run.state().complete);
}

#[test]
fn an_older_round_is_refused_and_the_same_one_changes_nothing() {
    let mut run = Run::new(&[("a", 2)]);
    run.begin(Phase::Backfill, 2);
    let grant = run.lease("w", 0).unwrap();
    let again = Control { phase: Some(Phase::Backfill), round: 2, ..Control::default() };
    assert_eq!(run.machine.control(again, 5), Ok(vec![]));
    let older = Control { phase: Some(Phase::Verify), round: 1, ..Control::default() };
    assert!(run.machine.control(older, 5).is_err());
    run.done(&grant, 5);
    assert_eq!(run.state().ranges_done, 1);
    run.begin(Phase::Verify, 2);
    assert_eq!((run.state().ranges_done, run.state().done_ppm), (0, 0));
    let back = Control { phase: Some(Phase::Backfill), round: 2, ..Control::default() };
    assert!(run.machine.control(back, 5).is_err(), "a copy after the verification needs a new round");
}

#[test]
fn only_the_units_named_are_copied_again() {
    let mut run = Run::new(&[("a", 2), ("b", 1)]);
    run.begin(Phase::Backfill, 1);
    while let Some(grant) = run.lease("w", 0) {
        run.done(&grant, 0);
    }
    let control =
        Control { phase: Some(Phase::Backfill), round: 2, again: vec!["b0007".to_owned()], ..Control::default() };
    let records = run.machine.control(control, 0).unwrap();
    run.keep(records);
    run.restart();
    let grants: Vec<Grant> = std::iter::from_fn(|| run.lease("w", 0)).collect();
    let lanes: Vec<(&str, &str)> =
        grants.iter().map(|grant| (grant.lane.table.as_str(), grant.lane.unit.as_str())).collect();
    assert_eq!(lanes, [("a", "b0007"), ("b", "b0007")]);
    assert!(!run.state().complete);
    for grant in &grants {
        run.done(grant, 0);
    }
    assert!(run.state().complete);
}

#[test]
fn a_receipt_comes_only_of_a_whole_verification_and_goes_with_the_next_copy() {
    let mut run = Run::new(&[("a", 2)]);
    run.begin(Phase::Verify, 1);
    let (first, second) = (run.lease("w", 0).unwrap(), run.lease("w", 0).unwrap());
    run.done(&first, 0);
    assert_eq!(run.state().receipt, None);
    let mut dirty = progress(&second, true, None);
    dirty.counts.mismatches.insert("missing".to_owned(), 3);
    dirty.counts.rows = 9;
    run.report(dirty, 0);
    let receipt = run.state().receipt.unwrap();
    assert!(!receipt.clean && receipt.mismatches["missing"] == 3 && receipt.rows_compared == 9);
    run.restart();
    assert_eq!(run.state().receipt.as_ref(), Some(&receipt), "it outlives the process");
    run.begin(Phase::Verify, 2);
    let (first, second) = (run.lease("w", 0).unwrap(), run.lease("w", 0).unwrap());
    run.done(&first, 0);
    let mut harmless = progress(&second, true, None);
    harmless.counts.mismatches.insert("write-race".to_owned(), 1);
    run.report(harmless, 0);
    assert!(run.state().receipt.unwrap().clean);
    run.begin(Phase::Backfill, 3);
    assert_eq!(run.state().receipt, None);
}

#[test]
fn a_report_said_twice_counts_once() {
    let mut run = Run::new(&[("a", 1)]);
    run.begin(Phase::Backfill, 1);
    let grant = run.lease("w", 0).unwrap();
    let mut half = progress(&grant, false, None);
    half.counts.rows = 10;
    run.report(half.clone(), 1);
    run.report(half.clone(), 2);
    half.counts.rows = 15;
    half.ended = true;
    run.report(half, 3);
    assert_eq!(run.state().counts.rows, 15);
    assert_eq!(run.saved.counts.rows, 15);
}

/// Random workers, kills of everything at random, failing partitions: at the end every row was copied within a lease that was then
/// reported, and only then.
fn simulate(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let rows: BTreeSet<i64> = (0..200).map(|_| random.random()).chain([i64::MIN, i64::MAX]).collect();
    let poison: Option<i64> =
        random.random_bool(0.3).then(|| *rows.iter().collect::<Vec<_>>().choose(&mut random).copied().unwrap());
    let mut run = Run::new(&[("a", random.random_range(1..40))]);
    run.begin(Phase::Backfill, 1);
    let (mut now, mut copied, mut out): (i64, BTreeSet<i64>, Vec<Grant>) = (0, BTreeSet::new(), Vec::new());
    let mut lost = 0_u64;
    for step in 0..20_000 {
        now += random.random_range(1..3_000);
        if random.random_bool(0.01) && step < 10_000 {
            lost += out.iter().filter(|grant| run.machine.leases.contains_key(&grant.lease)).count() as u64;
            run.restart();
        }
        if random.random_bool(0.02) {
            out.clear(); // the workers die; their leases run out
        }
        if out.len() < 4
            && let Some(grant) = run.lease("w", now)
        {
            out.push(grant);
            continue;
        }
        if out.is_empty() {
            if run.state().ended {
                break;
            }
            continue;
        }
        let grant = out.swap_remove(random.random_range(0..out.len()));
        let kind = random.random_range(0..10);
        if kind == 0 {
            run.report(progress(&grant, true, Some((FailureKind::Unavailable, "away"))), now);
        } else if poison.is_some_and(|poison| grant.tokens.contains(poison)) {
            run.report(progress(&grant, true, Some((FailureKind::Range, "partition (p): bad"))), now);
        } else if kind < 3
            && let Some(until) = rows.range(grant.tokens.first..=grant.tokens.last).next()
        {
            copied.extend(rows.range(grant.tokens.first..=*until));
            if !run.report(Progress { done_until: Some(*until), ..progress(&grant, false, None) }, now).stop {
                out.push(grant);
            }
        } else {
            copied.extend(rows.range(grant.tokens.first..=grant.tokens.last));
            run.done(&grant, now);
        }
        assert_eq!(run.machine.lanes[0].done, run.saved.done.get(&lane("a")).cloned().unwrap_or_default());
        for range in run.machine.lanes[0].done.ranges() {
            assert!(rows.range(range.first..=range.last).all(|row| copied.contains(row)), "seed {seed}: skipped");
        }
    }
    let state = run.state();
    assert!(state.ended, "seed {seed}");
    assert_eq!(state.complete, poison.is_none(), "seed {seed}");
    if let Some(poison) = poison {
        let (failed, _) = run.machine.ranges("", 1000);
        let failed: Vec<_> = failed.into_iter().filter(|row| row.state == "failed").collect();
        assert!(failed.len() == 1 && failed[0].first_token == poison && failed[0].last_token == poison, "seed {seed}");
    } else {
        assert_eq!(copied, rows, "seed {seed}");
    }
    assert!(state.counts.redone >= lost.min(1), "seed {seed}: what was in flight at a kill is counted");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_skipped_whoever_dies_whenever(seed in any::<u64>()) {
        simulate(seed);
    }
}

#[test]
fn pieces_that_take_no_time_are_given_several_at_once_and_slow_ones_one_by_one() {
    for (each_ms, together) in [(1, true), (5_000, false)] {
        let mut run = Run::new(&[("t", 256)]);
        run.begin(Phase::Backfill, 1);
        let (mut now, mut leases) = (0, 0);
        while let Some(grant) = run.lease("w", now) {
            now += each_ms;
            leases += 1;
            let end = Progress { lease: grant.lease, worker: "w".into(), ended: true, ..Progress::default() };
            let (_, records) = run.machine.report(end, now);
            run.keep(records);
        }
        assert!(run.machine.is_complete());
        assert_eq!(leases < 64, together, "{leases} leases of pieces that take {each_ms} ms");
        assert!(together || leases == 256);
    }
}

#[test]
fn a_receipt_holds_the_digest_of_all_rows_in_order_also_when_it_was_made_by_two_coordinators() {
    let whole = |crash: bool| {
        let mut run = Run::new(&[("t", 8)]);
        run.begin(Phase::Verify, 1);
        let mut grants = Vec::new();
        while let Some(grant) = run.lease("w", 0) {
            grants.push(grant);
        }
        // They end in another order than they were given in.
        grants.sort_by_key(|grant| grant.lease % 3);
        for (index, grant) in grants.into_iter().enumerate() {
            let mut digest = Digest::default();
            (0..3).for_each(|row| digest.push((grant.tokens.first.unsigned_abs() / 7 + row).into()));
            let end = Progress {
                lease: grant.lease,
                worker: "w".into(),
                ended: true,
                digests: Some((digest, Digest::default())),
                ..Progress::default()
            };
            let (_, records) = run.machine.report(end, 1);
            run.keep(records);
            if crash && index == 4 {
                let saved = Saved { leases: vec![], ..run.saved.clone() };
                let before = std::mem::take(&mut run.machine.leases);
                run.machine = Machine::restore(Settings::standard("r"), run.lanes.clone(), saved).0;
                run.machine.lanes.iter_mut().for_each(|lane| lane.queue.clear());
                run.machine.leases = before;
            }
        }
        run.state().receipt.unwrap().tables
    };
    let tables = whole(false);
    assert_eq!((tables.len(), tables[0].rows), (1, 24));
    assert_ne!(tables[0].source, tables[0].target);
    assert_eq!(whole(true), tables);
}

#[test]
fn workers_that_are_gone_are_not_counted() {
    let mut run = Run::new(&[("t", 4)]);
    run.begin(Phase::Backfill, 1);
    run.lease("a", 0);
    assert_eq!((run.machine.state(1_000).workers, run.machine.state(60_000).workers), (1, 0));
}

#[test]
fn a_range_that_takes_much_longer_than_the_others_is_named_unless_it_is_held_back() {
    for (rate, named) in [(0, 1), (10, 0)] {
        let mut run = Run::new(&[("t", 20)]);
        run.begin(Phase::Backfill, 1);
        let control = Control { rows_per_second: rate, ..Control::default() };
        let records = run.machine.control(control, 0).unwrap();
        run.keep(records);
        let mut now = 0;
        for number in 0..20 {
            let Some(grant) = run.lease("w", now) else { break };
            let took = if number == 12 { 20_000 } else { 1_000 };
            now += took / 2;
            let mut progress = Progress { lease: grant.lease, worker: "w".into(), ..Progress::default() };
            progress.counts.rows = u64::try_from(took).unwrap() / 100;
            run.machine.report(progress.clone(), now);
            now += took / 2;
            progress.ended = true;
            let (_, records) = run.machine.report(progress, now);
            run.keep(records);
        }
        let slow: Vec<_> = run.saved.findings.iter().filter(|finding| finding.kind == FindingKind::Slow).collect();
        assert_eq!(slow.len(), named, "{slow:?}");
    }
}
