//! A CQL table as a side: connects, knows the table's shape, scans it by token and writes rows as they were.

mod connect;
mod raw;
mod schema;
mod table;
mod write;

pub use connect::{Address, ConnectError, Credentials, Link, connect};
pub use schema::{ColumnSpec, Kind, SchemaError, TableSpec, read_table};
pub use table::CqlTable;
pub use write::MARKER_US;
