//! The CQL engine (Scylla, Cassandra) behind the Store trait, and which StorageCell's store is where. It speaks CQL and nothing else:
//! what an entry or a cell means is not known here.

mod backoff;
mod capability;
mod connect;
mod error;
mod logs;
pub mod migrations;
pub mod probe;
mod rows;
mod scan;
mod settings;
mod statements;
mod store;
mod stores;
mod values;

pub use capability::{Capabilities, Engine};
pub use connect::{Connection, connect, tls};
pub use error::is_lasting;
pub use settings::{Levels, Replication, Settings};
pub use store::CqlStore;
pub use stores::StoreSet;
