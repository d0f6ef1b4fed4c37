//! A world for the simulation: the logs a guild lives in with an honest data owner, guild nodes with crashes and late answers, and gateways
//! that hold one position and check every event against the one true order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use cell_proto::v1::{GuildClaimed, Merge, Split};

use super::*;

/// The guild's logs, as the store has them.
pub struct Logs {
    pub entries: HashMap<String, Vec<Entry>>,
    pub home: String,
    pub terms: HashMap<String, u64>,
    pub truth: GuildView,
    /// The one true order: (log, number, timestamp).
    pub timeline: Vec<(String, u64, i64)>,
    /// Entries up to here are gone, by log.
    pub retained_after: HashMap<String, u64>,
    clock_us: i64,
    operations: HashMap<Vec<u8>, (String, Entry)>,
}

impl Logs {
    pub fn new() -> Self {
        let mut logs = Self {
            entries: HashMap::from([(bucket(), vec![]), (own(), vec![])]),
            home: bucket(),
            terms: HashMap::from([(bucket(), 1), (own(), 1)]),
            truth: guild_view(),
            timeline: vec![],
            retained_after: HashMap::new(),
            clock_us: 1_000_000,
            operations: HashMap::new(),
        };
        logs.noise();
        logs
    }

    fn push(&mut self, log: &str, kind: Kind, operation_id: Vec<u8>, of_guild: bool) -> Entry {
        self.clock_us += 1;
        let entries = self.entries.get_mut(log).unwrap();
        let raises = matches!(kind, Kind::RolePut(_) | Kind::ChannelPut(_) | Kind::MemberRemoved(_));
        let policy_version = if raises { self.truth.guild.policy_version + 1 } else { 0 };
        let entry = Entry {
            number: entries.len() as u64 + 1,
            timestamp_us: self.clock_us,
            operation_id,
            actor_id: OWNER,
            change: Some(Change { kind: Some(kind) }),
            policy_version,
        };
        entries.push(entry.clone());
        if of_guild {
            self.truth.apply(&entry);
            self.timeline.push((log.to_owned(), entry.number, entry.timestamp_us));
            self.operations.insert(entry.operation_id.clone(), (log.to_owned(), entry.clone()));
        }
        entry
    }

    /// An entry of another guild in the bucket.
    pub fn noise(&mut self) {
        let message = Message { id: 1, guild_id: GUILD + 1, ..Message::default() };
        self.push(&bucket(), Kind::MessageCreated(MessageCreated { message: Some(message) }), vec![], false);
    }

    pub fn say(&mut self) {
        let home = self.home.clone();
        let operation_id = operation(self.clock_us.unsigned_abs() << 20);
        let message = Message { id: self.clock_us, guild_id: GUILD, channel_id: CHANNEL, ..Message::default() };
        self.push(&home, Kind::MessageCreated(MessageCreated { message: Some(message) }), operation_id, true);
    }

    /// What the data owner does with a structural change: dedupe, fence by guild term, commit.
    pub fn submit(&mut self, request: &cell_proto::v1::SubmitRequest) -> SubmitReply {
        if let Some((log, entry)) = self.operations.get(&request.operation_id) {
            return committed(log, entry.number, Some(entry.clone()));
        }
        let kind = request.change.clone().unwrap().kind.unwrap();
        let known = self.truth.guild_term;
        let stale = match &kind {
            Kind::GuildClaimed(GuildClaimed { guild_term, .. }) => *guild_term <= known,
            _ => request.guild_term < known,
        };
        if stale {
            return refused(Reason::StaleGuildTerm);
        }
        let home = self.home.clone();
        let entry = self.push(&home, kind, request.operation_id.clone(), true);
        committed(&home, entry.number, Some(entry))
    }

    pub fn split(&mut self) {
        if self.home == bucket() {
            let split = Split { guild_id: GUILD, log_term: self.terms[&own()] };
            let operation_id = operation(self.clock_us.unsigned_abs() << 21);
            self.push(&bucket(), Kind::Split(split), operation_id, true);
            self.home = own();
            self.raise_term();
        }
    }

    pub fn merge(&mut self) {
        if self.home == own() {
            let sealed_at = self.entries[&own()].len() as u64;
            *self.terms.get_mut(&own()).unwrap() += 1;
            let merge = Merge { guild_id: GUILD, sealed_term: self.terms[&own()], sealed_at };
            let operation_id = operation(self.clock_us.unsigned_abs() << 22);
            self.push(&bucket(), Kind::Merge(merge), operation_id, true);
            self.home = bucket();
        }
    }

    /// Entries of the guild from a number on, and how far the log goes.
    pub fn read(&self, log: &str, from: u64, limit: usize) -> Result<LogPage, Refusal> {
        if from <= self.retained_after.get(log).copied().unwrap_or(0) {
            return Err(Refusal::new(Reason::BehindRetention, "gone"));
        }
        let all = &self.entries[log];
        let of_guild = |entry: &&Entry| entry.number >= from && super::super::feed::guild_of(entry) == Some(GUILD);
        let entries: Vec<Entry> = all.iter().filter(of_guild).take(limit).cloned().collect();
        let newest = entries.last().map_or(0, |entry| entry.number);
        let scanned_to = if entries.len() == limit { newest } else { all.len() as u64 };
        Ok(LogPage { entries, scanned_to })
    }

    /// Splits and merges after a position.
    fn junctions(&self, since: &Position) -> Result<Vec<Junction>, Refusal> {
        let since_us = if since.number == 0 {
            // Right after the first split, as far as anybody can tell.
            let first = self.entries[&bucket()].iter().find(|entry| start_of_stay(entry));
            first.map_or(0, |entry| entry.timestamp_us)
        } else {
            match self.entries[&since.log].iter().find(|entry| entry.number >= since.number) {
                Some(entry) => entry.timestamp_us,
                None => return Ok(vec![]),
            }
        };
        let mut start_after = 0;
        let mut found = vec![];
        for entry in &self.entries[&bucket()] {
            match &entry.change.as_ref().unwrap().kind {
                Some(Kind::Merge(merge)) => start_after = merge.sealed_at,
                Some(Kind::Split(_)) => {}
                _ => continue,
            }
            let named = since.log == bucket() && entry.number == since.number && start_of_stay(entry);
            if entry.timestamp_us > since_us || named {
                found.push(Junction { entry: entry.clone(), start_after });
            }
        }
        Ok(found)
    }

    /// The log gets a new owner.
    pub fn raise_term(&mut self) {
        *self.terms.get_mut(&self.home).unwrap() += 1;
    }

    /// Up to where a reader of this log gets something: a log that the guild left ends there.
    fn left(&self, log: &str) -> bool {
        log != self.home
    }
}

/// A gateway's view: how much of the timeline it has.
#[derive(Debug, Default)]
pub struct Gateway {
    pub position: Option<Position>,
    pub index: usize,
    last_us: i64,
    own_number: u64,
    pub link: Option<(usize, LinkId)>,
    pub skipped: u32,
    pub duplicates: u32,
    pub policy_version: u64,
}

impl Gateway {
    fn take(&mut self, frame: &LinkDown, logs: &Logs) {
        match &frame.kind {
            Some(Down::Snapshot(snapshot)) => self.snapshot(snapshot, logs),
            Some(Down::Events(events)) => events.events.iter().for_each(|event| self.event(event, logs)),
            Some(Down::Moved(_) | Down::Refused(_)) => self.link = None,
            _ => {}
        }
    }

    fn snapshot(&mut self, snapshot: &GuildSnapshot, logs: &Logs) {
        let position = snapshot.position.clone().unwrap();
        let index = index_after(&position, logs);
        if self.position.is_some() {
            assert!(index >= self.index, "a snapshot takes a gateway back from {} to {index}", self.index);
            self.skipped += u32::from(index > self.index);
        }
        self.index = index;
        self.last_us = index.checked_sub(1).map_or(0, |last| logs.timeline[last].2);
        self.policy_version = snapshot.guild.as_ref().unwrap().policy_version;
        if position.log == own() {
            self.own_number = position.number;
        }
        self.position = Some(position);
    }

    fn event(&mut self, event: &GuildEvent, logs: &Logs) {
        let entry = event.entry.as_ref().unwrap();
        if entry.timestamp_us <= self.last_us {
            self.duplicates += 1;
            return;
        }
        let position = event.position.clone().unwrap();
        let expected = &logs.timeline[self.index];
        assert_eq!(
            (position.log.as_str(), position.number, entry.timestamp_us),
            (expected.0.as_str(), expected.1, expected.2),
            "lost or reordered: the gateway has {:?}",
            self.position
        );
        self.index += 1;
        self.last_us = entry.timestamp_us;
        self.policy_version = self.policy_version.max(event.policy_version);
        if position.log == own() {
            self.own_number = position.number;
        }
        // As the gateway does it: after a split it stands in the guild's own log, where it left it.
        let split = matches!(entry.change.as_ref().unwrap().kind, Some(Kind::Split(_)));
        self.position = Some(if split { at(&own(), self.own_number) } else { position });
    }
}

fn start_of_stay(entry: &Entry) -> bool {
    matches!(entry.change.as_ref().unwrap().kind, Some(Kind::Split(_)))
}

fn index_after(position: &Position, logs: &Logs) -> usize {
    let holds = |(log, number, _): &(String, u64, i64)| *log == position.log && *number <= position.number;
    logs.timeline.iter().rposition(holds).map_or(0, |index| index + 1)
}

/// What a node's driver has to do, in any order.
#[derive(Debug)]
pub enum Work {
    Effect(Effect),
    Input(Input),
}

/// A guild node and its driver.
pub struct Node {
    pub id: String,
    pub actor: Option<GuildActor>,
    pub work: Vec<Work>,
    pub feed: Option<(u64, String, u64)>,
    /// Frames on their way, by link.
    pub queues: BTreeMap<LinkId, VecDeque<(Arc<LinkDown>, bool)>>,
    incarnation: u64,
}

pub struct World {
    pub logs: Logs,
    pub nodes: Vec<Node>,
    pub gateways: Vec<Gateway>,
    pub mono_ms: u64,
    pub next_link: LinkId,
    pub answers: HashMap<Ticket, SubmitReply>,
    pub limits: Limits,
}

impl World {
    pub fn new(nodes: usize, gateways: usize, limits: Limits) -> Self {
        let node = |index: usize| Node {
            id: format!("n{index}"),
            actor: None,
            work: vec![],
            feed: None,
            queues: BTreeMap::new(),
            incarnation: 0,
        };
        Self {
            logs: Logs::new(),
            nodes: (0..nodes).map(node).collect(),
            gateways: (0..gateways).map(|_| Gateway::default()).collect(),
            mono_ms: 0,
            next_link: 0,
            answers: HashMap::new(),
            limits,
        }
    }

    /// Gives a node's actor an input, starting the actor if need be.
    pub fn give(&mut self, node: usize, input: Input) {
        let (home, at, limits) = (self.logs.home.clone(), now(self.mono_ms), self.limits);
        let node = &mut self.nodes[node];
        let actor = node.actor.get_or_insert_with(|| {
            node.incarnation += 1;
            let identity = Identity { guild_id: GUILD, node: node.id.clone(), incarnation: node.incarnation };
            GuildActor::new(identity, home, limits, at)
        });
        let effects = actor.handle(input, at);
        for effect in effects {
            match effect {
                Effect::Send { link, frame, paced } => {
                    if let Some(queue) = node.queues.get_mut(&link) {
                        queue.push_back((frame, paced));
                    }
                }
                Effect::SendMoved { link, .. } => {
                    let moved = LinkDown { kind: Some(Down::Moved(cell_proto::v1::Moved::default())) };
                    if let Some(queue) = node.queues.get_mut(&link) {
                        queue.push_back((Arc::new(moved), false));
                    }
                }
                Effect::Reply { ticket, reply: Reply::Mutate(reply) } => {
                    self.answers.insert(ticket, *reply);
                }
                Effect::OpenFeed { epoch, log, from } => node.feed = Some((epoch, log, from)),
                other => node.work.push(Work::Effect(other)),
            }
        }
    }

    /// Does one piece of a node's work; which one, the caller draws.
    pub fn work(&mut self, node: usize, pick: usize) {
        if self.nodes[node].work.is_empty() || self.nodes[node].actor.is_none() {
            return;
        }
        let count = self.nodes[node].work.len();
        match self.nodes[node].work.remove(pick % count) {
            Work::Input(input) => self.give(node, input),
            Work::Effect(effect) => {
                if let Some(input) = self.perform(node, effect) {
                    // The answer may overtake others or come late.
                    self.nodes[node].work.push(Work::Input(input));
                }
            }
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) -> Option<Input> {
        Some(match effect {
            Effect::Load { epoch, .. } => {
                let log = self.logs.home.clone();
                let as_of = self.logs.entries[&log].len() as u64;
                let (view, term) = (self.logs.truth.clone(), self.logs.terms[&log]);
                Input::Loaded { epoch, outcome: Ok(Box::new(Loaded { view, log, as_of, term })) }
            }
            Effect::ReadLog { ticket, log, from } => Input::LogRead { ticket, outcome: self.logs.read(&log, from, 3) },
            Effect::FindStart { ticket, log, after_us } => {
                let older = |entry: &&Entry| entry.timestamp_us <= after_us;
                let start = self.logs.entries[&log].iter().rfind(older).map_or(0, |entry| entry.number);
                Input::StartFound { ticket, outcome: Ok(start) }
            }
            Effect::FindJunctions { ticket, since } => {
                Input::JunctionsFound { ticket, outcome: self.logs.junctions(&since) }
            }
            Effect::Claim { attempt, request } => {
                Input::Claimed { attempt, outcome: Box::new(self.logs.submit(&request)) }
            }
            Effect::Submit { ticket, request } => {
                Input::Submitted { ticket, outcome: Box::new(self.logs.submit(&request)) }
            }
            Effect::BuildSnapshot { link, ticket, view, user_ids, position, term } => {
                let snapshot = Box::new(view.snapshot(&user_ids, position, term));
                Input::SnapshotBuilt { link, ticket, snapshot }
            }
            Effect::FeedMembership { log, number, .. } | Effect::CompareMemberships { log, until: number } => {
                Input::MembershipFed { log, number }
            }
            Effect::Stop => {
                self.crash(node);
                return None;
            }
            _ => return None,
        })
    }

    /// The data owner feeds a node a few entries, or ends its feed where the guild left the log.
    pub fn feed(&mut self, node: usize, limit: usize) {
        let Some((epoch, log, from)) = self.nodes[node].feed.clone() else { return };
        let term = self.logs.terms[&log];
        let page = match self.logs.read(&log, from, limit) {
            Ok(page) => page,
            Err(refusal) => {
                self.nodes[node].feed = None;
                return self.give(node, Input::FeedEnded { epoch, refusal: Some(refusal) });
            }
        };
        if let Some(newest) = page.entries.last() {
            self.nodes[node].feed = Some((epoch, log, newest.number + 1));
            let (entries, last) = (page.entries, page.scanned_to);
            self.give(node, Input::Feed { epoch, entries, last, term });
        } else if self.logs.left(&log) {
            self.nodes[node].feed = None;
            let refusal = Some(Refusal::new(Reason::OtherLog, "the guild lives in another log"));
            self.give(node, Input::FeedEnded { epoch, refusal });
        }
    }

    /// The process dies: its work, its feed and its links are gone.
    pub fn crash(&mut self, node: usize) {
        let dead = &mut self.nodes[node];
        (dead.actor, dead.feed) = (None, None);
        dead.work.clear();
        dead.queues.clear();
        for gateway in &mut self.gateways {
            gateway.link = gateway.link.filter(|(at, _)| *at != node);
        }
    }

    pub fn attach(&mut self, gateway: usize, node: usize, standby: bool) {
        self.reset(gateway);
        self.next_link += 1;
        let link = self.next_link;
        self.nodes[node].queues.insert(link, VecDeque::new());
        self.gateways[gateway].link = Some((node, link));
        let position = self.gateways[gateway].position.clone();
        self.give(node, Input::Attach { link, position, user_ids: vec![OWNER], standby });
    }

    /// The gateway's link breaks: what is in its queue is lost.
    pub fn reset(&mut self, gateway: usize) {
        if let Some((node, link)) = self.gateways[gateway].link.take() {
            self.nodes[node].queues.remove(&link);
            if self.nodes[node].actor.is_some() {
                self.give(node, Input::Detach { link });
            }
        }
    }

    /// A gateway takes one frame from its link.
    pub fn deliver(&mut self, gateway: usize) -> bool {
        let Some((node, link)) = self.gateways[gateway].link else { return false };
        let Some((frame, paced)) = self.nodes[node].queues.get_mut(&link).and_then(VecDeque::pop_front) else {
            return false;
        };
        if paced {
            self.nodes[node].work.push(Work::Input(Input::Drained { link }));
        }
        self.gateways[gateway].take(&frame, &self.logs);
        true
    }

    pub fn owner(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.actor.as_ref().is_some_and(GuildActor::is_owner))
    }

    /// Everything goes well from here on: `node` owns the guild, and every gateway is attached there.
    pub fn settle(&mut self, node: usize) {
        let mut rounds_in_order = 0;
        for _ in 0..2000 {
            self.mono_ms += 300;
            for index in 0..self.nodes.len() {
                if self.nodes[index].actor.is_some() {
                    self.give(index, Input::Tick);
                }
                let mut pieces = 0;
                while !self.nodes[index].work.is_empty() {
                    self.work(index, 0);
                    pieces += 1;
                    assert!(pieces < 10_000, "endless work at {:?}", self.nodes[index].work);
                }
                self.feed(index, 4);
            }
            let owned = self.nodes[node].actor.as_ref().is_some_and(GuildActor::is_owner);
            if !owned {
                self.give(node, Input::Own);
            }
            for gateway in 0..self.gateways.len() {
                if owned && self.gateways[gateway].link.is_none_or(|(at, _)| at != node) {
                    self.attach(gateway, node, false);
                }
                while self.deliver(gateway) {}
            }
            let all = self.logs.timeline.len();
            let settled = self.nodes.iter().all(|node| node.work.is_empty());
            // A replay may be ahead of the node that reads it from the log: a few more rounds let the node catch up.
            let in_order = owned && settled && self.gateways.iter().all(|gateway| gateway.index == all);
            rounds_in_order = if in_order { rounds_in_order + 1 } else { 0 };
            if rounds_in_order > 200 {
                return;
            }
        }
        let indexes: Vec<usize> = self.gateways.iter().map(|gateway| gateway.index).collect();
        panic!(
            "not settled: gateways at {indexes:?} of {}; node {:?}",
            self.logs.timeline.len(),
            self.nodes[node].actor
        );
    }
}
