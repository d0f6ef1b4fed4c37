//! `cellctl guild dedicate GUILD`: gives a guild a cell of its own, shaped by the Fleet's `dedicatedTemplate`.

use clap::Args;
use serde_json::json;

use super::{Wish, place};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::kinds::guild_id;

/// Flags of `dedicate`.
#[derive(Args, Debug)]
pub struct DedicateArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Dedicates a cell to the guild.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field.
pub async fn run(args: DedicateArgs, global: &Global) -> Result<Exit, CommandError> {
    let placement = json!({"dedicated": {}});
    place(Wish { guild_id: args.guild, placement, take_over: args.take_over }, global).await
}
