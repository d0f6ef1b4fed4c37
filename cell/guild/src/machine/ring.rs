//! The recent entries of a guild, kept for replay: bounded by count and by bytes, in the guild's own order across the logs it lived in.
//! Answers from where a position can be replayed; never reads a log.

use std::collections::VecDeque;
use std::sync::Arc;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, GuildEvent, Position};
use prost::Message;

/// How much is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLimits {
    /// Entries.
    pub entries: usize,
    /// Bytes, as encoded.
    pub bytes: usize,
}

impl Default for RingLimits {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 8 * 1024 * 1024 }
    }
}

#[derive(Clone, Debug)]
struct Item {
    event: Arc<GuildEvent>,
    bytes: usize,
}

/// Entries after `base`, each with a sequence number that rises by one; positions map to sequence numbers.
#[derive(Clone, Debug)]
pub struct Ring {
    limits: RingLimits,
    base: Position,
    /// Nothing was dropped yet: `base` is where the state was read, not an entry that was seen.
    untouched: bool,
    first: u64,
    items: VecDeque<Item>,
    bytes: usize,
}

impl Ring {
    /// Empty: what follows `base` will be pushed.
    pub fn new(limits: RingLimits, base: Position) -> Self {
        Self { limits, base, untouched: true, first: 0, items: VecDeque::new(), bytes: 0 }
    }

    /// The sequence number the next pushed entry gets.
    pub fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// Whether the entry with this sequence number (or the end) can still be read.
    pub fn holds(&self, sequence: u64) -> bool {
        (self.first..=self.end()).contains(&sequence)
    }

    /// Adds the newest entry, dropping the oldest beyond the limits (one entry always stays). Gives its sequence number.
    pub fn push(&mut self, event: Arc<GuildEvent>) -> u64 {
        let bytes = event.encoded_len();
        self.bytes += bytes;
        let sequence = self.end();
        self.items.push_back(Item { event, bytes });
        while self.items.len() > 1 && (self.items.len() > self.limits.entries || self.bytes > self.limits.bytes) {
            self.drop_oldest();
        }
        sequence
    }

    fn drop_oldest(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        self.bytes -= item.bytes;
        self.first += 1;
        self.untouched = false;
        if let Some(position) = &item.event.position {
            self.base.clone_from(position);
        }
    }

    /// The event with this sequence number.
    pub fn get(&self, sequence: u64) -> Option<&Arc<GuildEvent>> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.items.get(index).map(|item| &item.event)
    }

    /// The sequence number of the first entry after a position, or `None` when what follows it is not (all) kept. Going back through
    /// time, the latest stay in the position's log that can hold it is the one meant.
    pub fn locate(&self, position: &Position) -> Option<u64> {
        for (index, item) in self.items.iter().enumerate().rev() {
            let after = self.first + index as u64 + 1;
            let at = item.event.position.as_ref()?;
            if at.log == position.log && at.number <= position.number {
                return Some(after);
            }
            if position.number == 0 && item.event.entry.as_ref().is_some_and(|entry| enters(entry, &position.log)) {
                return Some(after);
            }
        }
        (self.base.log == position.log && position.number >= self.base.number).then_some(self.first)
    }

    /// Whether a position in a guild's own log may as well be the end of an earlier stay there: a stay begins at the number where the one
    /// before it ended.
    pub fn is_ambiguous(&self, position: &Position) -> bool {
        position.log.starts_with('g') && (position.number == 0 || self.untouched && *position == self.base)
    }

    /// Events from a sequence number on: as many as fit in `limit` entries and `bytes` bytes, at least one when there is one.
    pub fn slice(&self, from: u64, limit: usize, bytes: usize) -> Vec<GuildEvent> {
        let start = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let mut total = 0;
        self.items
            .iter()
            .skip(start)
            .take(limit)
            .take_while(|item| {
                let fits = total == 0 || total + item.bytes <= bytes;
                total += item.bytes;
                fits
            })
            .map(|item| GuildEvent::clone(&item.event))
            .collect()
    }
}

/// Whether the entry is the split after which the guild lives in `log`.
pub fn enters(entry: &Entry, log: &str) -> bool {
    match entry.change.as_ref().and_then(|change| change.kind.as_ref()) {
        Some(Kind::Split(split)) => Unit::Guild(split.guild_id).log() == log,
        _ => false,
    }
}
