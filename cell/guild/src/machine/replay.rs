//! Replays from memory: what follows a gateway's position, one frame at a time at the link's pace. What memory does not have, or cannot tell
//! apart, is left to a walk along the logs.

use std::sync::Arc;

use cell_proto::v1::{GuildEvent, Position};

use super::GuildActor;
use super::input::{Effect, LinkId};
use super::links::Phase;
use super::walk::Walk;

/// What follows the frame in a link's queue.
#[derive(Debug)]
pub(super) enum Next {
    /// Entries from this sequence number on; everything up to `at` is delivered.
    Memory { sequence: u64, at: Position },
    /// The next page.
    Log(Box<Walk>),
}

impl GuildActor {
    /// Sends what follows a position, then goes live.
    pub(super) fn resume_at(&mut self, link: LinkId, position: Position) {
        match self.ring.locate(&position) {
            Some(sequence) if !self.ring.is_ambiguous(&position) => {
                self.counters.replays_from_memory += 1;
                self.continue_from_memory(link, sequence);
            }
            _ if position.log == self.own_log() || position.log == self.bucket_log() => self.plan_walk(link, position),
            _ => self.build_snapshot(link),
        }
    }

    pub(super) fn continue_from_memory(&mut self, link: LinkId, sequence: u64) {
        let events = self.ring.slice(sequence, self.limits.frame_entries, self.limits.frame_bytes);
        let next = sequence + events.len() as u64;
        let at = events.last().and_then(|event| event.position.clone());
        let more = next < self.ring.end();
        let Some(state) = self.links.get_mut(&link) else { return };
        state.phase = match at {
            Some(at) if more => Phase::Pausing(Next::Memory { sequence: next, at }),
            _ => Phase::Live,
        };
        self.send_events(link, events, more);
    }

    pub(super) fn send_events(&mut self, link: LinkId, events: Vec<GuildEvent>, paced: bool) {
        if !events.is_empty() {
            let frame = Arc::new(self.events_frame(events));
            self.out.push(Effect::Send { link, frame, paced });
        }
    }

    /// The paced frame has left the link's queue.
    pub(super) fn drained(&mut self, link: LinkId) {
        let Some(state) = self.links.get_mut(&link) else { return };
        match std::mem::replace(&mut state.phase, Phase::Live) {
            Phase::Pausing(Next::Memory { sequence, .. }) if self.ring.holds(sequence) => {
                self.continue_from_memory(link, sequence);
            }
            Phase::Pausing(Next::Memory { at, .. }) => self.resume_at(link, at),
            Phase::Pausing(Next::Log(walk)) => self.read_on(link, walk),
            other => state.phase = other,
        }
    }
}
