//! What the move verbs send, show and exit with.

use clap::Parser;

use super::*;

fn run(result: Option<&str>) -> Run {
    Run {
        name: "m".into(),
        run_id: "r".into(),
        guild_id: "5".into(),
        from: "a".into(),
        to: "b".into(),
        step: "Warm".into(),
        result: result.map(str::to_owned),
        reason: "Waiting".into(),
        message: String::new(),
        blocked_by: None,
        held_microseconds: Some(12_345),
        rollback_readiness: None,
        cause: "Requested".into(),
        finished_at: None,
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    start: start::StartArgs,
}

fn start(line: &str) -> start::StartArgs {
    Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap().start
}

#[test]
fn start_sends_exactly_the_reviewed_hash_and_target() {
    let args = start("5 --to b --plan-hash abc --deadline-seconds 60");
    let request = args.what.request(args.plan_hash.clone());
    assert_eq!(
        serde_json::to_value(&request).unwrap(),
        serde_json::json!({"guildId": "5", "target": {"cell": "b"}, "deadlineSeconds": 60, "planHash": "abc"})
    );
    assert_eq!(start("5 --dedicated").what.request(None).target, Target::Dedicated);
    assert_eq!(start("5 --to-bucket").what.request(None).target, Target::Bucket);
}

#[test]
fn the_next_command_of_a_plan_repeats_its_flags() {
    let line = "5 --to b --deadline-seconds 60 --rollback-window-seconds 0";
    assert_eq!(start(line).what.flags(), line);
    assert_eq!(start("5 --to-bucket").what.flags(), "5 --to-bucket");
}

#[test]
fn blocked_by_is_never_blank_before_the_end() {
    assert_eq!(blocked_by(&run(None)), "step Warm is under way");
    assert_eq!(
        blocked_by(&Run { blocked_by: Some("  ".into()), message: "gateway g-1 is away".into(), ..run(None) }),
        "gateway g-1 is away"
    );
    assert_eq!(blocked_by(&Run { blocked_by: Some("pod x".into()), ..run(None) }), "pod x");
    assert_eq!(blocked_by(&run(Some("Completed"))), "-");
    let table = view(&run(None)).unwrap().render(crate::output::Format::Table).unwrap();
    assert_eq!(table.lines().nth(1).unwrap(), "m      a      b    Warm   -        12.3 ms   step Warm is under way");
}

#[test]
fn each_result_has_its_exit() {
    let code = |result| match watch::verdict(&run(Some(result))) {
        Ok(exit) => exit.code(),
        Err(error) => error.exit().code(),
    };
    assert_eq!(["Completed", "Refused", "Aborted", "RolledBack"].map(code), [0, 3, 1, 1]);
}

#[test]
fn a_completed_run_without_a_figure_says_that_it_is_not_known() {
    assert_eq!(held_cell(&Run { held_microseconds: None, ..run(Some("Completed")) }), "not known");
    assert_eq!(held_cell(&Run { held_microseconds: None, ..run(Some("Aborted")) }), "");
    assert_eq!(held_cell(&run(Some("Completed"))), "12.3 ms");
}

#[test]
fn a_plan_shows_its_refused_checks() {
    let check = |ok| cell_api::Check {
        name: "target".into(),
        ok,
        message: "cell b is cordoned".into(),
        reason: None,
        next: None,
    };
    let plan = cell_api::MovePlan {
        guild_id: "5".into(),
        unit: "b0001".into(),
        from: "a".into(),
        to: "b".into(),
        term: 3,
        steps: vec!["Validate".into(), "Split".into()],
        checks: vec![check(true), check(false)],
        deadline_seconds: 600,
        rollback_window_seconds: 30,
        sessions: None,
        hash: String::new(),
    }
    .sealed();
    let table = plan::view(&plan).unwrap().render(crate::output::Format::Table).unwrap();
    assert!(table.contains("REFUSED: target: cell b is cordoned"), "{table}");
    assert!(table.contains("not known"), "{table}");
    let json = plan::view(&plan).unwrap().render(crate::output::Format::Json).unwrap();
    assert!(json.contains(&plan.hash));
}
