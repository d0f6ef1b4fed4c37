//! `cellctl version`.

use clap::Args;
use serde_json::json;

use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};

/// Flags of `version`.
#[derive(Args, Debug)]
pub struct VersionArgs {}

/// Prints the version of cellctl and of the API it speaks.
///
/// # Errors
/// [`CommandError::Failed`] when stdout cannot be written.
pub fn run(_args: &VersionArgs, global: &Global) -> Result<Exit, CommandError> {
    let version = env!("CARGO_PKG_VERSION");
    let api = format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION);
    let table = Table::fields([("Version", version.to_owned()), ("API", api.clone())]);
    View::of(&json!({"version": version, "apiVersion": api}), table, vec![version.to_owned()])?.print(global.output)?;
    Ok(Exit::Done)
}
