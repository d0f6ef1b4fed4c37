//! The data role's driver: one task per owned log around its machine, the gRPC service, reads with coalescing, feeds, and what the
//! operator asks for. It decides nothing that a machine decides.

mod feed;
mod guild;
mod handover;
mod history;
mod logs;
mod metrics;
mod operate;
mod query;
mod reader;
mod ring;
mod role;
mod routes;
mod service;
mod split;
mod task;

pub use role::{Config, RunError, run};
pub use service::{DataServer, DataServerConfig};
