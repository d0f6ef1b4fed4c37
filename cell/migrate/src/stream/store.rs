//! A table of the platform behind the `Store` trait as a side, on whichever engine; where a run is about some units only, the rows of
//! others are passed over.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cell_proto::unit::bucket_of;
use cell_proto::v1::{self, CellWrite, ReadRowsRequest, RowMutation, ScanRowsRequest, WriteRequest};
use cell_store::schema::Schema;
use cell_store::{Store, StoreError};
use tokio::time::Instant;

use super::{Cursor, Page, Source, StreamError, Target, Wall};
use crate::ranges::Tokens;
use crate::row::{Cell, Row};

pub(super) const PAGE_ROWS: i32 = 1_000;
/// Pages passed over in one scan before it answers, so that a lease is renewed on the way.
const PAGES_AT_ONCE: usize = 16;

/// A table of a StorageCell.
pub struct StoreTable {
    store: Arc<dyn Store>,
    table: String,
    columns: Vec<String>,
    /// None: all rows.
    buckets: Option<BTreeSet<u16>>,
}

impl StoreTable {
    /// `buckets`: only rows of these bucket units.
    ///
    /// # Errors
    /// [`StreamError::Refused`] when the platform has no such table.
    pub fn new(store: Arc<dyn Store>, table: &str, buckets: Option<BTreeSet<u16>>) -> Result<Self, StreamError> {
        let known = Schema::platform().get(table);
        let columns =
            known.ok_or_else(|| StreamError::Refused(format!("the platform has no table {table:?}")))?.values.clone();
        Ok(Self { store, table: table.to_owned(), columns, buckets })
    }

    fn in_scope(&self, partition: &[u8]) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| {
            bucket_of_partition(&self.table, partition).is_some_and(|bucket| buckets.contains(&bucket))
        })
    }

    fn row(&self, token: i64, partition: Vec<u8>, row: v1::Row) -> Result<Row, StreamError> {
        let mut cells = Vec::with_capacity(row.cells.len());
        for cell in row.cells {
            let column =
                self.columns.iter().position(|name| *name == cell.column).and_then(|index| u16::try_from(index).ok());
            let unknown = || {
                StreamError::Refused(format!("table {} has no column {:?} in this version", self.table, cell.column))
            };
            cells.push(Cell {
                column: column.ok_or_else(unknown)?,
                value: Bytes::from(cell.value),
                written_us: cell.timestamp_us,
                ttl_s: cell.ttl_seconds,
            });
        }
        cells.sort_by_key(|cell| cell.column);
        Ok(Row {
            token,
            partition: vec![Bytes::from(partition)],
            clustering: Some(vec![Bytes::from(row.clustering)]),
            cells,
        })
    }

    /// Rows of one partition before a key, from the last one on, and whether there are more.
    pub(super) async fn partition(
        &self,
        token: i64,
        key: &[u8],
        end: Vec<u8>,
        limit: i32,
    ) -> Result<Part, StreamError> {
        let request = ReadRowsRequest {
            table: self.table.clone(),
            partition: key.to_vec(),
            end,
            limit,
            reverse: true,
            ..ReadRowsRequest::default()
        };
        let reply = self.store.read_rows(request).await.map_err(failed)?;
        let wall = (!reply.warning.is_empty())
            .then(|| Wall { warning: reply.warning, partition: Some((token, self.key_text(key))) });
        let rows = reply.rows.into_iter().map(|row| self.row(token, key.to_vec(), row));
        Ok(Part { rows: rows.collect::<Result<_, _>>()?, more: reply.more, wall })
    }

    pub(super) fn key_text(&self, key: &[u8]) -> String {
        let values = Schema::platform().get(&self.table).and_then(|table| table.partition_values(key).ok());
        values.map_or_else(|| "?".to_owned(), |values| format!("{values:?}"))
    }

    fn mutation(&self, row: &Row) -> RowMutation {
        let key = |parts: &[Bytes]| parts.first().map(|bytes| bytes.to_vec()).unwrap_or_default();
        RowMutation {
            table: self.table.clone(),
            partition: key(&row.partition),
            clustering: row.clustering.as_deref().map(key).unwrap_or_default(),
            ..RowMutation::default()
        }
    }
}

/// What was read of one partition.
pub(super) struct Part {
    pub(super) rows: Vec<Row>,
    pub(super) more: bool,
    pub(super) wall: Option<Wall>,
}

/// The bucket a partition of a table belongs to: its first id's, or the partition itself. None for what has no such id.
pub fn bucket_of_partition(table: &str, partition: &[u8]) -> Option<u16> {
    if table == "channel_guild" {
        return partition.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
    }
    partition.first_chunk::<8>().map(|bytes| bucket_of(i64::from_be_bytes(*bytes)))
}

pub(super) fn failed(error: StoreError) -> StreamError {
    match error {
        StoreError::Unavailable(_) | StoreError::UnknownOutcome(_) | StoreError::Full { .. } => {
            StreamError::Unavailable(error.to_string())
        }
        other => StreamError::Refused(other.to_string()),
    }
}

#[async_trait]
impl Source for StoreTable {
    async fn scan(&self, tokens: Tokens, cursor: Cursor, at_most: u32) -> Result<Page, StreamError> {
        let read_at = Instant::now();
        let (mut rows, mut after, mut read, mut tombstones) = (Vec::new(), cursor.mark.to_vec(), 0, None);
        for _ in 0..PAGES_AT_ONCE {
            let request = ScanRowsRequest {
                table: self.table.clone(),
                first_token: tokens.first,
                last_token: tokens.last,
                after: std::mem::take(&mut after),
                limit: i32::try_from(at_most).unwrap_or(PAGE_ROWS).clamp(1, PAGE_ROWS),
            };
            let reply = self.store.scan_rows(request).await.map_err(failed)?;
            read += reply.rows.len() as u64;
            let wall = Wall { warning: reply.warning, partition: None };
            tombstones = tombstones.or(Some(wall).filter(|wall| !wall.warning.is_empty()));
            for scanned in reply.rows {
                if let Some(row) = scanned.row.filter(|_| self.in_scope(&scanned.partition)) {
                    rows.push(self.row(scanned.token, scanned.partition, row)?);
                }
            }
            after = reply.next;
            // What was warned of lies between here and the rows before.
            if after.is_empty() || !rows.is_empty() || tombstones.is_some() {
                break;
            }
        }
        let next = (!after.is_empty()).then(|| Cursor { mark: Bytes::from(after), partition: None });
        Ok(Page { rows, next, read, read_at, took: read_at.elapsed(), tombstones, mark: None })
    }

    async fn read(&self, key: &Row) -> Result<Option<Row>, StreamError> {
        let wanted = self.mutation(key);
        let request = ReadRowsRequest {
            table: self.table.clone(),
            partition: wanted.partition.clone(),
            start: wanted.clustering.clone(),
            limit: 1,
            ..ReadRowsRequest::default()
        };
        let reply = self.store.read_rows(request).await.map_err(failed)?;
        let found = reply.rows.into_iter().find(|row| row.clustering == wanted.clustering);
        found.map(|row| self.row(key.token, wanted.partition, row)).transpose()
    }

    async fn partitions(&self, _tokens: Tokens, _limit: i32) -> Result<Vec<i64>, StreamError> {
        Ok(vec![])
    }

    fn partition_text(&self, row: &Row) -> String {
        row.partition.first().map_or_else(|| "?".to_owned(), |bytes| self.key_text(bytes))
    }

    fn compaction(&self, tokens: Tokens) -> String {
        let Tokens { first, last } = tokens;
        format!(
            "nodetool compact -st {first} -et {last} KEYSPACE {} on a CQL StorageCell; the embedded engine compacts by itself",
            self.table
        )
    }
}

#[async_trait]
impl Target for StoreTable {
    async fn write(&self, rows: &[Row]) -> Result<(), StreamError> {
        let mut requests: Vec<WriteRequest> = Vec::new();
        for row in rows {
            for (timestamp_us, ttl_seconds, cells) in row.groups() {
                let write = |cell: &Cell| {
                    let column = self.columns.get(usize::from(cell.column)).cloned().unwrap_or_default();
                    CellWrite { column, value: cell.value.to_vec() }
                };
                let cells = cells.into_iter().map(write).collect();
                let mutation = RowMutation { cells, timestamp_us, ..self.mutation(row) };
                match requests.iter_mut().find(|request| request.ttl_seconds == ttl_seconds) {
                    Some(request) => request.mutations.push(mutation),
                    None => requests.push(WriteRequest { timestamp_us, mutations: vec![mutation], ttl_seconds }),
                }
            }
        }
        for request in requests {
            self.store.write(request).await.map_err(failed)?;
        }
        Ok(())
    }

    async fn delete_row(&self, row: &Row, at_us: i64) -> Result<(), StreamError> {
        let mutation = RowMutation { delete_row: true, timestamp_us: at_us, ..self.mutation(row) };
        let request = WriteRequest { timestamp_us: at_us, mutations: vec![mutation], ttl_seconds: 0 };
        self.store.write(request).await.map_err(failed)
    }

    async fn delete_cells(&self, _row: &Row, _cells: &[Cell]) -> Result<(), StreamError> {
        // The platform deletes rows, never single cells: a cell that only the target has came from elsewhere, and stays a mismatch.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_refuses_is_not_taken_for_a_side_that_is_away() {
        assert!(matches!(failed(StoreError::Refused("too many tombstones".into())), StreamError::Refused(_)));
        assert!(matches!(failed(StoreError::Unavailable("no node".into())), StreamError::Unavailable(_)));
    }
}
