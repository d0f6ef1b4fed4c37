//! The scenarios of the checked model, replayed against the machine, and for each rule the proof that the checker sees its absence.

use super::{Counts, Faults, Plan, Protections, StoreRules, run};

const CALM: Faults = Faults {
    crash: 4,
    unknown: 60,
    late: 15,
    claim: 8,
    switch: 0,
    split: 0,
    jump: 0,
    copy: 0,
    bulk: 80,
    skew_us: 300_000,
};

const LOG: Plan = Plan { owners: 2, steps: 900, faults: CALM, rules: Protections::ALL, store: StoreRules::ALL };

fn log3() -> Plan {
    Plan { owners: 3, ..LOG }
}

fn late() -> Plan {
    Plan { faults: Faults { unknown: 250, late: 40, ..CALM }, ..LOG }
}

fn unforced() -> Plan {
    Plan { owners: 3, faults: Faults { claim: 40, crash: 10, ..CALM }, ..LOG }
}

fn jumps() -> Plan {
    Plan { faults: Faults { jump: 12, claim: 15, ..CALM }, ..LOG }
}

fn switches() -> Plan {
    Plan { owners: 3, faults: Faults { switch: 20, claim: 20, unknown: 150, late: 40, ..CALM }, ..LOG }
}

fn splits() -> Plan {
    Plan { steps: 1600, faults: Faults { split: 25, claim: 25, unknown: 100, late: 40, ..CALM }, ..LOG }
}

fn late_merges() -> Plan {
    Plan { faults: Faults { split: 40, claim: 4, crash: 2, unknown: 350, late: 30, ..CALM }, ..splits() }
}

fn late_and_jumps() -> Plan {
    Plan { faults: Faults { jump: 8, ..late().faults }, ..late() }
}

/// Clients whose deadlines pass while an append's outcome is not known.
fn late_merges_and_jumps() -> Plan {
    Plan { faults: Faults { jump: 8, ..late_merges().faults }, ..late_merges() }
}

/// Copies made, filled, cut over, rolled back and released.
fn copies() -> Plan {
    let faults = Faults { copy: 130, crash: 2, unknown: 40, late: 20, claim: 2, ..CALM };
    Plan { owners: 2, steps: 3000, faults, ..LOG }
}

/// The same with a target and owners that fail more.
fn failing_copies() -> Plan {
    let faults = Faults { copy: 130, crash: 2, unknown: 90, late: 40, claim: 3, ..CALM };
    Plan { owners: 2, ..Plan { faults, ..copies() } }
}

fn copies_and_jumps() -> Plan {
    Plan { faults: Faults { jump: 6, ..copies().faults }, ..copies() }
}

fn copies_and_switches() -> Plan {
    Plan { owners: 3, faults: Faults { switch: 3, claim: 8, ..copies().faults }, ..copies() }
}

fn everything() -> Plan {
    Plan {
        owners: 3,
        steps: 2000,
        faults: Faults {
            crash: 8,
            unknown: 120,
            late: 40,
            claim: 25,
            switch: 8,
            split: 15,
            jump: 3,
            copy: 0,
            // Few operations come through at all.
            bulk: 400,
            skew_us: 800_000,
        },
        ..LOG
    }
}

/// How many seeds; more by `SIMULATION_SEEDS`.
fn seeds(default: u64) -> u64 {
    std::env::var("SIMULATION_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// No seed shows a violation, and the schedules did what the scenario is about.
fn holds(plan: Plan, happened: &[&str]) {
    let mut counts = Counts::new();
    let first = std::env::var("SIMULATION_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count = if plan.faults.copy > 0 { 20 } else { 40 };
    for seed in first..first + seeds(count) {
        match run(plan, seed) {
            Ok(more) => more.into_iter().for_each(|(what, count)| *counts.entry(what).or_default() += count),
            Err(violation) => panic!("{violation}"),
        }
    }
    println!("{counts:?}");
    for what in ["entries", "acknowledged", "duplicates", "refused", "claims", "segments"].iter().chain(happened) {
        assert!(counts.get(what).is_some_and(|count| *count >= 5), "{what} hardly happened: {counts:?}");
    }
}

/// Some seed shows a violation that none shows with the rule on.
fn caught(plan: Plan) {
    // Bulk deletes would take the place of the operations that show it soonest.
    let plan = Plan { faults: Faults { bulk: 0, ..plan.faults }, ..plan };
    let found = (0..400).find_map(|seed| run(plan, seed).err());
    let found = found.expect("no seed shows that the rule is needed");
    println!("{}", found.lines().next().unwrap_or_default());
}

macro_rules! scenarios {
    ($($name:ident: $plan:expr, [$($happened:literal),*];)*) => {
        $(#[test]
        fn $name() {
            holds($plan, &[$($happened),*]);
        })*
    };
}

scenarios! {
    two_owners_with_crashes_and_unknown_outcomes: LOG, ["bulk deletes", "range deletes"];
    three_owners_with_crashes_and_unknown_outcomes: log3(), [];
    late_appends_and_late_heads: late(), [];
    unforced_claims_one_after_the_other: unforced(), [];
    clocks_that_jump_beyond_the_dedupe_window: jumps(), ["segments dropped"];
    switches_between_two_cells_and_failover: switches(), ["switches"];
    splits_and_merges: splits(), ["splits", "merges"];
    splits_and_merges_with_late_appends: late_merges(), ["splits"];
    copies_and_cutovers: copies(), ["shipped", "cutovers", "backfills", "copies compared", "range deletes"];
    copies_with_a_target_that_fails: failing_copies(), ["shipped", "copies marked", "backfills", "copies compared"];
    copies_and_clocks_that_jump: copies_and_jumps(), ["shipped", "cutovers", "backfills", "copies compared", "segments dropped"];
    copies_and_switches_between_cells: copies_and_switches(), ["shipped", "cutovers", "backfills", "copies compared", "switches"];
    everything_at_once: everything(), ["switches", "splits", "merges", "range deletes"];
}

macro_rules! without {
    ($($name:ident: $plan:expr, $($rule:ident)+;)*) => {
        $(#[test]
        fn $name() {
            let plan = $plan;
            caught(Plan { rules: Protections { $($rule: false,)+ ..Protections::ALL }, ..plan });
        })*
    };
}

without! {
    rule_2_a_claimant_that_does_not_seal_is_caught: unforced(), claim_seals;
    rule_3_an_empty_last_segment_that_hands_nothing_on_is_caught: unforced(), hand_on;
    rule_3_a_claimant_that_sees_no_higher_term_is_caught: unforced(), walk_checks_term verify_head;
    rule_4_an_unsettled_append_is_caught: late(), settle;
    rule_4_settling_by_number_is_caught: late(), settle_by_operation;
    rule_5_a_claimant_that_applies_nothing_is_caught: unforced(), reapply;
    rule_5_timestamps_that_do_not_rise_are_caught: unforced(), strict_timestamps;
    rule_6_judging_by_tables_alone_is_caught: LOG, overlay;
    rule_7_an_answer_before_the_apply_is_caught: LOG, answer_after_apply;
    rule_8_an_unproven_refusal_is_caught: unforced(), prove_refusals;
    rule_8_a_refusal_after_a_proposal_is_caught: late_and_jumps(), never_refuse_proposed;
    rule_9_a_command_after_its_deadline_is_caught: jumps(), deadlines;
    rule_9_a_claimant_without_the_window_is_caught: unforced(), load_window;
    rule_16_a_switch_that_keeps_the_term_is_caught: switches(), switch_raises_term;
    rule_16_an_unsettled_switch_is_caught: switches(), settle_switch;
    rule_11_shipping_with_a_clock_of_its_own_is_caught: copies(), ship_timestamps;
    rule_12_a_copy_that_starts_now_is_caught: copies(), copy_window;
    rule_13_a_cutover_that_does_not_wait_is_caught: copies(), cutover_waits;
    rule_14_following_any_pointer_is_caught: copies(), newest_pointer_holds;
    rule_14_a_claim_below_the_pointer_is_caught: copies(), claim_above_pointer walk_checks_term;
    rule_15_a_released_copy_that_is_gone_on_with_is_caught: copies(), released_begins_anew;
    rule_18_an_opening_that_names_no_term_is_caught: splits(), split_names_term;
    rule_18_a_window_left_behind_is_caught: splits(), inherit_window;
    rule_18_timestamps_left_behind_are_caught: splits(), inherit_timestamps;
    rule_18_a_merge_that_leaves_the_segment_open_is_caught: late_merges_and_jumps(), merge_seals_segment settle_before_handover;
}

#[test]
fn rule_1_a_comparison_of_terms_alone_is_caught() {
    caught(Plan { store: StoreRules { whole_row: false, ..StoreRules::ALL }, ..unforced() });
}

#[test]
fn rule_3_an_opening_that_overwrites_is_caught() {
    caught(Plan { store: StoreRules { open_if_absent: false, ..StoreRules::ALL }, ..unforced() });
}

#[test]
fn rule_4_an_append_without_its_term_is_caught() {
    caught(Plan { store: StoreRules { append_checks_term: false, ..StoreRules::ALL }, ..unforced() });
}
