//! A segment dropped while somebody claims or rolls (rules 2 and 3), played by hand: nobody may take what was there and is gone for what
//! never was.

use cell_store::Request;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::super::types::Input;
use super::schedule::Schedule;
use super::world::logs;
use super::{Faults, Plan, Protections, StoreRules};

const STILL: Faults =
    Faults { crash: 0, unknown: 0, late: 0, claim: 0, switch: 0, split: 0, jump: 0, copy: 0, bulk: 0, skew_us: 0 };

/// Older than the age at which a segment is left, and than the retention.
const LONG_US: i64 = 60_000_000;

/// A log idle for long, owned by process 0.
fn idle_for_long(rules: Protections) -> Schedule {
    let mut schedule = Schedule::new(Plan { owners: 2, steps: 0, faults: STILL, rules, store: StoreRules::ALL }, 1);
    schedule.start();
    schedule.world.now_us += LONG_US;
    schedule
}

impl Schedule {
    /// One process alone goes on, with so much time between its questions.
    fn alone(&mut self, process: usize, turns: u32, pause_us: i64) {
        let log = &logs()[0];
        for _ in 0..turns {
            self.world.now_us += pause_us;
            self.deliver(process, log, 0);
            self.world.input(process, log, Input::Tick);
            self.carry_out();
        }
    }

    fn alone_until(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) {
        for _ in 0..100 {
            let place = self.world.machine(process, &logs()[0]);
            if place.asked.iter().flatten().any(|(_, request)| wanted(request)) {
                return;
            }
            self.alone(process, 1, 1000);
        }
        panic!("it is never asked");
    }

    pub(super) fn write_at(&mut self, process: usize) {
        let mut rng = StdRng::seed_from_u64(self.clients.operations.len() as u64);
        let index = self.clients.create(&mut rng, self.world.now_us / 1000 + 1500, 0);
        self.send_to(process, &logs()[0], index);
    }

    fn dropped(&self) -> u64 {
        self.world.ghost.counts.get("segments dropped").copied().unwrap_or(0)
    }

    fn settled(mut self) -> Result<(), String> {
        self.quiet = true;
        self.settle();
        self.verdict()
    }
}

#[test]
fn rule_2_a_claimant_that_does_not_see_that_its_segment_was_dropped_is_caught() {
    for verify_retained in [true, false] {
        let mut schedule = idle_for_long(Protections { verify_retained, ..Protections::ALL });
        // Process 0 takes a write, for which it has rolled; its head was its own then.
        schedule.write_at(0);
        schedule.alone_until(0, |request| matches!(request, Request::Append(_)));
        // Process 1 raises the head, reads the cursors and is about to look at the first segment.
        schedule.world.input(1, &logs()[0], Input::Claim);
        schedule.alone_until(1, |request| matches!(request, Request::ReadSegment(_)));
        // Process 0, unaware of the claim, appends and drops what is old.
        schedule.alone(0, 80, 1000);
        schedule.alone(0, 20, 2_000_000);
        assert_eq!(schedule.dropped(), 1);
        schedule.alone(1, 60, 1000);
        schedule.write_at(1);
        schedule.alone(1, 20, 1000);
        let verdict = schedule.settled();
        assert_eq!(verdict.is_ok(), verify_retained, "{verdict:?}");
    }
}

#[test]
fn rule_3_an_owner_that_opens_what_was_dropped_is_caught() {
    for verify_roll in [true, false] {
        let mut schedule = idle_for_long(Protections { verify_roll, ..Protections::ALL });
        schedule.write_at(0);
        schedule.alone_until(0, |request| matches!(request, Request::OpenSegment(_)));
        // Two claims while it waits: the segment it means to open comes, stays empty, and goes with the older one.
        for _ in 0..2 {
            schedule.world.crash(1, || 2);
            schedule.world.input(1, &logs()[0], Input::Claim);
            schedule.alone(1, 60, 1000);
        }
        schedule.alone(1, 60, 1_000_000);
        assert_eq!(schedule.dropped(), 2);
        for process in [0, 1] {
            schedule.write_at(process);
            schedule.alone(process, 20, 1000);
        }
        let verdict = schedule.settled();
        assert_eq!(verdict.is_ok(), verify_roll, "{verdict:?}");
    }
}
