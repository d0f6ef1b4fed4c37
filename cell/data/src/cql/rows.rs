//! Plain writes and reads of rows. Only the columns that are set are written, each at the mutation's own time; what expires is written
//! with what is left of its time, and what has expired as the deletion it now is.

use std::collections::BTreeMap;

use cell_proto::v1::{CellRead, CellWrite, ReadRowsReply, ReadRowsRequest, Row, RowMutation, WriteRequest};
use cell_store::StoreError;
use cell_store::engine::{ANSWER_BYTES, check_key, check_name};
use cell_store::schema::{Bound, KeyColumn, KeyValue, Table, key_bytes};
use futures::{StreamExt, stream};
use scylla::response::{PagingState, PagingStateResponse};
use scylla::value::{CqlValue, MaybeUnset};

use super::statements::{Answer, Kind, Values};
use super::store::CqlStore;
use super::values::{self, Columns, big, blob, set};

/// Partitions written at once for one request.
const CONCURRENT: usize = 32;
/// Statements of one batch.
const BATCH: usize = 100;
/// Rows of one page.
const PAGE: usize = 500;
/// The longest TTL that CQL takes: 20 years.
const MAX_TTL: i64 = 630_720_000;

/// Statements by what they write: a batch never spans partitions.
type Batches = BTreeMap<(String, Vec<u8>), Vec<(String, Values)>>;

fn names(columns: &[KeyColumn]) -> impl Iterator<Item = String> {
    columns.iter().map(|column| format!("\"{}\"", column.name))
}

/// The columns of a key, as a list.
pub(super) fn list(columns: &[KeyColumn]) -> String {
    names(columns).collect::<Vec<_>>().join(", ")
}

fn equal(columns: &[KeyColumn]) -> String {
    names(columns).map(|name| format!("{name} = ?")).collect::<Vec<_>>().join(" AND ")
}

fn bind(key: Vec<KeyValue>) -> impl Iterator<Item = MaybeUnset<CqlValue>> {
    key.into_iter().map(|value| set(values::key(value)))
}

/// The values of each row: the cell, its write time, what is left of its time.
pub(super) fn cells_of(table: &Table) -> String {
    let cell = |name: &String| format!("\"{name}\", WRITETIME(\"{name}\"), TTL(\"{name}\")");
    table.values.iter().map(cell).collect::<Vec<_>>().join(", ")
}

/// The live cells of a row, after its keys.
pub(super) fn read_cells(table: &Table, columns: &mut Columns) -> Result<Vec<CellRead>, StoreError> {
    let mut cells = Vec::new();
    for name in &table.values {
        let (value, time, ttl) = (columns.maybe_blob()?, columns.big()?, columns.big()?);
        if let Some(value) = value {
            let ttl_seconds = u32::try_from(ttl).unwrap_or(0);
            cells.push(CellRead { column: name.clone(), value, timestamp_us: time, ttl_seconds });
        }
    }
    Ok(cells)
}

/// The key of so many columns.
pub(super) fn read_key(count: usize, columns: &mut Columns) -> Result<Vec<u8>, StoreError> {
    let mut key = Vec::with_capacity(count);
    for _ in 0..count {
        key.push(columns.key()?);
    }
    Ok(key_bytes(&key))
}

/// Restrictions of the clustering key to a range; none when no row is in it.
fn range(table: &Table, start: Bound, end: Bound) -> Option<(String, Values)> {
    let (mut cql, mut bound) = (String::new(), Vec::new());
    let mut side = |relation: &str, key: Vec<KeyValue>| {
        let columns = list(&table.clustering);
        cql += &match table.clustering.len() {
            1 => format!(" AND {columns} {relation} ?"),
            count => format!(" AND ({columns}) {relation} ({})", vec!["?"; count].join(", ")),
        };
        bound.extend(bind(key));
    };
    match start {
        Bound::Open => {}
        Bound::Empty => return None,
        Bound::Inclusive(key) => side(">=", key),
        Bound::Exclusive(key) => side(">", key),
    }
    match end {
        Bound::Open => {}
        Bound::Empty => return None,
        Bound::Inclusive(key) => side("<=", key),
        Bound::Exclusive(key) => side("<", key),
    }
    Some((cql, bound))
}

/// When and for how long something is written.
#[derive(Clone, Copy)]
struct Times {
    timestamp_us: i64,
    /// Seconds left; 0: for ever; below 0: expired.
    left: i64,
}

impl Times {
    fn of(request: &WriteRequest, mutation: &RowMutation, now_s: i64) -> Result<Self, StoreError> {
        let own = mutation.timestamp_us;
        let timestamp_us = if own == 0 { request.timestamp_us } else { own };
        if timestamp_us <= 0 {
            return Err(StoreError::Invalid("a write needs a write time above 0".to_owned()));
        }
        let left = match request.ttl_seconds {
            0 => 0,
            ttl => match timestamp_us / 1_000_000 + i64::from(ttl) - now_s {
                left if left > MAX_TTL => {
                    return Err(StoreError::Invalid(format!("a time to live of {left} s is above {MAX_TTL}")));
                }
                left if left <= 0 => -1,
                left => left,
            },
        };
        Ok(Self { timestamp_us, left })
    }
}

impl CqlStore {
    pub(super) fn table_of(&self, name: &str) -> Result<&Table, StoreError> {
        let name = check_name("table", name)?;
        self.schema.get(name).ok_or_else(|| StoreError::Invalid(format!("table {name:?} is not known")))
    }

    /// Everything is checked before anything is sent.
    pub(super) async fn write_rows(&self, request: WriteRequest) -> Result<(), StoreError> {
        let now_s = cell_runtime::unix_ms() / 1000;
        let mut batches = Batches::new();
        for mutation in &request.mutations {
            let times = Times::of(&request, mutation, now_s)?;
            let table = self.table_of(&mutation.table)?;
            check_key("partition key", &mutation.partition)?;
            check_key("clustering key", &mutation.clustering)?;
            check_key("range end", &mutation.range_end)?;
            let partition: Values = bind(table.partition_values(&mutation.partition)?).collect();
            let statements = batches.entry((table.name.clone(), mutation.partition.clone())).or_default();
            if mutation.range_end.is_empty() {
                self.plan_row(table, partition, mutation, times, statements)?;
            } else {
                self.plan_range(table, partition, mutation, times, statements);
            }
        }
        let chunks = batches.into_values().flat_map(|statements| {
            let mut rest = statements.into_iter().peekable();
            std::iter::from_fn(move || rest.peek().is_some().then(|| rest.by_ref().take(BATCH).collect::<Vec<_>>()))
        });
        let chunks: Vec<_> = chunks.collect();
        let mut sent = stream::iter(chunks).map(|chunk| self.send(chunk)).buffer_unordered(CONCURRENT);
        let mut outcome = Ok(());
        while let Some(result) = sent.next().await {
            // Once one was sent, a failed one means that something may have happened.
            outcome = outcome.and(result);
        }
        outcome.map_err(|error| match error {
            // Whatever of it was written, to try it again is of no use.
            StoreError::Refused(_) => error,
            other => StoreError::UnknownOutcome(other.to_string()),
        })
    }

    async fn send(&self, mut statements: Vec<(String, Values)>) -> Result<(), StoreError> {
        if statements.len() == 1
            && let Some((cql, values)) = statements.pop()
        {
            return self.statements.run(&cql, Kind::Write, values).await.map(drop);
        }
        self.statements.batch(statements, Kind::Write).await.map(drop)
    }

    fn plan_row(
        &self,
        table: &Table,
        partition: Values,
        mutation: &RowMutation,
        times: Times,
        statements: &mut Vec<(String, Values)>,
    ) -> Result<(), StoreError> {
        let clustering: Values = bind(table.clustering_values(&mutation.clustering)?).collect();
        let name = self.statements.table(&table.name);
        let mut place = format!(" WHERE {}", equal(&table.partition));
        if !table.clustering.is_empty() {
            place += &format!(" AND {}", equal(&table.clustering));
        }
        let key = [partition, clustering].concat();
        let time = big(times.timestamp_us);
        if mutation.delete_row {
            let cql = format!("DELETE FROM {name} USING TIMESTAMP ?{place}");
            statements.push((cql, [vec![time.clone()], key.clone()].concat()));
        }
        let mut cells: BTreeMap<&str, &CellWrite> = BTreeMap::new();
        for cell in &mutation.cells {
            let column = check_name("column", &cell.column)?;
            if !table.values.iter().any(|known| known == column) {
                return Err(StoreError::Invalid(format!("table {:?} has no column {column:?}", table.name)));
            }
            let kept = cells.entry(column).or_insert(cell);
            if kept.value < cell.value {
                *kept = cell;
            }
        }
        if times.left < 0 {
            for column in cells.keys() {
                let cql = format!("DELETE \"{column}\" FROM {name} USING TIMESTAMP ?{place}");
                statements.push((cql, [vec![time.clone()], key.clone()].concat()));
            }
        } else if !cells.is_empty() {
            let columns: Vec<_> = table.values.iter().map(|column| format!("\"{column}\" = ?")).collect();
            let cql = format!("UPDATE {name} USING TIMESTAMP ? AND TTL ? SET {}{place}", columns.join(", "));
            let left = set(CqlValue::Int(i32::try_from(times.left).unwrap_or(i32::MAX)));
            let written = table.values.iter().map(|column| match cells.get(column.as_str()) {
                Some(cell) => blob(cell.value.clone()),
                None => MaybeUnset::Unset,
            });
            let values = [time, left].into_iter().chain(written).chain(key);
            statements.push((cql, values.collect()));
        }
        Ok(())
    }

    fn plan_range(
        &self,
        table: &Table,
        partition: Values,
        mutation: &RowMutation,
        times: Times,
        statements: &mut Vec<(String, Values)>,
    ) {
        let bounds = (table.start(&mutation.clustering), table.end(&mutation.range_end));
        let Some((restrictions, bound)) = range(table, bounds.0, bounds.1) else { return };
        let name = self.statements.table(&table.name);
        let cql = format!("DELETE FROM {name} USING TIMESTAMP ? WHERE {}{restrictions}", equal(&table.partition));
        statements.push((cql, [vec![big(times.timestamp_us)], partition, bound].concat()));
    }

    pub(super) async fn rows(&self, request: ReadRowsRequest) -> Result<ReadRowsReply, StoreError> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let limit = limit.ok_or_else(|| StoreError::Invalid("limit must be at least 1".to_owned()))?;
        let table = self.table_of(&request.table)?;
        let partition: Values = bind(table.partition_values(&request.partition)?).collect();
        let end = if request.end.is_empty() { Bound::Open } else { table.end(&request.end) };
        let mut reply = ReadRowsReply::default();
        let crossed = !request.end.is_empty() && request.start >= request.end;
        let Some((restrictions, bound)) = range(table, table.start(&request.start), end).filter(|_| !crossed) else {
            return Ok(reply);
        };
        let keys = names(&table.clustering).chain([cells_of(table)]).collect::<Vec<_>>().join(", ");
        let direction = if request.reverse { "DESC" } else { "ASC" };
        let order: Vec<_> = names(&table.clustering).map(|name| format!("{name} {direction}")).collect();
        let order = if order.is_empty() { String::new() } else { format!(" ORDER BY {}", order.join(", ")) };
        let name = self.statements.table(&table.name);
        let cql = format!("SELECT {keys} FROM {name} WHERE {}{restrictions}{order}", equal(&table.partition));
        let values = [partition, bound].concat();
        let (mut bytes, mut state) = (0, PagingState::start());
        loop {
            let size = i32::try_from((limit + 1 - reply.rows.len()).min(PAGE)).unwrap_or(1);
            let Answer { rows, next, warning } = self.statements.page((&cql, Kind::Read), &values, size, state).await?;
            if reply.warning.is_empty() {
                reply.warning = warning;
            }
            for row in rows {
                let mut columns = Columns::of(row);
                let clustering = read_key(table.clustering.len(), &mut columns)?;
                let cells = read_cells(table, &mut columns)?;
                if cells.is_empty() {
                    continue;
                }
                bytes += cells.iter().map(|cell| cell.value.len() + cell.column.len()).sum::<usize>();
                reply.more = reply.rows.len() == limit || (bytes > ANSWER_BYTES && !reply.rows.is_empty());
                if reply.more {
                    return Ok(reply);
                }
                reply.rows.push(Row { clustering, cells });
            }
            match next {
                PagingStateResponse::HasMorePages { state: next } => state = next,
                PagingStateResponse::NoMorePages => return Ok(reply),
            }
        }
    }
}
