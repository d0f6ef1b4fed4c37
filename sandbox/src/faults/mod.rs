//! A proxy in front of any Kubernetes API server that makes it behave badly, by rule and by seed: it delays, refuses, loses answers,
//! cuts connections, freezes, answers with a stale view, and drops, repeats or delays watch events. It never invents an object.
//!
//! `rule` is the words of a rule, `plan` the pure decision, `stale` the answers remembered, `events` the watch streams, `proxy` the
//! driver with sockets, `control` how rules are changed while it runs.

pub mod control;
mod events;
pub mod plan;
pub mod proxy;
pub mod rule;
mod stale;
#[cfg(test)]
mod tests;
