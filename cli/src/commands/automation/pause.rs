//! `cellctl automation pause`: nothing new is started by the operator itself.

use cell_api::Automation;
use clap::Args;

use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// Flags of `pause`.
#[derive(Args, Debug)]
pub struct PauseArgs {
    /// Why, for the next person
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// Pauses.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: PauseArgs, global: &Global) -> Result<Exit, CommandError> {
    super::set(&Automation { paused: true, note: args.note }, global).await
}
