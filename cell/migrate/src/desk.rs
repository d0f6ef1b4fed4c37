//! Where leases are given: the ranges machine and its ledger behind one lock. No answer leaves before its records are durable; after a write
//! to the ledger failed there are no answers any more.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::ledger::{Ledger, LedgerError};
use crate::ranges::{
    Control, ControlError, Grant, LaneName, Machine, Progress, RangeRow, Record, Settings, State, Verdict,
};

/// Why the desk does not answer.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The ledger failed, now or earlier.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// An earlier write failed: what is in memory may be ahead of the file.
    #[error("an earlier write to the state file failed; start again to go on from what is on disk")]
    Broken,
    /// The request is refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It is elsewhere, and does not answer.
    #[error("the coordinator does not answer: {0}")]
    Away(String),
}

/// Who gives leases, here or over the network.
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// A range, or none for now.
    async fn lease(&self, worker: &str) -> Result<Option<Grant>, DeskError>;
    /// Progress on one, or its end.
    async fn report(&self, progress: Progress) -> Result<Verdict, DeskError>;
}

struct Inner {
    machine: Machine,
    ledger: Ledger,
    broken: bool,
}

/// The desk.
#[derive(Clone)]
pub struct Desk {
    inner: Arc<Mutex<Inner>>,
}

impl Desk {
    /// Goes on where the ledger stopped; what was in flight then is done again, and counted.
    ///
    /// # Errors
    /// [`DeskError::Ledger`].
    pub fn open(mut ledger: Ledger, settings: Settings, lanes: Vec<(LaneName, u64)>) -> Result<Self, DeskError> {
        let (machine, records) = Machine::restore(settings, lanes, ledger.load()?);
        ledger.commit(&records)?;
        Ok(Self { inner: Arc::new(Mutex::new(Inner { machine, ledger, broken: false })) })
    }

    async fn with<T: Send + 'static>(
        &self,
        decide: impl FnOnce(&mut Machine, i64) -> Result<(T, Vec<Record>), ControlError> + Send + 'static,
    ) -> Result<T, DeskError> {
        let inner = self.inner.clone();
        // Syncing a file takes milliseconds.
        let task = tokio::task::spawn_blocking(move || {
            let mut inner = inner.lock();
            if inner.broken {
                return Err(DeskError::Broken);
            }
            let (answer, records) = decide(&mut inner.machine, cell_runtime::unix_ms())?;
            if let Err(error) = inner.ledger.commit(&records) {
                inner.broken = true;
                return Err(error.into());
            }
            Ok(answer)
        });
        task.await.unwrap_or(Err(DeskError::Broken))
    }

    /// Sets what is to be done; answers what it looks like then.
    ///
    /// # Errors
    /// [`DeskError`].
    pub async fn control(&self, control: Control) -> Result<State, DeskError> {
        self.with(move |machine, now| {
            let records = machine.control(control, now)?;
            Ok((machine.state(now), records))
        })
        .await
    }

    /// Gives what was not renewed to others; answers what it looks like then.
    ///
    /// # Errors
    /// [`DeskError`].
    pub async fn state(&self) -> Result<State, DeskError> {
        self.with(|machine, now| {
            let records = machine.expire(now);
            Ok((machine.state(now), records))
        })
        .await
    }

    /// The ranges one by one.
    pub fn ranges(&self, after: &str, limit: usize) -> (Vec<RangeRow>, String) {
        self.inner.lock().machine.ranges(after, limit)
    }
}

#[async_trait]
impl Leases for Desk {
    async fn lease(&self, worker: &str) -> Result<Option<Grant>, DeskError> {
        let worker = worker.to_owned();
        self.with(move |machine, now| Ok(machine.lease(&worker, now))).await
    }

    async fn report(&self, progress: Progress) -> Result<Verdict, DeskError> {
        self.with(move |machine, now| Ok(machine.report(progress, now))).await
    }
}
