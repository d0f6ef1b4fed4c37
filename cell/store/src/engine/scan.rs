//! Scanning a table by token: whole partitions one after the other, each in its table's own order, stopping early and going on from
//! the last row answered. It shows live rows only, and every row that lived throughout exactly once.

use cell_proto::v1::{ScanRowsReply, ScanRowsRequest, ScannedRow};

use super::ranges::Hidden;
use super::{ANSWER_BYTES, Kv, Scan, Space, keys, rows};
use crate::StoreError;
use crate::schema::Schema;

/// The most rows in one answer.
const MAX_ROWS: usize = 10_000;

/// Stored rows, dead ones included, that one answer may look at.
const MAX_VISITED: usize = 100_000;

struct Progress {
    reply: ScanRowsReply,
    limit: usize,
    bytes: usize,
    visited: usize,
    full: bool,
}

/// One partition's place.
struct Partition {
    prefix: Vec<u8>,
    /// The same without the table: what a place in an answer starts with.
    place: Vec<u8>,
    key: keys::RowKey,
}

/// Live rows of a token range.
pub(super) fn scan(kv: &dyn Kv, request: &ScanRowsRequest, now_s: i64) -> Result<ScanRowsReply, StoreError> {
    let name = keys::name("table", &request.table)?;
    let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=MAX_ROWS).contains(limit));
    let limit = limit.ok_or_else(|| StoreError::Invalid(format!("limit must be 1–{MAX_ROWS}")))?;
    let descending = Schema::platform().get(name).is_some_and(|table| table.descending);
    let table = keys::table(name);
    let mut progress = Progress { reply: ScanRowsReply::default(), limit, bytes: 0, visited: 0, full: false };
    let mut from = [table.as_slice(), &keys::token_bytes(request.first_token)].concat();
    let to = match request.last_token.checked_add(1) {
        Some(next) => [table.as_slice(), &keys::token_bytes(next)].concat(),
        None => keys::after(table.clone()),
    };
    let mut resumed = resumed(request)?;
    if let Some(position) = &resumed {
        from = keys::partition(name, position.token, &position.partition);
    }
    while from < to
        && !progress.full
        && let Some(partition) = next_partition(kv, &table, from, to.clone())?
    {
        // Only the partition that was being read has rows already answered.
        let given = resumed.take().filter(|position| position.partition == partition.key.partition);
        let given = given.map(|position| position.clustering);
        read_partition(kv, &partition, given, (descending, now_s), &mut progress)?;
        from = keys::after(partition.prefix);
    }
    if !progress.full {
        progress.reply.next.clear();
    }
    Ok(progress.reply)
}

fn resumed(request: &ScanRowsRequest) -> Result<Option<keys::RowKey>, StoreError> {
    if request.after.is_empty() {
        return Ok(None);
    }
    let position = keys::split_row(&request.after)
        .filter(|position| (request.first_token..=request.last_token).contains(&position.token));
    let position = position
        .ok_or_else(|| StoreError::Invalid("after must be the `next` of an answer to the same range".to_owned()))?;
    Ok(Some(position))
}

fn next_partition(kv: &dyn Kv, table: &[u8], from: Vec<u8>, to: Vec<u8>) -> Result<Option<Partition>, StoreError> {
    let mut found = None;
    let scan = Scan { space: Space::Rows, from, to, reverse: false };
    kv.scan(scan, &mut |key, _| {
        let row = key.get(table.len()..).and_then(keys::split_row);
        let row = row.ok_or_else(|| StoreError::Damaged("a row's key does not come apart".to_owned()))?;
        let prefix = key.get(..key.len() - row.clustering.len()).unwrap_or_default().to_vec();
        let place = prefix.get(table.len()..).unwrap_or_default().to_vec();
        found = Some(Partition { prefix, place, key: row });
        Ok(false)
    })?;
    Ok(found)
}

fn read_partition(
    kv: &dyn Kv,
    partition: &Partition,
    given: Option<Vec<u8>>,
    (descending, now_s): (bool, i64),
    progress: &mut Progress,
) -> Result<(), StoreError> {
    let prefix = &partition.prefix;
    let mut hidden = Hidden::new(kv, prefix);
    let (mut from, mut to) = (prefix.clone(), keys::after(prefix.clone()));
    if let Some(given) = given {
        let at = [prefix.as_slice(), &given].concat();
        if descending { to = at } else { from = [at.as_slice(), &[0]].concat() }
    }
    let scan = Scan { space: Space::Rows, from, to, reverse: descending };
    let place = &partition.place;
    kv.scan(scan, &mut |key, value| {
        if progress.reply.rows.len() >= progress.limit
            || progress.visited >= MAX_VISITED
            || progress.bytes > ANSWER_BYTES
        {
            progress.full = true;
            return Ok(false);
        }
        progress.visited += 1;
        progress.bytes += value.len();
        let clustering = key.get(prefix.len()..).unwrap_or_default();
        progress.reply.next = [place.as_slice(), clustering].concat();
        let hidden = hidden.up_to(clustering)?;
        if let Some(row) = rows::live(clustering, rows::decode_row(value)?, hidden, now_s) {
            progress.reply.rows.push(ScannedRow {
                token: partition.key.token,
                partition: partition.key.partition.clone(),
                row: Some(row),
            });
        }
        Ok(true)
    })
}
