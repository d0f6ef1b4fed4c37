//! The newest applied entries of one log, bounded in bytes: what followers that keep up are fed from.

use std::collections::VecDeque;
use std::sync::Arc;

use cell_proto::v1::Entry;
use prost::Message as _;

/// Newest entries kept for followers, in bytes per log.
const RING_BYTES: usize = 8 << 20;

/// The newest applied entries.
#[derive(Default)]
pub(super) struct Ring {
    entries: VecDeque<(Arc<Entry>, usize)>,
    bytes: usize,
}

impl Ring {
    pub(super) fn push(&mut self, entry: Arc<Entry>) {
        let bytes = entry.encoded_len();
        self.bytes += bytes;
        self.entries.push_back((entry, bytes));
        while self.bytes > RING_BYTES
            && let Some((_, bytes)) = self.entries.pop_front()
        {
            self.bytes -= bytes;
        }
    }

    /// Up to `limit` entries from a number on; none when that number is older than the ring.
    pub(super) fn from(&self, number: u64, limit: usize) -> Option<Vec<Arc<Entry>>> {
        let first = self.entries.front()?.0.number;
        let skip = usize::try_from(number.checked_sub(first)?).ok()?;
        Some(self.entries.iter().skip(skip).take(limit).map(|(entry, _)| entry.clone()).collect())
    }
}
