//! The role's metrics. Labels are bounded: no guild is named.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::machine::Counters;

/// What is counted over all guilds of this node.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    entries: Counter,
    messages: Counter,
    repeated: Counter,
    stale_terms: Counter,
    stale_guild_terms: Counter,
    gaps: Counter,
    shed_typing: Counter,
    snapshots: Counter,
    replays_from_memory: Counter,
    replays_from_log: Counter,
    refused_mutations: Counter,
    overflowed_mutations: Counter,
    claims: Counter,
    step_backs: Counter,
    /// Guilds held.
    pub(super) actors: Gauge<i64, AtomicI64>,
    /// Guilds refused because the node is full.
    pub(super) refused_actors: Counter<u64, AtomicU64>,
    /// Links open.
    pub(super) links: Gauge<i64, AtomicI64>,
    /// Links reset because their queue was full.
    pub(super) link_resets: Counter,
    /// Frames put into links' queues.
    pub(super) frames: Counter,
    /// Typing dropped before a full mailbox.
    pub(super) dropped_typing: Counter,
    pub(super) memberships_left_out: Counter,
    /// Times a mailbox passed its alarm mark.
    pub(super) mailbox_alarms: Counter,
    /// Requests refused because a mailbox stayed full.
    pub(super) mailbox_overflows: Counter,
}

impl Metrics {
    /// Registers everything under `guild_`.
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("guild");
        let counters: [(&str, &str, &Counter); 19] = [
            ("entries", "Log entries applied by guild actors", &self.entries),
            ("messages", "Messages among them", &self.messages),
            ("repeated_entries", "Entries seen again and dropped; rises at failovers", &self.repeated),
            ("stale_feeds", "Feed batches refused for their lower term", &self.stale_terms),
            ("stale_claims", "Claims refused for their lower guild term", &self.stale_guild_terms),
            ("feed_gaps", "Holes in feeds, after which they were opened anew; should stay 0", &self.gaps),
            ("shed_typing", "Typing shed by actors under alarm", &self.shed_typing),
            ("snapshots", "Snapshots sent to gateways", &self.snapshots),
            ("memory_replays", "Replays begun from memory", &self.replays_from_memory),
            ("log_replays", "Replays begun from the log", &self.replays_from_log),
            ("refused_mutations", "Structural changes refused", &self.refused_mutations),
            (
                "overflowed_mutations",
                "Structural changes refused because the queue was full",
                &self.overflowed_mutations,
            ),
            ("claims", "Guilds taken over", &self.claims),
            ("step_backs", "Guilds given up", &self.step_backs),
            ("link_resets", "Links reset because their queue was full", &self.link_resets),
            ("frames", "Frames put into links' queues", &self.frames),
            ("memberships_left_out", "Memberships left to the next comparison", &self.memberships_left_out),
            ("dropped_typing", "Typing dropped before a full mailbox", &self.dropped_typing),
            ("mailbox_alarms", "Times a mailbox passed its alarm mark", &self.mailbox_alarms),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "mailbox_overflows",
            "Requests refused because a mailbox stayed full",
            self.mailbox_overflows.clone(),
        );
        registry.register("refused_actors", "Guilds refused because the node is full", self.refused_actors.clone());
        registry.register("actors", "Guilds held", self.actors.clone());
        registry.register("links", "Links open", self.links.clone());
    }

    /// Adds what an actor counted since `before`.
    pub(super) fn add(&self, before: &Counters, now: &Counters) {
        let pairs = [
            (&self.entries, now.entries - before.entries),
            (&self.messages, now.messages - before.messages),
            (&self.repeated, now.repeated - before.repeated),
            (&self.stale_terms, now.stale_terms - before.stale_terms),
            (&self.stale_guild_terms, now.stale_guild_terms - before.stale_guild_terms),
            (&self.gaps, now.gaps - before.gaps),
            (&self.shed_typing, now.shed_typing - before.shed_typing),
            (&self.snapshots, now.snapshots - before.snapshots),
            (&self.replays_from_memory, now.replays_from_memory - before.replays_from_memory),
            (&self.replays_from_log, now.replays_from_log - before.replays_from_log),
            (&self.refused_mutations, now.refused_mutations - before.refused_mutations),
            (&self.overflowed_mutations, now.overflowed_mutations - before.overflowed_mutations),
            (&self.claims, now.claims - before.claims),
            (&self.step_backs, now.step_backs - before.step_backs),
        ];
        for (counter, more) in pairs.into_iter().filter(|(_, more)| *more > 0) {
            counter.inc_by(more);
        }
    }
}
