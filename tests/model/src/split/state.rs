//! A bucket's log and the log of one of its guilds. What happens inside a log is `log`'s affair: here a claim or an append is one step.

/// The bucket's log.
pub const BUCKET: usize = 0;
/// The guild's own log.
pub const GUILD: usize = 1;
const NUMBERS: usize = 7;

/// One entry that concerns the guild.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A client's operation.
    Command(u8),
    /// The guild leaves the bucket; its log has this term.
    Split { term: u8 },
    /// It is back: its log was sealed at this term and number.
    Merge { sealed_term: u8, sealed_at: u8 },
}

/// An entry with its write time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// What it says.
    pub kind: Kind,
    /// Its write time.
    pub timestamp: u8,
}

/// A set of operations.
pub type Window = u8;

/// One log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Log {
    /// The head's term.
    pub term: u8,
    /// The head has no pointer: it may be claimed and owned.
    pub open: bool,
    /// The last segment's number.
    pub segment: u8,
    /// The last segment takes appends.
    pub segment_open: bool,
    /// The entries.
    pub entries: [Option<Entry>; NUMBERS],
    /// How many.
    pub last: u8,
    /// How many of them are in the tables.
    pub applied: u8,
}

impl Log {
    /// Entries up to a number.
    pub fn up_to(&self, number: u8) -> impl Iterator<Item = Entry> {
        self.entries.into_iter().flatten().take(number as usize)
    }

    /// Operations committed up to a number.
    pub fn window(&self, number: u8) -> Window {
        let bit = |entry: Entry| if let Kind::Command(operation) = entry.kind { 1 << operation } else { 0 };
        self.up_to(number).map(bit).fold(0, |window, bit| window | bit)
    }

    /// The last timestamp.
    pub fn newest(&self) -> u8 {
        self.up_to(self.last).map(|entry| entry.timestamp).max().unwrap_or(0)
    }

    /// The last split or merge among the entries up to a number.
    pub fn marker(&self, number: u8) -> Option<Kind> {
        self.up_to(number).map(|entry| entry.kind).filter(|kind| !matches!(kind, Kind::Command(_))).last()
    }

    /// Room for one more; a bound of the model.
    pub fn has_room(&self) -> bool {
        (self.last as usize) < NUMBERS
    }
}

/// What a process holds of a log it owns, or believes to own; term 0 is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owner {
    /// The term of its claim.
    pub term: u8,
    /// Its segment.
    pub segment: u8,
    /// The last number it knows.
    pub last: u8,
    /// The last timestamp it must exceed.
    pub newest: u8,
    /// Its dedupe window.
    pub known: Window,
    /// The part that comes from the other log.
    pub inherited: Window,
    /// An append of its own may still land.
    pub in_doubt: bool,
}

/// What a process read of the other log some time ago.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reading {
    /// The term: of the seal, or as the split names it.
    pub term: u8,
    /// The log's last number then.
    pub last: u8,
    /// Its last timestamp.
    pub newest: u8,
    /// Its window.
    pub window: Window,
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Process {
    /// What it owns.
    pub owns: [Owner; 2],
    /// That the guild's log is sealed.
    pub seal: Option<Reading>,
    /// That the bucket's log says split.
    pub split: Option<Reading>,
}

/// An append to the guild's log that may still land.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flight {
    /// Its condition: the segment, and with it the term.
    pub segment: u8,
    /// Its condition: the last number.
    pub last: u8,
    /// What it brings.
    pub entry: Entry,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Processes that crash.
    pub crashes: u8,
    /// Claims from a living owner.
    pub claims: u8,
    /// Splits.
    pub splits: u8,
    /// Merges.
    pub merges: u8,
    /// Appends of unknown outcome.
    pub unknowns: u8,
}

/// Damage that shows in a single step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Damage {
    /// An operation is in both logs, or twice in one.
    CommittedTwice,
    /// A later entry has an earlier write time.
    TimeGoesBack,
    /// An operation was answered that no table shows.
    AnsweredEarly,
    /// An entry came to the guild's log after its seal.
    AfterSeal,
}

/// Everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    /// The bucket's and the guild's.
    pub logs: [Log; 2],
    /// The processes.
    pub processes: [Process; 2],
    /// What may still land.
    pub flight: Option<Flight>,
    /// Ghost: committed operations.
    pub committed: Window,
    /// Answered operations.
    pub answered: Window,
    /// Ghost: the guild's last write time.
    pub newest: u8,
    /// What may still happen.
    pub budget: Budget,
    /// Damage done.
    pub damage: Option<Damage>,
}

impl State {
    /// Whether a process's claim of a log still holds, all of it known to it.
    pub fn is_owner(&self, process: usize, log: usize) -> bool {
        let (owner, log) = (&self.processes[process].owns[log], &self.logs[log]);
        owner.term > 0 && owner.term == log.term && log.open && owner.segment == log.segment && owner.last == log.last
    }

    /// The store takes an entry.
    pub fn commit(&mut self, log: usize, entry: Entry) {
        let target = &mut self.logs[log];
        target.entries[target.last as usize] = Some(entry);
        target.last += 1;
        if log == GUILD && !target.open {
            self.damage.get_or_insert(Damage::AfterSeal);
        }
        if let Kind::Command(operation) = entry.kind {
            if self.committed & 1 << operation != 0 {
                self.damage = Some(Damage::CommittedTwice);
            }
            self.committed |= 1 << operation;
            if entry.timestamp <= self.newest {
                self.damage.get_or_insert(Damage::TimeGoesBack);
            }
            self.newest = self.newest.max(entry.timestamp);
        }
    }

    /// Whether the guild's commands belong into its own log.
    pub fn is_split(&self) -> bool {
        let bucket = &self.logs[BUCKET];
        matches!(bucket.marker(bucket.last), Some(Kind::Split { .. }))
    }
}
