//! The task of one log: feeds its machine with messages, store answers and time, and carries its effects out.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::RouteHint;
use cell_proto::v1::{Entry, Head, Reason, Refusal};
use cell_runtime::Directory;
use cell_runtime::clock::unix_us;
use cell_store::{Reply, Request, Store, StoreError};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::ring::Ring;
use crate::machine::{Command, Effect, Inheritance, Input, LogMachine, Outcome, Ticket};

/// Reads of one ask that run at once.
const PARALLEL_READS: usize = 32;
/// A log with nothing to do this long is given up; the next request claims it again.
const IDLE: Duration = Duration::from_secs(600);
/// How long a caller waits for a claim.
const CLAIM: Duration = Duration::from_secs(15);
/// How long a draining task may take to write its cursor.
const DRAIN: Duration = Duration::from_secs(5);

/// What a task is told.
pub(super) enum Message {
    Submit { command: Box<Command>, answer: oneshot::Sender<Outcome> },
    Recheck,
    Close { run_id: String, answer: oneshot::Sender<u64> },
    Reopen { run_id: String },
    Switch { to_cell: String, answer: oneshot::Sender<(Head, u64)> },
    Seal { moved_to: String, answer: oneshot::Sender<(Head, Inheritance)> },
    Inspect { answer: oneshot::Sender<Inspection> },
}

/// What a task says about its log.
#[derive(Clone, Debug, Default)]
pub(super) struct Inspection {
    pub(super) last: u64,
    pub(super) applied: u64,
    pub(super) closed_by_run: String,
}

/// Whether the log is owned here.
#[derive(Clone, Debug)]
pub(super) enum Status {
    Claiming,
    Owned(Head),
    Released(Refusal),
}

/// What followers and readers see of a task.
pub(super) struct Shared {
    pub(super) status: watch::Sender<Status>,
    /// Last applied number.
    pub(super) applied: watch::Sender<u64>,
    pub(super) ring: Mutex<Ring>,
}

/// A handle on a log's task.
#[derive(Clone)]
pub(super) struct LogHandle {
    pub(super) log: Arc<str>,
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) shared: Arc<Shared>,
}

impl LogHandle {
    /// Waits until the log is owned; bounded.
    pub(super) async fn owned(&self) -> Result<Head, Refusal> {
        tokio::time::timeout(CLAIM, self.settled()).await.unwrap_or_else(|_| {
            Err(Refusal::new(Reason::Wait, "the log is still being claimed; retry").retry_after_ms(500))
        })
    }

    async fn settled(&self) -> Result<Head, Refusal> {
        let mut status = self.shared.status.subscribe();
        loop {
            match &*status.borrow_and_update() {
                Status::Owned(head) => return Ok(head.clone()),
                Status::Released(refusal) => return Err(refusal.clone()),
                Status::Claiming => {}
            }
            if status.changed().await.is_err() {
                return Err(gone());
            }
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.messages.is_closed() && !matches!(&*self.shared.status.borrow(), Status::Released(_))
    }

    /// Sends a message and waits for what comes back.
    pub(super) async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Result<T, Refusal> {
        let (answer, receiver) = oneshot::channel();
        if let Err(error) = self.messages.try_send(message(answer)) {
            return Err(match error {
                mpsc::error::TrySendError::Full(_) => {
                    Refusal::new(Reason::Overloaded, "the log's mailbox is full").retry_after_ms(100)
                }
                mpsc::error::TrySendError::Closed(_) => self.released(),
            });
        }
        receiver.await.map_err(|_| self.released())
    }

    fn released(&self) -> Refusal {
        match &*self.shared.status.borrow() {
            Status::Released(refusal) => refusal.clone(),
            _ => gone(),
        }
    }
}

fn gone() -> Refusal {
    Refusal::new(Reason::NotOwner, "the log was given up here; retry")
}

/// What a task works with.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) store: Arc<dyn Store>,
    pub(super) directory: Directory,
    pub(super) metrics: Metrics,
    pub(super) member_id: String,
    pub(super) shutdown: CancellationToken,
}

type Asking = Pin<Box<dyn Future<Output = Vec<Result<Reply, StoreError>>> + Send>>;

struct Task {
    context: Context,
    log: Arc<str>,
    machine: LogMachine,
    shared: Arc<Shared>,
    asking: Option<Asking>,
    tickets: HashMap<Ticket, (oneshot::Sender<Outcome>, i64)>,
    next_ticket: Ticket,
    closing: HashMap<String, oneshot::Sender<u64>>,
    switching: Option<oneshot::Sender<(Head, u64)>>,
    sealing: Option<oneshot::Sender<(Head, Inheritance)>>,
    /// Claimed with this last number, and not everything up to it applied yet.
    claimed: Option<(Head, u64)>,
}

/// Starts the task of a log: it claims at once.
pub(super) fn start(context: Context, log: Arc<str>, machine: LogMachine) -> LogHandle {
    let (messages, receiver) = mpsc::channel(4096);
    let shared = Arc::new(Shared {
        status: watch::Sender::new(Status::Claiming),
        applied: watch::Sender::new(0),
        ring: Mutex::default(),
    });
    let task = Task {
        context,
        log: log.clone(),
        machine,
        shared: shared.clone(),
        asking: None,
        tickets: HashMap::new(),
        next_ticket: 0,
        closing: HashMap::new(),
        switching: None,
        sealing: None,
        claimed: None,
    };
    tokio::spawn(task.run(receiver));
    LogHandle { log, messages, shared }
}

impl Task {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        self.context.metrics.owned_logs.inc();
        self.input(Input::Claim);
        let shutdown = self.context.shutdown.clone();
        let mut drain_by: Option<tokio::time::Instant> = None;
        let mut used = tokio::time::Instant::now();
        while !self.machine.is_released() {
            if drain_by.is_some()
                && (self.machine.is_idle() || drain_by.is_some_and(|at| at <= tokio::time::Instant::now()))
            {
                break;
            }
            let pause = self.pause();
            tokio::select! {
                results = pending_or(&mut self.asking) => {
                    self.asking = None;
                    self.input(Input::Answered(results));
                }
                message = messages.recv() => match message {
                    Some(message) => {
                        used = tokio::time::Instant::now();
                        self.message(message);
                    }
                    None => break,
                },
                () = tokio::time::sleep(pause) => {
                    let followed = self.shared.applied.receiver_count() > 0;
                    if used.elapsed() >= IDLE && self.machine.is_idle() && !followed {
                        break;
                    }
                    self.input(Input::Tick);
                }
                () = shutdown.cancelled(), if drain_by.is_none() => {
                    drain_by = Some(tokio::time::Instant::now() + DRAIN);
                    self.input(Input::Close { run_id: "drain".to_owned() });
                }
            }
        }
        self.context.metrics.owned_logs.dec();
        // Left over when a drain runs out of time: they may have been proposed, so nobody may say that they were not done (rule 8).
        for (answer, _) in std::mem::take(&mut self.tickets).into_values() {
            let refusal =
                Refusal::new(Reason::UnknownOutcome, "this data service ends; retry with the same operation id");
            drop(answer.send(Err(refusal.retry_after_ms(50))));
        }
        self.shared.status.send_if_modified(|status| {
            let open = !matches!(status, Status::Released(_));
            if open {
                *status = Status::Released(gone());
            }
            open
        });
    }

    fn pause(&self) -> Duration {
        let Some(at) = self.machine.wake_at_us() else { return IDLE };
        let wait = u64::try_from(at - unix_us()).unwrap_or(0);
        Duration::from_micros(wait).min(IDLE)
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Submit { command, answer } => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.tickets.insert(ticket, (answer, unix_us()));
                self.input(Input::Submit { ticket, command });
            }
            Message::Recheck => self.input(Input::Recheck),
            Message::Close { run_id, answer } => {
                self.closing.insert(run_id.clone(), answer);
                self.input(Input::Close { run_id });
            }
            Message::Reopen { run_id } => self.input(Input::Reopen { run_id }),
            Message::Switch { to_cell, answer } => {
                self.switching = Some(answer);
                self.input(Input::Switch { to_cell });
            }
            Message::Seal { moved_to, answer } => {
                self.sealing = Some(answer);
                self.input(Input::Seal { moved_to });
            }
            Message::Inspect { answer } => {
                let (last, applied) = self.machine.position().unwrap_or_default();
                let closed_by_run = self.machine.closed_by().unwrap_or_default().to_owned();
                drop(answer.send(Inspection { last, applied, closed_by_run }));
            }
        }
    }

    fn input(&mut self, input: Input) {
        tracing::trace!(log = %self.log, input = input.label(), "input");
        for effect in self.machine.handle(input, unix_us()) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Ask(requests) => {
                let first = requests.first().map_or("", Request::label);
                tracing::trace!(log = %self.log, me = %self.context.member_id, first, count = requests.len(), "asks the store");
                let (store, metrics) = (self.context.store.clone(), self.context.metrics.clone());
                self.asking = Some(Box::pin(ask(store, metrics, requests)));
            }
            Effect::Answer { ticket, outcome } => self.answer(ticket, outcome),
            Effect::Applied(entries) => self.applied(entries),
            Effect::Claimed { head, last } => {
                tracing::info!(log = %self.log, term = head.term, last, "claimed");
                self.context.metrics.claims.inc();
                self.publish(RouteHint {
                    cell: head.cell.clone(),
                    term: head.term,
                    data_owner: self.context.member_id.clone(),
                    ..RouteHint::default()
                });
                self.claimed = Some((head, last));
                self.serve_when_applied();
            }
            Effect::Released { refusal } => {
                if matches!(&*self.shared.status.borrow(), Status::Owned(_)) {
                    self.context.metrics.step_backs.inc();
                    tracing::info!(log = %self.log, reason = refusal.why().label(), "given up");
                }
                self.shared.status.send_replace(Status::Released(refusal));
            }
            Effect::Drained { run_id, last } => {
                if let Some(answer) = self.closing.remove(&run_id) {
                    let _gone = answer.send(last);
                }
            }
            Effect::Switched { head, last } => {
                tracing::info!(log = %self.log, term = head.term, cell = %head.cell, last, "switched");
                self.publish(RouteHint { cell: head.cell.clone(), term: head.term, ..RouteHint::default() });
                if let Some(answer) = self.switching.take() {
                    drop(answer.send((head, last)));
                }
            }
            Effect::Sealed { head, inheritance } => {
                tracing::info!(log = %self.log, term = head.term, "sealed");
                let hint = RouteHint { cell: head.cell.clone(), term: head.term, merged: true, ..RouteHint::default() };
                self.publish(hint);
                if let Some(answer) = self.sealing.take() {
                    drop(answer.send((head, inheritance)));
                }
            }
            Effect::Trouble(what) => tracing::error!(log = %self.log, what, "the log's owner is in trouble"),
        }
    }

    fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some((answer, since_us)) = self.tickets.remove(&ticket) else { return };
        let metrics = &self.context.metrics;
        match &outcome {
            Ok(committed) if committed.duplicate => metrics.duplicates.inc(),
            Ok(_) => metrics.commits.inc(),
            Err(_) => 0,
        };
        metrics.commit_seconds.observe((unix_us() - since_us) as f64 / 1e6);
        // A caller that went away asks again with the same operation id.
        drop(answer.send(outcome));
    }

    fn applied(&mut self, entries: Vec<Arc<Entry>>) {
        self.context.metrics.batch_entries.observe(entries.len() as f64);
        let Some(last) = entries.last().map(|entry| entry.number) else { return };
        {
            let mut ring = self.shared.ring.lock();
            entries.into_iter().for_each(|entry| ring.push(entry));
        }
        self.shared.applied.send_modify(|applied| *applied = last.max(*applied));
        self.serve_when_applied();
    }

    /// Rule 5: everything behind is applied before the log is served, else readers would miss in the tables what they are told is there.
    fn serve_when_applied(&mut self) {
        let Some((_, applied)) = self.machine.position() else { return };
        let Some((head, last)) = self.claimed.take_if(|(_, last)| applied >= *last) else { return };
        self.shared.applied.send_modify(|applied| *applied = last.max(*applied));
        self.shared.status.send_replace(Status::Owned(head));
    }

    fn publish(&self, hint: RouteHint) {
        let (directory, log) = (self.context.directory.clone(), self.log.clone());
        tokio::spawn(async move {
            if let Err(error) = directory.publish_route(&log, &hint).await {
                tracing::debug!(%log, %error, "a route hint was not published; redirects serve instead");
            }
        });
    }
}

async fn pending_or(asking: &mut Option<Asking>) -> Vec<Result<Reply, StoreError>> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn ask(store: Arc<dyn Store>, metrics: Metrics, requests: Vec<Request>) -> Vec<Result<Reply, StoreError>> {
    metrics.store_requests.inc_by(requests.len() as u64);
    let calls = requests.into_iter().map(|request| store.call(request));
    let results: Vec<_> = futures::stream::iter(calls).buffered(PARALLEL_READS).collect().await;
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        metrics.store_failed(error.label());
    }
    results
}
