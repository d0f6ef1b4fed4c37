//! A fleet of heads for tests: what a run's requests do to it, with the faults of a real one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, HeadFact, Outcome, Record, RefusalKind, Request, Response, Role, Spec, Subject, Wishes, advance};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Head {
    pub cell: String,
    pub term: u64,
    pub merged: bool,
}

/// What faults a schedule may inject, each in percent of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub lost_request: u32,
    pub lost_reply: u32,
    pub refusal: u32,
    pub late: u32,
    pub crash: u32,
}

pub(super) struct Fleet {
    pub heads: BTreeMap<String, Head>,
    pub warm: BTreeSet<(String, String)>,
    pub owners: BTreeMap<String, String>,
    pub dead: BTreeSet<String>,
    pub head_cell_changes: u32,
    pub splits: u32,
    pub merges: u32,
    /// Switches that were sent, thought lost, and may still arrive.
    pub late: Vec<Request>,
    pub asked: Vec<&'static str>,
    pub last: u64,
    /// The owner lives and keeps its term when it is asked to claim anew.
    pub keeps_term: bool,
    /// Cells whose guild node let the run go.
    pub released: BTreeSet<(String, String)>,
    /// The target's data owner claims the log anew right after a switch, which raises the term.
    pub claims_anew: bool,
    /// Cells whose guild node lives and does not hear a `Forget`.
    pub deaf: BTreeSet<String>,
}

pub(super) const RUN: &str = "run-1";

impl Fleet {
    /// Guild 7 in bucket b0042 of cell a, as most guilds are.
    pub fn new() -> Self {
        let head = Head { cell: "a".into(), term: 3, merged: false };
        Self {
            heads: [("b0042".to_owned(), head.clone()), ("b0001".to_owned(), head)].into(),
            warm: BTreeSet::new(),
            owners: [("g7".to_owned(), "a".to_owned())].into(),
            dead: BTreeSet::new(),
            head_cell_changes: 0,
            splits: 0,
            merges: 0,
            late: Vec::new(),
            asked: Vec::new(),
            last: 100,
            keeps_term: false,
            released: BTreeSet::new(),
            claims_anew: false,
            deaf: BTreeSet::new(),
        }
    }

    fn alive(&self, cell: &str, role: Role) -> Result<(), Response> {
        if self.dead.contains(cell) {
            return Err(Response::NoMember { cell: cell.to_owned(), role });
        }
        Ok(())
    }

    pub fn perform(&mut self, request: &Request) -> Response {
        self.asked.push(request.label());
        self.last += 1;
        self.try_perform(request).unwrap_or_else(|no| no)
    }

    fn try_perform(&mut self, request: &Request) -> Result<Response, Response> {
        match request {
            Request::Inspect { log, .. } => Ok(Response::Head(self.heads.get(log).map(|head| HeadFact {
                cell: head.cell.clone(),
                term: head.term,
                merged: head.merged,
                last: self.last,
                closed_by: None,
            }))),
            Request::Split { guild_id, cell, bucket } => {
                self.alive(cell, Role::Data)?;
                let log = format!("g{guild_id}");
                if !self.heads.contains_key(&log) {
                    let head = Head { merged: false, ..self.heads[bucket].clone() };
                    self.heads.insert(log, head);
                    self.splits += 1;
                }
                Ok(Response::Done)
            }
            Request::Warm { log, from, to, .. } => {
                self.alive(to, Role::Guild)?;
                self.alive(from, Role::Data)?;
                self.warm.insert((to.clone(), log.clone()));
                Ok(Response::Warmed { ready: true, position: self.last })
            }
            Request::AnnounceStandby { from, .. } => self.alive(from, Role::Guild).map(|()| Response::Done),
            Request::Reach { log, to, at, .. } => {
                self.alive(to, Role::Guild)?;
                self.must_be_warm(to, log)?;
                Ok(Response::Reached { reached: true, position: *at })
            }
            Request::Switch { log, guild_id, from, to, term } => {
                self.alive(from, Role::Data)?;
                if guild_id.is_some() {
                    self.alive(to, Role::Guild).map_err(|_| refusal(RefusalKind::Retry))?;
                    self.must_be_warm(to, log).map_err(|_| refusal(RefusalKind::Retry))?;
                }
                self.switch(log, from, to, *term)
            }
            Request::Failover { log, to } => {
                self.alive(to, Role::Data)?;
                Ok(self.claim(log, to))
            }
            Request::Fence { log, cell } => {
                self.alive(cell, Role::Data)?;
                let at = self.heads[log].cell.clone();
                if at != *cell || self.keeps_term {
                    let head = &self.heads[log];
                    return Ok(Response::Claimed { cell: head.cell.clone(), term: head.term });
                }
                Ok(self.claim(log, cell))
            }
            other => self.tidy(other),
        }
    }

    fn tidy(&mut self, request: &Request) -> Result<Response, Response> {
        match request {
            Request::TakeOver { log, to, term, .. } => {
                self.alive(to, Role::Guild)?;
                assert_eq!(&self.heads[log].cell, to, "a guild is claimed only where its head is");
                self.must_name_term(log, *term)?;
                self.owners.insert(log.clone(), to.clone());
                Ok(Response::Done)
            }
            Request::PointAway { log, from, term, .. } => {
                self.alive(from, Role::Guild)?;
                self.must_name_term(log, *term).map(|()| Response::Done)
            }
            Request::Forget { log, cell, .. } => {
                self.alive(cell, Role::Guild)?;
                if self.deaf.contains(cell) {
                    return Err(unknown());
                }
                // An owner only lets the run go.
                if self.heads.get(log).is_none_or(|head| head.cell != *cell) {
                    self.warm.remove(&(cell.clone(), log.clone()));
                }
                self.released.insert((cell.clone(), log.clone()));
                Ok(Response::Done)
            }
            Request::Merge { guild_id, cell, bucket } => {
                self.alive(cell, Role::Data)?;
                assert_eq!(&self.heads[bucket].cell, cell);
                let head = self.heads.get_mut(&format!("g{guild_id}")).unwrap();
                self.merges += u32::from(!head.merged);
                head.merged = true;
                Ok(Response::Done)
            }
            other => unreachable!("{other:?} is asked of the heads"),
        }
    }

    fn must_name_term(&self, log: &str, term: u64) -> Result<(), Response> {
        let head = self.heads[log].term;
        assert!(term > 0 && term <= head, "a route names a term that the head had: {term}, {head}");
        if term < head { Err(refusal(RefusalKind::Stale)) } else { Ok(()) }
    }

    fn must_be_warm(&self, cell: &str, log: &str) -> Result<(), Response> {
        let warm = self.warm.contains(&(cell.to_owned(), log.to_owned()));
        if warm { Ok(()) } else { Err(refusal(RefusalKind::Missing)) }
    }

    fn switch(&mut self, log: &str, from: &str, to: &str, term: u64) -> Result<Response, Response> {
        let at = self.last;
        let head = self.heads.get_mut(log).unwrap();
        if head.cell == to {
            return Ok(Response::Switched { term: head.term, at, held_us: 0 });
        }
        if head.cell != from || head.term != term {
            return Err(refusal(RefusalKind::Stale));
        }
        let claimed = u64::from(self.claims_anew);
        *head = Head { cell: to.to_owned(), term: term + 1 + claimed, merged: false };
        self.head_cell_changes += 1;
        Ok(Response::Switched { term: term + 1, at, held_us: 40_000 })
    }

    fn claim(&mut self, log: &str, cell: &str) -> Response {
        let head = self.heads.get_mut(log).unwrap();
        self.head_cell_changes += u32::from(head.cell != cell);
        *head = Head { cell: cell.to_owned(), term: head.term + 1, merged: false };
        Response::Claimed { cell: cell.to_owned(), term: head.term }
    }
}

pub(super) fn refusal(kind: RefusalKind) -> Response {
    Response::Refused { kind, reason: "Wait".into(), message: "try again".into(), retry_after_ms: 0 }
}

pub(super) fn guild_move() -> Spec {
    Spec {
        run_id: RUN.into(),
        subjects: vec![Subject::Guild { guild_id: 7, log: "g7".into(), bucket: "b0042".into(), may_split: true }],
        from: "a".into(),
        to: "b".into(),
        merge: false,
        deadline_ms: 120_000,
        rollback_window_ms: 5_000,
    }
}

/// Drives a run as the operator does: store, send, hear. What is stored is all that survives.
pub(super) struct Run {
    pub fleet: Fleet,
    pub stored: Record,
    pub now_ms: i64,
    pub wishes: Wishes,
    pub random: StdRng,
    pub faults: Faults,
    pub transitions: u32,
    /// Stop (crash and restart) right after this many requests were sent.
    pub crash_after: Option<u32>,
    pub sent: u32,
}

impl Run {
    pub fn new(spec: Spec, seed: u64) -> Self {
        Self {
            fleet: Fleet::new(),
            stored: Record::new(spec, 0),
            now_ms: 0,
            wishes: Wishes::default(),
            random: StdRng::seed_from_u64(seed),
            faults: Faults::default(),
            transitions: 0,
            crash_after: None,
            sent: 0,
        }
    }

    fn hit(&mut self, percent: u32) -> bool {
        percent > 0 && self.random.random_range(0..100) < percent
    }

    /// One look; the answer to what it asked, if it survives.
    pub fn step(&mut self, heard: Option<&Response>) -> Option<Response> {
        let context = Context { now_ms: self.now_ms, wishes: self.wishes, refusal: None };
        let transition = advance(&self.stored, &context, heard);
        self.transitions += 1;
        self.stored = transition.record;
        let Some(request) = transition.request else {
            if let Some(wake) = transition.wake_at_ms {
                assert!(wake > self.now_ms, "a wait lies ahead");
                self.now_ms = wake;
            }
            return None;
        };
        assert!(self.stored.outcome.is_none(), "a finished run asks nothing");
        self.sent += 1;
        self.now_ms += 3;
        let lost = self.hit(self.faults.lost_request);
        let response = if lost && matches!(request, Request::Switch { .. }) && self.hit(self.faults.late) {
            self.fleet.late.push(request);
            unknown()
        } else if lost {
            unknown()
        } else if self.hit(self.faults.refusal) {
            refusal(RefusalKind::Retry)
        } else {
            let answer = self.fleet.perform(&request);
            if self.hit(self.faults.lost_reply) { unknown() } else { answer }
        };
        let crash = self.crash_after == Some(self.sent) || self.hit(self.faults.crash);
        if crash { None } else { Some(response) }
    }

    /// Lets a switch that was thought lost arrive now and then.
    fn deliver_late(&mut self) {
        if !self.fleet.late.is_empty()
            && self.random.random_bool(0.2)
            && let Some(request) = self.fleet.late.pop()
        {
            let _too_late_for_anyone = self.fleet.perform(&request);
        }
    }

    /// To the end; `false` when it still waits after many looks (it must say for what).
    pub fn end(&mut self) -> bool {
        let mut heard = None;
        for _ in 0..3_000 {
            heard = self.step(heard.as_ref());
            self.deliver_late();
            if self.stored.outcome.is_some() {
                return true;
            }
        }
        false
    }

    pub fn outcome(&self) -> &'static str {
        self.stored.outcome.as_ref().map_or("none", Outcome::label)
    }
}

fn unknown() -> Response {
    Response::Unknown { message: "timed out".into() }
}
