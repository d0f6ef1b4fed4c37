//! A sandbox as seen from outside: where it lives, which processes it has, what it holds. Knows programs by name and flags only.

pub mod down;
pub mod install;
pub mod launch;
pub mod network;
pub mod objects;
pub mod preflight;
pub mod probe;
pub mod process;
pub mod programs;
pub mod ready;
pub mod state;
pub mod status;
