//! A random schedule: which client sends where, which request arrives, is lost or comes late, who crashes, claims, switches, splits
//! and merges; then a quiet end in which everything must settle.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, Guild, GuildCreated, Head, Member, Reason, Role, User, WriteCursorRequest};
use cell_store::{Reply, Request, StoreError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::types::{Effect, Input, Outcome, Ticket};
use super::clients::{AUTHOR, Clients, GUILD, State, command};
use super::copies::Copies;
use super::ghost::message_id;
use super::world::{HOME, Process, Side, World, is_read, limits, logs};
use super::{Counts, Plan};

/// Tickets above this are the platform's own entries.
pub(super) const OWN: Ticket = 1 << 40;
const START_US: i64 = 1_796_000_000_000_000;

pub(super) struct Schedule {
    pub(super) world: World,
    pub(super) clients: Clients,
    pub(super) rng: StdRng,
    pub(super) seed: u64,
    pub(super) runs: u64,
    /// A merge under way: the process that runs it.
    pub(super) merging: Option<usize>,
    pub(super) quiet: bool,
    /// Every switch goes through, as a script wants it.
    pub(super) always_switch: bool,
    pub(super) copies: Copies,
}

impl Schedule {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let processes = (0..plan.owners)
            .map(|index| Process {
                cell: if index == 2 { "b" } else { "a" },
                skew_us: rng.random_range(-plan.faults.skew_us..=plan.faults.skew_us),
                places: std::collections::BTreeMap::new(),
                life: 0,
            })
            .collect();
        let world = World {
            plan,
            now_us: START_US,
            stores: ["A", "B"].map(|name| (name, Side::default())).into(),
            processes,
            late: Vec::new(),
            ghost: super::ghost::Ghost::default(),
            trace: Vec::new(),
            effects: Vec::new(),
        };
        Self {
            world,
            clients: Clients::default(),
            rng,
            seed,
            runs: 0,
            merging: None,
            quiet: false,
            always_switch: false,
            copies: Copies::default(),
        }
    }

    pub(super) fn run(mut self) -> Result<Counts, String> {
        self.start();
        for _ in 0..self.world.plan.steps {
            self.step();
            self.carry_out();
            self.verdict()?;
        }
        self.quiet = true;
        self.settle();
        self.verdict()?;
        Ok(self.world.ghost.counts)
    }

    pub(super) fn verdict(&self) -> Result<(), String> {
        match &self.world.ghost.violation {
            None => Ok(()),
            Some(what) => {
                let lines = std::env::var("SIMULATION_TRACE").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
                let last = &self.world.trace[self.world.trace.len().saturating_sub(lines)..];
                Err(format!("seed {}: {what}\n  {}", self.seed, last.join("\n  ")))
            }
        }
    }

    /// The guild exists before anything goes wrong.
    pub(super) fn start(&mut self) {
        let bucket = &logs()[0];
        let head = Head { log: bucket.clone(), cell: "a".into(), segment: 1, ..Head::default() };
        let create = cell_proto::v1::CasHeadRequest { log: bucket.clone(), expected: None, new: Some(head) };
        self.world.execute((HOME.into(), create.into())).unwrap();
        let owner = User { id: AUTHOR, name: "ann".into(), ..User::default() };
        let created = Kind::GuildCreated(GuildCreated {
            guild: Some(Guild { id: GUILD, name: "g".into(), owner_id: AUTHOR, ..Guild::default() }),
            roles: vec![Role { id: GUILD, name: "everyone".into(), ..Role::default() }],
            channels: vec![Channel { id: 1, name: "c".into(), ..Channel::default() }],
            owner: Some(Member { user: Some(owner), ..Member::default() }),
        });
        let deadline_ms = self.world.now_us / 1000 + 1900;
        self.world.processes[0].skew_us = 0;
        self.world.input(0, bucket, Input::Claim);
        let command = command(1 << 50, deadline_ms, created);
        self.world.input(0, bucket, Input::Submit { ticket: OWN, command: Box::new(command) });
        for _ in 0..200 {
            self.deliver_all();
        }
        self.world.effects.clear();
        // The guild's owner has fed what is to be fed: nothing holds old segments but time.
        let name = super::super::feed_cursor(GUILD);
        let fed = WriteCursorRequest { log: bucket.clone(), name, value: 1 };
        self.world.execute((HOME.into(), fed.into())).unwrap();
        let (_, entry) = self.world.ghost.committed.first().expect("the guild is created").clone();
        let Some(Kind::GuildCreated(created)) = entry.change.unwrap().kind else { panic!("not the guild") };
        self.clients.channel_id = created.channels[0].id;
    }

    pub(super) fn deliver_all(&mut self) {
        self.world.now_us += 1000;
        for process in 0..self.world.processes.len() {
            for log in logs() {
                self.deliver(process, &log, 0);
                self.deliver_copy(process, &log, 0);
                if self.world.processes[process].places.contains_key(&log) {
                    self.world.input(process, &log, Input::Tick);
                }
            }
        }
        self.carry_out();
    }

    pub(super) fn any_process(&mut self) -> usize {
        self.rng.random_range(0..self.world.processes.len())
    }

    pub(super) fn any_log(&mut self) -> String {
        let own = self.world.plan.faults.split > 0 && self.rng.random_bool(0.5);
        logs()[usize::from(own)].clone()
    }

    pub(super) fn step(&mut self) {
        let faults = self.world.plan.faults;
        self.world.now_us += self.rng.random_range(0..8000);
        let dice = self.rng.random_range(0..1000);
        let mut edge = 0;
        let mut happens = |weight: u32| {
            edge += weight;
            dice < edge
        };
        if happens(faults.crash) {
            let process = self.any_process();
            let mut rng = StdRng::seed_from_u64(self.rng.random());
            self.world.crash(process, || rng.random_range(0..3));
            if self.merging == Some(process) {
                self.merging = None;
            }
            self.world.note(|| format!("p{process} crashes"));
        } else if happens(faults.claim) {
            let (process, log) = (self.any_process(), self.any_log());
            self.world.note(|| format!("p{process} means to claim {log}"));
            self.world.input(process, &log, Input::Claim);
        } else if happens(faults.switch) {
            self.switch();
        } else if happens(faults.split) {
            self.split_or_merge();
        } else if happens(faults.copy) {
            self.tend_copies();
        } else if happens(faults.jump) {
            let most = limits().window_us * 3;
            self.world.now_us += self.rng.random_range(0..most);
        } else if happens(faults.late) {
            self.land();
        } else if happens(30) {
            let (process, log) = (self.any_process(), self.any_log());
            if self.world.processes[process].places.contains_key(&log) {
                self.world.input(process, &log, Input::Recheck);
            }
        } else if happens(200) {
            self.send();
        } else {
            self.deliver_some();
        }
    }

    fn deliver_some(&mut self) {
        let faults = self.world.plan.faults;
        let (process, log) = (self.any_process(), self.any_log());
        let copies = faults.copy > 0;
        let processes = if copies { 0..self.world.processes.len() } else { process..process + 1 };
        for process in processes {
            let unknown = self.rng.random_range(0..1000) < faults.unknown;
            let how = if unknown { self.rng.random_range(1..4) } else { 0 };
            if !copies || self.rng.random_bool(0.7) {
                self.deliver(process, &log, how);
            }
            if copies && self.rng.random_bool(0.7) {
                let how = if self.copies.target_is_down(self.world.now_us) { 3 } else { how };
                self.deliver_copy(process, &log, how);
            }
            if self.world.processes[process].places.contains_key(&log) {
                self.world.input(process, &log, Input::Tick);
            }
        }
    }

    /// What a process asked arrives: 0 and is answered, 1 and the answer is lost, 2 late, 3 not at all.
    pub(super) fn deliver(&mut self, process: usize, log: &str, how: u32) {
        let asked = self.world.processes[process].places.get_mut(log).and_then(|place| place.asked.take());
        let Some(requests) = asked else { return };
        let results = self.arrive((process, log), requests, how);
        self.world.input(process, log, Input::Answered(results));
    }

    /// And for its copy.
    pub(super) fn deliver_copy(&mut self, process: usize, log: &str, how: u32) {
        let asked = self.world.processes[process].places.get_mut(log).and_then(|place| place.copy_asked.take());
        let Some((id, requests)) = asked else { return };
        let results = self.arrive((process, log), requests, how);
        self.world.input(process, log, Input::CopyAnswered { id, results });
    }

    fn arrive(
        &mut self,
        (process, log): (usize, &str),
        requests: Vec<(String, Request)>,
        how: u32,
    ) -> Vec<Result<Reply, StoreError>> {
        let mut results = Vec::new();
        for (store, request) in requests {
            let lost = StoreError::UnknownOutcome("lost".into());
            let label = request.label();
            let read = is_read(&request);
            let result = match how {
                0 => self.world.execute((store.clone(), request)),
                1 => self.world.execute((store.clone(), request)).and(Err(lost)),
                2 if read => Err(lost),
                2 => {
                    self.world.late.push((store.clone(), request));
                    Err(lost)
                }
                _ => Err(StoreError::Unavailable("refused".into())),
            };
            if how != 0 || matches!(label, "append" | "cas-head" | "cas-segment" | "open-segment" | "write") {
                let told = match &result {
                    Ok(Reply::Segment(reply)) => format!("applied {} {:?}", reply.applied, reply.statics),
                    Ok(Reply::CasHead(reply)) => format!("applied {} {:?}", reply.applied, reply.current),
                    other => format!("{:?}", other.as_ref().map(|_| "ok")),
                };
                self.world.note(|| format!("p{process} {log} {label} at {store} (how {how}): {told}"));
            }
            results.push(result);
        }
        results
    }

    pub(super) fn land(&mut self) {
        if self.world.late.is_empty() {
            return;
        }
        let index = self.rng.random_range(0..self.world.late.len());
        let request = self.world.late.swap_remove(index);
        let (label, store) = (request.1.label(), request.0.clone());
        let result = self.world.execute(request);
        let applied = matches!(&result, Ok(Reply::Segment(reply)) if reply.applied)
            || matches!(&result, Ok(Reply::CasHead(reply)) if reply.applied);
        self.world.note(|| format!("a late {label} arrives at {store}, applied {applied}"));
    }

    /// A client sends a new operation, an open one again, or — as networks do — one long settled.
    pub(super) fn send(&mut self) {
        let open: Vec<usize> = (0..self.clients.operations.len())
            .filter(|index| self.clients.operations[*index].state == State::Open)
            .collect();
        let settled = self.clients.operations.len() - open.len();
        let index = if !self.quiet && settled > 0 && self.rng.random_bool(0.15) {
            self.rng.random_range(0..self.clients.operations.len())
        } else if open.len() >= 4 || (!open.is_empty() && (self.quiet || self.rng.random_bool(0.5))) {
            open[self.rng.random_range(0..open.len())]
        } else {
            let ahead = self.rng.random_range(200..limits().window_us / 2000 + 200);
            let mut rng = StdRng::seed_from_u64(self.rng.random());
            self.clients.create(&mut rng, self.world.now_us / 1000 + ahead, self.world.plan.faults.bulk)
        };
        let (process, log) = (self.any_process(), self.any_log());
        self.send_to(process, &log, index);
    }

    pub(super) fn send_to(&mut self, process: usize, log: &str, index: usize) {
        self.clients.operations[index].sent = true;
        let command = self.clients.operations[index].command.clone();
        self.world.note(|| format!("operation {} is sent to p{process} {log}", index + 1));
        self.world.input(process, log, Input::Submit { ticket: index as Ticket, command: Box::new(command) });
    }

    pub(super) fn carry_out(&mut self) {
        while let Some((process, log, effect)) = {
            let first = !self.world.effects.is_empty();
            first.then(|| self.world.effects.remove(0))
        } {
            match effect {
                Effect::Answer { ticket, outcome } if ticket < OWN => {
                    self.answered((process, &log), ticket as usize, outcome)
                }
                Effect::Claimed { store, head, last } => {
                    self.world.note(|| format!("p{process} owns {log} in {store}, term {}, last {last}", head.term));
                    if self.merging == Some(process) && log.starts_with('g') {
                        self.close_for_merge(process, &log);
                    }
                }
                Effect::Released { refusal } => {
                    self.world.note(|| format!("p{process} steps back from {log}: {}", refusal.why().label()));
                    if self.merging == Some(process) && log.starts_with('g') {
                        self.merging = None;
                    }
                }
                Effect::Drained { run_id, .. } => self.drained(process, &log, run_id),
                Effect::Sealed { head, inheritance } => {
                    self.world.note(|| format!("p{process} sealed {log} at term {}", head.term));
                    self.merging = None;
                    self.merge(process, &head, inheritance);
                }
                Effect::Switched { head, .. } => {
                    self.world.note(|| format!("p{process} switched {log} to {}, term {}", head.cell, head.term));
                }
                Effect::CutOver { head, last } => {
                    self.world.note(|| format!("p{process} cut {log} over to {}, at {last}", head.moved_to));
                    // As the driver does it: the same process follows the pointer at once.
                    self.world.input(process, &log, Input::Claim);
                }
                Effect::CopyEnded => self.copy_ended(process),
                Effect::Trouble(what) => self.world.ghost.accuse(what),
                _ => {}
            }
        }
    }

    pub(super) fn answered(&mut self, (process, log): (usize, &str), index: usize, outcome: Outcome) {
        let number = index + 1;
        let term = self.world.machine(process, log).machine.head().map(|head| head.term);
        match outcome {
            Ok(committed) => {
                let entry = committed.entry.unwrap();
                let id = self.clients.operations[index].command.operation_id;
                let log = committed.position.unwrap().log;
                self.world.note(|| format!("p{process} acknowledges {number} as {log}/{}", entry.number));
                self.world.ghost.acknowledged(id, &log, &entry, committed.duplicate);
                if self.clients.operations[index].state == State::Refused {
                    self.world.ghost.accuse(format!("operation {number} was refused and is committed"));
                }
                if let Some(message_id) = message_id(&entry) {
                    self.clients.operations[index].message_id = message_id;
                }
                self.clients.operations[index].state = State::Acknowledged;
            }
            Err(refusal) => {
                let reason = refusal.why();
                self.world.note(|| format!("p{process} refuses {number}: {}", reason.label()));
                let id = self.clients.operations[index].command.operation_id;
                if let Some(term) = term
                    && matches!(reason, Reason::NotFound | Reason::DeadlinePassed)
                {
                    self.world.ghost.count("refused");
                    self.world.ghost.was_refused(id, log, term);
                }
                let late = self.late(index);
                let state = &mut self.clients.operations[index].state;
                match reason {
                    Reason::NotFound if *state == State::Acknowledged => {
                        // A duplicate of old, far behind the window: its deadline must have kept it away.
                        self.world.ghost.accuse(format!("operation {number} was acknowledged and is refused"));
                    }
                    Reason::NotFound => {
                        *state = State::Refused;
                        if self.clients.is_wrong(index, reason) {
                            self.world.ghost.accuse(format!("operation {number} was refused wrongly"));
                        }
                    }
                    // Nothing will be appended any more that would tell; its client has long given up.
                    Reason::UnknownOutcome if self.quiet && *state == State::Open && late => *state = State::Given,
                    Reason::DeadlinePassed | Reason::DeadlineTooFar if *state == State::Open => *state = State::Given,
                    Reason::Invalid | Reason::Forbidden => {
                        self.world.ghost.accuse(format!("operation {number} was refused as {}", reason.label()));
                    }
                    _ => {}
                }
            }
        }
    }
}
