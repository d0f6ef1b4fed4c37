//! Random runs: answers are lost, refused or late, the operator crashes after any request, either side dies and comes back, people
//! abort, roll back, pause and advance at any time. Every run ends, and at its end one side serves everything.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fake::{Fleet, SOURCE, refuse, spec, wishes};
use super::*;

const RUNS: u64 = 400;
const MOST_STEPS: u32 = 20_000;

struct Storm {
    random: StdRng,
    fleet: Fleet,
    record: Record,
    /// What a restart finds.
    stored: Record,
    wishes: Wishes,
    now_ms: i64,
    heard: Option<Response>,
    /// Cutovers that arrive late.
    late: Vec<(i64, Request)>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut fleet = Fleet::new(&["b0001", "b0002", "b0003", "b0004", "b0005"]);
        fleet.dirty = random.random_range(0..2);
        if random.random_bool(0.2) {
            fleet.late = vec!["g9".into()];
        }
        let record = Record::new(spec(), 0);
        let wishes = wishes();
        Self { random, fleet, stored: record.clone(), record, wishes, now_ms: 0, heard: None, late: Vec::new() }
    }

    fn meddle(&mut self, calm: bool) {
        if calm {
            (self.fleet.source_dead, self.fleet.target_dead, self.wishes.paused) = (false, false, false);
            self.wishes.target_stage = Stage::Complete;
            self.wishes.verify_requests = self.wishes.verify_requests.max(self.record.verified_requests);
            if self.record.blocked_by.as_ref().is_some_and(|why| why.reason.starts_with("Receipt")) {
                self.wishes.verify_requests = self.record.verified_requests + 1;
            }
            return;
        }
        match self.random.random_range(0..400) {
            0 => self.wishes.abort = true,
            1 => self.wishes.rollback = self.record.cut > 0,
            2..=4 => self.wishes.paused = !self.wishes.paused,
            5 | 6 => self.fleet.target_dead = !self.fleet.target_dead,
            7 => self.fleet.source_dead = !self.fleet.source_dead,
            8 => self.wishes.accept_loss = true,
            9 => self.wishes.verify_requests += 1,
            10..=12 => {
                let name = format!("b000{}", self.random.random_range(1..=5));
                self.fleet.restart_copy(&name);
            }
            // The operator crashes.
            13..=20 => {
                self.record = self.stored.clone();
                self.heard = None;
            }
            _ => {}
        }
    }

    fn deliver_late(&mut self) {
        let due: Vec<Request> =
            self.late.iter().filter(|(at, _)| *at <= self.now_ms).map(|(_, request)| request.clone()).collect();
        self.late.retain(|(at, _)| *at > self.now_ms);
        for request in due {
            self.fleet.answer(&request, self.now_ms);
        }
    }

    fn exchange(&mut self, request: &Request, calm: bool) -> Response {
        let trouble = if calm { 9 } else { self.random.random_range(0..10) };
        match trouble {
            0 => {
                // It happened; nobody heard.
                self.fleet.answer(request, self.now_ms);
                Response::Unknown { message: "the answer was lost".into() }
            }
            1 => {
                // It happens later, within the bound that an owner keeps.
                let at = self.now_ms + self.random.random_range(1..Tuning::CUT_OVER_AFTER_MS / 2);
                if request.is_commit_point() {
                    self.late.push((at, request.clone()));
                }
                Response::Unknown { message: "timed out".into() }
            }
            2 => refuse(RefusalKind::Retry, "Wait"),
            3 if self.random.random_bool(0.3) => Response::Nobody { message: "no live data service".into() },
            _ => self.fleet.answer(request, self.now_ms),
        }
    }

    fn step(&mut self, calm: bool) {
        self.meddle(calm);
        self.deliver_late();
        let context = Context { now_ms: self.now_ms, wishes: self.wishes.clone() };
        let next = advance(&self.record, &context, self.heard.take().as_ref());
        if next.urgent || self.random.random_bool(0.1) {
            self.stored = next.record.clone();
        }
        self.record = next.record;
        self.now_ms += 1;
        match (next.request, next.wake_at_ms) {
            (Some(request), _) => {
                if !calm && self.random.random_bool(0.02) {
                    // A crash after the record was stored and before the request was sent.
                    self.record = self.stored.clone();
                    return;
                }
                self.heard = Some(self.exchange(&request, calm));
            }
            (None, Some(wake)) => {
                assert!(self.record.blocked_by.is_some(), "it waits without saying why: {:?}", self.record);
                self.now_ms = self.now_ms.max(wake);
            }
            (None, None) => assert!(self.record.outcome.is_some()),
        }
    }
}

#[test]
fn every_run_ends_with_one_side_serving_everything() {
    let mut ends = std::collections::BTreeMap::new();
    for seed in 0..RUNS {
        let mut storm = Storm::new(seed);
        let mut steps = 0;
        while storm.record.outcome.is_none() {
            steps += 1;
            // After a while the weather is fine: then it must come to an end.
            storm.step(steps > 3_000);
            assert!(steps < MOST_STEPS, "seed {seed} does not end: {:?} {:?}", storm.record, storm.wishes);
        }
        let outcome = storm.record.outcome.as_ref().map(Outcome::label).unwrap_or_default();
        *ends.entry(outcome).or_insert(0) += 1;
        // What was sent and not heard of arrives at last, and changes nothing.
        storm.now_ms += Tuning::CUT_OVER_AFTER_MS;
        storm.deliver_late();
        let on_target = storm.fleet.names_on_target().len();
        let expected = if outcome == "Completed" { storm.fleet.logs.len() } else { 0 };
        assert_eq!(on_target, expected, "seed {seed}: {outcome} with {:?}", storm.fleet.logs);
        assert!(storm.fleet.announced.is_none() && !storm.fleet.staffed, "seed {seed}: {outcome} leaves something");
        let released = storm.fleet.logs.values().filter(|log| log.shipping).count();
        assert!(
            u32::try_from(released).unwrap() <= storm.record.left_behind,
            "seed {seed}: copies are shipped after {outcome} and nobody knows: {:?}",
            storm.fleet.logs
        );
        assert_eq!(storm.record.spec.source, SOURCE);
    }
    for outcome in ["Completed", "Aborted", "RolledBack"] {
        assert!(ends.get(outcome).is_some_and(|count| *count > 5), "too few runs end so: {ends:?}");
    }
}
