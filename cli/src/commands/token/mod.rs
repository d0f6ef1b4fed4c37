//! `cellctl token …`.

pub mod issue;

use clap::Subcommand;

use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// The verbs of `token`.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
    /// Issue a token; makes the bot or user when there is none of that name
    Issue(issue::IssueArgs),
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: TokenCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        TokenCommand::Issue(args) => issue::run(args, global).await,
    }
}
