//! Containers as processes: a shim of its own session keeps each one, writes its log and its end to files, and outlives the agent.

pub mod proc_fs;
pub mod record;
pub mod shim;
pub mod start;
pub mod strays;
