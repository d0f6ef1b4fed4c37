//! An embedded cluster for laptops and tests: an etcd API and a Kubernetes API over one MVCC store on disk, the controllers a small
//! cluster needs, and a node agent that runs Pods as local processes. Nothing here knows Cellplane.

pub mod controllers;
pub mod copies;
pub mod embedded;
pub mod etcd;
pub mod faults;
mod idle;
pub mod kube_api;
pub mod node;
pub mod server;
#[cfg(test)]
mod shrink;
pub mod store;
