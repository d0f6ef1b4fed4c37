//! The driver of the guild role: sockets, clocks and tasks around the pure machine. It decides nothing about a guild.

mod actor;
mod ask;
mod config;
mod data;
mod effects;
mod feed;
mod history;
mod link_queue;
mod link_server;
mod load;
mod memberships;
mod metrics;
mod node;
mod registry;
mod run;
mod service;

pub use config::Config;
pub use run::run;

#[cfg(test)]
mod tests;
