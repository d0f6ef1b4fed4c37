//! `cellctl migration report MIGRATION [--file FILE]`: one JSON bundle with the timeline, receipts, configuration and range table. It
//! holds no credentials and no message: nothing in it comes from a Secret or a row.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use crate::args::Global;
use crate::commands::read::events;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Format, Table, View};

/// Flags of `report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The StorageMigration
    #[arg(value_name = "MIGRATION")]
    pub name: String,
    /// Write the bundle here
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Names of fields, in lower case, whose value never leaves the cluster.
const SECRET: [&str; 5] = ["password", "secret", "token", "capem", "privatekey"];

/// Writes the bundle.
///
/// # Errors
/// [`CommandError::Partly`] when something could not be read: the bundle names it.
pub async fn run(args: ReportArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let api = connection.control_plane().await?;
    let report = api.migration_report(&args.name).await.map_err(from_api)?;
    let timeline = events::of(&connection, Kind::StorageMigrations, Some(&args.name)).await?;
    let mut bundle = serde_json::to_value(&report).context("encode report")?;
    bundle["timeline"] = json!(timeline);
    redact(&mut bundle);
    let failed = report.ranges.iter().filter(|range| range.state == "failed").count();
    let table = Table::fields([
        ("Migration", args.name.clone()),
        ("Stage", report.status["stage"].as_str().unwrap_or_default().to_owned()),
        ("Ranges", format!("{} ({failed} failed)", report.ranges.len())),
        ("Receipt", receipt(&report.status["receipt"])),
        ("Findings", findings(&report.findings)),
        ("Events", timeline.len().to_string()),
        ("Not read", if report.missing.is_empty() { "-".to_owned() } else { report.missing.join("; ") }),
    ]);
    if let Some(file) = &args.file {
        let text = serde_json::to_string_pretty(&bundle).context("encode report")?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    let format = if args.file.is_none() && global.output == Format::Name { Format::Json } else { global.output };
    View { value: bundle, table, names: vec![Kind::StorageMigrations.qualified(&args.name)] }.print(format)?;
    if report.missing.is_empty() {
        return Ok(Exit::Done);
    }
    Err(CommandError::Partly {
        done: "what could be read is in the bundle".into(),
        left: report.missing.join("; "),
        next: format!("cellctl describe storagemigration {}", args.name),
    })
}

fn receipt(receipt: &Value) -> String {
    match receipt["clean"].as_bool() {
        None => "none".to_owned(),
        Some(true) => format!("clean, {} rows", receipt["rows"]),
        Some(false) => format!("DIRTY, {} rows: {}", receipt["rows"], receipt["mismatches"]),
    }
}

fn findings(findings: &[cell_api::MigrationFinding]) -> String {
    let line = |found: &cell_api::MigrationFinding| format!("{} {} ({})", found.kind, found.table, found.message);
    if findings.is_empty() { "none".to_owned() } else { findings.iter().map(line).collect::<Vec<_>>().join("; ") }
}

/// A last line of defence: nothing named like a secret is written, wherever it came from.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if SECRET.contains(&name.to_lowercase().as_str()) {
                    *field = json!("redacted");
                } else {
                    redact(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}
