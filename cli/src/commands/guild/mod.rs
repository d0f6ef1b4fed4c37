//! `cellctl guild …`: moves guilds, and says where they should live.

pub mod dedicate;
pub mod moves;
pub mod pin;
pub mod release;

use clap::Subcommand;
use serde_json::{Value, json};

use super::edit::{Edited, Editing, edit};
use crate::args::Global;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::{Kind, guild_object};
use crate::output::{Table, View};
use crate::ownership::Edit;

/// The verbs of `guild`.
#[derive(Subcommand, Debug)]
pub enum GuildCommand {
    /// Move a guild to another cell under live traffic
    #[command(subcommand)]
    Move(moves::MoveCommand),
    /// Keep a guild in a cell
    Pin(pin::PinArgs),
    /// Give a guild a cell of its own
    Dedicate(dedicate::DedicateArgs),
    /// Let a guild live where its bucket lives
    Release(release::ReleaseArgs),
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: GuildCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        GuildCommand::Move(command) => moves::run(command, global).await,
        GuildCommand::Pin(args) => pin::run(args, global).await,
        GuildCommand::Dedicate(args) => dedicate::run(args, global).await,
        GuildCommand::Release(args) => release::run(args, global).await,
    }
}

/// A wish about where one guild should live.
struct Wish {
    guild_id: String,
    placement: Value,
    take_over: bool,
}

/// Writes the wish into the guild's resource, making it where there is none. The operator turns it into a Move.
async fn place(wish: Wish, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let name = guild_object(&wish.guild_id);
    let absent = json!({
        "apiVersion": format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION),
        "kind": "Guild",
        "metadata": {"name": name, "namespace": connection.namespace},
        "spec": {"guildId": wish.guild_id, "placement": wish.placement},
    });
    let change = Edit { kind: "Guild", name: name.clone(), field: "placement", value: wish.placement.clone() };
    let how = Editing { kind: Kind::Guilds, take_over: wish.take_over, absent: Some(absent), global };
    let outcome = match edit(&connection, &change, &how).await? {
        Edited::Unchanged => "unchanged",
        Edited::Changed => "changed",
        Edited::Created => "created",
    };
    let value = json!({"guild": name, "placement": wish.placement, "outcome": outcome});
    let table = Table::fields([
        ("Guild", format!("{name} ({outcome})")),
        ("Placement", describe(&wish.placement)),
        ("Next", format!("cellctl describe guild {}", wish.guild_id)),
    ]);
    View::of(&value, table, vec![Kind::Guilds.qualified(&name)])?.print(global.output)?;
    Ok(Exit::Done)
}

fn describe(placement: &Value) -> String {
    match placement["cell"].as_str() {
        Some(cell) => format!("cell {cell}"),
        None => "a cell of its own".to_owned(),
    }
}
