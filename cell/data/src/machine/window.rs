//! The dedupe window: which operations were committed in the last ten minutes, in this log or in one it took over from, and the newest
//! entries themselves. The entries are bounded by bytes, the operations by time and, when they are admitted, by number.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cell_proto::v1::{Entry, StoredEntry};
use prost::Message as _;

use super::types::{Inheritance, OperationId};

/// Newest entries kept whole, in bytes; older ones are read from their segment.
const RECENT_BYTES: usize = 4 << 20;

/// Where an operation was committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) number: u64,
    pub(super) segment: u64,
    /// Another log than the machine's own, and the StorageCell where it was read.
    pub(super) other_log: Option<Arc<(String, String)>>,
}

/// Operations by id, oldest first.
#[derive(Default, Debug)]
pub(super) struct Window {
    seen: HashMap<OperationId, Seen>,
    order: VecDeque<(i64, OperationId)>,
    recent: VecDeque<(Arc<Entry>, usize)>,
    recent_bytes: usize,
}

/// The operation id of an entry; entries without one cannot be asked for again.
pub(super) fn operation_of(entry: &Entry) -> Option<OperationId> {
    entry.operation_id.as_slice().try_into().ok()
}

impl Window {
    /// Operations remembered.
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    pub(super) fn get(&self, operation_id: &OperationId) -> Option<&Seen> {
        self.seen.get(operation_id)
    }

    /// An entry of the own log was committed.
    pub(super) fn insert(&mut self, entry: &Arc<Entry>, segment: u64) {
        if let Some(operation_id) = operation_of(entry) {
            self.order.push_back((entry.timestamp_us, operation_id));
            self.seen.insert(operation_id, Seen { number: entry.number, segment, other_log: None });
        }
        let bytes = entry.encoded_len();
        self.recent.push_back((entry.clone(), bytes));
        self.recent_bytes += bytes;
        while self.recent_bytes > RECENT_BYTES
            && let Some((_, bytes)) = self.recent.pop_front()
        {
            self.recent_bytes -= bytes;
        }
    }

    /// An entry of the own log was committed and applied before this owner came; only its operation is kept.
    pub(super) fn note(&mut self, stored: &StoredEntry, segment: u64) {
        if let Ok(operation_id) = stored.operation_id.as_slice().try_into() {
            self.order.push_back((stored.timestamp_us, operation_id));
            self.seen.insert(operation_id, Seen { number: stored.number, segment, other_log: None });
        }
    }

    /// Another log's operations count as committed.
    pub(super) fn inherit(&mut self, inheritance: &Inheritance) {
        let log = Arc::new((inheritance.log.clone(), inheritance.store.clone()));
        for (operation_id, number, segment, timestamp_us) in &inheritance.operations {
            let seen = Seen { number: *number, segment: *segment, other_log: Some(log.clone()) };
            if self.seen.insert(*operation_id, seen).is_none() {
                self.order.push_back((*timestamp_us, *operation_id));
            }
        }
    }

    /// Forgets what is older than the window. Timestamps rise except where another log was inherited, which only keeps some longer.
    pub(super) fn prune(&mut self, oldest_us: i64) {
        while self.order.front().is_some_and(|(timestamp_us, _)| *timestamp_us < oldest_us) {
            if let Some((_, operation_id)) = self.order.pop_front() {
                self.seen.remove(&operation_id);
            }
        }
    }

    /// The entry with a number of the own log, if it is among the newest.
    pub(super) fn recent(&self, number: u64) -> Option<&Arc<Entry>> {
        let first = self.recent.front()?.0.number;
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        self.recent.get(index).map(|(entry, _)| entry).filter(|entry| entry.number == number)
    }

    /// What a log that takes over must know.
    pub(super) fn operations(&self) -> Vec<(OperationId, u64, u64, i64)> {
        let own = |(timestamp_us, operation_id): &(i64, OperationId)| {
            let seen = self.seen.get(operation_id).filter(|seen| seen.other_log.is_none())?;
            Some((*operation_id, seen.number, seen.segment, *timestamp_us))
        };
        self.order.iter().filter_map(own).collect()
    }
}
