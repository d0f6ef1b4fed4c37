//! `cell migrate run`: copies, verifies and mends CQL tables that people already have, without Kubernetes, in one process. It goes on
//! where its state file stopped, and ends well only when everything is copied and verified.

mod args;
mod outcome;
mod prepare;
mod run;
mod show;

pub use args::{Output, RunFlags};
pub use outcome::{Ending, Outcome};
pub use run::run;
