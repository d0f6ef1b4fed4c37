//! `cellctl migration watch MIGRATION`: follows a run with a live table on a terminal and with one line elsewhere, until it ends or waits for a person. Exits 0 when it completed
//! or has come as far as it was told, 3 when it is refused or needs someone, 1 when it was undone. Interrupting it changes nothing.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::Instant;

use super::{next_step, view};
use crate::args::Global;
use crate::blocked;
use crate::commands::read::one;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::Format;
use crate::progress::Progress;

const EVERY: Duration = Duration::from_secs(1);
/// The API may be away this long before the watch gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// All of a phase, in parts per million.
const WHOLE_PPM: u64 = 1_000_000;
/// Reasons that nothing but a person ends.
const NEEDS_SOMEONE: [&str; 7] = [
    "MigrationPaused",
    "ReceiptDirty",
    "ReceiptStale",
    "ShadowMismatch",
    "LossNotAccepted",
    "StageUnknown",
    "InvalidSpec",
];

/// Flags of `watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// The StorageMigration
    #[arg(value_name = "MIGRATION")]
    pub name: String,
}

/// Follows the run.
///
/// # Errors
/// [`CommandError::TimedOut`] after `--timeout`.
pub async fn run(args: WatchArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    follow(&connection, &args.name, global).await
}

/// Follows a run by name.
pub(super) async fn follow(connection: &Connection, name: &str, global: &Global) -> Result<Exit, CommandError> {
    let progress = Progress::to_stderr();
    let phase = progress.share(name);
    let mut table = progress.lines();
    let deadline = global.timeout.map(|timeout| Instant::now() + timeout);
    let mut answered = Instant::now();
    let mut last = "nothing known of it yet".to_owned();
    loop {
        match one(connection, Kind::StorageMigrations, name).await {
            Ok(object) => {
                answered = Instant::now();
                let status = &object["status"];
                last = blocked::of_resource(&object);
                let completed = status["result"] == "Completed";
                let done = if completed { WHOLE_PPM } else { status["donePpm"].as_u64().unwrap_or_default() };
                let stage = status["stage"].as_str().unwrap_or("not begun");
                table.set(&lines(status, &last));
                let line =
                    if progress.is_live() { stage.to_owned() } else { format!("{} · {last}", heartbeat(status)) };
                phase.set(done, &line);
                if let Some(ended) = verdict(name, &object) {
                    table.set(&[]);
                    phase.finish(status["result"].as_str().unwrap_or(&last));
                    view(&object)?.print(global.output)?;
                    if ended.is_ok() && status["result"].is_null() && global.output == Format::Table {
                        progress.say(&format!("next: {}", next_step(name, status)));
                    }
                    return ended;
                }
            }
            Err(error) if answered.elapsed() > PATIENCE || last == "nothing known of it yet" => return Err(error),
            Err(error) => phase.note(&error.to_string()),
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(CommandError::TimedOut {
                waited_for: format!("migration {name}"),
                blocked_by: last,
                next: format!("cellctl describe storagemigration {name}"),
            });
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The table on a terminal: what is known, a line each.
pub(super) fn lines(status: &Value, blocked: &str) -> Vec<String> {
    let number = |value: &Value| value.as_i64();
    let mut lines = Vec::new();
    let mut line = |name: &str, parts: Vec<Option<String>>| {
        let text = parts.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        if !text.is_empty() {
            lines.push(format!("{name:>12}  {text}"));
        }
    };
    let ranges = &status["ranges"];
    let of_ranges = |field: &str, word: &str| {
        number(&ranges[field]).filter(|count| *count > 0).map(|count| format!("{} {word}", grouped(count)))
    };
    line(
        "Ranges",
        vec![
            number(&ranges["done"]).zip(number(&ranges["total"])).map(|(done, total)| format!("{done}/{total} done")),
            of_ranges("inFlight", "in flight"),
            of_ranges("failed", "failed"),
        ],
    );
    line("Rows", of_rows(status, blocked));
    line(
        "Copies",
        vec![
            number(&status["lagSeconds"]).map(|lag| format!("{} behind", spoken(lag))),
            number(&status["backlog"]).map(|backlog| format!("{} entries to ship", grouped(backlog))),
        ],
    );
    let receipt = &status["receipt"];
    line(
        "Receipt",
        vec![
            receipt["clean"].as_bool().map(|clean| if clean { "clean" } else { "DIRTY" }.to_owned()),
            number(&receipt["rows"]).map(|rows| format!("{} rows", grouped(rows))),
            receipt["endedAt"].as_str().map(|at| format!("of {at}")),
        ],
    );
    let shadow = &status["shadow"];
    let differ = shadow["mismatches"].as_object().map(|all| all.values().filter_map(Value::as_i64).sum::<i64>());
    line(
        "Shadow",
        vec![
            number(&shadow["samples"]).map(|samples| format!("{samples} reads compared")),
            differ.map(|differ| format!("{differ} differ")),
            number(&shadow["skipped"]).map(|skipped| format!("{skipped} skipped")),
        ],
    );
    line(
        "Logs",
        vec![
            number(&status["logs"])
                .map(|logs| format!("{}/{logs} cut over", number(&status["logsCutOver"]).unwrap_or(0))),
            number(&status["heldMicroseconds"]).map(|held| format!("commands held {} ms at most", held / 1000)),
        ],
    );
    line(
        "Rollback",
        vec![
            status["rollbackReadiness"].as_str().filter(|ready| *ready != "NotYet").map(str::to_owned),
            status["rollbackUntil"].as_str().map(|until| format!("until {until}")),
        ],
    );
    line("Waits for", vec![Some(blocked.to_owned())]);
    lines
}

fn of_rows(status: &Value, blocked: &str) -> Vec<Option<String>> {
    // What was said last of how fast it goes says nothing once it is over.
    let at_work = |value: &Value| value.as_i64().filter(|_| is_at_work(status));
    vec![
        status["rows"].as_i64().map(grouped),
        at_work(&status["rowsPerSecond"]).map(|rate| format!("{}/s", grouped(rate))),
        at_work(&status["etaSeconds"]).map(|seconds| format!("{} left", spoken(seconds))),
        throttle(status).filter(|why| !blocked.contains(why)).map(|why| format!("throttled: {why}")),
    ]
}

fn is_at_work(status: &Value) -> bool {
    matches!(status["stage"].as_str(), Some("Backfill" | "Verify"))
}

fn throttle(status: &Value) -> Option<&str> {
    status["throttledBy"].as_str().filter(|_| is_at_work(status))
}

/// One line: stage, copied n of m, rows a second, backlog, lag, end.
pub(super) fn heartbeat(status: &Value) -> String {
    let number = |value: &Value| value.as_i64();
    let mut parts = vec![status["stage"].as_str().unwrap_or("not begun").to_owned()];
    let ranges = &status["ranges"];
    if let (Some(done), Some(total)) = (number(&ranges["done"]), number(&ranges["total"])) {
        let failed = number(&ranges["failed"]).filter(|failed| *failed > 0);
        let failed = failed.map(|failed| format!(" ({failed} failed)")).unwrap_or_default();
        parts.push(format!("{done}/{total} ranges{failed}"));
    }
    if let (Some(cut), Some(logs)) = (number(&status["logsCutOver"]), number(&status["logs"])) {
        parts.push(format!("{cut}/{logs} logs cut over"));
    }
    if let Some(rate) = number(&status["rowsPerSecond"]).filter(|_| is_at_work(status)) {
        parts.push(format!("{} rows/s", grouped(rate)));
    }
    if let Some(backlog) = number(&status["backlog"]) {
        parts.push(format!("backlog {}", grouped(backlog)));
    }
    if let Some(lag) = number(&status["lagSeconds"]) {
        parts.push(format!("lag {}", spoken(lag)));
    }
    if let Some(why) = throttle(status) {
        parts.push(format!("throttled: {why}"));
    }
    if let Some(eta) = number(&status["etaSeconds"]).filter(|_| is_at_work(status)) {
        parts.push(format!("{} left", spoken(eta)));
    }
    parts.join(" · ")
}

/// A number as people read it: 1,234,567.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut out = String::from(if number < 0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time as people say it, in two units at most.
fn spoken(seconds: i64) -> String {
    let whole = |unit: i64| seconds / unit;
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min {} s", whole(60), seconds % 60),
        7_200..172_800 => format!("{} h {} min", whole(3_600), whole(60) % 60),
        _ => format!("{} d {} h", whole(86_400), whole(3_600) % 24),
    }
}

/// The exit, once there is one.
pub(super) fn verdict(name: &str, object: &Value) -> Option<Result<Exit, CommandError>> {
    let status = &object["status"];
    let blocked = blocked::of_resource(object);
    let ready = blocked::condition(object, "Ready");
    let message = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default().to_owned();
    let reason = blocked.split(':').next().unwrap_or_default().to_owned();
    match status["result"].as_str() {
        Some("Completed") => Some(Ok(Exit::Done)),
        // As with a move: an undo that was asked for has done what was last asked.
        Some("Aborted") if object["spec"]["abort"] == true => Some(Ok(Exit::Done)),
        Some("RolledBack") if object["spec"]["rollback"] == true => Some(Ok(Exit::Done)),
        Some("Refused") => {
            Some(Err(CommandError::refused("Refused", message, format!("cellctl describe storagemigration {name}"))))
        }
        Some(other) => {
            Some(Err(CommandError::Failed(anyhow::anyhow!("the migration was undone ({other}): {message}"))))
        }
        None if reason == "TargetStageReached" => Some(Ok(Exit::Done)),
        None if NEEDS_SOMEONE.contains(&reason.as_str()) => {
            Some(Err(CommandError::refused(reason, blocked, next_step(name, status))))
        }
        None => None,
    }
}
