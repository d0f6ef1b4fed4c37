//! `cellctl guild pin GUILD --cell CELL`: keeps a guild in a cell.

use clap::Args;
use serde_json::json;

use super::{Wish, place};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::kinds::guild_id;

/// Flags of `pin`.
#[derive(Args, Debug)]
pub struct PinArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// The cell it should live in
    #[arg(long, value_name = "CELL")]
    pub cell: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Pins the guild.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field.
pub async fn run(args: PinArgs, global: &Global) -> Result<Exit, CommandError> {
    let placement = json!({"cell": args.cell});
    place(Wish { guild_id: args.guild, placement, take_over: args.take_over }, global).await
}
