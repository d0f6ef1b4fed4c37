//! Every scenario holds under every rule, and every rule is needed: without it an exploration ends in damage, by the shortest way.

use std::collections::BTreeSet;

use cell_model::rules::{Rule, Rules};
use cell_model::suite::{self, Ablation};

/// States a scenario of a test run may have at most.
const MOST: usize = 2_000_000;

fn hold(part: &str) {
    let scenarios = suite::small().into_iter().filter(|scenario| scenario.name.starts_with(part));
    let mut explored = 0;
    for scenario in scenarios {
        let finding = scenario.explore(Rules::ALL, MOST);
        println!("{}: {}", scenario.name, finding.summary());
        assert!(finding.holds(), "{}: {}", scenario.name, finding.report());
        explored += 1;
    }
    assert!(explored > 0, "no scenario begins with {part}");
}

#[test]
fn the_log_holds_with_claims_batches_retention_switches_and_copies() {
    hold("log");
}

#[test]
fn rows_that_are_shipped_and_copied_come_out_equal() {
    hold("rows");
}

#[test]
fn splits_and_merges_lose_and_double_nothing() {
    hold("split");
}

#[test]
fn deadlines_and_the_window_hold_under_any_clocks() {
    hold("window");
}

fn of(part: &str) -> impl Iterator<Item = Ablation> {
    let part = part.to_owned();
    suite::ablations().into_iter().filter(move |ablation| ablation.setting().starts_with(&part))
}

fn caught(part: &str) {
    let mut controls = BTreeSet::new();
    for ablation in of(part) {
        let names: Vec<String> = ablation.rules.iter().map(|rule| rule.name()).collect();
        let finding = ablation.explore(MOST);
        println!("without {}: {}", names.join(" and "), finding.report());
        assert!(finding.is_damage(), "nothing shows that {} is needed: {}", names.join(" or "), finding.summary());
        if controls.insert(ablation.setting().to_owned()) {
            let control = ablation.control(MOST);
            assert!(control.holds(), "{} with every rule: {}", ablation.setting(), control.report());
        }
    }
    assert!(!controls.is_empty(), "no ablation of {part}");
}

#[test]
fn each_rule_of_the_log_is_caught_when_left_out() {
    caught("LogModel");
}

#[test]
fn each_rule_of_backfill_verify_and_times_to_live_is_caught_when_left_out() {
    caught("RowsModel");
}

#[test]
fn each_rule_of_splits_and_merges_is_caught_when_left_out() {
    caught("SplitModel");
}

#[test]
fn each_rule_of_deadlines_is_caught_when_left_out() {
    caught("WindowModel");
}

#[test]
fn no_rule_goes_without_its_proof() {
    let proven: Vec<Rule> = suite::ablations().into_iter().flat_map(|ablation| ablation.rules).collect();
    let bare: Vec<String> = Rule::ALL.iter().filter(|rule| !proven.contains(rule)).map(Rule::to_string).collect();
    assert!(bare.is_empty(), "no scenario shows why these are needed: {}", bare.join("; "));
}

#[test]
fn a_trace_is_the_shortest_way_to_the_damage() {
    let mut ablations = of("LogModel");
    let settle = ablations.find(|ablation| ablation.rules == [Rule::Settle]).expect("settling has its proof");
    let finding = settle.explore(MOST);
    assert_eq!(finding.trace().len(), 5, "{}", finding.report());
    assert!(finding.trace()[0].contains("outcome unknown"), "{}", finding.report());
}
