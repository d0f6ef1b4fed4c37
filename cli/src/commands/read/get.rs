//! `cellctl get KIND [NAME]`.

use clap::Args;
use serde_json::json;

use super::{columns, list, name_of, one};
use crate::args::Global;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Format, View};
use crate::progress::Progress;

/// Flags of `get`.
#[derive(Args, Debug)]
pub struct GetArgs {
    /// fleets, cells, guilds, moves, storagecells or pods
    #[arg(value_name = "KIND")]
    pub kind: Kind,
    /// One resource; a guild also by its bare id
    pub name: Option<String>,
}

/// Lists or shows resources.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: GetArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let (objects, value) = match &args.name {
        Some(name) => {
            let object = one(&connection, args.kind, name).await?;
            (vec![object.clone()], object)
        }
        None => {
            let objects = list(&connection, args.kind).await?;
            let value = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            (objects, value)
        }
    };
    if objects.is_empty() && matches!(global.output, Format::Table | Format::Name) {
        Progress::to_stderr().say(&format!("no {} in namespace {:?}", args.kind.plural(), connection.namespace));
        return Ok(Exit::Done);
    }
    let names = objects.iter().map(|object| args.kind.qualified(name_of(object))).collect();
    let table = columns::table(args.kind, &objects, columns::now_s());
    View { value, table, names }.print(global.output)?;
    Ok(Exit::Done)
}
