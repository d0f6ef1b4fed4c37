//! A session's one buffer: numbered events, bounded in count and bytes, the oldest dropped first. Events are shared between sessions;
//! the buffer holds pointers.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::wire::event::Event;

/// Most events a session's buffer holds.
pub const MAX_EVENTS: usize = 10_000;
/// Most bytes of events a session's buffer holds.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Numbered events, contiguous.
#[derive(Debug, Default)]
pub struct Buffer {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    last: u64,
}

impl Buffer {
    /// Appends an event; answers its sequence and how many old ones fell off.
    pub fn push(&mut self, event: Arc<Event>) -> (u64, usize) {
        self.last += 1;
        self.bytes += event.cost();
        self.events.push_back(event);
        let mut dropped = 0;
        while self.events.len() > MAX_EVENTS || (self.bytes > MAX_BYTES && self.events.len() > 1) {
            if let Some(oldest) = self.events.pop_front() {
                self.bytes -= oldest.cost();
                dropped += 1;
            }
        }
        (self.last, dropped)
    }

    /// The last sequence given out; 0 before the first event.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The first sequence still held; `last + 1` when nothing is.
    pub fn first(&self) -> u64 {
        self.last + 1 - self.events.len() as u64
    }

    /// Whether everything after `sequence` is still held.
    pub fn covers(&self, sequence: u64) -> bool {
        sequence <= self.last && sequence + 1 >= self.first()
    }

    /// The event with this sequence.
    pub fn get(&self, sequence: u64) -> Option<&Arc<Event>> {
        let index = sequence.checked_sub(self.first())?;
        self.events.get(usize::try_from(index).ok()?)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees everything; the numbering goes on.
    pub fn clear(&mut self) {
        self.events = VecDeque::new();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn event(bytes: usize) -> Arc<Event> {
        Event::new("X", &json!("a".repeat(bytes)))
    }

    #[test]
    fn the_oldest_event_falls_off_at_the_count_bound() {
        let mut buffer = Buffer::default();
        let one = event(1);
        for _ in 0..MAX_EVENTS {
            assert_eq!(buffer.push(one.clone()).1, 0);
        }
        assert!(buffer.covers(0));
        assert_eq!(buffer.push(one), (MAX_EVENTS as u64 + 1, 1));
        assert!(!buffer.covers(0));
        assert!(buffer.covers(1));
    }

    #[test]
    fn the_byte_bound_holds_and_a_single_huge_event_is_kept() {
        let mut buffer = Buffer::default();
        let huge = event(MAX_BYTES + 1);
        buffer.push(huge);
        assert!(buffer.get(1).is_some());
        buffer.push(event(1));
        assert_eq!(buffer.first(), 2);
        assert!(buffer.bytes() <= MAX_BYTES);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn sequences_are_contiguous_and_bytes_add_up(sizes in proptest::collection::vec(0usize..400_000, 1..60)) {
            let mut buffer = Buffer::default();
            for (index, size) in sizes.iter().enumerate() {
                let (sequence, _) = buffer.push(event(*size));
                prop_assert_eq!(sequence, index as u64 + 1);
                let held: usize = (buffer.first()..=buffer.last()).map(|s| buffer.get(s).unwrap().cost()).sum();
                prop_assert_eq!(held, buffer.bytes());
                prop_assert!(buffer.bytes() <= MAX_BYTES);
                prop_assert!(buffer.get(buffer.first() - 1).is_none());
                prop_assert!(buffer.get(buffer.last() + 1).is_none());
            }
        }
    }
}
