//! What others hold of a log's task: how it is told something, and what it shows of its log.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::{Head, Reason, Refusal};
use cell_store::Store;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::ring::Ring;
use crate::machine::{Command, CopyStatus, Inheritance, Outcome};

/// How long a caller waits for a claim.
const CLAIM: Duration = Duration::from_secs(15);

/// What a task is told.
pub(super) enum Message {
    Submit {
        command: Box<Command>,
        answer: oneshot::Sender<Outcome>,
    },
    Recheck,
    Close {
        run_id: String,
        answer: oneshot::Sender<u64>,
    },
    Reopen {
        run_id: String,
    },
    Switch {
        to_cell: String,
        answer: oneshot::Sender<(Head, u64)>,
    },
    Seal {
        moved_to: String,
        answer: oneshot::Sender<(Head, Inheritance)>,
    },
    Inspect {
        answer: oneshot::Sender<Inspection>,
    },
    /// Keep a copy in that StorageCell, for that run.
    Ship {
        target: String,
        run_id: String,
    },
    StopShipping,
    /// The sealed head and the last number come back; not if it is undone.
    CutOver {
        to: String,
        run_id: String,
        /// How often the copy was begun anew, by the receipt; none on the way back.
        restarts: Option<u64>,
        answer: oneshot::Sender<(Head, u64)>,
    },
    /// Nothing comes back when the log is given up first, to raise its term.
    EndCopy {
        target: String,
        run_id: String,
        answer: oneshot::Sender<()>,
    },
    /// The log's store is lost: this owner is none any more.
    Abandon,
}

/// What a task says about its log.
#[derive(Clone, Debug, Default)]
pub(super) struct Inspection {
    pub(super) last: u64,
    pub(super) applied: u64,
    pub(super) closed_by_run: String,
    pub(super) copy: Option<CopyStatus>,
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
    /// Where the log is served, once it was claimed.
    pub(super) serving: Mutex<Option<Serving>>,
    /// The copy, as the machine last told.
    pub(super) copy: Mutex<Option<CopyStatus>>,
}

/// The store that serves a log.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) name: String,
    pub(super) store: Arc<dyn Store>,
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

    /// The store that serves the log: all its reads go there.
    pub(super) fn serving(&self) -> Result<Serving, Refusal> {
        self.shared.serving.lock().clone().ok_or_else(|| self.released())
    }

    /// Claimed, and served by that StorageCell.
    pub(super) fn serves(&self, storage_cell: &str) -> bool {
        self.shared.serving.lock().as_ref().is_some_and(|serving| serving.name == storage_cell)
    }

    pub(super) fn store(&self) -> Result<Arc<dyn Store>, Refusal> {
        self.serving().map(|serving| serving.store)
    }

    pub(super) fn copy(&self) -> Option<CopyStatus> {
        self.shared.copy.lock().clone()
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

pub(super) fn gone() -> Refusal {
    Refusal::new(Reason::NotOwner, "the log was given up here; retry")
}
