//! The gateway over real sockets: against a scripted cell, and against the real roles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fake;
mod faults;
mod hardening;
mod moves;
mod reading;
mod real;
mod rest;
mod running;
mod sessions;
