//! `cellctl cell uncordon CELL`: puts a cell back into use.

use cell_crds::Availability;

use super::{AvailabilityArgs, set};
use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// Sets the cell's availability to Active.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field.
pub async fn run(args: AvailabilityArgs, global: &Global) -> Result<Exit, CommandError> {
    set(args, Availability::Active, global).await
}
