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
use cell_store::{Reply, Request, StoreError};
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::copies::Copies;
use super::handle::{Inspection, LogHandle, Message, Serving, Shared, Status, gone};
use super::metrics::Metrics;
use super::stores::Stores;
use crate::machine::{Effect, Inheritance, Input, LogMachine, Outcome, Ticket};

/// Reads of one ask that run at once.
const PARALLEL_READS: usize = 32;
/// A log with nothing to do this long is given up; the next request claims it again.
const IDLE: Duration = Duration::from_secs(600);
/// A claim that still fails after this long is given up; the next request looks anew where the log is, which may have been failed over.
const CLAIM: Duration = Duration::from_secs(60);
/// How long a draining task may take to write its cursor.
const DRAIN: Duration = Duration::from_secs(5);

/// What a task works with.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) stores: Stores,
    pub(super) directory: Directory,
    pub(super) copies: Copies,
    pub(super) metrics: Metrics,
    pub(super) member_id: String,
    pub(super) shutdown: CancellationToken,
}

type Answers = Vec<Result<Reply, StoreError>>;
type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

struct Task {
    context: Context,
    log: Arc<str>,
    machine: LogMachine,
    shared: Arc<Shared>,
    asking: Option<Asking>,
    /// For the copy, beside it.
    copying: Option<(u64, Asking)>,
    copied: Copied,
    tickets: HashMap<Ticket, (oneshot::Sender<Outcome>, i64)>,
    next_ticket: Ticket,
    closing: HashMap<String, oneshot::Sender<u64>>,
    switching: Option<oneshot::Sender<(Head, u64)>>,
    sealing: Option<oneshot::Sender<(Head, Inheritance)>>,
    cutting: Option<oneshot::Sender<(Head, u64)>>,
    ending: Option<oneshot::Sender<()>>,
    /// Claimed with this last number, and not everything up to it applied yet.
    claimed: Option<(Head, u64)>,
}

/// What was counted of the copy so far.
#[derive(Default)]
struct Copied {
    entries: u64,
    failures: u64,
}

/// Starts the task of a log: it claims at once, as `first` says.
pub(super) fn start(context: Context, log: Arc<str>, machine: LogMachine, first: Input) -> LogHandle {
    let (messages, receiver) = mpsc::channel(4096);
    let shared = Arc::new(Shared {
        status: watch::Sender::new(Status::Claiming),
        applied: watch::Sender::new(0),
        ring: Mutex::default(),
        serving: Mutex::default(),
        copy: Mutex::default(),
    });
    let task = Task {
        context,
        log: log.clone(),
        machine,
        shared: shared.clone(),
        asking: None,
        copying: None,
        copied: Copied::default(),
        tickets: HashMap::new(),
        next_ticket: 0,
        closing: HashMap::new(),
        switching: None,
        sealing: None,
        cutting: None,
        ending: None,
        claimed: None,
    };
    tokio::spawn(task.run(receiver, first));
    LogHandle { log, messages, shared }
}

impl Task {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>, first: Input) {
        self.context.metrics.owned_logs.inc();
        self.input(first);
        let shutdown = self.context.shutdown.clone();
        let mut drain_by: Option<tokio::time::Instant> = None;
        let mut used = tokio::time::Instant::now();
        let claim_by = used + CLAIM;
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
                (id, results) = copying_or(&mut self.copying) => {
                    self.copying = None;
                    self.input(Input::CopyAnswered { id, results });
                }
                message = messages.recv() => match message {
                    Some(Message::Abandon) | None => break,
                    Some(message) => {
                        used = tokio::time::Instant::now();
                        self.message(message);
                    }
                },
                () = tokio::time::sleep(pause) => {
                    let followed = self.shared.applied.receiver_count() > 0;
                    if used.elapsed() >= IDLE && self.machine.may_be_given_up() && !followed {
                        break;
                    }
                    // One that is being answered goes on.
                    let failing = self.machine.is_claiming() && self.asking.is_none();
                    if failing && claim_by <= tokio::time::Instant::now() {
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
        self.end();
    }

    fn end(mut self) {
        self.context.metrics.owned_logs.dec();
        // Left over when a drain or a claim runs out of time: they may have been proposed, and nobody may say that they were not done
        // (rule 8).
        for (answer, _) in std::mem::take(&mut self.tickets).into_values() {
            let refusal =
                Refusal::new(Reason::UnknownOutcome, "the log was given up here; retry with the same operation id");
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
            Message::Ship { target, run_id } => self.input(Input::Ship { target, run_id }),
            Message::StopShipping => self.input(Input::StopShipping),
            Message::CutOver { to, run_id, restarts, answer } => {
                self.cutting = Some(answer);
                self.input(Input::CutOver { to, run_id, restarts });
            }
            Message::EndCopy { target, run_id, answer } => {
                self.ending = Some(answer);
                self.input(Input::EndCopy { target, run_id });
            }
            Message::Abandon => {}
            Message::Inspect { answer } => {
                let (last, applied) = self.machine.position().unwrap_or_default();
                let closed_by_run = self.machine.closed_by().unwrap_or_default().to_owned();
                let copy = self.machine.copy_status();
                drop(answer.send(Inspection { last, applied, closed_by_run, copy }));
            }
        }
    }

    fn input(&mut self, input: Input) {
        tracing::trace!(log = %self.log, input = input.label(), "input");
        for effect in self.machine.handle(input, unix_us()) {
            self.carry_out(effect);
        }
        self.show_copy();
    }

    /// Others see how far the copy is, and what it cost.
    fn show_copy(&mut self) {
        let status = self.machine.copy_status();
        if let Some(copy) = &status {
            let metrics = &self.context.metrics;
            metrics.shipped.inc_by(copy.entries.saturating_sub(self.copied.entries));
            metrics.ship_failures.inc_by(copy.failures.saturating_sub(self.copied.failures));
            self.copied = Copied { entries: copy.entries, failures: copy.failures };
        } else {
            self.copied = Copied::default();
        }
        *self.shared.copy.lock() = status;
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Ask(requests) => {
                let first = requests.first().map_or("", |(_, request)| request.label());
                tracing::trace!(log = %self.log, me = %self.context.member_id, first, count = requests.len(), "asks the store");
                let (stores, metrics) = (self.context.stores.clone(), self.context.metrics.clone());
                self.asking = Some(Box::pin(ask(stores, metrics, requests)));
            }
            Effect::AskForCopy { id, requests } => {
                let (stores, metrics) = (self.context.stores.clone(), self.context.metrics.clone());
                self.copying = Some((id, Box::pin(ask(stores, metrics, requests))));
            }
            Effect::Answer { ticket, outcome } => self.answer(ticket, outcome),
            Effect::Applied(entries) => self.applied(entries),
            Effect::Claimed { store, head, last } => self.claimed(store, head, last),
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
            Effect::CutOver { head, last } => {
                tracing::info!(log = %self.log, term = head.term, to = %head.moved_to, last, "cut over");
                if let Some(answer) = self.cutting.take() {
                    drop(answer.send((head, last)));
                }
            }
            Effect::CopyEnded => {
                if let Some(answer) = self.ending.take() {
                    let _gone = answer.send(());
                }
            }
            Effect::Trouble(what) => tracing::error!(log = %self.log, what, "the log's owner is in trouble"),
        }
    }

    fn claimed(&mut self, store: String, head: Head, last: u64) {
        tracing::info!(log = %self.log, term = head.term, last, store, "claimed");
        self.context.metrics.claims.inc();
        match self.context.stores.get(&store) {
            Ok(opened) => *self.shared.serving.lock() = Some(Serving { name: store.clone(), store: opened }),
            Err(error) => tracing::error!(log = %self.log, store, %error, "the serving store cannot be opened"),
        }
        self.publish(RouteHint {
            cell: head.cell.clone(),
            term: head.term,
            data_owner: self.context.member_id.clone(),
            ..RouteHint::default()
        });
        self.claimed = Some((head, last));
        self.serve_when_applied();
        // Whoever had it before may have kept a copy.
        if let Some((target, run_id)) = self.context.copies.wanted(&self.context.directory.view(), &self.log, &store) {
            self.input(Input::Ship { target, run_id });
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

async fn copying_or(copying: &mut Option<(u64, Asking)>) -> (u64, Answers) {
    match copying {
        Some((id, asking)) => (*id, asking.await),
        None => std::future::pending().await,
    }
}

async fn ask(stores: Stores, metrics: Metrics, requests: Vec<(String, Request)>) -> Vec<Result<Reply, StoreError>> {
    metrics.store_requests.inc_by(requests.len() as u64);
    let calls = requests.into_iter().map(|(name, request)| {
        let stores = stores.clone();
        async move { stores.call(&name, request).await }
    });
    let results: Vec<_> = futures::stream::iter(calls).buffered(PARALLEL_READS).collect().await;
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        metrics.store_failed(error.label());
    }
    results
}
