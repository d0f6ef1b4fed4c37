//! The one thread that changes the store: it takes what has queued up, stages it, makes it durable with one sync, then shows it and
//! answers. While a sync runs the next group gathers. It decides nothing about keys, and it never answers yes before the disk has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::error::StoreError;
use super::handle::Shared;
use super::journal::{Journal, JournalError};
use super::mvcc::{CompactionPlan, Mvcc};
use super::options::StoreOptions;
use super::types::{LeaseGrant, Txn, TxnResult};

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer can be asked.
pub(crate) enum Command {
    Txn {
        txn: Txn,
        reply: Reply<TxnResult>,
    },
    /// Answers (id, seconds granted).
    Grant {
        grant: LeaseGrant,
        reply: Reply<(i64, i64)>,
    },
    /// Answers the revision of the deletions.
    Revoke {
        id: i64,
        reply: Reply<i64>,
    },
    /// Answers the store's revision.
    Compact {
        revision: i64,
        reply: Reply<i64>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

/// An answer held back until what it rests on is durable.
enum Held {
    Txn(Reply<TxnResult>, Result<TxnResult, StoreError>),
    Grant(Reply<(i64, i64)>, Result<(i64, i64), StoreError>),
    Number(Reply<i64>, Result<i64, StoreError>),
}

impl Held {
    /// A caller that went away meanwhile does not want its answer.
    fn send(self) {
        match self {
            Self::Txn(reply, answer) => drop(reply.send(answer)),
            Self::Grant(reply, answer) => drop(reply.send(answer)),
            Self::Number(reply, answer) => drop(reply.send(answer)),
        }
    }

    fn refuse(self, error: StoreError) {
        match self {
            Self::Txn(reply, _) => Self::Txn(reply, Err(error)).send(),
            Self::Grant(reply, _) => Self::Grant(reply, Err(error)).send(),
            Self::Number(reply, _) => Self::Number(reply, Err(error)).send(),
        }
    }
}

/// Leases ended in one group, so that a mass expiry cannot hold up everything else.
const EXPIRED_PER_GROUP: usize = 256;
/// How long to leave a failing disk alone.
const RETRY_DISK: Duration = Duration::from_secs(1);
/// The longest nap; nothing depends on it.
const LONGEST_NAP: Duration = Duration::from_secs(5);

pub(crate) struct Writer {
    shared: Arc<Shared>,
    journal: Box<dyn Journal>,
    options: StoreOptions,
    /// When the next attempt may be made, after a failure; `None` if none may.
    retry_at: Option<Instant>,
    trouble: Option<StoreError>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, journal: Box<dyn Journal>, options: StoreOptions) -> Self {
        Self { shared, journal, options, retry_at: None, trouble: None }
    }

    /// Serves commands until the store is closed or nobody holds it any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let shared = Arc::clone(&self.shared);
        // However this thread ends, nobody must wait for it.
        let _closing = CloseOnDrop(shared);
        let mut group = Vec::with_capacity(self.options.group_commit);
        loop {
            let nap = tokio::time::sleep_until(self.wake_at().into());
            let closed = tokio::select! {
                taken = commands.recv_many(&mut group, self.options.group_commit) => taken == 0,
                () = nap => false,
            };
            if closed {
                return;
            }
            let close = self.turn(std::mem::take(&mut group));
            if let Some(reply) = close {
                self.shared.close();
                drop(self.journal);
                let _ = reply.send(());
                return;
            }
        }
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        if self.trouble.is_some() {
            return self.retry_at.unwrap_or(now + LONGEST_NAP);
        }
        let expiry = self.shared.state.read().next_expiry_ms();
        let expiry = expiry.map(|at| self.shared.started + Duration::from_millis(at));
        expiry.unwrap_or(now + LONGEST_NAP).clamp(now, now + LONGEST_NAP)
    }

    /// One group; answers the reply to send if the store is to close.
    fn turn(&mut self, group: Vec<Command>) -> Option<oneshot::Sender<()>> {
        self.heal();
        let (mut held, mut compactions, mut close) = (Vec::new(), Vec::new(), None);
        {
            let mut state = self.shared.state.write();
            for command in group {
                match command {
                    Command::Close { reply } => close = Some(reply),
                    Command::Compact { revision, reply } => compactions.push((revision, reply)),
                    other => held.push(stage(&mut state, other, self.shared.now_ms())),
                }
            }
            if self.trouble.is_none() {
                state.stage_expired(self.shared.now_ms(), EXPIRED_PER_GROUP);
            }
        }
        self.settle(held);
        for (revision, reply) in compactions {
            let answer = self.compact(revision);
            let _ = reply.send(answer.map(|()| self.shared.state.read().visible()));
        }
        self.compact_if_due();
        close
    }

    /// Makes the group durable and answers it.
    fn settle(&mut self, held: Vec<Held>) {
        match self.persist() {
            Ok(()) => {
                self.shared.publish();
                held.into_iter().for_each(Held::send);
            }
            Err(error) => {
                self.shared.state.write().roll_back();
                self.shared.counters.refused_writes.add(held.len() as u64);
                held.into_iter().for_each(|held| held.refuse(error.clone()));
            }
        }
    }

    fn persist(&mut self) -> Result<(), StoreError> {
        let state = self.shared.state.upgradable_read();
        let (revisions, leases) = state.staged();
        if revisions.is_empty() && leases.is_empty() {
            return Ok(());
        }
        if let Some(trouble) = &self.trouble {
            return Err(trouble.clone());
        }
        let (revisions, leases) = (revisions.to_vec(), leases.to_vec());
        drop(state);
        let written = self.journal.append(&revisions, &leases);
        self.shared.counters.commits.add(1);
        written.map_err(|error| self.note_failure(error))
    }

    fn compact(&mut self, revision: i64) -> Result<(), StoreError> {
        let plan: CompactionPlan = self.shared.state.read().plan_compaction(revision)?;
        if let Some(trouble) = &self.trouble {
            return Err(trouble.clone());
        }
        self.journal.compact(&plan).map_err(|error| self.note_failure(error))?;
        self.shared.state.write().compact(&plan);
        Ok(())
    }

    fn compact_if_due(&mut self) {
        let Some(policy) = self.options.auto_compaction.filter(|_| self.trouble.is_none()) else { return };
        let due = self.shared.state.write().compaction_due(policy, self.shared.now_ms());
        let Some(revision) = due else { return };
        match self.compact(revision) {
            Ok(()) => tracing::debug!(revision, "compacted"),
            Err(error) => tracing::warn!(revision, %error, "compaction failed"),
        }
    }

    fn note_failure(&mut self, error: JournalError) -> StoreError {
        let trouble = match &error {
            JournalError::Full => StoreError::DiskFull { path: self.shared.path.clone() },
            JournalError::Stopped(reason) | JournalError::Failed(reason) => {
                StoreError::ReadOnly { reason: reason.clone() }
            }
        };
        let retry = !matches!(error, JournalError::Failed(_));
        tracing::error!(%error, retry, "store cannot write; reads go on");
        self.retry_at = retry.then(|| Instant::now() + RETRY_DISK);
        self.trouble = Some(trouble.clone());
        *self.shared.trouble.lock() = Some(trouble.clone());
        trouble
    }

    /// After a failure that may pass: tries to write again, not too often.
    fn heal(&mut self) {
        if self.trouble.is_none() || self.retry_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        let (newest, leases) = {
            let state = self.shared.state.read();
            (state.visible(), state.leases().collect::<Vec<_>>())
        };
        match self.journal.recover(newest, &leases) {
            Ok(()) => {
                tracing::info!("store can write again");
                self.trouble = None;
                self.retry_at = None;
                *self.shared.trouble.lock() = None;
            }
            Err(error) => drop(self.note_failure(error)),
        }
    }
}

fn stage(state: &mut Mvcc, command: Command, now_ms: u64) -> Held {
    match command {
        Command::Txn { txn, reply } => {
            let answer = state.stage_txn(&txn);
            Held::Txn(reply, answer)
        }
        Command::Grant { grant, reply } => Held::Grant(reply, state.stage_grant(grant, now_ms)),
        Command::Revoke { id, reply } => Held::Number(reply, state.stage_revoke(id)),
        // Compactions and closing are taken out before staging.
        Command::Compact { reply, .. } => Held::Number(reply, Err(StoreError::Closed)),
        Command::Close { .. } => Held::Number(oneshot::channel().0, Err(StoreError::Closed)),
    }
}

struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
