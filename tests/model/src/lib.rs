//! The log protocol as an explicit-state model. `engine` explores, `rules` lists what can be left out, and each other module is one
//! part of the protocol with its invariants. It never touches a store or a clock; `tests/replay` holds the code to its traces.

pub mod engine;
pub mod log;
pub mod rows;
pub mod rules;
pub mod split;
pub mod suite;
pub mod window;
