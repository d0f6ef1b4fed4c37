//! Requests of runs as gRPC calls: finds who to ask in the directory's view, asks once with a deadline, and says what was heard. It
//! decides nothing and retries nothing; the step machine does.

mod answer;
mod call;
mod facts;
mod heads;
mod migrate;

pub use call::perform;
pub use heads::{all_heads, create_heads, data_members_of, guild_exists, inspect};
pub use migrate::{Control, MigrateCaller};
