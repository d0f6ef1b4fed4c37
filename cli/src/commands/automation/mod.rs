//! `cellctl automation …`: pauses and resumes what the operator starts by itself. Runs under way go on.

pub mod pause;
pub mod resume;

use cell_api::Automation;
use clap::Subcommand;

use crate::args::Global;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};

/// The verbs of `automation`.
#[derive(Subcommand, Debug)]
pub enum AutomationCommand {
    /// Let the operator start nothing by itself: no promotions, no moves for a Guild's placement
    ///
    /// What runs goes on. A move that somebody asks for (guild move start, guild release, a Move resource) starts all the same. A wish
    /// (guild pin, guild dedicate, a Guild's promotion) waits, and says so, until `automation resume`.
    Pause(pause::PauseArgs),
    /// Let the operator start moves and promotions by itself again
    Resume(resume::ResumeArgs),
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: AutomationCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        AutomationCommand::Pause(args) => pause::run(args, global).await,
        AutomationCommand::Resume(args) => resume::run(args, global).await,
    }
}

async fn set(wanted: &Automation, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    let now = api.set_automation(wanted).await.map_err(from_api)?;
    let word = if now.paused { "paused" } else { "running" };
    let mut table = Table::fields([("Automation", word.to_owned())]);
    table.rows.extend(now.note.clone().map(|note| vec!["Note:".to_owned(), note]));
    View::of(&now, table, vec![format!("automation/{word}")])?.print(global.output)?;
    Ok(Exit::Done)
}
