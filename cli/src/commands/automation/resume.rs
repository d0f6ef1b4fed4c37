//! `cellctl automation resume`: the operator starts moves and promotions by itself again.

use cell_api::Automation;
use clap::Args;

use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// Flags of `resume`.
#[derive(Args, Debug)]
pub struct ResumeArgs {}

/// Resumes.
///
/// # Errors
/// [`CommandError`].
pub async fn run(_args: ResumeArgs, global: &Global) -> Result<Exit, CommandError> {
    super::set(&Automation { paused: false, note: None }, global).await
}
