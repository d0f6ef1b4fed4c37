//! Walks: what follows a gateway's position that memory does not have, read from the logs the guild lived in, over the splits and merges since,
//! page by page at the link's pace, until memory goes on. Where the logs are gone, the gateway gets a snapshot instead.

use std::collections::VecDeque;

use cell_proto::unit::Unit;
use cell_proto::v1::{Entry, GuildEvent, Position, Reason, Refusal};

use super::GuildActor;
use super::crossing::merge_of;
use super::feed::guild_of;
use super::input::{Effect, Junction, LinkId, LogPage, Ticket};
use super::links::Phase;
use super::replay::Next;
use super::ring::enters;

/// A walk along logs, from a gateway's position towards what is kept in memory.
#[derive(Debug)]
pub(super) struct Walk {
    /// Everything up to here is delivered.
    delivered: Position,
    /// Everything up to here is read.
    read: Position,
    /// Where the guild went since, in order. None before it has been found out.
    junctions: Option<VecDeque<Junction>>,
}

impl Walk {
    pub(super) fn delivered(&self) -> &Position {
        &self.delivered
    }

    fn plan(&mut self, junctions: Vec<Junction>) {
        let mut junctions = VecDeque::from(junctions);
        // The position is the split itself: what follows it is in the guild's own log.
        if let Some(split) = junctions.pop_front_if(|first| {
            merge_of(&first.entry).is_none() && self.read.log.starts_with('b') && first.entry.number == self.read.number
        }) {
            let guild_id = guild_of(&split.entry).unwrap_or_default();
            self.read = Position { log: Unit::Guild(guild_id).log(), number: split.start_after };
        }
        self.junctions = Some(junctions);
    }

    /// The stay in the guild's own log is read to its end.
    fn is_at_merge(&self) -> bool {
        let sealed_at = self.next_merge().and_then(merge_of).map(|merge| merge.sealed_at);
        self.read.log.starts_with('g') && sealed_at.is_some_and(|sealed_at| sealed_at <= self.read.number)
    }

    fn next_merge(&self) -> Option<&Entry> {
        let first = self.junctions.as_ref()?.front()?;
        merge_of(&first.entry).map(|_| &first.entry)
    }
}

impl GuildActor {
    /// Finds out first where the guild went since: numbers alone do not tell one stay in a log from the next.
    pub(super) fn plan_walk(&mut self, link: LinkId, position: Position) {
        self.counters.replays_from_log += 1;
        let ticket = self.ticket();
        let Some(state) = self.links.get_mut(&link) else { return };
        let walk = Walk { delivered: position.clone(), read: position.clone(), junctions: None };
        state.phase = Phase::Reading { ticket, walk: Box::new(walk) };
        self.out.push(Effect::FindJunctions { ticket, since: position });
    }

    pub(super) fn read_on(&mut self, link: LinkId, walk: Box<Walk>) {
        let ticket = self.ticket();
        let (log, from) = (walk.read.log.clone(), walk.read.number + 1);
        let Some(state) = self.links.get_mut(&link) else { return };
        state.phase = Phase::Reading { ticket, walk };
        self.out.push(Effect::ReadLog { ticket, log, from });
    }

    fn reader(&mut self, ticket: Ticket) -> Option<(LinkId, Box<Walk>)> {
        let is_it = |phase: &Phase| matches!(phase, Phase::Reading { ticket: asked, .. } if *asked == ticket);
        let (link, state) = self.links.iter_mut().find(|(_, state)| is_it(&state.phase))?;
        match std::mem::replace(&mut state.phase, Phase::Live) {
            Phase::Reading { walk, .. } => Some((*link, walk)),
            other => {
                state.phase = other;
                None
            }
        }
    }

    pub(super) fn link_junctions_found(&mut self, ticket: Ticket, outcome: Result<Vec<Junction>, Refusal>) {
        let Some((link, mut walk)) = self.reader(ticket) else { return };
        match outcome {
            Ok(junctions) => {
                walk.plan(junctions);
                self.go_on(link, walk, Vec::new());
            }
            Err(refusal) if refusal.why().is_retryable() => self.refuse_link(link, refusal),
            // An earlier stay would lie behind the retention, and no session lives that long: the present one is meant.
            Err(_) => match self.ring.locate(&walk.delivered) {
                Some(sequence) => self.continue_from_memory(link, sequence),
                None => self.build_snapshot(link),
            },
        }
    }

    pub(super) fn link_log_read(&mut self, ticket: Ticket, outcome: Result<LogPage, Refusal>) {
        let Some((link, mut walk)) = self.reader(ticket) else { return };
        match outcome {
            Ok(page) => {
                let before = walk.read.clone();
                let events = self.take_page(&mut walk, page);
                if events.is_empty() && walk.read == before && !walk.is_at_merge() {
                    return self.end_of_log(link, &walk);
                }
                self.go_on(link, walk, events);
            }
            Err(refusal) if refusal.why().is_retryable() => self.refuse_link(link, refusal),
            // Behind the log's retention: the gateway is told by getting a snapshot that it cannot go on from where it was.
            Err(_) => self.build_snapshot(link),
        }
    }

    /// The log has no more, and memory does not go on from here: this node is behind the log. The gateway keeps its position.
    fn end_of_log(&mut self, link: LinkId, walk: &Walk) {
        tracing::debug!(log = walk.read.log, number = walk.read.number, "a replay is ahead of this node");
        let refusal = Refusal::new(Reason::Wait, "this node is behind the position; attach again");
        self.refuse_link(link, refusal.retry_after_ms(200));
    }

    /// Takes over the guild's entries of a page, to the end of its stay in that log. The rest is memory's or another log's.
    fn take_page(&self, walk: &mut Walk, page: LogPage) -> Vec<GuildEvent> {
        let sealed_at = walk.next_merge().and_then(merge_of).map(|merge| merge.sealed_at);
        let mut events = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            if entry.number <= walk.read.number || sealed_at.is_some_and(|sealed_at| entry.number > sealed_at) {
                continue;
            }
            walk.read.number = entry.number;
            if guild_of(&entry).is_some_and(|guild_id| guild_id != self.identity.guild_id) {
                continue;
            }
            let split = enters(&entry, &self.own_log());
            self.deliver(walk, &mut events, walk.read.clone(), entry);
            if split {
                let junction = walk.junctions.as_mut().and_then(VecDeque::pop_front);
                let number = junction.map_or(0, |junction| junction.start_after);
                walk.read = Position { log: self.own_log(), number };
                return events;
            }
        }
        walk.read.number = walk.read.number.max(page.scanned_to.min(sealed_at.unwrap_or(u64::MAX)));
        events
    }

    /// An entry read from a log names the policy version where it raised it, and 0 where it did not.
    fn deliver(&self, walk: &mut Walk, events: &mut Vec<GuildEvent>, position: Position, entry: Entry) {
        walk.delivered = position.clone();
        let (policy_version, member_count) = (entry.policy_version, self.view.member_count());
        events.push(GuildEvent { position: Some(position), entry: Some(entry), policy_version, member_count });
    }

    /// Goes on after a page: over a merge, into memory, or to the next page.
    fn go_on(&mut self, link: LinkId, mut walk: Box<Walk>, mut events: Vec<GuildEvent>) {
        if let Some(merge) = walk.next_merge().cloned()
            && walk.is_at_merge()
        {
            if let Some(junctions) = &mut walk.junctions {
                junctions.pop_front();
            }
            walk.read = Position { log: self.bucket_log(), number: merge.number };
            let position = walk.read.clone();
            self.deliver(&mut walk, &mut events, position, merge);
        }
        let crossings_left = walk.junctions.as_ref().is_some_and(|junctions| !junctions.is_empty());
        // No entry of the guild lies between what is delivered and what is read, so in the last stay either is as good.
        let located = || self.ring.locate(&walk.delivered).or_else(|| self.ring.locate(&walk.read));
        match if crossings_left { None } else { located() } {
            Some(sequence) => self.reach_memory(link, walk.delivered, sequence, events),
            None => self.send_and_read_on(link, walk, events),
        }
    }

    fn reach_memory(&mut self, link: LinkId, at: Position, sequence: u64, events: Vec<GuildEvent>) {
        if events.is_empty() {
            return self.continue_from_memory(link, sequence);
        }
        if let Some(state) = self.links.get_mut(&link) {
            state.phase = Phase::Pausing(Next::Memory { sequence, at });
            self.send_events(link, events, true);
        }
    }

    fn send_and_read_on(&mut self, link: LinkId, walk: Box<Walk>, events: Vec<GuildEvent>) {
        if events.is_empty() {
            return self.read_on(link, walk);
        }
        if let Some(state) = self.links.get_mut(&link) {
            state.phase = Phase::Pausing(Next::Log(walk));
            self.send_events(link, events, true);
        }
    }
}
