//! What judging knows: rows read from the tables, changed by the entries accepted since (LOG.md rule 6). A guild's small objects are
//! kept from batch to batch; single rows and spans of rows only for one batch. Bounded; what is not there is asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use cell_proto::v1::{Entry, ReadRowsRequest, Row, RowMutation};
use cell_store::{Reply, Request, StoreError};

use super::tables::{self, BODY, GUILD_OBJECTS, id_key, kind};

/// Cells of a row by column.
pub type Cells = BTreeMap<String, Vec<u8>>;

/// Guilds kept per log; beyond, all are forgotten and read again.
const MAX_GUILDS: usize = 1024;

/// The kinds of objects a guild is loaded with. Members and invites are read one by one.
const LOADED: [u8; 5] = [kind::CHANNEL, kind::GUILD, kind::ROLE, kind::SPLIT, kind::TERM];

/// Most objects of one kind: above every limit on them.
const MAX_OBJECTS: i32 = 2000;

/// Rows read of a span; what lies beyond is not known.
const SPAN_ROWS: i32 = 250;

/// Something judging must know.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Need {
    /// One row.
    Row {
        /// Its table.
        table: &'static str,
        /// Its partition key.
        partition: Vec<u8>,
        /// Its clustering key.
        clustering: Vec<u8>,
    },
    /// A guild's small objects.
    Guild(i64),
    /// Which rows of a partition are there, from one clustering key to before another.
    Span {
        /// Their table.
        table: &'static str,
        /// Their partition key.
        partition: Vec<u8>,
        /// Inclusive.
        start: Vec<u8>,
        /// Exclusive.
        end: Vec<u8>,
    },
}

/// The rows that are there, as far as they were read.
#[derive(Clone, Default, Debug)]
pub struct Span {
    keys: BTreeSet<Vec<u8>>,
    /// From here on nothing was read; none when all of it was.
    unread_from: Option<Vec<u8>>,
}

impl Span {
    /// Whether a row is there; none when that was not read.
    pub fn has(&self, key: &[u8]) -> Option<bool> {
        let read = self.unread_from.as_ref().is_none_or(|unread| key < unread.as_slice());
        read.then(|| self.keys.contains(key))
    }

    /// What is there and was read, rising.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let read = |key: &&Vec<u8>| self.unread_from.as_ref().is_none_or(|unread| *key < unread);
        self.keys.iter().take_while(read).map(Vec::as_slice)
    }

    fn change(&mut self, (start, end): (&[u8], &[u8]), mutation: &RowMutation) {
        let key = mutation.clustering.as_slice();
        if !mutation.range_end.is_empty() {
            let range = mutation.clustering.clone()..mutation.range_end.clone();
            self.keys.retain(|key| !range.contains(key));
        } else if mutation.delete_row {
            self.keys.remove(key);
        } else if start <= key && key < end && mutation.cells.iter().any(|cell| cell.column == BODY) {
            self.keys.insert(key.to_vec());
        }
    }
}

/// What is known.
#[derive(Clone, Default, Debug)]
pub struct State {
    guilds: HashMap<i64, BTreeMap<Vec<u8>, Cells>>,
    rows: HashMap<Need, Option<Cells>>,
    spans: HashMap<Need, Span>,
}

/// The first key after all that start with a byte.
fn next_kind(kind: u8) -> Vec<u8> {
    vec![kind + 1]
}

fn cells_of(row: Row) -> Cells {
    row.cells.into_iter().map(|cell| (cell.column, cell.value)).collect()
}

impl State {
    /// The reads that answer what is not known yet; feed the replies, in order, to [`State::learn`] with the same needs.
    pub fn missing(&self, needs: &HashSet<Need>) -> (Vec<Need>, Vec<Request>) {
        let known = |need: &&Need| match need {
            Need::Guild(guild_id) => !self.guilds.contains_key(guild_id),
            row @ Need::Row { .. } => !self.rows.contains_key(*row),
            span @ Need::Span { .. } => !self.spans.contains_key(*span),
        };
        let mut missing: Vec<Need> = needs.iter().filter(known).cloned().collect();
        missing.sort();
        let requests = missing.iter().flat_map(reads).collect();
        (missing, requests)
    }

    /// Takes over what was read.
    ///
    /// # Errors
    /// The first failed read's.
    pub fn learn(&mut self, needs: Vec<Need>, replies: Vec<Result<Reply, StoreError>>) -> Result<(), StoreError> {
        let mut replies = replies.into_iter();
        let mut rows = || match replies.next() {
            Some(Ok(Reply::Rows(reply))) => Ok(reply),
            Some(Err(error)) => Err(error),
            _ => Err(StoreError::Damaged("a read was answered with something else".to_owned())),
        };
        for need in needs {
            match need {
                Need::Guild(guild_id) => {
                    let mut objects = BTreeMap::new();
                    for _ in LOADED {
                        objects.extend(rows()?.rows.into_iter().map(|row| (row.clustering.clone(), cells_of(row))));
                    }
                    if self.guilds.len() >= MAX_GUILDS {
                        self.guilds.clear();
                    }
                    self.guilds.insert(guild_id, objects);
                }
                row @ Need::Row { .. } => {
                    let found = rows()?.rows.into_iter().next().map(cells_of);
                    self.rows.insert(row, found);
                }
                span @ Need::Span { .. } => {
                    let reply = rows()?;
                    // Right after the last row that was read.
                    let after = |row: &Row| [row.clustering.as_slice(), &[0]].concat();
                    let unread_from = reply.rows.last().map(after).filter(|_| reply.more);
                    let whole = |row: &Row| row.cells.iter().any(|cell| cell.column == BODY);
                    let keys = reply.rows.into_iter().filter(whole).map(|row| row.clustering).collect();
                    self.spans.insert(span, Span { keys, unread_from });
                }
            }
        }
        Ok(())
    }

    /// Everything is read anew: after a doubt about what was committed.
    pub fn forget(&mut self) {
        self.guilds.clear();
        self.end_batch();
    }

    /// The batch is over.
    pub fn end_batch(&mut self) {
        self.rows.clear();
        self.spans.clear();
    }

    /// An accepted entry changes what the next one is judged against.
    pub fn overlay(&mut self, entry: &Entry) {
        for mutation in tables::mutations(entry) {
            self.change_row(&mutation);
            self.change_spans(&mutation);
            if mutation.table == GUILD_OBJECTS {
                self.change_guild(mutation);
            }
        }
    }

    fn change_row(&mut self, mutation: &RowMutation) {
        for (need, known) in &mut self.rows {
            let Need::Row { table, partition, clustering } = need else { continue };
            if *table != mutation.table || *partition != mutation.partition {
                continue;
            }
            if !mutation.range_end.is_empty() {
                if mutation.clustering <= *clustering && *clustering < mutation.range_end {
                    *known = None;
                }
            } else if mutation.clustering == *clustering {
                *known = changed(known.take(), mutation);
            }
        }
    }

    fn change_spans(&mut self, mutation: &RowMutation) {
        for (need, span) in &mut self.spans {
            let Need::Span { table, partition, start, end } = need else { continue };
            if *table == mutation.table && *partition == mutation.partition {
                span.change((start, end), mutation);
            }
        }
    }

    fn change_guild(&mut self, mutation: RowMutation) {
        let Ok(id) = <[u8; 8]>::try_from(mutation.partition.as_slice()) else { return };
        let Some(objects) = self.guilds.get_mut(&i64::from_be_bytes(id)) else { return };
        if !mutation.range_end.is_empty() {
            objects.retain(|key, _| *key < mutation.clustering || *key >= mutation.range_end);
        } else if mutation.clustering.first().is_some_and(|kind| LOADED.contains(kind)) {
            match changed(objects.remove(&mutation.clustering), &mutation) {
                Some(cells) => objects.insert(mutation.clustering, cells),
                None => None,
            };
        }
    }

    /// A row that was asked for; none when it is absent.
    pub fn row(&self, need: &Need) -> Option<&Cells> {
        self.rows.get(need)?.as_ref()
    }

    /// A span that was asked for.
    pub fn span(&self, need: &Need) -> Option<&Span> {
        self.spans.get(need)
    }

    /// An object of a guild that was asked for.
    pub fn object(&self, guild_id: i64, key: &[u8]) -> Option<&Cells> {
        self.guilds.get(&guild_id)?.get(key)
    }

    /// How many objects of a kind a guild has.
    pub fn count(&self, guild_id: i64, kind: u8) -> usize {
        self.guilds.get(&guild_id).map_or(0, |objects| objects.range(vec![kind]..next_kind(kind)).count())
    }

    /// The term a guild was split out from; none while it lives in its bucket.
    pub fn split(&self, guild_id: i64) -> Option<u64> {
        number(self.object(guild_id, &tables::object_key(kind::SPLIT, 0))?, tables::TERM)
    }
}

fn changed(known: Option<Cells>, mutation: &RowMutation) -> Option<Cells> {
    let mut cells = if mutation.delete_row { Cells::new() } else { known.unwrap_or_default() };
    cells.extend(mutation.cells.iter().map(|cell| (cell.column.clone(), cell.value.clone())));
    (!cells.is_empty()).then_some(cells)
}

fn reads(need: &Need) -> Vec<Request> {
    match need {
        Need::Guild(guild_id) => LOADED
            .iter()
            .map(|kind| {
                let request = ReadRowsRequest {
                    table: GUILD_OBJECTS.to_owned(),
                    partition: id_key(*guild_id),
                    start: vec![*kind],
                    end: next_kind(*kind),
                    limit: MAX_OBJECTS,
                    reverse: false,
                };
                request.into()
            })
            .collect(),
        Need::Row { table, partition, clustering } => {
            let mut end = clustering.clone();
            end.push(0);
            let request = ReadRowsRequest {
                table: (*table).to_owned(),
                partition: partition.clone(),
                start: clustering.clone(),
                end,
                limit: 1,
                reverse: false,
            };
            vec![request.into()]
        }
        Need::Span { table, partition, start, end } => {
            let request = ReadRowsRequest {
                table: (*table).to_owned(),
                partition: partition.clone(),
                start: start.clone(),
                end: end.clone(),
                limit: SPAN_ROWS,
                reverse: false,
            };
            vec![request.into()]
        }
    }
}

/// A big-endian number in a cell.
pub fn number(cells: &Cells, column: &str) -> Option<u64> {
    Some(u64::from_be_bytes(cells.get(column)?.as_slice().try_into().ok()?))
}
