//! A move from end to end, stopped after request N for every N: whether the request had arrived, arrives later, or never does.

use cell_proto::v1::Split;
use cell_proto::v1::change::Kind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::types::Input;
use super::clients::GUILD;
use super::schedule::Schedule;
use super::world::logs;
use super::{Faults, Plan, Protections, StoreRules};

const STILL: Faults =
    Faults { crash: 0, unknown: 0, late: 0, claim: 0, switch: 0, split: 1, jump: 0, copy: 0, bulk: 0, skew_us: 0 };

/// Requests a whole script makes at most.
const MOST: u32 = 400;

impl Schedule {
    /// Writes, splits, writes, merges back, writes, switches — until the given request, at which the process is gone. Answers whether
    /// the script came to its end before.
    fn script(&mut self, crash_after: u32, how: u32) -> bool {
        let [bucket, own] = logs();
        let mut rng = StdRng::seed_from_u64(7);
        let mut requests = 0;
        for round in 0..600 {
            self.world.now_us += 3000;
            match round {
                60 => self.own_entry(0, &bucket, Kind::Split(Split { guild_id: GUILD, log_term: 0 }), None),
                100 => self.world.input(0, &own, Input::Claim),
                260 => {
                    self.merging = Some(0);
                    self.close_for_merge(0, &own);
                }
                430 => self.world.input(0, &bucket, Input::Close { run_id: "switch-1".into() }),
                _ if round % 9 == 0 && round < 500 => {
                    let deadline_ms = self.world.now_us / 1000 + 1500;
                    let index = self.clients.create(&mut rng, deadline_ms, 0);
                    let log = if self.world.ghost.split_out { &own } else { &bucket };
                    self.send_to(0, log, index);
                }
                _ => {}
            }
            for log in [&bucket, &own] {
                let asked = self.world.processes[0].places.get(log).is_some_and(|place| place.asked.is_some());
                requests += u32::from(asked);
                if asked && requests == crash_after {
                    self.world.crash(0, || how);
                    return false;
                }
                self.deliver(0, log, 0);
                if self.world.processes[0].places.contains_key(log) {
                    self.world.input(0, log, Input::Tick);
                }
            }
            self.carry_out();
        }
        true
    }
}

#[test]
fn a_process_stopped_after_any_request_loses_and_doubles_nothing() {
    let plan = Plan { owners: 3, steps: 0, faults: STILL, rules: Protections::ALL, store: StoreRules::ALL };
    let mut finished = 0;
    for how in 0..3 {
        for crash_after in 1..MOST {
            let mut schedule = Schedule::new(plan, StdRng::seed_from_u64(u64::from(crash_after)).random());
            schedule.start();
            schedule.always_switch = true;
            let ended = schedule.script(crash_after, how);
            schedule.quiet = true;
            schedule.settle();
            if let Err(violation) = schedule.verdict() {
                panic!("stopped after request {crash_after}, which arrives as {how}: {violation}");
            }
            if ended {
                let counts = &schedule.world.ghost.counts;
                assert!(["splits", "merges", "switches"].iter().all(|what| counts.contains_key(what)), "{counts:?}");
                finished += 1;
                break;
            }
        }
    }
    assert_eq!(finished, 3, "the script must be shorter than {MOST} requests");
}
