//! The registry of tables: what each table's keys are made of, how the bytes of the Store trait become typed CQL keys and back, and
//! which token a partition has. It decides the layout for every engine; it never reads or writes.

mod bound;
mod key;
mod token;

use std::collections::BTreeMap;
use std::sync::OnceLock;

pub use bound::Bound;
pub use key::{KeyColumn, KeyType, KeyValue};
pub use token::token;

use crate::StoreError;

/// How the files of a table are kept together by a CQL engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compaction {
    /// Small objects that are overwritten and read by key.
    Leveled,
    /// Rows that come in order of time and are read by time.
    TimeWindow {
        /// One window, in days.
        days: u32,
    },
}

/// One table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Columns of the partition key.
    pub partition: Vec<KeyColumn>,
    /// Columns of the clustering key; none when a partition is one row.
    pub clustering: Vec<KeyColumn>,
    /// Rows of a partition lie from high to low keys, and are scanned so.
    pub descending: bool,
    /// Names of the other columns; all are blobs.
    pub values: Vec<String>,
    /// How its files are kept together.
    pub compaction: Compaction,
    /// The version of the platform's tables it came with.
    pub since: u32,
}

impl Table {
    /// A table whose rows lie from low to high keys.
    pub fn new(name: &str, partition: &[(&str, KeyType)], clustering: &[(&str, KeyType)], values: &[&str]) -> Self {
        let columns = |list: &[(&str, KeyType)]| {
            list.iter().map(|(name, kind)| KeyColumn { name: (*name).to_owned(), kind: *kind }).collect()
        };
        Self {
            name: name.to_owned(),
            partition: columns(partition),
            clustering: columns(clustering),
            descending: false,
            values: values.iter().map(|name| (*name).to_owned()).collect(),
            compaction: Compaction::Leveled,
            since: 1,
        }
    }

    /// The typed partition key.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the bytes are not such a key.
    pub fn partition_values(&self, bytes: &[u8]) -> Result<Vec<KeyValue>, StoreError> {
        key::split(&self.partition, bytes)
            .filter(|_| !bytes.is_empty())
            .ok_or_else(|| self.misshapen("partition", bytes.len()))
    }

    /// The typed clustering key.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the bytes are not such a key.
    pub fn clustering_values(&self, bytes: &[u8]) -> Result<Vec<KeyValue>, StoreError> {
        key::split(&self.clustering, bytes).ok_or_else(|| self.misshapen("clustering", bytes.len()))
    }

    fn misshapen(&self, which: &str, length: usize) -> StoreError {
        StoreError::Invalid(format!("{length} bytes are not a {which} key of table {:?}", self.name))
    }

    /// The token of a partition.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the bytes are not such a key.
    pub fn token(&self, partition: &[u8]) -> Result<i64, StoreError> {
        let values = self.partition_values(partition)?;
        Ok(token(&key::serialise(&values)))
    }

    /// Where rows at or after these bytes begin.
    pub fn start(&self, bytes: &[u8]) -> Bound {
        bound::start(&self.clustering, bytes)
    }

    /// Where rows before these bytes end.
    pub fn end(&self, bytes: &[u8]) -> Bound {
        bound::end(&self.clustering, bytes)
    }
}

/// The bytes of a key.
pub fn key_bytes(values: &[KeyValue]) -> Vec<u8> {
    key::join(values)
}

/// Tables by name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Schema {
    tables: BTreeMap<String, Table>,
}

impl Schema {
    /// The version of the platform's tables; raised by every change of them.
    pub const VERSION: u32 = 2;

    /// The platform's own tables.
    pub fn platform() -> &'static Self {
        static PLATFORM: OnceLock<Schema> = OnceLock::new();
        PLATFORM.get_or_init(|| {
            use KeyType::{BigInt, Blob, SmallInt, TinyInt};
            // Messages come by time, ten days in a partition.
            let messages = Table {
                descending: true,
                compaction: Compaction::TimeWindow { days: 10 },
                ..Table::new(
                    "messages",
                    &[("channel_id", BigInt), ("bucket", BigInt)],
                    &[("message_id", BigInt)],
                    &["body", "content", "embeds", "edited"],
                )
            };
            Self::default()
                .with(messages)
                .with(Table::new(
                    "guild_objects",
                    &[("guild_id", BigInt)],
                    &[("kind", TinyInt), ("key", Blob)],
                    &["body", "policy", "term", "uses", "node"],
                ))
                .with(Table::new("users", &[("user_id", BigInt)], &[], &["body"]))
                .with(Table::new("user_guilds", &[("user_id", BigInt)], &[("guild_id", BigInt)], &["since"]))
                .with(Table::new("channel_guild", &[("bucket", SmallInt)], &[("channel_id", BigInt)], &["guild"]))
                .with(Table {
                    since: 2,
                    ..Table::new("read_states", &[("user_id", BigInt)], &[("channel_id", BigInt)], &["last"])
                })
        })
    }

    /// With one more table.
    #[must_use]
    pub fn with(mut self, table: Table) -> Self {
        self.tables.insert(table.name.clone(), table);
        self
    }

    /// A table, if it is known.
    pub fn get(&self, name: &str) -> Option<&Table> {
        self.tables.get(name)
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.values()
    }

    /// The token of a partition; of a table that is not known, the partition is one blob.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when the bytes are not such a key.
    pub fn token(&self, table: &str, partition: &[u8]) -> Result<i64, StoreError> {
        match self.get(table) {
            Some(table) => table.token(partition),
            None => Ok(token(partition)),
        }
    }
}

#[cfg(test)]
mod tests;
