//! A Kubernetes-compatible API over the sandbox's store: enough for kube-rs and plain kubectl, and a clear `Status` for the rest. It
//! never runs anything itself: controllers and node agents are clients of it.
//!
//! `request` takes paths apart, `kinds` with `built_in` and `custom` say what is served, `write` decides what a write does to an
//! object, `verbs` are the doors, `collect` removes what lost its owner, `serve` is the driver with sockets and TLS.

pub mod access;
pub mod admit;
pub mod api;
pub mod backup;
pub mod built_in;
pub mod collect;
pub mod custom;
pub mod defaults;
pub mod discovery;
pub mod dispatch;
pub mod jobs;
pub mod jsonpath;
pub mod judge;
pub mod kinds;
pub mod managed;
pub mod names;
pub mod object;
pub mod objects;
pub mod openapi;
pub mod patch;
pub mod present;
pub mod protobuf;
mod quantities;
pub mod registry;
pub mod request;
pub mod schema;
pub mod selectors;
pub mod serve;
pub mod status;
pub mod strategic;
pub mod tables;
pub mod tls;
pub mod types;
pub mod verbs;
pub mod write;
mod written;

#[cfg(test)]
mod tests;
