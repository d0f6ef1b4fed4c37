//! `cellctl sandbox kubeconfig`: `export KUBECONFIG=$(cellctl sandbox kubeconfig)`. The user's own kubeconfig is never touched.

use clap::Args;
use serde_json::json;

use super::WhichArgs;
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::{Format, Table, View, write_out};
use crate::sandbox::status::absent;

/// Flags of `kubeconfig`.
#[derive(Args, Debug)]
pub struct KubeconfigArgs {
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// Print the content, which holds a token, instead of the path
    #[arg(long)]
    pub print: bool,
}

/// Prints the path, or the content.
///
/// # Errors
/// [`CommandError::Refused`] when there is no sandbox.
pub fn run(args: &KubeconfigArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    let path = state.kubeconfig();
    let Ok(content) = std::fs::read_to_string(&path) else {
        return Err(absent(&state));
    };
    let shown = path.display().to_string();
    match (args.print, global.output) {
        (true, _) => write_out(&content)?,
        (false, Format::Table) => write_out(&format!("{shown}\n"))?,
        (false, other) => View::of(&json!({"kubeconfig": shown}), Table::default(), vec![shown])?.print(other)?,
    }
    Ok(Exit::Done)
}
