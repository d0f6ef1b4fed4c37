//! `cellctl storage …`: looks at databases, and says what they need. It reaches no database itself: it reads what the operator and
//! the migrations found.

pub mod advice;
pub mod doctor;

use clap::{Args, Subcommand};

use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// The verbs of `storage`.
#[derive(Subcommand, Debug)]
pub enum StorageCommand {
    /// Say of every StorageCell whether it is well, and what to do; exits 3 when one is not
    Doctor(WhichArgs),
    /// Say which ranges need a compaction, with the command to run
    CompactAdvice(WhichArgs),
}

/// Which StorageCells.
#[derive(Args, Debug)]
pub struct WhichArgs {
    /// One StorageCell. Without it, all of them
    #[arg(value_name = "STORAGECELL")]
    pub name: Option<String>,
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: StorageCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        StorageCommand::Doctor(args) => doctor::run(args, global).await,
        StorageCommand::CompactAdvice(args) => advice::run(args, global).await,
    }
}
