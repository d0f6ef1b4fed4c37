//! One table on one side, as a stream of rows by token. What a side can be: a CQL table of people's own (`cql`), or a table of the platform
//! behind the `Store` trait (`store`), all of it or some units' partitions (`unit`). None of them decides what is copied.

pub mod cql;
pub mod store;
pub mod unit;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use crate::ranges::{FailureKind, Tokens};
use crate::row::{Cell, Row};

/// Why a side did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StreamError {
    /// It does not answer; asking again later makes sense.
    #[error("{0}")]
    Unavailable(String),
    /// It will not do this: this range, this row.
    #[error("{0}")]
    Refused(String),
}

impl StreamError {
    /// What it means for the range.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Unavailable(_) => FailureKind::Unavailable,
            Self::Refused(_) => FailureKind::Range,
        }
    }
}

/// Where a scan goes on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The engine's own mark.
    pub mark: Bytes,
    /// The partition that was read last, whose static cells were seen.
    pub partition: Option<Vec<Bytes>>,
}

/// A piece of a scan.
#[derive(Clone, Debug)]
pub struct Page {
    /// By token, and within a partition in the engine's order.
    pub rows: Vec<Row>,
    /// Where to go on; none: the range was read to its end. Only that means the end.
    pub next: Option<Cursor>,
    /// Rows that were read, those passed over included.
    pub read: u64,
    /// When the reading began.
    pub read_at: Instant,
    /// How long it took.
    pub took: Duration,
    /// It went over many tombstones.
    pub tombstones: Option<Wall>,
    /// A place in the source's own order, where that is not by token: with this page everything up to it was read.
    pub mark: Option<Bytes>,
}

/// Many tombstones on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wall {
    /// The engine's words.
    pub warning: String,
    /// The partition they are in, by token and for people, where it is known.
    pub partition: Option<(i64, String)>,
}

/// What is read.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Rows of a token range from a cursor on, about so many at most.
    async fn scan(&self, tokens: Tokens, cursor: Cursor, at_most: u32) -> Result<Page, StreamError>;

    /// The row with this one's key as it is now.
    async fn read(&self, key: &Row) -> Result<Option<Row>, StreamError>;

    /// Tokens of the first partitions of a range, at most `limit`; what costs little to say, so none may be said.
    async fn partitions(&self, tokens: Tokens, limit: i32) -> Result<Vec<i64>, StreamError>;

    /// Whether rows come by token, so that how far it is can be said by one.
    fn is_by_token(&self) -> bool {
        true
    }

    /// Where a scan goes on that has done everything up to a mark of an earlier one, perhaps of another process; from the beginning where
    /// the mark says nothing to it.
    fn after(&self, _mark: &[u8]) -> Cursor {
        Cursor::default()
    }

    /// The partition key for people.
    fn partition_text(&self, row: &Row) -> String;

    /// The compaction that rids this table's range of tombstones, as a command.
    fn compaction(&self, tokens: Tokens) -> String;
}

/// What is written.
#[async_trait]
pub trait Target: Source {
    /// Writes rows of one partition at their own write times, for what is left of their times to live. Never a null.
    async fn write(&self, rows: &[Row]) -> Result<(), StreamError>;

    /// Deletes a row as of a write time.
    async fn delete_row(&self, row: &Row, at_us: i64) -> Result<(), StreamError>;

    /// Deletes cells, each at its own write time.
    async fn delete_cells(&self, row: &Row, cells: &[Cell]) -> Result<(), StreamError>;
}
