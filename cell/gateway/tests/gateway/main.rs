//! The gateway over real sockets, against a scripted cell.

mod fake;
mod rest;
mod sessions;
