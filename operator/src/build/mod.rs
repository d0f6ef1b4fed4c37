//! From specs to Kubernetes objects. Pure and infallible: everything that can be wrong was refused before.

pub mod cell;
pub mod fleet;
mod pod;
pub mod store;

pub use pod::Common;

#[cfg(test)]
mod tests;
