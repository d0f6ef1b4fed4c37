//! Contracts between the roles of a cell: the generated messages and services, ids, units and the directory's layout. Holds no
//! I/O and knows nothing of ours.

pub mod directory;
pub mod reason;
pub mod snowflake;
pub mod unit;

/// The generated messages and services of package `cellplane.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
pub mod v1 {
    tonic::include_proto!("cellplane.v1");
}

/// The largest gRPC message either side accepts, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;
