//! What the entries of a log mean: which are allowed, which ids and times they get, and which rows they write. Pure; it never knows
//! terms, segments or who owns the log.

mod guilds;
mod ids;
mod judge;
mod limits;
mod messages;
mod reading;
mod state;
mod stored;
pub mod tables;

pub use guilds::{guild_row_of, invite_of};
pub use ids::Ids;
pub use judge::{Asked, Judged, check_place, guild_of, judge, needs, other_log};
pub use messages::{LEAST_RUN, message_of};
pub use reading::read_state_of;
pub use state::{Cells, Need, State, number};
pub use stored::{Unreadable, entry_of};

#[cfg(test)]
mod tests;
