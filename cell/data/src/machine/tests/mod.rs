//! A seeded simulation of several owners on one simulated store: crashes anywhere, late and unknown outcomes, unforced claims, skewed
//! clocks, switches, splits and merges, copies in a second store with backfill, cutovers and rollbacks. The ghost sees what no process can see, and says what went wrong.

mod clients;
mod copies;
mod crashes;
mod cutovers;
mod dropped;
mod ending;
mod ghost;
mod ledger;
mod moves;
mod scenarios;
mod schedule;
mod world;

use super::protections::Protections;

/// What the simulated store does differently when a rule is left out.
#[derive(Clone, Copy, Debug)]
struct StoreRules {
    /// Rule 1: the whole row is compared, not only its term.
    whole_row: bool,
    /// Rule 3: opening creates only if absent.
    open_if_absent: bool,
    /// Rule 4: an append is refused on another term or a seal.
    append_checks_term: bool,
    /// The backfill reads a batch again that it read long ago.
    backfill_rereads: bool,
    /// The backfill writes rows at their own times.
    backfill_keeps_times: bool,
    /// The verification compares, and repairs, only what has settled.
    verify_settles: bool,
}

impl StoreRules {
    const ALL: Self = Self {
        whole_row: true,
        open_if_absent: true,
        append_checks_term: true,
        backfill_rereads: true,
        backfill_keeps_times: true,
        verify_settles: true,
    };
}

/// Which faults a schedule may use, and how often, out of 1000 steps.
#[derive(Clone, Copy, Debug)]
struct Faults {
    crash: u32,
    unknown: u32,
    late: u32,
    claim: u32,
    switch: u32,
    split: u32,
    jump: u32,
    /// Ship, backfill, cut over, roll back, release.
    copy: u32,
    /// Several messages deleted at once, of 1000 operations.
    bulk: u32,
    skew_us: i64,
}

/// How often what happened.
type Counts = std::collections::BTreeMap<&'static str, u64>;

/// One run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    owners: usize,
    steps: u32,
    faults: Faults,
    rules: Protections,
    store: StoreRules,
}

/// Runs a plan; the violation, with the last events before it.
fn run(plan: Plan, seed: u64) -> Result<Counts, String> {
    schedule::Schedule::new(plan, seed).run()
}
