//! Sessions: the one buffer, who may resume, the lease, and the protocol of one connection. Pure: no I/O, no clock.

pub mod buffer;
pub mod connection;
pub mod id;
pub mod limits;
pub mod machine;
pub mod registry;
