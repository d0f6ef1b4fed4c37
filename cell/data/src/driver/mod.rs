//! The data role's driver: one task per owned log around its machine, the gRPC service, reads with coalescing, feeds, and what the
//! operator asks for, storage migrations among it. It decides nothing that a machine decides.

mod copies;
mod cursors;
mod empty;
mod feed;
mod guild;
mod handle;
mod handover;
mod history;
mod logs;
mod metrics;
mod migrate;
mod operate;
mod query;
mod reader;
mod ring;
mod role;
mod routes;
mod service;
mod shadow;
mod split;
mod stores;
mod task;

pub use role::{Config, RunError, run};
pub use service::{DataServer, DataServerConfig};
pub use stores::{OpenStore, Stores};
