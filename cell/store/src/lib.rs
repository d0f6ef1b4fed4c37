//! The Store trait, its engines and the store role. It decides whether a condition holds and which write wins; it never knows what a
//! log's entries or a table's cells mean.

pub mod embedded;
pub mod engine;
mod error;
mod memory;
pub mod remote;
mod request;
mod role;
pub mod schema;
mod store;

pub use embedded::{EmbeddedConfig, EmbeddedStore};
pub use error::StoreError;
pub use memory::{MemoryState, MemoryStore};
pub use remote::{RemoteStore, StoreServer};
pub use request::{Reply, Request};
pub use role::{Config, RunError, run};
pub use store::Store;

/// How far a log's entries have reached its own StorageCell's tables (LOG.md rule 5).
pub const CURSOR_APPLIED: &str = "applied";
/// How far guild owners have processed the log.
pub const CURSOR_FEED: &str = "feed";
/// A segment that exists or existed: where a claimant may start to walk.
pub const CURSOR_SEGMENT: &str = "segment";
/// The lowest segment that may still exist; everything below was dropped.
pub const CURSOR_RETAINED: &str = "retained";
