//! What the migration verbs send, show and exit with.

use clap::Parser;
use serde_json::json;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    what: WhatArgs,
}

fn what(line: &str) -> WhatArgs {
    Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap().what
}

fn object(status: Value) -> Value {
    json!({"metadata": {"name": "m", "generation": 1}, "status": status})
}

#[test]
fn start_sends_exactly_what_was_reviewed_and_the_next_command_repeats_it() {
    let line = "--from a --to b --units b0001,b0002 --target-stage Verify --rollback-window-seconds 0 --shadow-min-samples 5 --coordinator-storage-class fast";
    let args = what(line);
    let request = serde_json::to_value(args.request(Some("abc".into()))).unwrap();
    let expected = json!({"source": "a", "target": "b", "units": ["b0001", "b0002"], "targetStage": "Verify",
        "rollbackWindowSeconds": 0, "shadow": {"minSamples": 5}, "workers": {"storageClassName": "fast"},
        "planHash": "abc"});
    assert_eq!(request, expected);
    assert_eq!(args.flags(), line);
}

#[test]
fn one_line_says_how_far_it_is_how_fast_and_how_long() {
    let status = json!({"stage": "Backfill", "ranges": {"done": 5, "total": 9, "failed": 1}, "rowsPerSecond": 12_000,
        "backlog": 3, "lagSeconds": 1, "throttledBy": "target p99 40 ms", "etaSeconds": 9_000});
    assert_eq!(
        watch::heartbeat(&status),
        "Backfill · 5/9 ranges (1 failed) · 12,000 rows/s · backlog 3 · lag 1 s · throttled: target p99 40 ms · 2 h 30 min left"
    );
    assert_eq!(watch::heartbeat(&Value::Null), "not begun");
}

#[test]
fn the_live_table_has_a_line_for_each_thing_that_is_known() {
    let status = json!({"stage": "ShadowRead", "rows": 1200, "ranges": {"done": 5, "total": 9, "failed": 0, "inFlight": 2},
        "lagSeconds": 0, "backlog": 0, "receipt": {"clean": true, "rows": 1200}, "logs": 3,
        "shadow": {"samples": 150, "mismatches": {"missing": 2}, "skipped": 24}, "rollbackReadiness": "NotYet"});
    let lines = watch::lines(&status, "ShadowMismatch: 2 shadow reads differ");
    let words: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
    assert_eq!(
        words,
        [
            "Ranges  5/9 done · 2 in flight",
            "Rows  1,200",
            "Copies  0 s behind · 0 entries to ship",
            "Receipt  clean · 1,200 rows",
            "Shadow  150 reads compared · 2 differ · 24 skipped",
            "Logs  0/3 cut over",
            "Waits for  ShadowMismatch: 2 shadow reads differ",
        ]
    );
    assert_eq!(watch::lines(&Value::Null, "nothing").len(), 1);
    let status = json!({"stage": "Backfill", "ranges": {"done": 5, "total": 9, "inFlight": 0}, "rows": 1_234_567,
        "rowsPerSecond": 900, "etaSeconds": 200, "throttledBy": "target p99 40 ms"});
    let rows = |blocked: &str| watch::lines(&status, blocked)[1].trim_start().to_owned();
    assert_eq!(watch::lines(&status, "").first().map(|line| line.trim_start()), Some("Ranges  5/9 done"));
    assert_eq!(rows("Waiting: x"), "Rows  1,234,567 · 900/s · 3 min 20 s left · throttled: target p99 40 ms");
    assert_eq!(rows("Throttled: target p99 40 ms"), "Rows  1,234,567 · 900/s · 3 min 20 s left", "said once");
}

#[test]
fn the_watch_ends_when_it_ends_or_needs_someone() {
    let code = |status| {
        watch::verdict("m", &object(status)).map(|ended| match ended {
            Ok(exit) => exit.code(),
            Err(error) => error.exit().code(),
        })
    };
    let result = |result: &str| json!({"observedGeneration": 1, "result": result});
    assert_eq!(["Completed", "Refused", "Aborted", "RolledBack"].map(|end| code(result(end))), [0, 3, 1, 1].map(Some));
    let asked = |field: &str, end: &str| {
        let mut undone = object(result(end));
        undone["spec"] = json!({field: true});
        watch::verdict("m", &undone).unwrap().unwrap().code()
    };
    assert_eq!((asked("abort", "Aborted"), asked("rollback", "RolledBack")), (0, 0), "as it was asked");
    let blocked = |reason: &str| json!({"observedGeneration": 1, "blockedBy": format!("{reason}: x")});
    assert_eq!(code(blocked("TargetStageReached")), Some(0));
    assert_eq!(code(blocked("ReceiptDirty")), Some(3));
    assert_eq!(code(blocked("Waiting")), None);
}

#[test]
fn what_helps_next_follows_what_it_waits_for() {
    let next =
        |stage: &str, reason: &str| next_step("m", &json!({"stage": stage, "blockedBy": format!("{reason}: x")}));
    assert_eq!(next("ShadowRead", "TargetStageReached"), "cellctl migration advance m");
    assert_eq!(next("Reverse", "TargetStageReached"), "cellctl migration complete m");
    assert_eq!(next("Verify", "ReceiptStale"), "cellctl migration verify m");
    assert_eq!(next("Backfill", "Waiting"), "cellctl migration watch m");
}

#[test]
fn advancing_goes_one_stage_further_or_where_told() {
    let further = |now: Value, to: Option<&str>| steer::further(&now, to).map(|stage| format!("{stage:?}"));
    assert_eq!(further(json!("ShadowRead"), None).unwrap(), "Cutover");
    assert_eq!(further(json!("Complete"), None).unwrap(), "Complete");
    assert_eq!(further(Value::Null, None).unwrap(), "Cutover", "the default is ShadowRead");
    assert_eq!(further(json!("Verify"), Some("Complete")).unwrap(), "Complete");
    assert_eq!(further(json!("Verify"), Some("Reverse")).unwrap_err().exit(), Exit::Usage);
}

#[test]
fn nothing_named_like_a_secret_leaves_in_a_report() {
    let mut bundle = json!({"storageCells": [{"spec": {"external": {"secretRef": "login", "password": "hunter2"}}}],
        "caPem": "x", "firstToken": 5, "token": "t"});
    report::redact(&mut bundle);
    let text = bundle.to_string();
    assert!(!text.contains("hunter2") && text.contains("login") && text.contains(r#""firstToken":5"#), "{text}");
    assert_eq!((&bundle["token"], &bundle["caPem"]), (&json!("redacted"), &json!("redacted")));
}
