//! One moment of a log: two stores, the processes that may own it, what is on its way, and a ghost that remembers what was committed.

pub use super::table::{Batch, Entry, OPERATIONS, Operation, Operations, Table, View, fold};

/// The origin.
pub const ORIGIN: u8 = 0;
/// The copy.
pub const COPY: u8 = 1;
/// Processes at most.
pub const OWNERS: usize = 3;
/// Segments of a store at most.
pub const SEGMENTS: usize = 7;
/// Entries of a segment at most.
pub const SEGMENT_ENTRIES: usize = 4;
/// Numbers of a log at most.
pub const NUMBERS: usize = 6;

/// A log's head in one store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Head {
    /// The fencing number.
    pub term: u8,
    /// Which cell may claim it.
    pub cell: u8,
    /// Who claimed it.
    pub appender: Option<u8>,
    /// Moved to the other store, at this last number.
    pub moved_at: Option<u8>,
}

/// What became of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SegmentState {
    /// Not created, or dropped.
    #[default]
    Absent,
    /// Takes appends.
    Open,
    /// Takes none any more.
    Sealed,
}

/// A segment with its statics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Segment {
    /// What became of it.
    pub state: SegmentState,
    /// Its owner's term.
    pub term: u8,
    /// The last number before its first entry.
    pub before: u8,
    /// The last timestamp before its first entry, as handed on.
    pub handed_timestamp: u8,
    /// How many numbers it holds.
    pub count: u8,
    /// The entries.
    pub entries: [Option<Entry>; SEGMENT_ENTRIES],
}

impl Segment {
    /// Its last number.
    pub fn last(&self) -> u8 {
        self.before + self.count
    }

    /// Its last timestamp.
    pub fn last_timestamp(&self) -> u8 {
        self.entries.iter().flatten().map(|entry| entry.timestamp).max().unwrap_or(0).max(self.handed_timestamp)
    }

    /// Whether an append under these conditions would be taken.
    pub fn takes(&self, term: u8, last: u8) -> bool {
        self.state == SegmentState::Open && self.term == term && self.last() == last
    }

    /// Whether there is room for so many more; a bound of the model.
    pub fn has_room(&self, entries: usize) -> bool {
        self.count as usize + entries <= SEGMENT_ENTRIES
    }
}

/// One StorageCell's share of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Store {
    /// The head.
    pub head: Head,
    /// The segments by number.
    pub segments: [Segment; SEGMENTS],
    /// The table.
    pub table: Table,
    /// The applied cursor; in a copy also the ship cursor.
    pub applied: u8,
    /// Segments below are gone.
    pub retained: u8,
}

impl Store {
    /// Segments that exist, among those retained.
    pub fn existing(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let first = self.retained as usize;
        self.segments.iter().enumerate().skip(first).filter(|(_, segment)| segment.state != SegmentState::Absent)
    }

    /// The last number.
    pub fn last(&self) -> u8 {
        self.existing().map(|(_, segment)| segment.last()).max().unwrap_or(0)
    }

    /// The entry with a number, the first one being 1.
    pub fn entry(&self, number: u8) -> Option<Entry> {
        let holds = |segment: &Segment| (segment.before + 1..=segment.last()).contains(&number);
        let (_, segment) = self.existing().find(|(_, segment)| holds(segment))?;
        segment.entries[(number - segment.before - 1) as usize]
    }

    /// The segment with the highest number.
    pub fn newest(&self) -> Option<usize> {
        self.existing().map(|(index, _)| index).last()
    }
}

/// Where a process stands with the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Phase {
    /// Owns nothing.
    #[default]
    Idle,
    /// Read a head that points to the other store.
    Pointed,
    /// Read a head it may claim.
    Claiming,
    /// The claim's outcome is not known.
    ClaimUnknown,
    /// Claimed; seals and reads segments from `segment` on.
    Walking,
    /// Opened a segment; reads the head once more.
    Verifying,
    /// Owns the log.
    Serving,
    /// An append's outcome is not known.
    Settling,
    /// Sealed its segment, opens the next.
    Rolling,
    /// Holds commits for a switch.
    Switching,
    /// The switch's outcome is not known.
    SwitchUnknown,
    /// Holds commits for a cutover, ships to the end.
    Closing,
    /// Sealed its segment for a cutover.
    Cutting,
    /// The outcome of the cutover's compare-and-set is not known.
    CutUnknown,
}

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Owner {
    /// Where it stands.
    pub phase: Phase,
    /// In which store.
    pub store: u8,
    /// The head as it last read or wrote it.
    pub head: Head,
    /// What a compare-and-set under way would make of it.
    pub wish: Head,
    /// An earlier try of the same compare-and-set may have landed.
    pub doubted: bool,
    /// The segment appended to, or looked at.
    pub segment: u8,
    /// The last number it knows.
    pub last: u8,
    /// The last timestamp it knows.
    pub last_timestamp: u8,
    /// Numbers up to here were gone when it claimed.
    pub unread: u8,
    /// The last number it applied.
    pub applied: u8,
    /// Its dedupe window.
    pub known: Operations,
    /// What it proposed and has not settled.
    pub proposed: [Option<Operation>; 2],
}

/// A write whose sender does not know its outcome; it may land at any time, under its condition.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flight {
    /// An append.
    Append {
        /// Store and segment.
        to: (u8, u8),
        /// Its condition: the term.
        term: u8,
        /// Its condition: the last number.
        last: u8,
        /// What it brings.
        batch: Batch,
    },
    /// A compare-and-set of a head.
    Head {
        /// Where.
        store: u8,
        /// Its condition.
        expected: Head,
        /// What it brings.
        new: Head,
    },
    /// A shipped entry.
    Ship {
        /// Store and segment.
        to: (u8, u8),
        /// Its condition: the term.
        term: u8,
        /// Its condition: the last number.
        last: u8,
        /// What it brings.
        entry: Entry,
    },
    /// A table write that was repeated meanwhile.
    Write {
        /// Where.
        store: u8,
        /// What it brings.
        entry: Entry,
    },
}

/// What a client knows of its operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Answer {
    /// Nothing; it will ask (again).
    #[default]
    Open,
    /// It was done.
    Done,
    /// It was refused for good.
    Refused,
    /// Nothing, and its deadline has passed: the client gave up.
    GaveUp,
}

/// How far the migration to the copy is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Migration {
    /// No copy.
    #[default]
    None,
    /// Shipping; the older rows are not copied yet.
    Shipping,
    /// Shipping, and every row is copied.
    Copied,
    /// The copy was released and dropped.
    Dropped,
}

/// Faults and moves that may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Processes that crash.
    pub crashes: u8,
    /// Conditional writes whose outcome is not known.
    pub unknowns: u8,
    /// Claims while somebody else owns the log or is about to.
    pub claims: u8,
    /// Table writes that land once more, late.
    pub late_writes: u8,
    /// Shipped entries that land once more, late.
    pub late_ships: u8,
    /// Segments left for the next one.
    pub rolls: u8,
    /// Switches to the other cell.
    pub switches: u8,
    /// Cutovers, in either direction.
    pub cutovers: u8,
    /// Copies dropped.
    pub drops: u8,
    /// Old segments dropped.
    pub retentions: u8,
    /// Appends of two entries.
    pub batches: u8,
}

/// Damage that shows in a single step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Damage {
    /// A number got a second, different entry.
    EntryChanged,
    /// A head was given away or taken and its term did not rise.
    TermKept,
    /// An owner had the room of a segment, or the bound of segments, exceeded: a bound of the model.
    Bound,
}

/// Everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    /// Origin and copy.
    pub stores: [Store; 2],
    /// The processes.
    pub owners: [Owner; OWNERS],
    /// What may still land.
    pub flights: [Option<Flight>; 2],
    /// What clients know, by operation.
    pub answers: [Answer; OPERATIONS.len()],
    /// Operations whose deadline has passed: nobody asks for them again.
    pub expired: Operations,
    /// Ghost: the first entry each number held.
    pub history: [Option<Entry>; NUMBERS],
    /// The migration.
    pub migration: Migration,
    /// What may still happen.
    pub budget: Budget,
    /// Damage done.
    pub damage: Option<Damage>,
}

impl State {
    /// Sends something on a way of its own; false when as much as the model allows is under way.
    pub fn send(&mut self, flight: Flight) -> bool {
        match self.flights.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(flight);
                true
            }
            None => false,
        }
    }

    /// A flight is over; the others move up, so that equal states are equal.
    pub fn landed(&mut self, index: usize) -> Option<Flight> {
        let flight = self.flights[index].take();
        if self.flights[0].is_none() {
            self.flights.swap(0, 1);
        }
        flight
    }

    /// An append's entries are in the log.
    pub fn commit(&mut self, store: u8, segment: u8, entries: &[Entry]) {
        let target = &mut self.stores[store as usize].segments[segment as usize];
        for entry in entries {
            if !target.has_room(1) {
                self.damage.get_or_insert(Damage::Bound);
                return;
            }
            target.entries[target.count as usize] = Some(*entry);
            target.count += 1;
            let number = target.last();
            match self.history.get_mut(number as usize - 1) {
                Some(Some(before)) if *before != *entry => self.damage = Some(Damage::EntryChanged),
                Some(slot) => *slot = Some(*entry),
                None => self.damage = Some(Damage::Bound),
            }
        }
    }

    /// The entry with a number of the log that a store has, or had before it was dropped or before the copy began.
    pub fn entry(&self, store: u8, number: u8) -> Option<Entry> {
        let store = &self.stores[store as usize];
        let first = store.existing().next().map_or(0, |(_, segment)| segment.before);
        if number <= first { *self.history.get(number as usize - 1)? } else { store.entry(number) }
    }

    /// Which store's log is the truth now.
    pub fn current(&self) -> u8 {
        let [origin, copy] = self.stores.map(|store| store.head);
        let copy_holds = match (origin.moved_at, copy.moved_at) {
            (None, None) => copy.appender.is_some() && copy.term > origin.term,
            (None, Some(_)) => false,
            (Some(_), None) => true,
            (Some(_), Some(_)) => origin.term > copy.term,
        };
        u8::from(self.migration != Migration::None && copy_holds)
    }

    /// Whether both stores are in use.
    pub fn is_shipping(&self) -> bool {
        matches!(self.migration, Migration::Shipping | Migration::Copied)
    }
}
