//! One guild's task: takes envelopes, lets the machine decide, has the effects done. It never waits for anything but its mailbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ask::{Envelope, Waiter};
use super::link_queue::LinkQueue;
use super::memberships::{self, Order};
use super::node::Node;
use super::registry::Shared;
use crate::machine::{Counters, GuildActor, Identity, Input, LinkId, OUTSTANDING_LIMIT, Pressure, Ticket};

/// Envelopes waiting for one guild.
pub(super) const MAILBOX_LIMIT: usize = 8192;
/// Orders waiting: what one ownership may have outstanding, and some left of the one before.
const ORDER_LIMIT: usize = OUTSTANDING_LIMIT + 64;
/// From here on typing is shed, until the mailbox is down to half of it.
const ALARM_MARK: usize = MAILBOX_LIMIT / 4;

/// A guild's machine with everything around it.
pub(super) struct ActorTask {
    pub(super) node: Arc<Node>,
    pub(super) guild_id: i64,
    pub(super) machine: GuildActor,
    pub(super) mailbox: mpsc::Sender<Envelope>,
    pub(super) shared: Arc<Shared>,
    pub(super) links: HashMap<LinkId, Arc<LinkQueue>>,
    pub(super) waiters: HashMap<Ticket, Waiter>,
    pub(super) feed: Option<JoinHandle<()>>,
    pub(super) orders: mpsc::Sender<Order>,
    /// Cancelled when this node owns the guild no more: nobody is told memberships in its name then.
    pub(super) ownership: CancellationToken,
    pub(super) stopped: bool,
    generation: u64,
    counted: Counters,
    alarmed: bool,
    tickets: Ticket,
}

/// Starts a guild's task.
pub(super) fn spawn(
    node: Arc<Node>,
    identity: Identity,
    log: String,
    generation: u64,
) -> (mpsc::Sender<Envelope>, Arc<Shared>) {
    let (mailbox, inbox) = mpsc::channel(MAILBOX_LIMIT);
    let shared = Arc::new(Shared::default());
    let (orders, to_do) = mpsc::channel(ORDER_LIMIT);
    let feeder = tokio::spawn(memberships::run(node.data.clone(), mailbox.clone(), to_do));
    let guild_id = identity.guild_id;
    let task = ActorTask {
        machine: GuildActor::new(identity, log, node.limits, node.now()),
        node,
        guild_id,
        mailbox: mailbox.clone(),
        shared: shared.clone(),
        links: HashMap::new(),
        waiters: HashMap::new(),
        feed: None,
        orders,
        ownership: CancellationToken::new(),
        stopped: false,
        generation,
        counted: Counters::default(),
        alarmed: false,
        tickets: 0,
    };
    tokio::spawn(task.run(inbox, feeder));
    (mailbox, shared)
}

impl ActorTask {
    async fn run(mut self, mut inbox: mpsc::Receiver<Envelope>, feeder: JoinHandle<()>) {
        self.node.metrics.actors.inc();
        let mut ticked = Instant::now();
        while !self.stopped {
            let due = ticked + Duration::from_millis(self.machine.tick_in_ms());
            tokio::select! {
                envelope = inbox.recv() => match envelope {
                    Some(envelope) => self.take(envelope, inbox.len()),
                    None => break,
                },
                () = tokio::time::sleep_until(due) => {}
            }
            if Instant::now() >= due {
                ticked = Instant::now();
                self.detach_closed();
                self.step(Input::Tick);
                self.count();
            }
        }
        inbox.close();
        while let Ok(envelope) = inbox.try_recv() {
            // Whoever came too late finds the next task: dropped senders are answered as "retry".
            drop(envelope);
        }
        self.count();
        if let Some(feed) = self.feed.take() {
            feed.abort();
        }
        self.ownership.cancel();
        feeder.abort();
        self.shared.owner.store(false, Ordering::Release);
        self.shared.wanted.store(false, Ordering::Release);
        self.node.registry.remove(self.guild_id, self.generation);
        self.node.metrics.actors.dec();
    }

    /// Links whose end had no room in the mailbox.
    fn detach_closed(&mut self) {
        let closed: Vec<LinkId> =
            self.links.iter().filter(|(_, queue)| queue.is_closed()).map(|(link, _)| *link).collect();
        for link in closed {
            self.links.remove(&link);
            self.step(Input::Detach { link });
        }
    }

    fn take(&mut self, envelope: Envelope, waiting: usize) {
        self.watch_pressure(waiting);
        match envelope {
            Envelope::Input(input) => {
                if let Input::Detach { link } = &input {
                    self.links.remove(link);
                }
                self.step(input);
            }
            Envelope::Attach { queue, position, user_ids, standby } => {
                let link = queue.id;
                self.links.insert(link, queue);
                self.step(Input::Attach { link, position, user_ids, standby });
            }
            Envelope::Ask(ask) => {
                self.tickets += 1;
                let (input, waiter) = ask.into_input(self.tickets);
                self.waiters.insert(self.tickets, waiter);
                self.step(input);
            }
            Envelope::Drain(route) => {
                self.step(Input::Drain(route));
                self.stopped = true;
            }
        }
    }

    fn watch_pressure(&mut self, waiting: usize) {
        let alarmed = if self.alarmed { waiting > ALARM_MARK / 2 } else { waiting > ALARM_MARK };
        if alarmed != self.alarmed {
            self.alarmed = alarmed;
            if alarmed {
                self.node.metrics.mailbox_alarms.inc();
            }
            self.step(Input::Pressure(if alarmed { Pressure::Alarm } else { Pressure::Calm }));
        }
    }

    pub(super) fn step(&mut self, input: Input) {
        let owned = self.machine.held_guild_term();
        let effects = self.machine.handle(input, self.node.now());
        if self.machine.held_guild_term() != owned {
            std::mem::take(&mut self.ownership).cancel();
        }
        for effect in effects {
            self.perform(effect);
        }
        self.shared.owner.store(self.machine.is_owner(), Ordering::Release);
        self.shared.wanted.store(self.machine.is_wanted(), Ordering::Release);
    }

    fn count(&mut self) {
        let counters = self.machine.counters();
        self.node.metrics.add(&self.counted, &counters);
        self.counted = counters;
        self.shared.messages.store(counters.messages, Ordering::Relaxed);
        let sessions = if self.machine.is_owner() { self.machine.sessions() } else { 0 };
        self.shared.sessions.store(sessions, Ordering::Relaxed);
    }
}
