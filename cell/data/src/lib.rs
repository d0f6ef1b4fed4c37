//! The data role: owns logs. `machine` decides (pure), `domain` knows what entries mean (pure), `driver` does the I/O. It is the only
//! role that talks to a store.

pub mod cql;
pub mod domain;
pub mod driver;
pub mod machine;

pub use cql::StoreSet;
pub use driver::{Config, RunError, run};
