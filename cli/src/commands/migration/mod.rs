//! `cellctl migration …`: plans, starts, watches and steers a StorageMigration. How it stands is read from its resource; what it is
//! told is written into its spec, unless another manager owns the field.

pub mod plan;
pub mod report;
pub mod start;
pub mod steer;
pub mod watch;

use cell_api::{MigrationRequest, ShadowWish, WorkersWish};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::args::Global;
use crate::blocked;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Table, View};

/// The verbs of `migration`.
#[derive(Subcommand, Debug)]
pub enum MigrationCommand {
    /// Show what a migration would do, and whether it may
    Plan(plan::PlanArgs),
    /// Start a migration; with --plan-hash exactly the reviewed one
    Start(start::StartArgs),
    /// Follow a migration until it ends, or waits for you
    Watch(watch::WatchArgs),
    /// Let it go on, to the next stage or further
    Advance(steer::AdvanceArgs),
    /// Begin nothing new
    Pause(steer::NameArgs),
    /// Go on after a pause
    Resume(steer::NameArgs),
    /// Set how many rows a second it copies and compares at most
    Throttle(steer::ThrottleArgs),
    /// Compare both sides again
    Verify(steer::NameArgs),
    /// Undo everything, as long as not every log is cut over
    Abort(steer::UndoArgs),
    /// Bring the logs back after a cutover
    Rollback(steer::UndoArgs),
    /// Release the source once the rollback window is over
    Complete(steer::CompleteArgs),
    /// Write a bundle without secrets: timeline, receipts, configuration, ranges
    Report(report::ReportArgs),
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: MigrationCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        MigrationCommand::Plan(args) => plan::run(args, global).await,
        MigrationCommand::Start(args) => start::run(args, global).await,
        MigrationCommand::Watch(args) => watch::run(args, global).await,
        MigrationCommand::Advance(args) => steer::advance(args, global).await,
        MigrationCommand::Pause(args) => steer::pause(args, global).await,
        MigrationCommand::Resume(args) => steer::resume(args, global).await,
        MigrationCommand::Throttle(args) => steer::throttle(args, global).await,
        MigrationCommand::Verify(args) => steer::verify(args, global).await,
        MigrationCommand::Abort(args) => steer::abort(args, global).await,
        MigrationCommand::Rollback(args) => steer::rollback(args, global).await,
        MigrationCommand::Complete(args) => steer::complete(args, global).await,
        MigrationCommand::Report(args) => report::run(args, global).await,
    }
}

/// What goes where.
#[derive(Args, Debug, Clone)]
pub struct WhatArgs {
    /// The StorageCell that has the data
    #[arg(long, value_name = "STORAGECELL")]
    pub from: String,
    /// The StorageCell that shall have it
    #[arg(long, value_name = "STORAGECELL")]
    pub to: String,
    /// Only these buckets (b0000–b4095), with the guilds split out of them
    #[arg(long, value_name = "UNIT,…", value_delimiter = ',')]
    pub units: Vec<String>,
    /// Name of the StorageMigration
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How far it goes by itself: Prepare, DualWrite, Backfill, Verify, ShadowRead, Cutover or Complete (default: ShadowRead)
    #[arg(long, value_name = "STAGE")]
    pub target_stage: Option<String>,
    /// Seconds that a rollback stays possible after the last cutover
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..=2_592_000))]
    pub rollback_window_seconds: Option<i32>,
    /// Reads of 10,000 that are also asked of the copy in stage ShadowRead (default: 100)
    #[arg(long, value_name = "READS", value_parser = clap::value_parser!(i32).range(0..=10_000))]
    pub shadow_per_ten_thousand: Option<i32>,
    /// Reads that must have been compared before a cutover; 0 goes on without any (default: 100)
    #[arg(long, value_name = "READS", value_parser = clap::value_parser!(i32).range(0..=1_000_000_000))]
    pub shadow_min_samples: Option<i32>,
    /// Workers that copy and compare (default: 2)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..=256))]
    pub workers: Option<i32>,
    /// Size of the coordinator's volume, in Mi or Gi (default: 1Gi)
    #[arg(long, value_name = "SIZE")]
    pub coordinator_size: Option<String>,
    /// StorageClass of the coordinator's volume (default: the cluster's)
    #[arg(long, value_name = "NAME")]
    pub coordinator_storage_class: Option<String>,
}

impl WhatArgs {
    fn request(&self, plan_hash: Option<String>) -> MigrationRequest {
        MigrationRequest {
            source: self.from.clone(),
            target: self.to.clone(),
            units: self.units.clone(),
            name: self.name.clone(),
            target_stage: self.target_stage.clone(),
            rollback_window_seconds: self.rollback_window_seconds,
            shadow: ShadowWish { per_ten_thousand: self.shadow_per_ten_thousand, min_samples: self.shadow_min_samples },
            workers: WorkersWish {
                replicas: self.workers,
                volume_size: self.coordinator_size.clone(),
                storage_class_name: self.coordinator_storage_class.clone(),
            },
            plan_hash,
        }
    }

    /// The same flags, to be typed again.
    fn flags(&self) -> String {
        let mut flags = format!("--from {} --to {}", self.from, self.to);
        if !self.units.is_empty() {
            flags.push_str(&format!(" --units {}", self.units.join(",")));
        }
        let number = |number: Option<i32>| number.map(|number| number.to_string());
        for (flag, value) in [
            ("name", self.name.clone()),
            ("target-stage", self.target_stage.clone()),
            ("rollback-window-seconds", number(self.rollback_window_seconds)),
            ("shadow-per-ten-thousand", number(self.shadow_per_ten_thousand)),
            ("shadow-min-samples", number(self.shadow_min_samples)),
            ("workers", number(self.workers)),
            ("coordinator-size", self.coordinator_size.clone()),
            ("coordinator-storage-class", self.coordinator_storage_class.clone()),
        ] {
            if let Some(value) = value {
                flags.push_str(&format!(" --{flag} {value}"));
            }
        }
        flags
    }
}

/// A migration in every format.
fn view(object: &Value) -> Result<View, CommandError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut table = Table::new(&["MIGRATION", "STAGE", "RESULT", "PROGRESS", "BLOCKED-BY"]);
    let status = &object["status"];
    table.row([
        name.to_owned(),
        status["stage"].as_str().unwrap_or_default().to_owned(),
        status["result"].as_str().unwrap_or_default().to_owned(),
        watch::heartbeat(status),
        blocked::of_resource(object),
    ]);
    View::of(object, table, vec![Kind::StorageMigrations.qualified(name)])
}

/// The command that helps next, by what it waits for.
pub(in crate::commands) fn next_step(name: &str, status: &Value) -> String {
    let reason = status["blockedBy"].as_str().and_then(|text| text.split(':').next()).unwrap_or_default();
    let verb = match reason {
        "TargetStageReached" if status["stage"] == "Reverse" => "complete",
        "TargetStageReached" => "advance",
        "MigrationPaused" => "resume",
        "ReceiptStale" | "ShadowMismatch" => "verify",
        "ReceiptDirty" | "RangesFailed" => "report",
        _ => "watch",
    };
    format!("cellctl migration {verb} {name}")
}

#[cfg(test)]
mod tests;
