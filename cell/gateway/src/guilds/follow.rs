//! Which events of a guild are new: one position per guild, carried through splits, merges and new owners. Pure. What it lets pass is
//! applied exactly once and in order; a lower term never passes.

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{GuildEvent, GuildSnapshot, Position};

/// What to do with an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// New: apply it.
    Apply,
    /// Had it already.
    Duplicate,
    /// Sent by an owner whose term has been overtaken: leave it, attach elsewhere.
    StaleTerm,
    /// Skips numbers, or belongs to a log this guild is not known to live in: something is missing, attach anew with the position held.
    Gap,
}

/// What a snapshot means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The first: nothing was followed before.
    First,
    /// Exactly where this process stood.
    Same,
    /// Older than what this process has: the sender is behind.
    Behind,
    /// Ahead: events between are unknown, sessions that followed the guild have a hole.
    Skipped,
}

/// Where one guild's stream stands.
#[derive(Debug, Clone)]
pub struct Follower {
    own_log: String,
    position: Option<Position>,
    /// Of the log the position is in.
    term: u64,
    /// The last number seen in the guild's own log, kept while it lives in its bucket.
    own_number: u64,
    /// The position is an entry of the guild's own log (or its start as a snapshot told it), so the next number is known: a hole shows.
    exact: bool,
    /// Nothing came since the last snapshot.
    fresh: bool,
    timestamp_us: i64,
}

impl Follower {
    /// Nothing seen yet.
    pub fn new(guild_id: i64) -> Self {
        Self {
            own_log: Unit::Guild(guild_id).log(),
            position: None,
            term: 0,
            own_number: 0,
            exact: false,
            fresh: false,
            timestamp_us: 0,
        }
    }

    /// Everything up to here was applied; what an attach states.
    pub fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// The highest term seen of the log the position is in.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Forgets the position: the next snapshot is a first one.
    pub fn reset(&mut self) {
        self.position = None;
    }

    /// Judges a snapshot and, unless it is behind, takes its position over.
    pub fn snapshot(&mut self, snapshot: &GuildSnapshot) -> Taken {
        let at = snapshot.position.clone().unwrap_or_default();
        let taken = match &self.position {
            None => Taken::First,
            Some(held) if held.log == at.log && at.number < held.number => return Taken::Behind,
            Some(held) if held.log == at.log && snapshot.term != 0 && snapshot.term < self.term => {
                return Taken::Behind;
            }
            Some(held) if *held == at => Taken::Same,
            Some(_) => Taken::Skipped,
        };
        (self.exact, self.fresh) = (at.log == self.own_log, true);
        self.move_to(at, snapshot.term);
        taken
    }

    /// Judges one event of a frame sent under `term` (0: the sender claims none, as when it replays a log it has left). Events that pass must be given to [`Follower::advance`].
    pub fn judge(&self, term: u64, event: &GuildEvent) -> Verdict {
        let (Some(held), Some(at)) = (&self.position, &event.position) else {
            return Verdict::Gap;
        };
        let timestamp_us = event.entry.as_ref().map_or(0, |entry| entry.timestamp_us);
        // Timestamps rise along all logs a guild ever lived in, so they tell old from new across a split or merge.
        if timestamp_us != 0 && timestamp_us <= self.timestamp_us {
            return Verdict::Duplicate;
        }
        if held.log == at.log {
            if at.number <= held.number {
                return Verdict::Duplicate;
            }
            if term != 0 && term < self.term {
                return Verdict::StaleTerm;
            }
            // Every entry of a guild's own log is the guild's: one that skips numbers overtook others on its way.
            let hole = self.exact && at.number != held.number + 1;
            return if hole { Verdict::Gap } else { Verdict::Apply };
        }
        if held.log == self.own_log {
            let merged = matches!(kind(event), Some(Kind::Merge(_)));
            return if merged { Verdict::Apply } else { Verdict::Duplicate };
        }
        if at.log == self.own_log && at.number <= self.own_number {
            return Verdict::Duplicate;
        }
        // A snapshot made right after the split stands at the split, so the split itself never comes.
        if self.fresh && at.log == self.own_log {
            return Verdict::Apply;
        }
        Verdict::Gap
    }

    /// The event was applied.
    pub fn advance(&mut self, term: u64, event: &GuildEvent) {
        let Some(at) = event.position.clone() else {
            return;
        };
        self.fresh = false;
        self.timestamp_us = self.timestamp_us.max(event.entry.as_ref().map_or(0, |entry| entry.timestamp_us));
        if matches!(kind(event), Some(Kind::Split(_))) {
            // The next entry comes from the guild's own log, after what was seen of it in an earlier life.
            self.move_to(Position { log: self.own_log.clone(), number: self.own_number }, 0);
            self.exact = false;
        } else {
            self.exact = at.log == self.own_log;
            self.move_to(at, term);
        }
    }

    fn move_to(&mut self, at: Position, term: u64) {
        let same_log = self.position.as_ref().is_some_and(|held| held.log == at.log);
        self.term = if same_log { self.term.max(term) } else { term };
        if at.log == self.own_log {
            self.own_number = self.own_number.max(at.number);
        }
        self.position = Some(at);
    }
}

fn kind(event: &GuildEvent) -> Option<&Kind> {
    event.entry.as_ref()?.change.as_ref()?.kind.as_ref()
}

#[cfg(test)]
mod tests;
