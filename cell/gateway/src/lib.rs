//! The gateway role: sockets, sessions, REST, and the guild replicas both judge by. Machines are pure; this crate's drivers own sockets
//! and clocks. It owns no log and no guild: it asks those who do.

pub mod calls;
pub mod config;
pub mod gateway;
pub mod guilds;
pub mod http;
pub mod joins;
pub mod metrics;
pub mod names;
pub mod reading;
pub mod rest;
pub mod run;
pub mod session;
pub mod sessions;
pub mod socket;
pub mod wire;

pub use config::{Config, Limits};
pub use gateway::Gateway;
pub use run::{RunError, run};
