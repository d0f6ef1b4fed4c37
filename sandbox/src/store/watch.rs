//! Watches: each has its own short queue of published revisions. A watcher too slow for its queue is taken off live delivery and reads
//! history until it has caught up; if that history is compacted meanwhile, its watch ends. Nobody else notices either.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::error::{StoreError, WatchEnd};
use super::handle::Shared;
use super::mvcc::{Change, Revision};
use super::types::{RangeEnd, WatchBatch, WatchEvent, WatchFrom};

/// Revisions looked at in one go while catching up, so that the state is never locked for long.
const CATCH_UP_STEP: usize = 1024;

struct Slot {
    start: Bytes,
    end: RangeEnd,
    queue: Mutex<Queue>,
    changed: Notify,
}

struct Queue {
    /// Revisions with something for this watcher, oldest first.
    pending: VecDeque<Arc<Revision>>,
    /// Live delivery goes into `pending`. Otherwise history from `next` on, after `pending`, must be read first.
    live: bool,
    /// Everything before this revision has been handed out, or, when nothing is pending, looked at.
    next: i64,
    closed: bool,
}

impl Slot {
    fn wants(&self, change: &Change) -> bool {
        self.end.contains(&self.start, &change.kv.key)
    }

    fn wants_any(&self, revision: &Revision) -> bool {
        revision.changes.iter().any(|change| self.wants(change))
    }
}

/// Everybody who watches.
#[derive(Default)]
pub(crate) struct Hub {
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
    next_id: AtomicU64,
    /// Times a watcher was too slow for its queue.
    pub(crate) overflows: AtomicU64,
}

impl Hub {
    /// Delivers what has just been published. The state must still be locked for writing, so that nobody can join in between.
    pub(crate) fn offer(&self, revisions: &[Arc<Revision>], queue_limit: usize) {
        if revisions.is_empty() {
            return;
        }
        for slot in self.slots.lock().values() {
            let mut queue = slot.queue.lock();
            let mut offered = false;
            for revision in revisions {
                if !queue.live || revision.revision < queue.next || !slot.wants_any(revision) {
                    continue;
                }
                if queue.pending.len() >= queue_limit {
                    queue.live = false;
                    self.overflows.fetch_add(1, Ordering::Relaxed);
                } else {
                    queue.pending.push_back(Arc::clone(revision));
                }
                offered = true;
            }
            drop(queue);
            if offered {
                slot.changed.notify_one();
            }
        }
    }

    /// Ends every watch.
    pub(crate) fn close(&self) {
        for slot in self.slots.lock().values() {
            slot.queue.lock().closed = true;
            slot.changed.notify_one();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.lock().len()
    }
}

/// A running watch. Dropping it ends it.
pub struct Watch {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    id: u64,
    prev_kv: bool,
}

/// Tells how far a watch has come, while the watch itself is busy elsewhere.
#[derive(Clone)]
pub struct WatchProgress {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, from: WatchFrom) -> Result<Self, StoreError> {
        let max = shared.max_watches;
        let state = shared.state.read();
        let after_newest = state.visible() + 1;
        let next = from.from_revision.unwrap_or(after_newest).max(1);
        if next < state.compacted() {
            return Err(StoreError::Compacted { requested: next, compacted: state.compacted() });
        }
        let queue = Queue { pending: VecDeque::new(), live: next >= after_newest, next, closed: shared.is_closed() };
        let slot =
            Arc::new(Slot { start: from.start, end: from.end, queue: Mutex::new(queue), changed: Notify::new() });
        let id = shared.hub.next_id.fetch_add(1, Ordering::Relaxed);
        let mut slots = shared.hub.slots.lock();
        if slots.len() >= max {
            return Err(StoreError::TooManyWatches { max });
        }
        slots.insert(id, Arc::clone(&slot));
        drop(slots);
        drop(state);
        Ok(Self { shared, slot, id, prev_kv: from.prev_kv })
    }

    /// Waits for the next revision with something in the watched range. Safe to drop at any time: nothing is skipped.
    ///
    /// # Errors
    /// [`WatchEnd`]: the watch is over.
    pub async fn next(&mut self) -> Result<WatchBatch, WatchEnd> {
        loop {
            if let Some(batch) = self.take_pending()? {
                return Ok(batch);
            }
            if self.catch_up()? {
                tokio::task::yield_now().await;
                continue;
            }
            self.slot.changed.notified().await;
        }
    }

    /// The newest revision up to which everything has been handed out by [`Watch::next`].
    #[must_use]
    pub fn progress(&self) -> i64 {
        self.progress_handle().revision()
    }

    /// A handle that tells the progress while [`Watch::next`] is being awaited.
    #[must_use]
    pub fn progress_handle(&self) -> WatchProgress {
        WatchProgress { shared: Arc::clone(&self.shared), slot: Arc::clone(&self.slot) }
    }

    fn take_pending(&self) -> Result<Option<WatchBatch>, WatchEnd> {
        let mut queue = self.slot.queue.lock();
        if queue.closed {
            return Err(WatchEnd::Closed);
        }
        let Some(revision) = queue.pending.pop_front() else { return Ok(None) };
        queue.next = revision.revision + 1;
        drop(queue);
        let wanted = revision.changes.iter().filter(|change| self.slot.wants(change));
        let events = wanted.map(|change| WatchEvent {
            kind: change.kind(),
            kv: Arc::clone(&change.kv),
            prev: change.prev.clone().filter(|_| self.prev_kv),
        });
        Ok(Some(WatchBatch { revision: revision.revision, events: events.collect() }))
    }

    /// Reads on in history if this watch is not live; answers whether there may be something to take or more to read.
    fn catch_up(&self) -> Result<bool, WatchEnd> {
        let state = self.shared.state.read();
        let mut queue = self.slot.queue.lock();
        if queue.live || !queue.pending.is_empty() {
            return Ok(!queue.pending.is_empty());
        }
        if queue.next < state.compacted() {
            return Err(WatchEnd::Compacted { compacted: state.compacted() });
        }
        let mut looked_at = queue.next - 1;
        for revision in state.history(queue.next).take(CATCH_UP_STEP) {
            looked_at = revision.revision;
            if self.slot.wants_any(revision) {
                queue.pending.push_back(Arc::clone(revision));
                if queue.pending.len() >= self.shared.watch_queue {
                    break;
                }
            }
        }
        if looked_at >= state.visible() {
            // Nothing can be published while the state is locked: from here on delivery is live, after what is pending.
            queue.live = true;
        } else if queue.pending.is_empty() {
            queue.next = looked_at + 1;
        }
        // What is looked at but pending is handed out revision by revision, which moves `next`.
        Ok(!queue.live || !queue.pending.is_empty())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.hub.slots.lock().remove(&self.id);
    }
}

impl WatchProgress {
    /// As [`Watch::progress`].
    #[must_use]
    pub fn revision(&self) -> i64 {
        let state = self.shared.state.read();
        let queue = self.slot.queue.lock();
        if queue.live && queue.pending.is_empty() { state.visible() } else { queue.next - 1 }
    }
}
