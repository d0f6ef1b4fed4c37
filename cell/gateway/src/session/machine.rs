//! One session: what it may see, its buffer, the writer's cursor in it, and how long it can be resumed. The session is not the
//! socket: a connection attaches, detaches, is replaced.

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::Buffer;
use crate::wire::event::Event;
use crate::wire::intents::Intents;

/// Live events a connection's writer may lag behind.
pub const MAX_LAG_EVENTS: u64 = 5_000;
/// Live bytes a connection's writer may lag behind.
pub const MAX_LAG_BYTES: usize = 2 * 1024 * 1024;

/// Who a session is and what it asked for.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The session's id, naming this gateway.
    pub id: String,
    /// The user it acts for.
    pub user_id: i64,
    /// Whether the user is a bot.
    pub bot: bool,
    /// What it asked for.
    pub intents: Intents,
    /// Shard id and count; none means all guilds.
    pub shard: Option<(u32, u32)>,
}

/// Why a session can no longer be resumed. The label is the metric's and the log's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The client closed with 1000 or 1001.
    ClosedByClient,
    /// Nobody resumed within the lease.
    LeaseExpired,
    /// What the client still lacks fell off the buffer.
    BufferOverflow,
    /// A guild position fell behind the log's retention.
    BehindRetention,
}

impl Ended {
    /// For metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::ClosedByClient => "ClosedByClient",
            Self::LeaseExpired => "LeaseExpired",
            Self::BufferOverflow => "BufferOverflow",
            Self::BehindRetention => "BehindRetention",
        }
    }
}

/// Why a resume was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResumeRefusal {
    /// No such session here: never was, or ended and forgotten.
    Unknown,
    /// The session belongs to another user.
    OtherUser,
    /// It ended.
    Ended(Ended),
    /// The sequence was never sent.
    InvalidSequence,
    /// What follows the sequence is no longer held.
    BehindBuffer,
    /// The gateway that holds it is gone, unknown, or did not answer.
    HolderGone,
}

impl ResumeRefusal {
    /// For metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::OtherUser => "OtherUser",
            Self::Ended(ended) => ended.label(),
            Self::InvalidSequence => "InvalidSequence",
            Self::BehindBuffer => "BehindBuffer",
            Self::HolderGone => "HolderGone",
        }
    }
}

/// What an event did to the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// Nobody is connected: it waits in the buffer.
    Kept,
    /// The writer has something to do.
    Wake,
    /// The writer lags too far: its connection must close resumably.
    Lagging,
    /// The session has ended; whoever fed it should stop.
    Ended,
}

#[derive(Debug)]
enum Socket {
    /// Resumable since this time.
    Detached {
        since_ms: u64,
    },
    Attached(Writer),
    Ended(Ended),
}

#[derive(Debug)]
struct Writer {
    connection: u64,
    /// The last sequence taken by the writer.
    cursor: u64,
    /// Events up to here are replay, not lag.
    live_from: u64,
    live_bytes: usize,
    lagging: bool,
}

/// What the writer takes next.
#[derive(Debug, PartialEq)]
pub enum Taken {
    /// Events with their sequences, oldest first; empty when there is nothing.
    Events(Vec<(u64, Arc<Event>)>),
    /// The connection lags too far: close it with 4000, the session stays.
    Lagging,
    /// The session ended or what is next fell off the buffer: op 9.
    Ended(Ended),
    /// Another connection took the session over: close this one.
    Replaced,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    identity: Identity,
    buffer: Buffer,
    socket: Socket,
    /// Guilds it is subscribed to.
    pub guilds: Vec<i64>,
    /// When each guild's members were last fetched as a whole.
    full_fetches: VecDeque<(i64, u64)>,
    dropped: u64,
}

impl Session {
    /// A new session, not connected yet.
    pub fn new(identity: Identity, now_ms: u64) -> Self {
        Self {
            identity,
            buffer: Buffer::default(),
            socket: Socket::Detached { since_ms: now_ms },
            guilds: Vec::new(),
            full_fetches: VecDeque::new(),
            dropped: 0,
        }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The last sequence given out.
    pub fn last_sequence(&self) -> u64 {
        self.buffer.last()
    }

    /// Events that fell off the buffer so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Numbers an event and keeps it.
    pub fn push(&mut self, event: Arc<Event>) -> Pushed {
        if matches!(self.socket, Socket::Ended(_)) {
            return Pushed::Ended;
        }
        let cost = event.cost();
        let (sequence, dropped) = self.buffer.push(event);
        self.dropped += dropped as u64;
        let Socket::Attached(writer) = &mut self.socket else {
            return Pushed::Kept;
        };
        writer.live_bytes += cost;
        let behind = sequence - writer.cursor.max(writer.live_from);
        if behind > MAX_LAG_EVENTS || writer.live_bytes > MAX_LAG_BYTES && behind > 1 {
            writer.lagging = true;
            return Pushed::Lagging;
        }
        Pushed::Wake
    }

    /// As [`Session::push`] for the events a fresh session starts with: they run at the socket's pace and are no lag.
    pub fn push_initial(&mut self, event: Arc<Event>) -> Pushed {
        match self.push(event) {
            Pushed::Wake | Pushed::Lagging => {
                if let Socket::Attached(writer) = &mut self.socket {
                    writer.live_from = self.buffer.last();
                    writer.live_bytes = 0;
                    writer.lagging = false;
                }
                Pushed::Wake
            }
            other => other,
        }
    }

    /// Attaches a connection right after creation: everything is sent from the start.
    pub fn attach_new(&mut self, connection: u64) {
        self.attach(connection, 0);
    }

    fn attach(&mut self, connection: u64, cursor: u64) {
        let live_from = self.buffer.last();
        self.socket = Socket::Attached(Writer { connection, cursor, live_from, live_bytes: 0, lagging: false });
    }

    /// A client comes back having applied everything up to `sequence`. On success the connection is attached, what follows will be
    /// taken by its writer, then `resumed`. A connection that still held the session is replaced.
    ///
    /// # Errors
    /// [`ResumeRefusal`]: the answer is op 9, except for an invalid sequence.
    pub fn resume(
        &mut self,
        user_id: i64,
        sequence: i64,
        connection: u64,
        resumed: Arc<Event>,
    ) -> Result<u64, ResumeRefusal> {
        if self.identity.user_id != user_id {
            return Err(ResumeRefusal::OtherUser);
        }
        if let Socket::Ended(ended) = self.socket {
            return Err(ResumeRefusal::Ended(ended));
        }
        let sequence = u64::try_from(sequence).map_err(|_| ResumeRefusal::InvalidSequence)?;
        if sequence > self.buffer.last() {
            return Err(ResumeRefusal::InvalidSequence);
        }
        if !self.buffer.covers(sequence) {
            self.end(Ended::BufferOverflow);
            return Err(ResumeRefusal::BehindBuffer);
        }
        let replayed = self.buffer.last() - sequence;
        self.dropped += self.buffer.push(resumed).1 as u64;
        self.attach(connection, sequence);
        Ok(replayed)
    }

    /// The connection is gone; the session can be resumed for its lease from now. A replaced connection changes nothing.
    pub fn detach(&mut self, connection: u64, now_ms: u64) {
        if matches!(&self.socket, Socket::Attached(writer) if writer.connection == connection) {
            self.socket = Socket::Detached { since_ms: now_ms };
        }
    }

    /// The session cannot be resumed any more; its buffer is freed.
    pub fn end(&mut self, why: Ended) {
        if !matches!(self.socket, Socket::Ended(_)) {
            self.socket = Socket::Ended(why);
            self.buffer.clear();
        }
    }

    /// As [`Session::end`], but only for the connection that holds the session.
    pub fn end_from(&mut self, connection: u64, why: Ended) {
        if matches!(&self.socket, Socket::Attached(writer) if writer.connection == connection) {
            self.end(why);
        }
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match self.socket {
            Socket::Ended(why) => Some(why),
            _ => None,
        }
    }

    /// Whether the connection's writer lags too far.
    pub fn is_lagging(&self) -> bool {
        matches!(&self.socket, Socket::Attached(writer) if writer.lagging)
    }

    /// Whether a connection's writer has all but so many bytes of the live events behind it.
    pub fn has_caught_up(&self, all_but_bytes: usize) -> bool {
        matches!(&self.socket, Socket::Attached(writer) if writer.live_bytes <= all_but_bytes)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.socket, Socket::Ended(_))
    }

    /// Whether a connection is attached.
    pub fn is_connected(&self) -> bool {
        matches!(self.socket, Socket::Attached(_))
    }

    /// Ends the session if nobody resumed it within its lease; answers whether it has ended, now or before.
    pub fn expire(&mut self, now_ms: u64, lease_ms: u64) -> bool {
        if let Socket::Detached { since_ms } = self.socket
            && now_ms.saturating_sub(since_ms) > lease_ms
        {
            self.end(Ended::LeaseExpired);
        }
        matches!(self.socket, Socket::Ended(_))
    }

    /// What the connection's writer sends next, at most this many events and (past the first) bytes.
    pub fn take(&mut self, connection: u64, max_events: usize, max_bytes: usize) -> Taken {
        let writer = match &mut self.socket {
            Socket::Attached(writer) if writer.connection == connection => writer,
            Socket::Ended(why) => return Taken::Ended(*why),
            _ => return Taken::Replaced,
        };
        if writer.lagging {
            return Taken::Lagging;
        }
        if !self.buffer.covers(writer.cursor) {
            self.end(Ended::BufferOverflow);
            return Taken::Ended(Ended::BufferOverflow);
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < max_events && (bytes < max_bytes || events.is_empty()) {
            let Some(event) = self.buffer.get(writer.cursor + 1) else {
                break;
            };
            writer.cursor += 1;
            bytes += event.cost();
            if writer.cursor > writer.live_from {
                writer.live_bytes -= event.cost();
            }
            events.push((writer.cursor, event.clone()));
        }
        Taken::Events(events)
    }

    /// Whether all members of the guild may be fetched now; otherwise after how many milliseconds.
    ///
    /// # Errors
    /// Milliseconds to wait.
    pub fn admit_full_fetch(&mut self, guild_id: i64, now_ms: u64) -> Result<(), u64> {
        self.full_fetches.retain(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < FULL_FETCH_EVERY_MS);
        if let Some((_, at_ms)) = self.full_fetches.iter().find(|(guild, _)| *guild == guild_id) {
            return Err(FULL_FETCH_EVERY_MS - now_ms.saturating_sub(*at_ms));
        }
        self.full_fetches.push_back((guild_id, now_ms));
        Ok(())
    }
}

/// How often a session may fetch all members of one guild.
pub const FULL_FETCH_EVERY_MS: u64 = 30_000;

#[cfg(test)]
mod tests;
