//! `cellctl completion SHELL`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::{CommandError, Exit};
use crate::output::write_out;

/// Flags of `completion`.
#[derive(Args, Debug)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// [`CommandError::Failed`] when stdout cannot be written.
pub fn run(args: &CompletionArgs) -> Result<Exit, CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cellctl", &mut script);
    write_out(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
