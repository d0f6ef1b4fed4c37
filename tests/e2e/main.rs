//! The platform end to end: each test has a sandbox of its own, made and taken down by the program `cellctl` as a person would. Only
//! what a person can see is asserted: acknowledged sends, history, live sessions, resources, exit codes. `harness` has no tests.
//!
//! `CELLPLANE_E2E_PROGRAMS=DIR` tests the programs there instead of building them, `CELLPLANE_E2E_SEED=N` repeats a row of random
//! delays, `CELLPLANE_E2E_KEEP=1` leaves the sandbox of a failed test running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's own helpers stop the test")]

mod bad_input;
mod bad_wire;
mod every_record;
mod fields;
mod full_disk;
mod harness;
mod hot_guild;
mod interrupted;
mod kills;
mod restarts;
mod state_dir;
mod storage;
