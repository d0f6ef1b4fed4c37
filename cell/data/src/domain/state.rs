//! What judging knows: rows read from the tables, changed by the entries accepted since (LOG.md rule 6). A guild's small objects are
//! kept from batch to batch; single rows only for one batch. Bounded; what is not there is asked for.

use std::collections::{BTreeMap, HashMap, HashSet};

use cell_proto::v1::{Entry, ReadRowsRequest, Row, RowMutation};
use cell_store::{Reply, Request, StoreError};

use super::tables::{self, GUILD_OBJECTS, id_key, kind};

/// Cells of a row by column.
pub type Cells = BTreeMap<String, Vec<u8>>;

/// Guilds kept per log; beyond, all are forgotten and read again.
const MAX_GUILDS: usize = 1024;

/// The kinds of objects a guild is loaded with. Members and invites are read one by one.
const LOADED: [u8; 5] = [kind::CHANNEL, kind::GUILD, kind::ROLE, kind::SPLIT, kind::TERM];

/// Most objects of one kind: above every limit on them.
const MAX_OBJECTS: i32 = 2000;

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
}

/// What is known.
#[derive(Clone, Default, Debug)]
pub struct State {
    guilds: HashMap<i64, BTreeMap<Vec<u8>, Cells>>,
    rows: HashMap<Need, Option<Cells>>,
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
            Some(Ok(Reply::Rows(reply))) => Ok(reply.rows),
            Some(Err(error)) => Err(error),
            _ => Err(StoreError::Damaged("a read was answered with something else".to_owned())),
        };
        for need in needs {
            match need {
                Need::Guild(guild_id) => {
                    let mut objects = BTreeMap::new();
                    for _ in LOADED {
                        objects.extend(rows()?.into_iter().map(|row| (row.clustering.clone(), cells_of(row))));
                    }
                    if self.guilds.len() >= MAX_GUILDS {
                        self.guilds.clear();
                    }
                    self.guilds.insert(guild_id, objects);
                }
                row @ Need::Row { .. } => {
                    let found = rows()?.into_iter().next().map(cells_of);
                    self.rows.insert(row, found);
                }
            }
        }
        Ok(())
    }

    /// Everything is read anew: after a doubt about what was committed.
    pub fn forget(&mut self) {
        self.guilds.clear();
        self.rows.clear();
    }

    /// The batch is over.
    pub fn end_batch(&mut self) {
        self.rows.clear();
    }

    /// An accepted entry changes what the next one is judged against.
    pub fn overlay(&mut self, entry: &Entry) {
        for mutation in tables::mutations(entry) {
            self.change_row(&mutation);
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
    }
}

/// A big-endian number in a cell.
pub fn number(cells: &Cells, column: &str) -> Option<u64> {
    Some(u64::from_be_bytes(cells.get(column)?.as_slice().try_into().ok()?))
}
