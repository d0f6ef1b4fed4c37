//! `cellctl guild move rollback MOVE`: brings the guild back while the rollback window is open.

use clap::Args;

use super::{unfinished, view};
use crate::args::Global;
use crate::commands::confirm::confirm;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::output::Format;
use crate::progress::Progress;

/// Flags of `rollback`.
#[derive(Args, Debug)]
pub struct RollbackArgs {
    /// The Move, by its name or run id
    #[arg(value_name = "MOVE")]
    pub name: String,
}

/// Asks for it; the operator does it, or refuses with the reason.
///
/// # Errors
/// [`CommandError::Refused`] when it is too late.
pub async fn run(args: RollbackArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    // Nobody is asked about a move that is not there, or is over.
    let before = unfinished(&api, &args.name).await?;
    confirm(global, &format!("Rollback move {} ({} to {}, at {})", before.name, before.from, before.to, before.step))?;
    let run = api.rollback(&args.name).await.map_err(from_api)?;
    view(&run)?.print(global.output)?;
    if run.result.is_none() && global.output == Format::Table {
        Progress::to_stderr().say(&format!("next: cellctl guild move watch {} (it ends as RolledBack)", run.name));
    }
    Ok(Exit::Done)
}
