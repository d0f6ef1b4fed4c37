//! etcd's gRPC API over the store, for unmodified etcd clients: KV, Watch, Lease, and what status pages ask of Maintenance and Cluster.
//!
//! It decides how etcd's words map to the store's and gives etcd's own error texts. It never keeps state of its own. What it does not
//! have (auth, locks, elections, membership changes, snapshots) is refused as unimplemented, by name.

mod cluster;
mod convert;
mod keys;
mod kv;
mod lease;
mod maintenance;
mod range;
mod refusal;
mod serve;
mod txn;
mod watch;

#[cfg(test)]
mod tests;

pub use serve::{ServeError, serve};
