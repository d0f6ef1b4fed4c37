//! One row on both sides of a migration, the log that is shipped, and the worker that copies it. Times are small whole units: a batch is
//! stale after one, a write on its way arrives within one more or never, a tombstone may be collected after three.

/// A batch older than this is read again.
pub const STALE_AFTER: u8 = 1;
/// A write on its way arrives within this time or never.
pub const ARRIVES_WITHIN: u8 = 1;
/// Tombstones are kept at least this long: longer than a batch's age and its write's way together.
pub const GRACE: u8 = 3;
/// How long a brief row lives.
pub const BRIEF: u8 = 2;
/// Entries of the log at most.
pub const NUMBERS: usize = 4;
/// Write times a clock would give, above those of the log.
pub const CLOCK: u8 = 20;

/// What a client writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The whole row.
    Put,
    /// The whole row, with a time to live.
    PutBriefly,
    /// One of its two cells.
    Edit,
    /// Nothing any more.
    Delete,
    /// Neither this row nor any beside it: one tombstone of a range, which is there whether the row is or not.
    DeleteRange,
}

/// One entry of the origin's log; its number is its write time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// What it writes.
    pub kind: Kind,
    /// When it ends; 0 is never.
    pub expires: u8,
}

/// One cell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    /// Its write time; 0 when there is none.
    pub written: u8,
    /// Whose value it has: the number of the entry.
    pub value: u8,
    /// When it ends; 0 is never.
    pub expires: u8,
}

/// What deletes: by its write time, for as long as it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tombstone {
    /// Its write time; 0 when there is none.
    pub written: u8,
    /// When it reached the store.
    pub at: u8,
}

impl Tombstone {
    fn raise(&mut self, written: u8, now: u8) {
        if written > self.written {
            *self = Self { written, at: now };
        }
    }

    fn is_old(self, grace: u8, now: u8) -> bool {
        self.written > 0 && self.at + grace <= now
    }
}

/// A row of two cells and what deleted it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Row {
    /// Written by whole rows only, and also by edits.
    pub cells: [Cell; 2],
    /// Its own newest deletion.
    pub tombstone: Tombstone,
    /// The newest one of a range that it lies in.
    pub range: Tombstone,
}

impl Row {
    /// Last write wins; of an equal deletion and write the deletion.
    pub fn write(&mut self, index: usize, cell: Cell) {
        if cell.written > self.cells[index].written {
            self.cells[index] = cell;
        }
    }

    /// Deletes what was written up to a time.
    pub fn delete(&mut self, written: u8, now: u8) {
        self.tombstone.raise(written, now);
    }

    /// Deletes the range up to a time. An engine may drop at once what lies under it: it is hidden either way.
    pub fn delete_range(&mut self, written: u8, now: u8) {
        self.range.raise(written, now);
        self.drop_up_to(written);
    }

    fn drop_up_to(&mut self, written: u8) {
        self.cells.iter_mut().filter(|cell| cell.written <= written).for_each(|cell| *cell = Cell::default());
    }

    /// A cell as a reader sees it.
    pub fn read(&self, index: usize, now: u8) -> Option<Cell> {
        let cell = self.cells[index];
        let deleted = self.tombstone.written.max(self.range.written);
        (cell.written > deleted && (cell.expires == 0 || cell.expires > now)).then_some(cell)
    }

    /// Every cell a reader sees.
    pub fn visible(&self, now: u8) -> [Option<Cell>; 2] {
        [self.read(0, now), self.read(1, now)]
    }

    /// Compaction: what is deleted or expired for longer than the grace is gone, with its tombstone.
    pub fn collect(&mut self, grace: u8, now: u8) {
        for tombstone in [self.tombstone, self.range].into_iter().filter(|tombstone| tombstone.is_old(grace, now)) {
            self.drop_up_to(tombstone.written);
        }
        for tombstone in [&mut self.tombstone, &mut self.range] {
            if tombstone.is_old(grace, now) {
                *tombstone = Tombstone::default();
            }
        }
        let gone = |cell: &&mut Cell| cell.expires != 0 && cell.expires + grace <= now;
        self.cells.iter_mut().filter(gone).for_each(|cell| *cell = Cell::default());
    }

    /// Takes an entry of the log in, at its write time.
    pub fn apply(&mut self, number: u8, entry: Entry, now: u8) {
        let cell = Cell { written: number, value: number, expires: entry.expires };
        match entry.kind {
            Kind::Put | Kind::PutBriefly => (0..2).for_each(|index| self.write(index, cell)),
            Kind::Edit => self.write(1, cell),
            Kind::Delete => self.delete(number, now),
            Kind::DeleteRange => self.delete_range(number, now),
        }
    }
}

/// What a worker read: the visible cells, and when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Batch {
    /// The cells.
    pub cells: [Option<Cell>; 2],
    /// When they were read.
    pub read_at: u8,
}

/// A batch's write on its way, as the target will take it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flight {
    /// Cells; their `expires` is what remains, or 0.
    pub cells: [Option<Cell>; 2],
    /// When it was sent.
    pub sent_at: u8,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Writes of clients.
    pub writes: u8,
    /// Batches whose write is on its way while the worker starts anew.
    pub unknowns: u8,
    /// Entries that fall out of the retained log.
    pub drops: u8,
    /// Until when time goes on.
    pub until: u8,
}

/// Everything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct State {
    /// The time.
    pub now: u8,
    /// The row at the origin.
    pub origin: Row,
    /// The row at the target.
    pub target: Row,
    /// The log.
    pub log: [Option<Entry>; NUMBERS],
    /// Its length.
    pub last: u8,
    /// Entries up to here are dropped.
    pub dropped: u8,
    /// The ship cursor, once shipping has begun.
    pub shipped: Option<u8>,
    /// The worker's batch.
    pub batch: Option<Batch>,
    /// A write on its way.
    pub flight: Option<Flight>,
    /// The row counts as copied.
    pub covered: bool,
    /// Entries were lost to shipping; the rows were copied once more.
    pub refilled: bool,
    /// A receipt was given.
    pub receipt: bool,
    /// What may still happen.
    pub budget: Budget,
}
