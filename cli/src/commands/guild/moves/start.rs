//! `cellctl guild move start GUILD --to CELL [--plan-hash HASH]`: with a hash, runs exactly the plan that was reviewed or nothing.

use clap::Args;

use super::{WhatArgs, view, watch};
use crate::args::Global;
use crate::commands::confirm::confirm;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::output::Format;
use crate::progress::Progress;

/// Flags of `start`.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// Which guild goes where.
    #[command(flatten)]
    pub what: WhatArgs,
    /// Hash of the reviewed plan (`guild move plan -o json`): another plan by now is refused
    #[arg(long, value_name = "HASH")]
    pub plan_hash: Option<String>,
    /// Follow it to its end; exits 0 only if the guild was moved
    #[arg(long)]
    pub wait: bool,
}

/// Starts the move.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: StartArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    let hash = match &args.plan_hash {
        Some(hash) => hash.clone(),
        None => reviewed(&args, &api, global).await?,
    };
    let started = api.start_move(&args.what.request(Some(hash))).await.map_err(from_api);
    let run = started.map_err(|error| with_flags(error, &args.what))?;
    if args.wait {
        return watch::follow(&api, &run.name, global, watch::Awaited::Moved).await;
    }
    view(&run)?.print(global.output)?;
    if global.output == Format::Table {
        Progress::to_stderr().say(&format!("next: cellctl guild move watch {}", run.name));
    }
    Ok(Exit::Done)
}

/// Without a hash, the plan is shown and confirmed here, and its hash used: what runs is always a plan someone saw, or said `--yes` to.
async fn reviewed(args: &StartArgs, api: &cell_api::Client, global: &Global) -> Result<String, CommandError> {
    let plan = api.plan_move(&args.what.request(None)).await.map_err(from_api)?;
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_else(|| check.name.clone());
        let next = check.next.clone().unwrap_or_else(|| format!("cellctl guild move plan {}", args.what.flags()));
        return Err(CommandError::refused(reason, check.message.clone(), next));
    }
    if !global.yes {
        Progress::to_stderr().say(super::plan::view(&plan)?.render(Format::Table)?.trim_end());
    }
    confirm(global, &format!("Move guild {} from {} to {}", plan.guild_id, plan.from, plan.to))?;
    Ok(plan.hash)
}

/// The API knows the guild but not the flags that were typed.
fn with_flags(error: CommandError, what: &WhatArgs) -> CommandError {
    match error {
        CommandError::Refused(mut refusal) if refusal.next.starts_with("cellctl guild move plan") => {
            refusal.next = format!("cellctl guild move plan {}", what.flags());
            CommandError::Refused(refusal)
        }
        other => other,
    }
}
