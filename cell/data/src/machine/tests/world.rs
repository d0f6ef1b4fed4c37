//! The world of a simulation: processes with their machines, the store, and what is on its way between them.

use std::collections::BTreeMap;

use cell_proto::unit::Unit;
use cell_proto::v1::{CasSegmentRequest, DropSegmentRequest, Head, ReadHeadRequest, ReadSegmentRequest, Statics};
use cell_store::{MemoryState, Reply, Request, StoreError};

use super::super::types::{Effect, Identity, Input, Limits};
use super::super::{LogMachine, State};
use super::clients::GUILD;
use super::ghost::Ghost;
use super::{Plan, StoreRules};

/// One machine in one process.
pub(super) struct Place {
    pub(super) machine: LogMachine,
    /// Asked, not answered.
    pub(super) asked: Option<Vec<Request>>,
}

pub(super) struct Process {
    pub(super) cell: &'static str,
    pub(super) skew_us: i64,
    pub(super) places: BTreeMap<String, Place>,
    /// Counts restarts: answers to a former life are dropped.
    pub(super) life: u32,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now_us: i64,
    pub(super) store: MemoryState,
    pub(super) processes: Vec<Process>,
    /// Writes thought settled that have not reached the store.
    pub(super) late: Vec<Request>,
    pub(super) ghost: Ghost,
    pub(super) trace: Vec<String>,
    /// Effects for the schedule: process, log, effect.
    pub(super) effects: Vec<(usize, String, Effect)>,
}

pub(super) fn logs() -> [String; 2] {
    [Unit::bucket(GUILD).log(), Unit::Guild(GUILD).log()]
}

pub(super) fn limits() -> Limits {
    Limits {
        batch_entries: 3,
        linger_us: 0,
        window_us: 4_000_000,
        segment_entries: 4,
        segment_age_us: 20_000_000,
        retention_us: 15_000_000,
        retention_every_us: 3_000_000,
        cursor_entries: 5,
        cursor_us: 50_000,
        ..Limits::default()
    }
}

impl World {
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let line = what();
        self.trace.push(line);
    }

    pub(super) fn machine(&mut self, process: usize, log: &str) -> &mut Place {
        let rules = self.plan.rules;
        let owner = &mut self.processes[process];
        let cell = owner.cell;
        owner.places.entry(log.to_owned()).or_insert_with(|| {
            let me = Identity {
                unit: log.parse().unwrap(),
                log: log.to_owned(),
                cell: cell.to_owned(),
                member_id: format!("p{process}"),
            };
            Place { machine: LogMachine::with_rules(me, limits(), rules), asked: None }
        })
    }

    /// Gives a machine an input; its request waits, its other effects go to the schedule.
    pub(super) fn input(&mut self, process: usize, log: &str, input: Input) {
        let now_us = self.now_us + self.processes[process].skew_us;
        let place = self.machine(process, log);
        let mut others = Vec::new();
        for effect in place.machine.handle(input, now_us) {
            match effect {
                Effect::Ask(requests) => {
                    assert!(place.asked.is_none(), "two requests outstanding");
                    assert!(requests.len() == 1 || requests.iter().all(is_read), "several requests, not all reads");
                    place.asked = Some(requests);
                }
                effect => others.push((process, log.to_owned(), effect)),
            }
        }
        self.effects.extend(others);
    }

    /// The store does one request.
    pub(super) fn execute(&mut self, request: Request) -> Result<Reply, StoreError> {
        let request = self.as_ruled(request);
        let before = match &request {
            Request::CasHead(request) => self.head(&request.log),
            _ => None,
        };
        let now_s = self.now_us / 1_000_000;
        let reply = self.store.handle(request.clone(), now_s)?;
        match (&request, &reply) {
            (Request::Append(request), Reply::Segment(reply)) => self.ghost.appended(request, reply),
            (Request::CasHead(request), Reply::CasHead(reply)) if reply.applied => {
                self.ghost.head_changed(before.as_ref(), request.new.as_ref().unwrap());
            }
            (Request::DropSegment(_), _) => self.ghost.count("segments dropped"),
            (Request::OpenSegment(_), Reply::Segment(reply)) if reply.applied => self.ghost.count("segments"),
            (Request::Write(request), _) => self.ghost.written(request),
            _ => {}
        }
        Ok(reply)
    }

    pub(super) fn head(&mut self, log: &str) -> Option<Head> {
        match self.store.handle(ReadHeadRequest { log: log.into() }.into(), 0) {
            Ok(Reply::Head(reply)) => reply.head,
            _ => None,
        }
    }

    fn statics(&mut self, log: &str, segment: u64) -> Option<Statics> {
        let request = ReadSegmentRequest { log: log.into(), segment, from: 0, limit: 0, bodies_from: 0 };
        match self.store.handle(request.into(), 0) {
            Ok(Reply::Segment(reply)) => reply.statics,
            _ => None,
        }
    }

    /// The request as a store without the rule would take it.
    fn as_ruled(&mut self, request: Request) -> Request {
        let StoreRules { whole_row, open_if_absent, append_checks_term } = self.plan.store;
        match request {
            Request::CasHead(mut request) if !whole_row => {
                let current = self.head(&request.log);
                if current.as_ref().map(|head| head.term) == request.expected.as_ref().map(|head| head.term) {
                    request.expected = current;
                }
                request.into()
            }
            Request::CasSegment(mut request) if !whole_row => {
                let current = self.statics(&request.log, request.segment);
                if current.map(|row| row.term) == request.expected.map(|row| row.term) {
                    request.expected = current;
                }
                request.into()
            }
            Request::OpenSegment(request) if !open_if_absent => {
                let drop = DropSegmentRequest { log: request.log.clone(), segment: request.segment };
                self.store.handle(drop.into(), 0).unwrap();
                request.into()
            }
            Request::Append(mut request) if !append_checks_term => {
                if let Some(current) = self.statics(&request.log, request.segment) {
                    let new = Statics { sealed: false, ..current };
                    let (log, segment) = (request.log.clone(), request.segment);
                    let open = CasSegmentRequest { log, segment, expected: Some(current), new: Some(new) };
                    self.store.handle(open.into(), 0).unwrap();
                    request.term = current.term;
                }
                request.into()
            }
            request => request,
        }
    }

    /// The process is gone; what it had asked may have arrived, may arrive, or not.
    pub(super) fn crash(&mut self, process: usize, arrives: impl FnMut() -> u32) {
        let mut arrives = arrives;
        let places = std::mem::take(&mut self.processes[process].places);
        self.processes[process].life += 1;
        for request in
            places.into_values().filter_map(|place| place.asked).flatten().filter(|request| !is_read(request))
        {
            match arrives() {
                0 => drop(self.execute(request)),
                1 => self.late.push(request),
                _ => {}
            }
        }
    }

    /// Who holds itself for the owner of a log.
    pub(super) fn owners(&self, log: &str) -> Vec<usize> {
        let owns = |process: &Process| {
            process.places.get(log).is_some_and(|place| matches!(place.machine.state, State::Owner(_)))
        };
        (0..self.processes.len()).filter(|index| owns(&self.processes[*index])).collect()
    }
}

pub(super) fn is_read(request: &Request) -> bool {
    matches!(
        request,
        Request::Describe(_)
            | Request::ReadHead(_)
            | Request::ListHeads(_)
            | Request::ReadSegment(_)
            | Request::ReadCursor(_)
            | Request::ReadRows(_)
    )
}
