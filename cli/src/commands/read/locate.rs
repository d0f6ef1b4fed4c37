//! `cellctl locate GUILD`: where a guild is, read from its head.

use clap::Args;

use crate::args::Global;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::kinds::guild_id;
use crate::output::{Table, View};

/// Flags of `locate`.
#[derive(Args, Debug)]
pub struct LocateArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
}

/// Locates the guild.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: LocateArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    let found = api.locate(&args.guild).await.map_err(from_api)?;
    let or = |text: &str, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.to_owned() };
    let table = Table::fields([
        ("Guild", found.guild_id.clone()),
        ("Unit", format!("{} (bucket {})", found.unit, found.bucket)),
        ("Cell", found.cell.clone()),
        ("StorageCell", or(&found.storage_cell, "-")),
        ("Term", found.term.to_string()),
        ("Data owner", or(&found.data_owner, "none has claimed the log")),
        ("Guild owner", or(&found.guild_owner, "not known")),
        ("Last number", found.last.to_string()),
        ("Run", or(&found.run_id, "none holds the unit")),
    ]);
    View::of(&found, table, vec![found.cell.clone()])?.print(global.output)?;
    Ok(Exit::Done)
}
