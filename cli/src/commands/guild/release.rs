//! `cellctl guild release GUILD`: the guild goes back to where its bucket lives, and is merged into it.

use clap::Args;
use serde_json::Value;

use super::{Wish, place};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::kinds::guild_id;

/// Flags of `release`.
#[derive(Args, Debug)]
pub struct ReleaseArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Releases the guild.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field.
pub async fn run(args: ReleaseArgs, global: &Global) -> Result<Exit, CommandError> {
    place(Wish { guild_id: args.guild, placement: Value::Null, take_over: args.take_over }, global).await
}
