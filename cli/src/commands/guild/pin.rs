//! `cellctl guild pin GUILD --cell CELL`: keeps a guild in a cell that exists.

use cell_crds::Cell;
use clap::Args;
use kube::Api;
use serde_json::json;

use super::{Wish, place};
use crate::args::Global;
use crate::connect::{Connection, within};
use crate::exit::{CommandError, Exit};
use crate::kinds::guild_id;

/// Flags of `pin`.
#[derive(Args, Debug)]
pub struct PinArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// The cell it should live in; it must exist (kubectl apply takes a Guild before its Cell)
    #[arg(long, value_name = "CELL")]
    pub cell: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Pins the guild.
///
/// # Errors
/// [`CommandError::Refused`] when there is no such cell, or another manager owns the field.
pub async fn run(args: PinArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let cells: Api<Cell> = Api::namespaced(connection.client.clone(), &connection.namespace);
    if within(cells.get_opt(&args.cell)).await?.is_none() {
        let reason = format!("there is no Cell {:?} in namespace {:?}", args.cell, connection.namespace);
        return Err(CommandError::refused("--cell", reason, "cellctl get cells"));
    }
    let placement = json!({"cell": args.cell});
    place(Wish { guild_id: args.guild, placement, take_over: args.take_over }, global).await
}
