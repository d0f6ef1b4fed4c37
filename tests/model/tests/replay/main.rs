//! The code's machine replays the model's traces. Where a trace holds nothing the machine decides for itself, it must do the very same:
//! after each step the head, the owner and the committed operations are compared. Every trace, also one that does damage when a rule is
//! left out, is a schedule under which the machine, which has all rules, must keep the model's invariants.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's own helpers stop the test")]

mod dropped;
mod exact;
mod ghost;
mod schedules;
mod steps;
mod world;
