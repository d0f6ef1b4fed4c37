//! The guild role: one actor per guild that orders what is in it and feeds the gateways. `machine` decides and does no I/O; `driver` does I/O and
//! decides nothing.

mod driver;
pub mod machine;

pub use driver::{Config, run};
