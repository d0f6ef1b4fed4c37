//! `cellctl migration start --from A --to B [--plan-hash HASH]`: with a hash, runs exactly the plan that was reviewed or nothing.

use clap::Args;

use super::{WhatArgs, watch};
use crate::args::Global;
use crate::commands::confirm::confirm;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Format, Table, View};
use crate::progress::Progress;

/// Flags of `start`.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// What goes where.
    #[command(flatten)]
    pub what: WhatArgs,
    /// Hash of the reviewed plan (`migration plan -o json`): another plan by now is refused
    #[arg(long, value_name = "HASH")]
    pub plan_hash: Option<String>,
    /// Follow it until it ends, or waits for you
    #[arg(long)]
    pub wait: bool,
}

/// Starts the migration.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: StartArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let api = connection.control_plane().await?;
    let hash = match &args.plan_hash {
        Some(hash) => hash.clone(),
        None => reviewed(&args, &api, global).await?,
    };
    let started = api.start_migration(&args.what.request(Some(hash))).await.map_err(from_api)?;
    if args.wait {
        return watch::follow(&connection, &started.name, global).await;
    }
    let table = Table::fields([("Migration", started.name.clone()), ("Plan", started.plan_hash.clone())]);
    let names = vec![Kind::StorageMigrations.qualified(&started.name)];
    View::of(&started, table, names)?.print(global.output)?;
    if global.output == Format::Table {
        Progress::to_stderr().say(&format!("next: cellctl migration watch {}", started.name));
    }
    Ok(Exit::Done)
}

/// Without a hash, the plan is shown and confirmed here, and its hash used: what runs is always a plan someone saw, or said `--yes` to.
async fn reviewed(args: &StartArgs, api: &cell_api::Client, global: &Global) -> Result<String, CommandError> {
    let plan = api.plan_migration(&args.what.request(None)).await.map_err(from_api)?;
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_else(|| check.name.clone());
        let next = format!("cellctl migration plan {}", args.what.flags());
        return Err(CommandError::refused(reason, check.message.clone(), next));
    }
    if !global.yes {
        Progress::to_stderr().say(super::plan::view(&plan)?.render(Format::Table)?.trim_end());
    }
    confirm(global, &format!("Migrate {} logs from {} to {}", plan.logs, plan.source, plan.target))?;
    Ok(plan.hash)
}
