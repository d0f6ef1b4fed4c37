//! The writer thread: takes what is queued as one group, does it in order, syncs once, then answers. Between groups, and while nobody asks
//! for anything, it drops step by step what range tombstones hide.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::disk::Disk;
use crate::engine::{Space, execute, sweep_step};
use crate::{Reply, Request, StoreError};

/// The most requests that share one sync.
const GROUP: usize = 256;

/// A request and where its answer goes.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) answer: oneshot::Sender<Result<Reply, StoreError>>,
}

pub(super) struct Writer {
    disk: Arc<Disk>,
    data_dir: PathBuf,
    reserve_bytes: u64,
    /// The last look at the volume found no room.
    was_full: Cell<bool>,
    /// There may be rows left that range tombstones hide; at first perhaps those of the process before.
    sweeping: Cell<bool>,
}

impl Writer {
    pub(super) fn new(disk: Arc<Disk>, data_dir: PathBuf, reserve_bytes: u64) -> Self {
        Self { disk, data_dir, reserve_bytes, was_full: Cell::new(false), sweeping: Cell::new(true) }
    }

    /// Works until nobody can send any more.
    pub(super) fn run(self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = self.next(&mut jobs) {
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(job) = jobs.try_recv()
            {
                group.push(job);
            }
            self.work(group);
            // However much is asked for: what is hidden must not be left for ever.
            self.sweep();
        }
    }

    /// Waits for somebody to ask; meanwhile it drops what is left to be dropped.
    fn next(&self, jobs: &mut mpsc::Receiver<Job>) -> Option<Job> {
        while self.sweeping.get() {
            match jobs.try_recv() {
                Ok(job) => return Some(job),
                Err(mpsc::error::TryRecvError::Empty) => self.sweep(),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
            }
        }
        jobs.blocking_recv()
    }

    /// One step. It is not synced: what a crash loses of it is dropped again.
    fn sweep(&self) {
        if !self.sweeping.get() || self.disk.is_broken() {
            return self.sweeping.set(false);
        }
        let stepped = sweep_step(&*self.disk).and_then(|changes| {
            self.sweeping.set(!changes.is_empty());
            if changes.is_empty() { Ok(()) } else { self.disk.commit(changes) }
        });
        if let Err(error) = stepped {
            self.sweeping.set(false);
            tracing::warn!(%error, "rows that a deletion hides stay on disk until the next large deletion or start");
        }
    }

    fn work(&self, group: Vec<Job>) {
        let room = self.check_room();
        self.tell(&room);
        let now_s = cell_runtime::unix_ms() / 1000;
        let mut wrote = false;
        let mut outcomes = Vec::with_capacity(group.len());
        for job in group {
            let outcome = self.one(job.request, &room, now_s);
            wrote |= matches!(outcome, Ok((_, true)));
            outcomes.push((job.answer, outcome));
        }
        // Answers to reads wait too: what they saw may have been written a moment ago, in this very group.
        let synced = if wrote { self.disk.sync() } else { Ok(()) };
        for (answer, outcome) in outcomes {
            let result = match (&synced, outcome) {
                (Err(error), Ok(_)) => Err(error.clone()),
                (_, outcome) => outcome.map(|(reply, _)| reply),
            };
            // A caller that went away does not need its answer.
            drop(answer.send(result));
        }
    }

    /// The answer, and whether something was written.
    fn one(&self, request: Request, room: &Result<(), StoreError>, now_s: i64) -> Result<(Reply, bool), StoreError> {
        if self.disk.is_broken() {
            return Err(StoreError::Unavailable(
                "a write to disk failed before; the store must be restarted".to_owned(),
            ));
        }
        let frees = matches!(request, Request::DropSegment(_));
        let (reply, changes) = execute(&*self.disk, request, now_s)?;
        if changes.is_empty() {
            return Ok((reply, false));
        }
        if !frees {
            room.clone()?;
        }
        if changes.iter().any(|(space, ..)| *space == Space::Sweeps) {
            self.sweeping.set(true);
        }
        self.disk.commit(changes)?;
        Ok((reply, true))
    }

    /// A volume that fills, and one that has room again, is said once each.
    fn tell(&self, room: &Result<(), StoreError>) {
        if self.was_full.replace(room.is_err()) == room.is_err() {
            return;
        }
        match room {
            Err(error) => tracing::warn!(%error, "writes are refused"),
            Ok(()) => tracing::info!("the volume has room again: writes are taken"),
        }
    }

    fn check_room(&self) -> Result<(), StoreError> {
        let Ok(volume) = rustix::fs::statvfs(&self.data_dir) else { return Ok(()) };
        let free_bytes = volume.f_bavail.saturating_mul(volume.f_frsize);
        if free_bytes >= self.reserve_bytes {
            return Ok(());
        }
        let path = self.data_dir.display().to_string();
        Err(StoreError::Full { path, free_bytes, reserve_bytes: self.reserve_bytes })
    }
}
