//! A fleet in memory for tests: logs with heads on two sides, copies, a coordinator. It says at every commit point whether the gates
//! were truly passed, and fails the test when a cutover would lose something.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

pub(super) const SOURCE: &str = "old";
pub(super) const TARGET: &str = "new";

#[derive(Clone, Default, Debug)]
pub(super) struct FakeLog {
    pub(super) on_target: bool,
    pub(super) term: u64,
    pub(super) shipping: bool,
    pub(super) restarts: u32,
    /// Its unit was copied since its copy was begun.
    pub(super) copied: bool,
    pub(super) cut_overs: u32,
    pub(super) ended: bool,
    /// How often its copy in the source was begun anew, and when it was cut over.
    pub(super) back: (u32, u32),
}

#[derive(Default, Debug)]
pub(super) struct Fleet {
    pub(super) logs: BTreeMap<String, FakeLog>,
    /// Logs that show up only after the first list.
    pub(super) late: Vec<String>,
    pub(super) lists: u32,
    pub(super) announced: Option<(bool, u32)>,
    pub(super) staffed: bool,
    pub(super) phase: Option<(Phase, u32)>,
    pub(super) ranges_left: u32,
    /// Verifications that will find something.
    pub(super) dirty: u32,
    pub(super) receipt: Option<ReceiptFact>,
    pub(super) samples: u64,
    pub(super) mismatches: u64,
    pub(super) target_dead: bool,
    pub(super) source_dead: bool,
    pub(super) served: bool,
    pub(super) asked: Vec<&'static str>,
    pub(super) paused_told: bool,
}

pub(super) fn spec() -> Spec {
    Spec {
        run_id: "r".into(),
        source: SOURCE.into(),
        target: TARGET.into(),
        units: Vec::new(),
        rollback_window_ms: 60_000,
    }
}

pub(super) fn wishes() -> Wishes {
    Wishes {
        abort: false,
        rollback: false,
        accept_loss: false,
        ignore_unreachable: false,
        paused: false,
        rows_per_second: 0,
        target_stage: Stage::Complete,
        verify_requests: 0,
        shadow_per_10000: 100,
        min_samples: 10,
        max_mismatch: 0,
        receipt_max_age_ms: 3_600_000,
    }
}

fn log(name: &str) -> Log {
    Log { name: name.to_owned(), unit: name.to_owned() }
}

fn unavailable() -> Response {
    Response::Refused {
        kind: RefusalKind::Unavailable,
        reason: "StoreUnavailable".into(),
        message: "the store does not answer".into(),
        retry_after_ms: 0,
    }
}

pub(super) fn refuse(kind: RefusalKind, reason: &str) -> Response {
    Response::Refused { kind, reason: reason.into(), message: "refused".into(), retry_after_ms: 0 }
}

impl Fleet {
    pub(super) fn new(names: &[&str]) -> Self {
        let one = |name: &&str| ((*name).to_owned(), FakeLog { term: 1, ..FakeLog::default() });
        Self { logs: names.iter().map(one).collect(), ..Self::default() }
    }

    /// The answer as of now. `lose` makes a cutover happen or not without an answer.
    pub(super) fn answer(&mut self, request: &Request, now_ms: i64) -> Response {
        self.asked.push(request.label());
        match request {
            Request::Probe { side, .. } => {
                let dead = if *side == Side::Source { self.source_dead } else { self.target_dead };
                Response::Probed { ok: !dead, message: "probed".into() }
            }
            Request::List => {
                self.lists += 1;
                if self.lists == 2 {
                    for name in std::mem::take(&mut self.late) {
                        self.logs.insert(name, FakeLog { term: 1, ..FakeLog::default() });
                    }
                }
                Response::Logs(self.logs.keys().map(|name| log(name)).collect())
            }
            Request::Announce { ship, shadow_per_10000 } => {
                self.announced = Some((*ship, *shadow_per_10000));
                Response::Done
            }
            Request::Retract => {
                self.announced = None;
                Response::Done
            }
            Request::Ship { log } => self.ship(log),
            Request::Staff => {
                self.staffed = true;
                Response::Done
            }
            Request::Control { phase, round, again, paused, .. } => {
                self.control(*phase, *round, again, *paused, now_ms)
            }
            Request::Copies => self.copies(),
            Request::CutOver { log, from, term, restarts, accept_loss } => {
                self.cut_over(log, *from, (*term, *restarts), *accept_loss)
            }
            Request::EndCopy { log } => self.end_copy(log),
            Request::Serve => {
                assert!(
                    self.logs.values().all(|log| log.on_target),
                    "the cells are sent to a side that does not serve"
                );
                self.served = true;
                Response::Done
            }
            Request::Dismiss => {
                self.staffed = false;
                Response::Done
            }
        }
    }

    fn dead(&self, on_target: bool) -> bool {
        if on_target { self.target_dead } else { self.source_dead }
    }

    fn ship(&mut self, name: &str) -> Response {
        let on_target = self.logs[name].on_target;
        if self.dead(on_target) {
            return unavailable();
        }
        let copy_dead = self.dead(!on_target);
        let Some(log) = self.logs.get_mut(name) else { return Response::Nobody { message: "no".into() } };
        if !copy_dead {
            log.shipping = true;
            log.ended = false;
        }
        let blocked_by = if copy_dead { "the copy's store does not answer".to_owned() } else { String::new() };
        let serving = if on_target { TARGET } else { SOURCE };
        Response::Shipped(ShipFact {
            serving: serving.into(),
            term: log.term,
            restarts: if on_target { log.back.0 } else { log.restarts },
            lag_seconds: if copy_dead { 60 } else { 0 },
            backlog: 0,
            last: 10,
            blocked_by,
        })
    }

    fn control(&mut self, phase: Phase, round: u32, again: &[String], paused: bool, now_ms: i64) -> Response {
        if !self.staffed {
            return Response::Nobody { message: "no coordinator".into() };
        }
        self.paused_told = paused;
        if let Some((_, now)) = self.phase
            && round < now
        {
            return refuse(RefusalKind::Stale, "StaleRound");
        }
        if self.phase != Some((phase, round)) {
            self.phase = Some((phase, round));
            self.ranges_left = 3;
            self.receipt = None;
        }
        let dead = self.source_dead || self.target_dead;
        if self.ranges_left > 0 && !paused && !dead {
            self.ranges_left -= 1;
            if self.ranges_left == 0 {
                self.finish_phase(phase, round, again, now_ms);
            }
        }
        Response::Coordinator(Box::new(CoordinatorFact {
            phase: Some(phase),
            round,
            done_ppm: (3 - self.ranges_left) * 333_333,
            done: u64::from(3 - self.ranges_left),
            total: 3,
            failed: u64::from(dead && self.ranges_left > 0),
            workers: 1,
            complete: self.ranges_left == 0,
            receipt: self.receipt.clone(),
            ..CoordinatorFact::default()
        }))
    }

    fn finish_phase(&mut self, phase: Phase, round: u32, again: &[String], now_ms: i64) {
        match phase {
            Phase::Backfill => {
                for (name, log) in &mut self.logs {
                    // What is copied before it is shipped misses what is written in between.
                    log.copied |= log.shipping && (again.is_empty() || again.contains(name));
                }
            }
            Phase::Verify => {
                let clean = self.dirty == 0;
                let mismatches = if clean { BTreeMap::new() } else { [("missing".to_owned(), 3)].into() };
                self.receipt = Some(ReceiptFact {
                    round,
                    began_ms: now_ms,
                    ended_ms: now_ms,
                    source: SOURCE.into(),
                    target: TARGET.into(),
                    rows: 100,
                    repaired: 0,
                    mismatches,
                    clean,
                    digests: BTreeMap::new(),
                });
            }
            Phase::Repair => self.dirty = self.dirty.saturating_sub(1),
        }
    }

    fn copies(&mut self) -> Response {
        if self.announced.is_some_and(|(ship, shadow)| ship && shadow > 0) && !self.target_dead {
            self.samples += 5;
        }
        Response::Copies(CopyFact {
            answered: 2,
            samples: self.samples,
            mismatches: [("body".to_owned(), self.mismatches)].into(),
            shadows: [("data-0/1".to_owned(), (self.samples, self.mismatches))].into(),
            ..CopyFact::default()
        })
    }

    fn cut_over(&mut self, name: &str, from: Side, (term, restarts): (u64, u32), accept_loss: bool) -> Response {
        let to_target = from == Side::Source;
        let (from_dead, to_dead) = (self.dead(!to_target), self.dead(to_target));
        let clean = self.receipt.as_ref().is_some_and(|receipt| receipt.clean);
        let (samples, mismatches) = (self.samples, self.mismatches);
        let Some(log) = self.logs.get_mut(name) else { return Response::Nobody { message: "no".into() } };
        if log.on_target == to_target {
            return Response::Cut(CutFact { term: log.term, held_us: 1_000, at_risk: Some(0) });
        }
        if to_dead || (from_dead && !accept_loss) {
            return unavailable();
        }
        if !from_dead && log.term != term {
            return refuse(RefusalKind::Stale, "StaleTerm");
        }
        // Even to a dead source's copy: what is missing there is not the tail that was accepted to be lost.
        if (!from_dead && !log.shipping) || (to_target && log.restarts != restarts) {
            return refuse(RefusalKind::NotReady, "CopyNotReady");
        }
        if to_target {
            assert!(log.copied, "{name} is cut over though not everything of it was copied");
            assert!(clean, "{name} is cut over without a clean receipt");
            assert!(samples >= 10 && mismatches == 0, "{name} is cut over without shadow reads");
        }
        if to_target {
            // A source that was lost finds its copy begun anew.
            log.back.1 = log.back.0;
            log.back.0 += u32::from(from_dead);
        } else {
            assert!(from_dead || log.back.0 == restarts, "{name} is cut back to a copy that was begun anew");
            assert!(log.back.0 == log.back.1, "{name} is cut back though its source lacks what was acknowledged");
        }
        log.on_target = to_target;
        log.shipping = false;
        log.term += 2;
        log.cut_overs += 1;
        Response::Cut(CutFact { term: log.term, held_us: 1_500, at_risk: Some(u64::from(from_dead) * 7) })
    }

    fn end_copy(&mut self, name: &str) -> Response {
        let serving_dead = self.dead(self.logs[name].on_target);
        let copy_dead = self.dead(!self.logs[name].on_target);
        let Some(log) = self.logs.get_mut(name) else { return Response::Done };
        if serving_dead || copy_dead {
            return unavailable();
        }
        if !log.ended {
            log.term += 1;
        }
        (log.ended, log.shipping) = (true, false);
        Response::Done
    }

    /// Sets a copy back as one that fell behind retention.
    pub(super) fn restart_copy(&mut self, name: &str) {
        if let Some(log) = self.logs.get_mut(name)
            && !log.on_target
            && log.shipping
        {
            log.restarts += 1;
            log.copied = false;
        }
    }

    /// Sets the copy in the source back as one that was away for longer than retention.
    pub(super) fn restart_way_back(&mut self, name: &str) {
        if let Some(log) = self.logs.get_mut(name) {
            log.back.0 += 1;
        }
    }

    pub(super) fn names_on_target(&self) -> BTreeSet<&str> {
        self.logs.iter().filter(|(_, log)| log.on_target).map(|(name, _)| name.as_str()).collect()
    }
}
