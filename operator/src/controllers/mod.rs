//! The controllers: one for each kind, all of one shape. This file runs them, counts and times every reconcile, and isolates objects
//! that cannot be decoded; what a kind needs is decided below.

pub mod cell;
pub mod databases;
pub mod fleet;
pub mod guild;
pub mod migration;
pub mod moves;
pub mod storage_cell;

mod facts;
mod run;

use std::time::Duration;

use kube::runtime::controller::Action;
use rand::Rng;

pub use facts::cell_facts;
pub use run::{start, stores};

/// How a reconcile ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As wanted; looked at again now and then.
    Settled,
    /// Something is awaited; looked at again after this.
    Waiting(Duration),
}

/// How often a settled object is looked at again without cause: many objects spread over it.
const RESYNC: Duration = Duration::from_secs(300);

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Waiting(_) => "waiting",
        }
    }

    fn action(self) -> Action {
        match self {
            Self::Settled => Action::requeue(RESYNC.mul_f64(rand::rng().random_range(0.5..1.5))),
            Self::Waiting(pause) => Action::requeue(pause),
        }
    }
}
