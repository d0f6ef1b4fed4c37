//! `cellctl sandbox down`: stops the sandbox and its Pods. State stays unless `--delete` is given.

use clap::Args;
use serde_json::json;

use super::{WhichArgs, from_state};
use crate::args::Global;
use crate::commands::confirm::confirm;
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};
use crate::progress::Progress;
use crate::sandbox::state::StateDir;
use crate::sandbox::{down, network};

/// Flags of `down`.
#[derive(Args, Debug)]
pub struct DownArgs {
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// Delete its state: guilds, messages, logs, everything
    #[arg(long)]
    pub delete: bool,
}

/// Stops the sandbox.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: DownArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    let existed = state.root().exists();
    if existed {
        if args.delete {
            confirm(global, &format!("Delete the sandbox in {} with everything in it", state.root().display()))?;
        }
        stop(&state, args.delete, &Progress::to_stderr()).await?;
    }
    let outcome = match (existed, args.delete) {
        (false, _) => "absent",
        (true, true) => "deleted",
        (true, false) => "stopped",
    };
    let table = Table::fields([("Sandbox", args.which.name.clone()), ("Outcome", outcome.to_owned())]);
    View::of(&json!({"name": args.which.name, "outcome": outcome}), table, vec![args.which.name.clone()])?
        .print(global.output)?;
    Ok(Exit::Done)
}

/// Stops, and deletes if asked to.
///
/// # Errors
/// [`CommandError`].
pub async fn stop(state: &StateDir, delete: bool, progress: &Progress) -> Result<(), CommandError> {
    let lock = state.lock().map_err(from_state)?;
    down::stop(state, progress).await?;
    if delete {
        network::release(&network::registry(), state.root()).map_err(anyhow::Error::from)?;
        std::fs::remove_dir_all(state.root())
            .map_err(|error| anyhow::Error::from(error).context(format!("delete {}", state.root().display())))?;
    }
    drop(lock);
    Ok(())
}
