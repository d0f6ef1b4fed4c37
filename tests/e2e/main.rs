//! The platform end to end: each test has a sandbox of its own, made and taken down by the program `cellctl` as a person would. Only
//! what a person can see is asserted: acknowledged sends, history, live sessions, resources, exit codes. `harness` has no tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's own helpers stop the test")]

mod bad_input;
mod harness;
mod hot_guild;
mod kills;
mod restarts;
mod state_dir;
