//! The world of a simulation: processes with their machines, the store, and what is on its way between them.

use std::collections::BTreeMap;

use cell_proto::unit::Unit;
use cell_proto::v1::{CasSegmentRequest, DropSegmentRequest, Head, ReadHeadRequest, ReadSegmentRequest, Statics};
use cell_store::{MemoryState, Reply, Request, StoreError};

use super::super::types::{Effect, Identity, Input, Limits};
use super::super::{Locator, LogMachine, Search, State};
use super::clients::GUILD;
use super::ghost::Ghost;
use super::{Plan, StoreRules};

/// One machine in one process.
pub(super) struct Place {
    pub(super) machine: LogMachine,
    /// Asked, not answered.
    pub(super) asked: Option<Vec<(String, Request)>>,
    /// And for the copy.
    pub(super) copy_asked: Option<(u64, Vec<(String, Request)>)>,
}

/// One StorageCell: its logs and its tables, apart so that tables can be compacted.
#[derive(Default)]
pub(super) struct Side {
    pub(super) logs: MemoryState,
    pub(super) tables: MemoryState,
}

impl Side {
    pub(super) fn handle(&mut self, request: Request, now_s: i64) -> Result<Reply, StoreError> {
        match request {
            Request::Write(_) | Request::ReadRows(_) => self.tables.handle(request, now_s),
            request => self.logs.handle(request, now_s),
        }
    }
}

/// Where every search for a head begins.
pub(super) const HOME: &str = "A";

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
    pub(super) stores: BTreeMap<&'static str, Side>,
    pub(super) processes: Vec<Process>,
    /// Writes thought settled that have not reached the store.
    pub(super) late: Vec<(String, Request)>,
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
        copy_retention_us: 10_000_000,
        // Few messages are written: what is tried is ranges at all.
        least_run: 2,
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
        // In a migration's rolling change of --storage-cell, services of one cell begin their searches in different places.
        let home = if process == 1 && self.head_at("B", log).is_some() { "B" } else { HOME };
        let owner = &mut self.processes[process];
        let cell = owner.cell;
        owner.places.entry(log.to_owned()).or_insert_with(|| {
            let me = Identity {
                unit: log.parse().unwrap(),
                log: log.to_owned(),
                cell: cell.to_owned(),
                member_id: format!("p{process}"),
                home: home.to_owned(),
            };
            Place { machine: LogMachine::with_rules(me, limits(), rules), asked: None, copy_asked: None }
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
                    let reads = requests.iter().all(|(_, request)| is_read(request));
                    assert!(requests.len() == 1 || reads, "several requests, not all reads");
                    place.asked = Some(requests);
                }
                Effect::AskForCopy { id, requests } => place.copy_asked = Some((id, requests)),
                effect => others.push((process, log.to_owned(), effect)),
            }
        }
        self.effects.extend(others);
    }

    pub(super) fn side(&mut self, store: &str) -> &mut Side {
        self.stores.get_mut(store).expect("a known store")
    }

    /// A store does one request.
    pub(super) fn execute(&mut self, (store, request): (String, Request)) -> Result<Reply, StoreError> {
        let request = self.as_ruled(&store, request);
        let before = match &request {
            Request::CasHead(request) => self.head_at(&store, &request.log),
            _ => None,
        };
        let now_s = self.now_us / 1_000_000;
        let reply = self.side(&store).handle(request.clone(), now_s)?;
        match (&request, &reply) {
            (Request::Append(request), Reply::Segment(reply)) => self.ghost.appended(&store, request, reply),
            (Request::CasHead(request), Reply::CasHead(reply)) if reply.applied => {
                self.ghost.head_changed(&store, before.as_ref(), request.new.as_ref().unwrap());
            }
            (Request::DropSegment(_), _) => self.ghost.count("segments dropped"),
            (Request::OpenSegment(_), Reply::Segment(reply)) if reply.applied => self.ghost.count("segments"),
            (Request::Write(request), _) => self.ghost.written(&store, request),
            _ => {}
        }
        Ok(reply)
    }

    pub(super) fn head_at(&mut self, store: &str, log: &str) -> Option<Head> {
        match self.side(store).handle(ReadHeadRequest { log: log.into() }.into(), 0) {
            Ok(Reply::Head(reply)) => reply.head,
            _ => None,
        }
    }

    /// The place that serves a log, by the pointers.
    pub(super) fn place(&mut self, log: &str) -> Option<super::super::places::Place> {
        let mut locator = Locator::new(log, HOME);
        loop {
            let head = self.head_at(locator.store(), log);
            match locator.answered(head) {
                Search::Go => {}
                Search::Found(place) => return Some(place),
                Search::Refuse(_) => return None,
            }
        }
    }

    pub(super) fn head(&mut self, log: &str) -> Option<Head> {
        self.place(log)?.serving_head()
    }

    fn statics(&mut self, store: &str, log: &str, segment: u64) -> Option<Statics> {
        let request = ReadSegmentRequest { log: log.into(), segment, from: 0, limit: 0, bodies_from: 0 };
        match self.side(store).handle(request.into(), 0) {
            Ok(Reply::Segment(reply)) => reply.statics,
            _ => None,
        }
    }

    /// The request as a store without the rule would take it.
    fn as_ruled(&mut self, store: &str, request: Request) -> Request {
        let StoreRules { whole_row, open_if_absent, append_checks_term, .. } = self.plan.store;
        match request {
            Request::CasHead(mut request) if !whole_row => {
                let current = self.head_at(store, &request.log);
                if current.as_ref().map(|head| head.term) == request.expected.as_ref().map(|head| head.term) {
                    request.expected = current;
                }
                request.into()
            }
            Request::CasSegment(mut request) if !whole_row => {
                let current = self.statics(store, &request.log, request.segment);
                if current.map(|row| row.term) == request.expected.map(|row| row.term) {
                    request.expected = current;
                }
                request.into()
            }
            Request::OpenSegment(request) if !open_if_absent => {
                let drop = DropSegmentRequest { log: request.log.clone(), segment: request.segment };
                self.side(store).handle(drop.into(), 0).unwrap();
                request.into()
            }
            Request::Append(mut request) if !append_checks_term => {
                if let Some(current) = self.statics(store, &request.log, request.segment) {
                    let new = Statics { sealed: false, ..current };
                    let (log, segment) = (request.log.clone(), request.segment);
                    let open = CasSegmentRequest { log, segment, expected: Some(current), new: Some(new) };
                    self.side(store).handle(open.into(), 0).unwrap();
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
        let asked = places.into_values().flat_map(|place| {
            place.asked.into_iter().flatten().chain(place.copy_asked.into_iter().flat_map(|(_, requests)| requests))
        });
        let writes: Vec<_> = asked.filter(|(_, request)| !is_read(request)).collect();
        for request in writes {
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
            | Request::ScanRows(_)
    )
}
