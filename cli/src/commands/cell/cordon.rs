//! `cellctl cell cordon CELL`: takes a cell out of use: it keeps what it has and gets nothing new.

use cell_crds::Availability;

use super::{AvailabilityArgs, set};
use crate::args::Global;
use crate::exit::{CommandError, Exit};

/// Sets the cell's availability to Cordoned.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field.
pub async fn run(args: AvailabilityArgs, global: &Global) -> Result<Exit, CommandError> {
    set(args, Availability::Cordoned, global).await
}
