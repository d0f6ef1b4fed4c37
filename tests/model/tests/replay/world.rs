//! Processes with the code's own machine, on two stores in memory whose answers the replay delivers, loses or delays.

use std::collections::{BTreeMap, BTreeSet};

use cell_data::domain::tables::mutations;
use cell_data::machine::{Command, Effect, Identity, Input, Limits, LogMachine, Outcome, feed_cursor};
use cell_model::log::state::{OPERATIONS, Operation};
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    CasHeadRequest, CellWrite, Change, Channel, Guild, GuildCreated, Head, Member, Message, MessageCreated,
    MessageDeleted, MessageEdited, ReadHeadRequest, ReadRowsRequest, Reason, Role, RowMutation, User,
    WriteCursorRequest, WriteRequest,
};
use cell_store::{MemoryState, Reply, Request, StoreError};

use super::ghost::Ghost;

const AUTHOR: i64 = 7;
const GUILD: i64 = 81_384_788_765_712_384;
/// The ticket of the entry that creates the guild; clients' tickets are the operations' numbers.
const SETUP: u64 = 1000;
/// The origin and the copy, by the model's numbers.
pub const STORES: [&str; 2] = ["origin", "copy"];
const CELLS: [&str; 3] = ["a", "a", "b"];
/// As the model's clocks: the first process is ahead.
const SKEWS_US: [i64; 3] = [40_000, 0, 20_000];

pub struct Process {
    pub machine: LogMachine,
    /// Asked, not answered.
    pub asked: Option<Vec<(String, Request)>>,
    /// And for the copy.
    pub copy_asked: Option<(u64, Vec<(String, Request)>)>,
    pub drained: bool,
}

/// What a client knows of its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    Nothing,
    Done,
    Refused,
    /// Its deadline has passed.
    GaveUp,
}

pub struct World {
    pub now_us: i64,
    /// The origin, which is every process's home, and the copy.
    pub stores: BTreeMap<&'static str, MemoryState>,
    pub processes: Vec<Process>,
    /// Writes thought settled that have not arrived.
    pub late: Vec<(String, Request)>,
    pub ghost: Ghost,
    pub told: [Told; OPERATIONS.len()],
    /// Stamped once, kept by retries; 0 before.
    deadlines_ms: [i64; OPERATIONS.len()],
    /// What the machines did, for a failing test's reader.
    pub trace: Vec<String>,
    /// The migration's number: a released copy belongs to an earlier one.
    pub run: u32,
    /// A copy was released since this was last looked at.
    pub copy_ended: bool,
    channel_id: i64,
    message_id: i64,
    log: String,
}

fn limits() -> Limits {
    Limits {
        linger_us: 1_000,
        window_us: 400_000_000,
        segment_age_us: 600_000_000,
        retention_us: 3_600_000_000,
        retention_every_us: 60_000_000,
        ..Limits::default()
    }
}

fn machine(process: usize) -> Process {
    let unit = Unit::bucket(GUILD);
    let (cell, member_id) = (CELLS[process].into(), format!("p{process}"));
    let me = Identity { unit, log: unit.log(), cell, member_id, home: STORES[0].into() };
    Process { machine: LogMachine::new(me, limits()), asked: None, copy_asked: None, drained: false }
}

fn id_of(number: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    id
}

pub fn is_read(request: &Request) -> bool {
    matches!(request, Request::ReadHead(_) | Request::ReadSegment(_) | Request::ReadCursor(_) | Request::ReadRows(_))
}

impl World {
    /// Process 0 owns the log at term 1; a guild with a channel is there, and its owner has seen it.
    pub fn start() -> Self {
        let log = Unit::bucket(GUILD).log();
        let mut world = Self {
            now_us: 1_796_000_000_000_000,
            stores: STORES.map(|name| (name, MemoryState::default())).into(),
            processes: (0..3).map(machine).collect(),
            late: Vec::new(),
            ghost: Ghost::of(STORES[0]),
            told: [Told::Nothing; OPERATIONS.len()],
            deadlines_ms: [0; OPERATIONS.len()],
            trace: Vec::new(),
            run: 1,
            copy_ended: false,
            channel_id: 0,
            message_id: 0,
            log: log.clone(),
        };
        let head = Head { log: log.clone(), cell: "a".into(), segment: 1, ..Head::default() };
        let create = CasHeadRequest { log: log.clone(), expected: None, new: Some(head) };
        world.execute((STORES[0].into(), create.into())).unwrap();
        world.input(0, Input::Claim);
        let created = Kind::GuildCreated(GuildCreated {
            guild: Some(Guild { id: GUILD, name: "g".into(), owner_id: AUTHOR, ..Guild::default() }),
            roles: vec![Role { id: GUILD, name: "everyone".into(), ..Role::default() }],
            channels: vec![Channel { id: 1, name: "c".into(), ..Channel::default() }],
            owner: Some(Member {
                user: Some(User { id: AUTHOR, name: "ann".into(), ..User::default() }),
                ..Member::default()
            }),
        });
        let command = world.command(SETUP, created);
        world.input(0, Input::Submit { ticket: SETUP, command: Box::new(command) });
        (0..60).for_each(|_| world.turn(0));
        let fed = WriteCursorRequest { log, name: feed_cursor(GUILD), value: 1 };
        world.execute((STORES[0].into(), fed.into())).unwrap();
        let Some(Kind::GuildCreated(created)) = world.ghost.first_change() else { panic!("the guild is not created") };
        world.channel_id = created.channels[0].id;
        world
    }

    fn command(&self, number: u64, kind: Kind) -> Command {
        Command {
            operation_id: id_of(number),
            deadline_ms: self.now_us / 1000 + 150_000,
            actor_id: AUTHOR,
            policy_version: 0,
            guild_term: 0,
            term: 0,
            change: Change { kind: Some(kind) },
            inheritance: None,
        }
    }

    /// A client sends an operation, for the first time or again.
    pub fn submit(&mut self, process: usize, operation: Operation) {
        if operation != Operation::Create && self.message_id == 0 {
            // Nobody knows yet what there is to change.
            return;
        }
        let (guild_id, channel_id, message_id) = (GUILD, self.channel_id, self.message_id);
        let content = format!("{operation:?}");
        let kind = match operation {
            Operation::Create => {
                let author = Some(User { id: AUTHOR, name: "ann".into(), ..User::default() });
                let message = Message { guild_id, channel_id, author, content, ..Message::default() };
                Kind::MessageCreated(MessageCreated { message: Some(message) })
            }
            Operation::Delete => Kind::MessageDeleted(MessageDeleted { guild_id, channel_id, message_id }),
            Operation::Edit | Operation::Amend => Kind::MessageEdited(MessageEdited {
                guild_id,
                channel_id,
                message_id,
                content,
                ..MessageEdited::default()
            }),
        };
        let mut command = self.command(operation as u64 + 1, kind);
        let deadline_ms = &mut self.deadlines_ms[operation as usize];
        if *deadline_ms == 0 {
            *deadline_ms = command.deadline_ms;
        }
        command.deadline_ms = *deadline_ms;
        self.input(process, Input::Submit { ticket: operation as u64, command: Box::new(command) });
    }

    pub fn input(&mut self, process: usize, input: Input) {
        let now_us = self.now_us + SKEWS_US[process];
        let effects = self.processes[process].machine.handle(input, now_us);
        for effect in effects {
            match effect {
                Effect::Ask(requests) => self.processes[process].asked = Some(requests),
                Effect::AskForCopy { id, requests } => self.processes[process].copy_asked = Some((id, requests)),
                Effect::CopyEnded => self.copy_ended = true,
                Effect::Answer { ticket, outcome } if ticket < OPERATIONS.len() as u64 => {
                    self.answered(ticket as usize, outcome);
                }
                Effect::Drained { .. } => self.processes[process].drained = true,
                Effect::Trouble(what) => self.ghost.accuse(what),
                _ => {}
            }
        }
    }

    fn answered(&mut self, operation: usize, outcome: Outcome) {
        let said = outcome.as_ref().map(|_| "done").map_err(|refusal| refusal.why().label());
        self.trace.push(format!("  {:?} is answered: {said:?}", OPERATIONS[operation]));
        match outcome {
            Ok(committed) => {
                let entry = committed.entry.expect("an answer has its entry");
                self.ghost.acknowledged(&entry);
                if let Some(Kind::MessageCreated(created)) = entry.change.and_then(|change| change.kind) {
                    self.message_id = created.message.expect("a created message").id;
                }
                if self.told[operation] == Told::Refused {
                    self.ghost.accuse(format!("{:?} was refused and is committed", OPERATIONS[operation]));
                }
                self.told[operation] = Told::Done;
            }
            Err(refusal) if refusal.why() == Reason::NotFound => {
                if self.ghost.has(&id_of(operation as u64 + 1)) {
                    self.ghost.accuse(format!("{:?} is committed and was refused", OPERATIONS[operation]));
                }
                self.told[operation] = Told::Refused;
            }
            Err(_) if self.told[operation] == Told::Nothing && self.deadlines_ms[operation] * 1000 < self.now_us => {
                self.told[operation] = Told::GaveUp;
            }
            Err(_) => {}
        }
    }

    /// A store does one request.
    pub fn execute(&mut self, (store, request): (String, Request)) -> Result<Reply, StoreError> {
        let name = STORES.into_iter().find(|name| *name == store).expect("a known store");
        let now_s = self.now_us / 1_000_000;
        let reply = self.store(name).handle(request.clone(), now_s)?;
        if !is_read(&request) {
            let applied = match &reply {
                Reply::Segment(reply) => reply.applied,
                Reply::CasHead(reply) => reply.applied,
                _ => true,
            };
            self.trace.push(format!("  {} arrives at the {name}: {applied}", request.label()));
        }
        self.ghost.saw(name, &request, &reply);
        Ok(reply)
    }

    pub fn store(&mut self, name: &'static str) -> &mut MemoryState {
        self.stores.entry(name).or_default()
    }

    pub fn head_at(&mut self, name: &'static str) -> Option<Head> {
        let read = ReadHeadRequest { log: self.log.clone() };
        match self.store(name).handle(read.into(), 0) {
            Ok(Reply::Head(reply)) => reply.head,
            other => panic!("{other:?}"),
        }
    }

    /// The one that serves, or was sealed last.
    pub fn head(&mut self) -> Head {
        let heads: Vec<Head> = STORES.into_iter().filter_map(|name| self.head_at(name)).collect();
        let newest = heads.iter().max_by_key(|head| (head.moved_to.is_empty(), head.term));
        newest.expect("the log has a head").clone()
    }

    /// What a process asks arrives and is answered.
    pub fn deliver(&mut self, process: usize) {
        let Some(requests) = self.processes[process].asked.take() else { return };
        let results = requests.into_iter().map(|request| self.execute(request)).collect();
        self.input(process, Input::Answered(results));
    }

    /// And for its copy.
    pub fn deliver_copy(&mut self, process: usize) {
        let Some((id, requests)) = self.processes[process].copy_asked.take() else { return };
        let results = requests.into_iter().map(|request| self.execute(request)).collect();
        self.input(process, Input::CopyAnswered { id, results });
    }

    /// What a process asks is on its way, and the process does not learn what becomes of it.
    pub fn lose(&mut self, process: usize) {
        let Some(requests) = self.processes[process].asked.take() else { return };
        let lost = || Err(StoreError::UnknownOutcome("lost".into()));
        let results = requests.iter().map(|_| lost()).collect();
        self.late.extend(requests.into_iter().filter(|(_, request)| !is_read(request)));
        self.input(process, Input::Answered(results));
    }

    /// Delivers what the copy needs until it asks what is looked for; false when it does not within reason.
    pub fn copy_until(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) -> bool {
        for _ in 0..80 {
            let asked = self.processes[process].copy_asked.iter().flat_map(|(_, requests)| requests);
            if asked.map(|(_, request)| request).any(&wanted) {
                return true;
            }
            self.deliver_copy(process);
            self.now_us += 1_100;
            self.input(process, Input::Tick);
        }
        false
    }

    /// The workers of a migration: rows of one store into the other, each with its own write time.
    pub fn backfill(&mut self, from: &'static str, to: &'static str) {
        let rows = self.ghost.committed.iter().flat_map(mutations);
        let partitions: BTreeSet<_> = rows.map(|row| (row.table, row.partition)).collect();
        for (table, partition) in partitions {
            let read = ReadRowsRequest {
                table: table.clone(),
                partition: partition.clone(),
                limit: 10_000,
                ..ReadRowsRequest::default()
            };
            let Ok(Reply::Rows(reply)) = self.store(from).handle(read.into(), 0) else { panic!("rows") };
            let cells = reply.rows.into_iter().flat_map(|row| {
                let (table, partition) = (table.clone(), partition.clone());
                row.cells.into_iter().map(move |cell| RowMutation {
                    table: table.clone(),
                    partition: partition.clone(),
                    clustering: row.clustering.clone(),
                    cells: vec![CellWrite { column: cell.column, value: cell.value }],
                    timestamp_us: cell.timestamp_us,
                    ..RowMutation::default()
                })
            });
            let mutations: Vec<RowMutation> = cells.collect();
            if !mutations.is_empty() {
                let write = WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 };
                self.store(to).handle(write.into(), 0).expect("a write");
            }
        }
    }

    /// What a released copy held is dropped; its head stays.
    pub fn wipe(&mut self, name: &'static str) {
        let head = self.head_at(name);
        self.stores.insert(name, MemoryState::default());
        if let Some(head) = head {
            let create = CasHeadRequest { log: self.log.clone(), expected: None, new: Some(head) };
            self.store(name).handle(create.into(), 0).expect("a head");
        }
    }

    /// The tables of the store that serves.
    pub fn compare(&mut self) {
        let mut tables = self.stores.get(self.ghost.serving).cloned().unwrap_or_default();
        self.ghost.compare(&mut tables);
    }

    /// One answer, then a moment passes.
    pub fn turn(&mut self, process: usize) {
        self.deliver(process);
        self.now_us += 1_100;
        self.input(process, Input::Tick);
    }

    /// Delivers until a process asks what is looked for; false when it does not within reason.
    pub fn until(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) -> bool {
        for _ in 0..80 {
            let asked = self.processes[process].asked.as_ref();
            if asked.into_iter().flatten().map(|(_, request)| request).any(&wanted) {
                return true;
            }
            self.turn(process);
        }
        false
    }

    /// The process is gone; what it asked never arrives.
    pub fn crash(&mut self, process: usize) {
        self.processes[process] = machine(process);
    }

    /// No more faults: what is late lands, somebody owns the log, every operation is answered.
    pub fn settle(&mut self) {
        for request in std::mem::take(&mut self.late) {
            drop(self.execute(request));
        }
        for round in 0..900 {
            self.now_us += 500;
            for process in 0..3 {
                self.settle_process(process, round);
            }
            let nothing_to_change = matches!(self.told[Operation::Create as usize], Told::GaveUp);
            if round > 300 && (nothing_to_change || self.told.iter().all(|told| *told != Told::Nothing)) {
                return;
            }
        }
        self.ghost.accuse(format!("it does not settle: {:?}", self.told));
    }

    fn settle_process(&mut self, process: usize, round: usize) {
        if let Some(run_id) = self.processes[process].machine.closed_by().map(str::to_owned) {
            self.input(process, Input::Reopen { run_id });
        }
        if round.is_multiple_of(50) {
            self.input(process, Input::Recheck);
        }
        let nobody = self.processes.iter().all(|process| process.machine.is_released());
        if nobody && self.head().cell == CELLS[process] {
            self.input(process, Input::Claim);
        }
        if round % 20 == 10 && self.processes[process].machine.head().is_some() {
            for operation in OPERATIONS {
                let possible = operation == Operation::Create || self.told[Operation::Create as usize] == Told::Done;
                if possible && self.told[operation as usize] == Told::Nothing {
                    self.submit(process, operation);
                }
            }
        }
        self.deliver(process);
        self.deliver_copy(process);
        self.input(process, Input::Tick);
    }
}
