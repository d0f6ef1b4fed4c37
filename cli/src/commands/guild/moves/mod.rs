//! `cellctl guild move …`: plans, starts, watches, aborts and rolls back the move of one guild.

pub mod abort;
pub mod plan;
pub mod rollback;
pub mod start;
pub mod watch;

use cell_api::{MoveRequest, Run, Target};
use clap::{Args, Subcommand};

use crate::args::Global;
use crate::connect::from_api;
use crate::exit::{CommandError, Exit};
use crate::kinds::{Kind, guild_id};
use crate::output::{Table, View};

/// The verbs of `guild move`.
#[derive(Subcommand, Debug)]
pub enum MoveCommand {
    /// Show what a move would do, and whether it may
    Plan(plan::PlanArgs),
    /// Start a move; with --plan-hash exactly the reviewed one
    Start(start::StartArgs),
    /// Follow a move to its end
    Watch(watch::WatchArgs),
    /// Undo a move that has not reached its commit point
    Abort(abort::AbortArgs),
    /// Bring the guild back while the rollback window is open
    Rollback(rollback::RollbackArgs),
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: MoveCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        MoveCommand::Plan(args) => plan::run(args, global).await,
        MoveCommand::Start(args) => start::run(args, global).await,
        MoveCommand::Watch(args) => watch::run(args, global).await,
        MoveCommand::Abort(args) => abort::run(args, global).await,
        MoveCommand::Rollback(args) => rollback::run(args, global).await,
    }
}

/// Which guild goes where.
#[derive(Args, Debug, Clone)]
pub struct WhatArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// Where it shall go.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Seconds until the commit point at most
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(1..=86_400))]
    pub deadline_seconds: Option<i32>,
    /// Seconds the source stays warm afterwards
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i32).range(0..=604_800))]
    pub rollback_window_seconds: Option<i32>,
}

/// One of the three.
#[derive(Args, Debug, Clone)]
#[group(required = true, multiple = false)]
pub struct TargetArgs {
    /// To this cell
    #[arg(long, value_name = "CELL")]
    pub to: Option<String>,
    /// To a cell of its own, made when absent
    #[arg(long)]
    pub dedicated: bool,
    /// Back to its bucket's cell, and merged into the bucket
    #[arg(long)]
    pub to_bucket: bool,
}

impl WhatArgs {
    fn request(&self, plan_hash: Option<String>) -> MoveRequest {
        let target = match (&self.target.to, self.target.dedicated) {
            (Some(cell), _) => Target::Cell(cell.clone()),
            (None, true) => Target::Dedicated,
            (None, false) => Target::Bucket,
        };
        MoveRequest {
            guild_id: self.guild.clone(),
            target,
            deadline_seconds: self.deadline_seconds,
            rollback_window_seconds: self.rollback_window_seconds,
            plan_hash,
        }
    }

    /// The same flags, to be typed again.
    fn flags(&self) -> String {
        let mut flags = match (&self.target.to, self.target.dedicated) {
            (Some(cell), _) => format!("{} --to {cell}", self.guild),
            (None, true) => format!("{} --dedicated", self.guild),
            (None, false) => format!("{} --to-bucket", self.guild),
        };
        for (flag, value) in
            [("deadline-seconds", self.deadline_seconds), ("rollback-window-seconds", self.rollback_window_seconds)]
        {
            if let Some(value) = value {
                flags.push_str(&format!(" --{flag} {value}"));
            }
        }
        flags
    }
}

/// A run that can still be asked for something.
async fn unfinished(api: &cell_api::Client, name: &str) -> Result<Run, CommandError> {
    let run = api.run(name).await.map_err(from_api)?;
    match &run.result {
        None => Ok(run),
        Some(result) => {
            let reason = format!("move {} has ended as {result}: {}", run.name, run.message);
            Err(CommandError::refused("MOVE", reason, format!("cellctl describe move {}", run.name)))
        }
    }
}

/// A run in every format.
fn view(run: &Run) -> Result<View, CommandError> {
    let mut table = Table::new(&["MOVE", "FROM", "TO", "STEP", "RESULT", "HELD", "BLOCKED-BY"]);
    table.row([
        run.name.clone(),
        run.from.clone(),
        run.to.clone(),
        run.step.clone(),
        run.result.clone().unwrap_or_default(),
        held_cell(run),
        blocked_by(run),
    ]);
    View::of(run, table, vec![Kind::Moves.qualified(&run.name)])
}

fn held(microseconds: Option<i64>) -> String {
    microseconds.map(|microseconds| format!("{:.1} ms", microseconds as f64 / 1000.0)).unwrap_or_default()
}

/// A completed run whose operator ended between the switch and its answer does not know.
fn held_cell(run: &Run) -> String {
    let unknown = run.held_microseconds.is_none() && run.result.as_deref() == Some("Completed");
    if unknown { "not known".to_owned() } else { held(run.held_microseconds) }
}

/// Never blank before the end.
fn blocked_by(run: &Run) -> String {
    if run.result.is_some() {
        return crate::blocked::NOTHING.to_owned();
    }
    let said = run.blocked_by.clone().filter(|text| !text.trim().is_empty());
    said.unwrap_or_else(|| match run.message.trim() {
        "" => format!("step {} is under way", if run.step.is_empty() { "Validate" } else { &run.step }),
        message => message.to_owned(),
    })
}

#[cfg(test)]
mod tests;
