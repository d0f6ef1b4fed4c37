//! What entries say, and what readers of the table see: the operations on the one message of the model.

/// What clients want done to the one message of the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Operation {
    /// Create the message.
    Create,
    /// Delete it.
    Delete,
    /// Edit it.
    Edit,
    /// Edit it once more.
    Amend,
}

/// Every operation; a scenario may use only the first ones.
pub const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Delete, Operation::Edit, Operation::Amend];

/// A set of operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Operations(u8);

impl Operations {
    /// With one more.
    pub fn add(&mut self, operation: Operation) {
        self.0 |= 1 << operation as u8;
    }

    /// Whether it is among them.
    pub fn has(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u8) != 0
    }
}

/// One entry of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// What it does.
    pub operation: Operation,
    /// Its write time.
    pub timestamp: u8,
}

/// One append: one entry or two.
pub type Batch = [Option<Entry>; 2];

/// The table people query: the write times of one message's parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Table {
    author: u8,
    content: u8,
    content_of: Option<Operation>,
    tombstone: u8,
}

/// What a reader sees: whether the message is there, and whose content it has.
pub type View = (bool, Option<Operation>);

impl Table {
    /// An idempotent write with the entry's timestamp.
    pub fn apply(&mut self, entry: Entry) {
        match entry.operation {
            Operation::Delete => self.tombstone = self.tombstone.max(entry.timestamp),
            Operation::Create => {
                self.author = self.author.max(entry.timestamp);
                self.write_content(entry);
            }
            Operation::Edit | Operation::Amend => self.write_content(entry),
        }
    }

    fn write_content(&mut self, entry: Entry) {
        // Of two cells with one write time stores keep the greater value.
        if (entry.timestamp, Some(entry.operation)) > (self.content, self.content_of) {
            (self.content, self.content_of) = (entry.timestamp, Some(entry.operation));
        }
    }

    /// What a reader sees.
    pub fn view(&self) -> View {
        let content = if self.content > self.tombstone { self.content_of } else { None };
        (self.author > self.tombstone, content)
    }

    /// A copy of another table's cells, at their own write times.
    pub fn merge(&mut self, other: &Self) {
        self.author = self.author.max(other.author);
        self.tombstone = self.tombstone.max(other.tombstone);
        if other.content > self.content {
            (self.content, self.content_of) = (other.content, other.content_of);
        }
    }
}

/// What a log's entries, in their order, say that a reader should see.
pub fn fold(entries: impl IntoIterator<Item = Entry>) -> View {
    let mut view = (false, None);
    for entry in entries {
        match entry.operation {
            Operation::Create => view = (true, Some(Operation::Create)),
            Operation::Delete => view = (false, None),
            edit if view.0 => view.1 = Some(edit),
            _ => {}
        }
    }
    view
}
