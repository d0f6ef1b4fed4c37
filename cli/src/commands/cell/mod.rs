//! `cellctl cell …`: takes cells out of use and back.

pub mod cordon;
pub mod uncordon;

use cell_crds::Availability;
use clap::{Args, Subcommand};
use serde_json::json;

use super::edit::{Edited, Editing, edit};
use crate::args::Global;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Table, View};
use crate::ownership::Edit;

/// The verbs of `cell`.
#[derive(Subcommand, Debug)]
pub enum CellCommand {
    /// Keep what the cell has, give it nothing new
    Cordon(AvailabilityArgs),
    /// Let the cell take units and sessions again
    Uncordon(AvailabilityArgs),
}

/// Flags of both verbs.
#[derive(Args, Debug)]
pub struct AvailabilityArgs {
    /// The cell
    #[arg(value_name = "CELL")]
    pub cell: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: CellCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        CellCommand::Cordon(args) => cordon::run(args, global).await,
        CellCommand::Uncordon(args) => uncordon::run(args, global).await,
    }
}

async fn set(args: AvailabilityArgs, wanted: Availability, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let change = Edit { kind: "Cell", name: args.cell.clone(), field: "availability", value: json!(wanted) };
    let how = Editing { kind: Kind::Cells, take_over: args.take_over, absent: None, global };
    let edited = edit(&connection, &change, &how).await?;
    let outcome = if edited == Edited::Unchanged { "unchanged" } else { "changed" };
    let value = json!({"cell": args.cell, "availability": wanted, "outcome": outcome});
    let table = Table::fields([("Cell", args.cell.clone()), ("Availability", format!("{wanted:?} ({outcome})"))]);
    View::of(&value, table, vec![Kind::Cells.qualified(&args.cell)])?.print(global.output)?;
    Ok(Exit::Done)
}
