//! Pure planning: where buckets start, whether a guild should move and why, what a move asks next, and what is refused. It does no
//! I/O, reads no clock and knows no wire format: facts and times are arguments, decisions carry their reasons.
#![deny(missing_docs)]

pub mod bootstrap;
pub mod checks;
pub mod intent;
pub mod migrations;
pub mod moves;
pub mod promotion;
pub mod rollout;
