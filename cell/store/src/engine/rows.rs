//! Rows: every cell carries its write time and the last write wins, whatever order writes arrive in. A tombstone of a row or a range
//! hides what was written at its time or before; a range's rows go besides (`sweep`). Expiry counts from the write time, so that repeating
//! a write changes nothing.

use std::collections::BTreeMap;

use cell_proto::v1::{CellRead, ReadRowsReply, ReadRowsRequest, Row, RowMutation, WriteRequest};
use prost::Message;

use super::ranges::{self, Hidden, Range};
use super::sweep::Sweep;
use super::{ANSWER_BYTES, Change, Kv, Scan, Space, keys};
use crate::StoreError;
use crate::schema::Schema;

/// A row as stored.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StoredRow {
    /// 0: never deleted.
    #[prost(int64, tag = "1")]
    deleted_at_us: i64,
    #[prost(message, repeated, tag = "2")]
    cells: Vec<StoredCell>,
}

#[derive(Clone, PartialEq, Message)]
struct StoredCell {
    #[prost(string, tag = "1")]
    column: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    timestamp_us: i64,
    /// Seconds since the Unix epoch; 0: never.
    #[prost(int64, tag = "4")]
    expires_at_s: i64,
}

impl StoredRow {
    fn delete(&mut self, timestamp_us: i64) {
        self.deleted_at_us = self.deleted_at_us.max(timestamp_us);
        self.drop_hidden();
    }

    /// What lies under a range tombstone of that time goes, as it would be hidden anyway. Answers whether something did.
    pub(super) fn sweep(&mut self, hidden: i64) -> bool {
        let before = self.cells.len();
        self.cells.retain(|cell| cell.timestamp_us > hidden);
        self.cells.len() < before || self.is_dead(hidden)
    }

    /// Nothing of it says more than a range tombstone of that time does.
    pub(super) fn is_dead(&self, hidden: i64) -> bool {
        self.cells.is_empty() && self.deleted_at_us <= hidden
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    fn set(&mut self, cell: StoredCell) {
        match self.cells.iter_mut().find(|known| known.column == cell.column) {
            // Of two values written at one time the greater wins: any rule does that everyone applies.
            Some(known) if (known.timestamp_us, &known.value) < (cell.timestamp_us, &cell.value) => *known = cell,
            Some(_) => {}
            None => self.cells.push(cell),
        }
        self.drop_hidden();
    }

    fn drop_hidden(&mut self) {
        let deleted_at_us = self.deleted_at_us;
        self.cells.retain(|cell| cell.timestamp_us > deleted_at_us);
    }
}

pub(super) fn decode_row(bytes: &[u8]) -> Result<StoredRow, StoreError> {
    StoredRow::decode(bytes).map_err(|error| StoreError::Damaged(error.to_string()))
}

fn partition_prefix(table: &str, partition: &[u8]) -> Result<Vec<u8>, StoreError> {
    let table = keys::name("table", table)?;
    let token = Schema::platform().token(table, keys::bounded("partition key", partition)?)?;
    Ok(keys::partition(table, token, partition))
}

/// The changes that a write makes.
pub(super) fn write(kv: &dyn Kv, request: WriteRequest, now_s: i64) -> Result<Vec<Change>, StoreError> {
    let mut rows: BTreeMap<Vec<u8>, StoredRow> = BTreeMap::new();
    let mut covers: BTreeMap<Vec<u8>, Vec<Range>> = BTreeMap::new();
    for mutation in request.mutations {
        let timestamp_us = if mutation.timestamp_us == 0 { request.timestamp_us } else { mutation.timestamp_us };
        if timestamp_us <= 0 {
            return Err(StoreError::Invalid("a write needs a write time above 0".to_owned()));
        }
        let prefix = partition_prefix(&mutation.table, &mutation.partition)?;
        keys::bounded("clustering key", &mutation.clustering)?;
        if mutation.range_end.is_empty() {
            let key = [prefix, mutation.clustering.clone()].concat();
            let mut row = match rows.remove(&key) {
                Some(row) => row,
                None => kv.get(Space::Rows, &key)?.map(|bytes| decode_row(&bytes)).transpose()?.unwrap_or_default(),
            };
            change_row(&mut row, mutation, timestamp_us, request.ttl_seconds)?;
            // What has expired still hides what was written before it, as a deletion does; only its value goes.
            let expired = row.cells.iter_mut().filter(|cell| cell.expires_at_s != 0 && cell.expires_at_s <= now_s);
            expired.for_each(|cell| cell.value.clear());
            rows.insert(key, row);
        } else {
            keys::bounded("range end", &mutation.range_end)?;
            let (start, end) = (mutation.clustering, mutation.range_end);
            covers.entry(prefix).or_default().push(Range { start, end, time: timestamp_us });
        }
    }
    let mut sweep = Sweep::new(kv, &rows);
    let mut laid = Vec::new();
    for (prefix, covers) in &covers {
        covers.iter().try_for_each(|cover| sweep.under(prefix, cover))?;
        laid.extend(ranges::lay(kv, prefix, covers)?);
    }
    let swept = sweep.changes();
    let rows = rows.into_iter().map(|(key, row)| (Space::Rows, key, Some(row.encoded())));
    Ok(swept.into_iter().chain(rows).chain(laid).collect())
}

fn change_row(
    row: &mut StoredRow,
    mutation: RowMutation,
    timestamp_us: i64,
    ttl_seconds: u32,
) -> Result<(), StoreError> {
    if mutation.delete_row {
        row.delete(timestamp_us);
    }
    let expires_at_s = if ttl_seconds == 0 { 0 } else { timestamp_us / 1_000_000 + i64::from(ttl_seconds) };
    for cell in mutation.cells {
        keys::name("column", &cell.column)?;
        row.set(StoredCell { column: cell.column, value: cell.value, timestamp_us, expires_at_s });
    }
    Ok(())
}

/// Live rows in `[start, end)`.
pub(super) fn read(kv: &dyn Kv, request: &ReadRowsRequest, now_s: i64) -> Result<ReadRowsReply, StoreError> {
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
    let limit = limit.ok_or_else(|| StoreError::Invalid("limit must be at least 1".to_owned()))?;
    let prefix = partition_prefix(&request.table, &request.partition)?;
    let mut hidden = Hidden::new(kv, &prefix);
    let from = [prefix.clone(), request.start.clone()].concat();
    let to = if request.end.is_empty() {
        keys::after(prefix.clone())
    } else {
        [prefix.clone(), request.end.clone()].concat()
    };
    let (mut rows, mut more, mut bytes) = (Vec::new(), false, 0);
    if from < to {
        let scan = Scan { space: Space::Rows, from, to, reverse: request.reverse };
        kv.scan(scan, &mut |key, value| {
            let clustering = key.get(prefix.len()..).unwrap_or_default();
            let hidden = hidden.up_to(clustering)?;
            let Some(row) = live(clustering, decode_row(value)?, hidden, now_s) else { return Ok(true) };
            bytes += value.len();
            more = rows.len() == limit || (bytes > ANSWER_BYTES && !rows.is_empty());
            if !more {
                rows.push(row);
            }
            Ok(!more)
        })?;
    }
    Ok(ReadRowsReply { rows, more, warning: String::new() })
}

/// What is left of a row where range tombstones hide up to a time; none when nothing is.
pub(super) fn live(clustering: &[u8], row: StoredRow, hidden: i64, now_s: i64) -> Option<Row> {
    let hidden = hidden.max(row.deleted_at_us);
    let cells: Vec<CellRead> = row
        .cells
        .into_iter()
        .filter(|cell| cell.timestamp_us > hidden && (cell.expires_at_s == 0 || cell.expires_at_s > now_s))
        .map(|cell| CellRead {
            ttl_seconds: if cell.expires_at_s == 0 {
                0
            } else {
                u32::try_from(cell.expires_at_s - now_s).unwrap_or(u32::MAX)
            },
            column: cell.column,
            value: cell.value,
            timestamp_us: cell.timestamp_us,
        })
        .collect();
    (!cells.is_empty()).then(|| Row { clustering: clustering.to_vec(), cells })
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::CellWrite;

    use super::*;
    use crate::MemoryState;

    fn put(key: u8) -> RowMutation {
        let cells = vec![CellWrite { column: "v".into(), value: b"x".into() }];
        let (table, partition) = ("t".into(), b"p".to_vec());
        RowMutation { table, partition, clustering: vec![key], cells, ..RowMutation::default() }
    }

    fn range(start: u8, end: u8) -> RowMutation {
        RowMutation { range_end: vec![end], cells: Vec::new(), ..put(start) }
    }

    fn write(state: &mut MemoryState, timestamp_us: i64, mutations: Vec<RowMutation>) {
        let request = WriteRequest { timestamp_us, mutations, ttl_seconds: 0 };
        state.handle(request.into(), 0).unwrap();
    }

    #[test]
    fn a_range_tombstone_leaves_no_rows_and_no_older_ranges_under_it() {
        let mut state = MemoryState::default();
        write(&mut state, 10, (0..200).map(put).collect());
        write(&mut state, 30, vec![put(3)]);
        write(
            &mut state,
            11,
            (40..60).map(|key| RowMutation { delete_row: true, cells: vec![], ..put(key) }).collect(),
        );
        write(&mut state, 12, vec![range(5, 9), range(20, 22), range(150, 190)]);
        assert_eq!(state.count(Space::Ranges), 3);
        write(&mut state, 20, vec![range(0, 180)]);
        assert_eq!((state.count(Space::Rows), state.count(Space::Ranges)), (1 + 10, 2));
        write(&mut state, 15, vec![put(7)]);
        write(&mut state, 20, vec![range(0, 180)]);
        assert_eq!(state.count(Space::Rows), 1 + 10, "a late write goes when the range comes again");
    }
}
