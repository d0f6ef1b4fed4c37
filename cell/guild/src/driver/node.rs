//! What every task of this node shares, and the one question asked of the directory: should this node own that guild?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use cell_proto::unit::Unit;
use cell_proto::v1::{Reason, Refusal, Route};
use cell_runtime::{Channels, Directory, route, unix_ms};

use super::actor::{self, MAILBOX_LIMIT};
use super::ask::Envelope;
use super::data::DataClient;
use super::metrics::Metrics;
use super::registry::{Handle, Registry};
use crate::machine::{Identity, Input, Limits, Now};

/// What the tasks share.
pub(super) struct Node {
    pub(super) member_id: String,
    pub(super) incarnation: u64,
    pub(super) limits: Limits,
    pub(super) guild_limit: usize,
    pub(super) directory: Directory,
    pub(super) data: DataClient,
    pub(super) metrics: Metrics,
    pub(super) registry: Registry,
    draining: AtomicBool,
    links: AtomicU64,
    started: Instant,
}

/// Where a guild belongs, as far as the directory knows.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Decision {
    /// Here; its log is this one.
    Here(String),
    /// At another node.
    Elsewhere(Route),
    /// Nobody knows: the cell or its guild nodes are not in the directory (yet).
    Unknown,
}

/// What a [`Node`] is made from.
pub(super) struct NodeParts {
    pub(super) member_id: String,
    pub(super) incarnation: u64,
    pub(super) limits: Limits,
    pub(super) guild_limit: usize,
    pub(super) directory: Directory,
    pub(super) channels: Arc<Channels>,
}

impl Node {
    pub(super) fn new(parts: NodeParts) -> Arc<Self> {
        let data = DataClient::new(parts.directory.clone(), parts.channels, parts.member_id.clone());
        Arc::new(Self {
            member_id: parts.member_id,
            incarnation: parts.incarnation,
            limits: parts.limits,
            guild_limit: parts.guild_limit,
            directory: parts.directory,
            data,
            metrics: Metrics::default(),
            registry: Registry::default(),
            draining: AtomicBool::new(false),
            links: AtomicU64::new(0),
            started: Instant::now(),
        })
    }

    pub(super) fn now(&self) -> Now {
        let mono_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono_ms, unix_ms: unix_ms() }
    }

    pub(super) fn next_link_id(&self) -> u64 {
        self.links.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Where the guild belongs. `hint` is the log that the caller believes in.
    pub(super) fn decide(&self, guild_id: i64, hint: &str) -> Decision {
        let view = self.directory.view();
        let mut log = route::unit_of_guild(&view, guild_id).log();
        if hint == Unit::Guild(guild_id).log() && view.place(hint).is_some_and(|place| !place.merged) {
            hint.clone_into(&mut log);
        }
        match route::guild_member(&view, &log, guild_id) {
            Some(member) if member.id == self.member_id => Decision::Here(log),
            Some(_) => Decision::Elsewhere(route::describe(&view, &log, guild_id)),
            None => Decision::Unknown,
        }
    }

    /// The address of a member, as a route to the guild.
    pub(super) fn route_to(&self, guild_id: i64, member_id: &str) -> Option<Route> {
        let view = self.directory.view();
        let member = view.member(member_id)?;
        let log = route::unit_of_guild(&view, guild_id).log();
        let described = route::describe(&view, &log, guild_id);
        Some(Route { guild_address: member.grpc_address.clone(), cell: member.cell.clone(), ..described })
    }

    /// The guild's task, started when it does not run.
    pub(super) fn start(self: &Arc<Self>, guild_id: i64, log: &str) -> Result<Handle, Refusal> {
        if self.is_draining() {
            return Err(Refusal::new(Reason::Draining, "this guild node is finishing").retry_after_ms(100));
        }
        let identity = Identity { guild_id, node: self.member_id.clone(), incarnation: self.incarnation };
        let log = if log.is_empty() { Unit::bucket(guild_id).log() } else { log.to_owned() };
        let handle = self.registry.get_or_start(guild_id, self.guild_limit, |generation| {
            actor::spawn(self.clone(), identity, log, generation)
        });
        handle.ok_or_else(|| {
            self.metrics.refused_actors.inc();
            Refusal::new(Reason::Overloaded, "this guild node holds as many guilds as it may").retry_after_ms(1000)
        })
    }

    /// The task of a guild that belongs here, told to own it. A guild that this node owns already is served whatever the directory says:
    /// the log decides, and hints are late.
    pub(super) fn owned(self: &Arc<Self>, guild_id: i64, hint: &str) -> Result<Handle, Refusal> {
        if let Some(handle) = self.registry.get(guild_id).filter(|handle| handle.shared.owner.load(Ordering::Acquire)) {
            return Ok(handle);
        }
        match self.decide(guild_id, hint) {
            Decision::Here(log) => {
                let handle = self.start(guild_id, &log)?;
                if !handle.shared.wanted.load(Ordering::Acquire) {
                    deliver(self, &handle, Envelope::Input(Input::Own))?;
                }
                Ok(handle)
            }
            Decision::Elsewhere(route) => {
                Err(Refusal::new(Reason::NotOwner, "another guild node serves this guild").with_route(route))
            }
            Decision::Unknown => {
                Err(Refusal::new(Reason::Wait, "no live guild node is known for this guild").retry_after_ms(200))
            }
        }
    }
}

/// Puts an envelope into a mailbox or fails at once with a hint.
pub(super) fn deliver(node: &Node, handle: &Handle, envelope: Envelope) -> Result<(), Refusal> {
    handle.mailbox.try_send(envelope).map_err(|_| {
        node.metrics.mailbox_overflows.inc();
        Refusal::new(Reason::Overloaded, format!("the guild's mailbox ({MAILBOX_LIMIT}) is full or closing"))
            .retry_after_ms(50)
    })
}
