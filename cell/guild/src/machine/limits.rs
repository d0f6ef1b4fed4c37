//! Every bound of a guild's machine in one place, each with its reason. Decides nothing.

use super::ring::RingLimits;

/// Bounds of one actor.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What is kept for replay.
    pub ring: RingLimits,
    /// Entries in one replay frame.
    pub frame_entries: usize,
    /// Bytes in one replay frame: small beside a link's queue, so that a replay never overflows it.
    pub frame_bytes: usize,
    /// Members answered on the loop; more go to a worker.
    pub inline_members: usize,
    /// Structural changes waiting for their turn.
    pub queued_mutations: usize,
    /// Structural changes at the data owner at once (joins; others go alone).
    pub mutations_in_flight: usize,
    /// Callers waiting in Reach.
    pub reach_waiters: usize,
    /// Gateways attached.
    pub links: usize,
    /// Committed changes whose answers are remembered for retries.
    pub remembered_operations: usize,
    /// How long an actor without links or work is kept, in milliseconds.
    pub idle_ms: u64,
    /// How long a committed change may take to come back on the feed before the feed is opened anew, in milliseconds.
    pub echo_ms: u64,
    /// Most members of a guild.
    pub members: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ring: RingLimits::default(),
            frame_entries: 512,
            frame_bytes: 256 * 1024,
            inline_members: 256,
            queued_mutations: 1024,
            mutations_in_flight: 128,
            reach_waiters: 64,
            links: 4096,
            remembered_operations: 4096,
            idle_ms: 300_000,
            echo_ms: 2_000,
            members: 1_000_000,
        }
    }
}

/// What happened to an actor, counted; the driver adds them to its metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Entries applied.
    pub entries: u64,
    /// Messages among them.
    pub messages: u64,
    /// Entries seen again and dropped.
    pub repeated: u64,
    /// Feed batches refused for their lower term.
    pub stale_terms: u64,
    /// Claims in the log refused for their lower guild term.
    pub stale_guild_terms: u64,
    /// Holes in the feed, after which it was opened anew.
    pub gaps: u64,
    /// Typing shed under alarm.
    pub shed_typing: u64,
    /// Snapshots sent.
    pub snapshots: u64,
    /// Replays started from memory.
    pub replays_from_memory: u64,
    /// Replays started from the log.
    pub replays_from_log: u64,
    /// Structural changes refused here.
    pub refused_mutations: u64,
    /// Structural changes refused because the queue was full.
    pub overflowed_mutations: u64,
    /// Times this node took the guild over.
    pub claims: u64,
    /// Times this node stepped back.
    pub step_backs: u64,
}
