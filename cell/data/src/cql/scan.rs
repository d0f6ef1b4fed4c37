//! Scanning a table by token, page by page. The server remembers the place between pages in a state of its own, which is what an answer's
//! `next` holds: so a scan goes on inside a partition without reading its beginning again.

use std::sync::Arc;

use cell_proto::v1::{Row, ScanRowsReply, ScanRowsRequest, ScannedRow};
use cell_store::StoreError;
use cell_store::engine::ANSWER_BYTES;
use scylla::response::{PagingState, PagingStateResponse};

use super::rows::{cells_of, list, read_cells, read_key};
use super::statements::{Answer, Kind};
use super::store::CqlStore;
use super::values::{Columns, big};

/// The most rows in one answer.
const MAX_ROWS: usize = 10_000;
/// Rows of the first page, whose size is not known yet.
const FIRST_PAGE: usize = 100;
/// What a page should have, in bytes.
const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Pages of one answer: of a range of tombstones each may be empty.
const MAX_PAGES: usize = 64;

/// Rows of the next page, from what came before.
fn page_size(rows: usize, bytes: usize, room: usize) -> usize {
    let average = bytes.checked_div(rows).map(|average| average.max(1));
    average.map_or(FIRST_PAGE, |average| PAGE_BYTES / average).clamp(1, room.max(1))
}

impl CqlStore {
    pub(super) async fn scan(&self, request: ScanRowsRequest) -> Result<ScanRowsReply, StoreError> {
        let table = self.table_of(&request.table)?;
        let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=MAX_ROWS).contains(limit));
        let limit = limit.ok_or_else(|| StoreError::Invalid(format!("limit must be 1–{MAX_ROWS}")))?;
        let mut reply = ScanRowsReply::default();
        // The lowest token is no key's, and as an end it means "to the end of the ring".
        if request.first_token > request.last_token || request.last_token == i64::MIN {
            return Ok(reply);
        }
        let partition = list(&table.partition);
        let mut columns = vec![format!("token({partition})"), partition.clone()];
        columns.extend((!table.clustering.is_empty()).then(|| list(&table.clustering)));
        columns.push(cells_of(table));
        let mut values = vec![big(request.last_token)];
        let mut range = format!("token({partition}) <= ?");
        if request.first_token > i64::MIN {
            range += &format!(" AND token({partition}) >= ?");
            values.push(big(request.first_token));
        }
        let cql = format!(
            "SELECT {} FROM {} WHERE {range}{}",
            columns.join(", "),
            self.statements.table(&table.name),
            self.capabilities().scan_suffix()
        );
        let (mut seen, mut bytes) = (0, 0);
        let mut state = match request.after.as_slice() {
            [] => PagingState::start(),
            place => PagingState::new_from_raw_bytes(place),
        };
        for _ in 0..MAX_PAGES {
            let size = page_size(seen, bytes, limit - reply.rows.len());
            let size = i32::try_from(size).unwrap_or(1);
            let Answer { rows, next, warning } = self.statements.page((&cql, Kind::Scan), &values, size, state).await?;
            for row in rows {
                let mut columns = Columns::of(row);
                let token = columns.big()?;
                let partition = read_key(table.partition.len(), &mut columns)?;
                let clustering = read_key(table.clustering.len(), &mut columns)?;
                let cells = read_cells(table, &mut columns)?;
                seen += 1;
                bytes += cells.iter().map(|cell| cell.value.len() + 32).sum::<usize>() + partition.len();
                if !cells.is_empty() {
                    reply.rows.push(ScannedRow { token, partition, row: Some(Row { clustering, cells }) });
                }
            }
            let PagingStateResponse::HasMorePages { state: next } = next else {
                reply.next.clear();
                reply.warning = warning;
                return Ok(reply);
            };
            reply.next = next.as_bytes_slice().map(|place: &Arc<[u8]>| place.to_vec()).unwrap_or_default();
            reply.warning = warning;
            if reply.rows.len() >= limit || bytes > ANSWER_BYTES || !reply.warning.is_empty() {
                break;
            }
            state = next;
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_shrink_as_rows_grow_and_never_outgrow_the_answer() {
        assert_eq!(page_size(0, 0, 10_000), FIRST_PAGE);
        assert_eq!(page_size(100, 100 * 200, 1000), 1000);
        assert_eq!(page_size(100, 100 << 20, 1000), 2);
        assert_eq!(page_size(1, 64 << 20, 1000), 1);
        assert_eq!(page_size(0, 0, 7), 7);
    }
}
