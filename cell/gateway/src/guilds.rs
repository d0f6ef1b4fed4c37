//! Guild replicas of this process: one per guild, fed by one link per guild node, fanned out once to every session that may see.

pub mod audience;
pub mod driver;
mod entry_names;
pub mod fanout;
pub mod follow;
pub mod hosted;
pub mod hub;
pub mod link;
pub mod outgoing;
pub mod replica;
