//! The cells of Jobs. Pure; the clock is an argument.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::cells::duration;
use crate::kube_api::object::{at, deleting, list, text};

/// A cell of a Job, or none when its column is one of every workload.
pub fn cell(job: &Value, column: &str, now: Timestamp) -> Option<Value> {
    match column {
        "Status" => Some(status(job).into()),
        "Completions" => Some(completions(job).into()),
        "Duration" => Some(lasted(job, now).into()),
        _ => None,
    }
}

fn status(job: &Value) -> &'static str {
    let holds = |kind: &str| {
        let all = list(job, &["status", "conditions"]);
        all.iter().any(|c| text(c, &["type"]) == kind && text(c, &["status"]) == "True")
    };
    if holds("Complete") {
        return "Complete";
    }
    if holds("Failed") {
        return "Failed";
    }
    if deleting(job) {
        return "Terminating";
    }
    ["Suspended", "FailureTarget", "SuccessCriteriaMet"].into_iter().find(|kind| holds(kind)).unwrap_or("Running")
}

fn completions(job: &Value) -> String {
    let number = |path: &[&str]| at(job, path).and_then(Value::as_i64);
    let done = number(&["status", "succeeded"]).unwrap_or_default();
    match (number(&["spec", "completions"]), number(&["spec", "parallelism"]).unwrap_or_default()) {
        (Some(all), _) => format!("{done}/{all}"),
        (None, workers) if workers > 1 => format!("{done}/1 of {workers}"),
        (None, _) => format!("{done}/1"),
    }
}

fn lasted(job: &Value, now: Timestamp) -> String {
    let Ok(start) = text(job, &["status", "startTime"]).parse::<Timestamp>() else { return String::new() };
    let end = text(job, &["status", "completionTime"]).parse::<Timestamp>().unwrap_or(now);
    duration(end.as_second() - start.as_second())
}
