//! From specs to Kubernetes objects. Pure and infallible: everything that can be wrong was refused before.

pub mod cell;
pub mod fleet;
pub mod migration;
mod pod;
pub mod policy;
pub mod probe;
pub mod scylla;
pub mod storage;
pub mod store;

pub use pod::Common;

#[cfg(test)]
mod tests;
