//! The demo: a whole platform, thousands of real clients in one guild, live moves and kills, and a ledger that says what came of it.

pub mod cassandra;
pub mod client;
pub mod content;
pub mod crowd;
pub mod history;
pub mod moves;
pub mod own;
pub mod protocol;
pub mod report;
pub mod rest;
pub mod run;
pub mod socket;
pub mod storage;
pub mod talk;
pub mod world;

pub use cell_ledger as ledger;
