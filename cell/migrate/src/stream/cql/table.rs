//! Reading a CQL table: scans by token with pages sized by bytes, point reads, the names of partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use scylla::client::session::Session;
use scylla::deserialize::FrameSlice;
use scylla::deserialize::row::ColumnIterator;
use scylla::deserialize::value::DeserializeValue;
use scylla::errors::ExecutionError;
use scylla::frame::response::result::ColumnType;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlValue;
use tokio::time::Instant;

use super::raw::{Shape, Value, Values};
use super::schema::{SchemaError, TableSpec, names, quoted};
use super::write::Statements;
use crate::ranges::Tokens;
use crate::row::Row;
use crate::stream::{Cursor, Page, Source, StreamError, Wall};

/// Bytes of rows a page should have.
const PAGE_BYTES: u64 = 2 * 1024 * 1024;
/// The most is what a server bears when the rows of the next partition are a hundred times larger than those before.
const PAGE_ROWS: (u64, u64) = (50, 2_000);

/// A CQL table as one side.
pub struct CqlTable {
    pub(super) session: Arc<Session>,
    pub(super) spec: TableSpec,
    shape: Shape,
    scan: PreparedStatement,
    read: PreparedStatement,
    read_static: PreparedStatement,
    distinct: PreparedStatement,
    pub(super) statements: Mutex<Option<Arc<Statements>>>,
    /// Mean bytes of a row, from the pages so far.
    row_bytes: AtomicU64,
    key_types: Vec<ColumnType<'static>>,
}

impl CqlTable {
    /// Prepares what reading needs.
    ///
    /// # Errors
    /// [`SchemaError::Read`] when the cluster does not prepare it.
    pub async fn open(session: Arc<Session>, spec: TableSpec) -> Result<Self, SchemaError> {
        let failed =
            |error: scylla::errors::PrepareError| SchemaError::Read { table: spec.name(), why: error.to_string() };
        let table = format!("{}.{}", quoted(&spec.keyspace), quoted(&spec.table));
        let token = format!("token({})", names(&spec.partition));
        let keys = [&spec.partition[..], &spec.clustering[..]].concat();
        let mut columns = vec![token.clone(), names(&keys)];
        columns.extend(spec.values().iter().map(|column| quoted(&column.name)));
        columns.extend(spec.values().iter().map(|column| {
            let name = quoted(&column.name);
            format!("WRITETIME({name}), TTL({name})")
        }));
        let columns = columns.join(", ");
        let equal = |columns: &[super::ColumnSpec]| {
            columns.iter().map(|column| format!("{} = ?", quoted(&column.name))).collect::<Vec<_>>().join(" AND ")
        };
        let scan = format!("SELECT {columns} FROM {table} WHERE {token} >= ? AND {token} <= ?");
        let read = format!("SELECT {columns} FROM {table} WHERE {}", equal(&keys));
        let read_static = format!("SELECT {columns} FROM {table} WHERE {} LIMIT 1", equal(&spec.partition));
        let distinct = format!(
            "SELECT DISTINCT {}, {token} FROM {table} WHERE {token} >= ? AND {token} <= ? LIMIT ?",
            names(&spec.partition)
        );
        let mut prepared = Vec::new();
        for statement in [scan, read, read_static, distinct] {
            let mut statement = session.prepare(statement).await.map_err(failed)?;
            statement.set_is_idempotent(true);
            prepared.push(statement);
        }
        let [scan, read, read_static, distinct] = <[PreparedStatement; 4]>::try_from(prepared)
            .map_err(|_| SchemaError::Read { table: spec.name(), why: "a statement was not prepared".to_owned() })?;
        let result = scan.get_current_result_set_col_specs();
        let key_types = result.get().iter().skip(1).take(spec.partition.len());
        let key_types = key_types.map(|column| column.typ().clone().into_owned()).collect();
        let shape = Shape {
            partition: spec.partition.len(),
            clustering: spec.clustering.len(),
            statics: spec.statics.len(),
            regulars: spec.regulars.len(),
        };
        let row_bytes = AtomicU64::new(PAGE_BYTES / 1_000);
        Ok(Self {
            session,
            spec,
            shape,
            scan,
            read,
            read_static,
            distinct,
            statements: Mutex::new(None),
            row_bytes,
            key_types,
        })
    }

    /// Its shape.
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The session it is reached by.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn page_rows(&self, at_most: u32) -> i32 {
        let rows = (PAGE_BYTES / self.row_bytes.load(Ordering::Relaxed).max(1)).clamp(PAGE_ROWS.0, PAGE_ROWS.1);
        i32::try_from(rows.min(u64::from(at_most.max(1)))).unwrap_or(i32::MAX)
    }

    fn learn(&self, rows: &[Row]) {
        if rows.len() >= 10 {
            let bytes: usize = rows.iter().map(Row::bytes).sum();
            let mean = (bytes / rows.len()) as u64;
            let before = self.row_bytes.load(Ordering::Relaxed);
            // Growing rows make pages smaller at once, shrinking ones larger slowly.
            self.row_bytes.store(if mean > before { mean } else { (before * 3 + mean) / 4 }, Ordering::Relaxed);
        }
    }

    async fn rows_of(
        &self,
        statement: &PreparedStatement,
        values: Values<'_>,
    ) -> Result<Vec<(Option<Row>, Option<Row>)>, StreamError> {
        let result = self.session.execute_unpaged(statement, values).await.map_err(failed)?;
        let result = result.into_rows_result().map_err(refused)?;
        let rows = result.rows::<ColumnIterator<'_, '_>>().map_err(refused)?;
        rows.map(|row| self.shape.read(row.map_err(refused)?).map_err(refused)).collect()
    }
}

/// Says whether asking again makes sense.
pub(super) fn failed(error: ExecutionError) -> StreamError {
    let text = error.to_string();
    if cell_data::cql::is_lasting(&error) { StreamError::Refused(text) } else { StreamError::Unavailable(text) }
}

pub(super) fn refused(error: impl std::fmt::Display) -> StreamError {
    StreamError::Refused(error.to_string())
}

#[async_trait]
impl Source for CqlTable {
    async fn scan(&self, tokens: Tokens, cursor: Cursor, at_most: u32) -> Result<Page, StreamError> {
        let read_at = Instant::now();
        // No partition has the lowest token, and the server takes it as "no bound".
        let Some(tokens) = Tokens::new(tokens.first.max(i64::MIN + 1), tokens.last) else {
            return Ok(Page {
                rows: vec![],
                next: None,
                read: 0,
                read_at,
                took: read_at.elapsed(),
                tombstones: None,
                mark: None,
            });
        };
        let mut statement = self.scan.clone();
        statement.set_page_size(self.page_rows(at_most));
        let state = if cursor.mark.is_empty() {
            PagingState::start()
        } else {
            PagingState::new_from_raw_bytes(cursor.mark.to_vec())
        };
        let values = Values(vec![Value::Long(tokens.first), Value::Long(tokens.last)]);
        let (result, paging) = self.session.execute_single_page(&statement, values, state).await.map_err(failed)?;
        let warning = result.warnings().find(|warning| warning.contains("tombstone"));
        let tombstones = warning.map(|warning| Wall { warning: warning.to_owned(), partition: None });
        let result = result.into_rows_result().map_err(refused)?;
        let mut rows: Vec<Row> = Vec::with_capacity(result.rows_num());
        let mut partition = cursor.partition;
        for columns in result.rows::<ColumnIterator<'_, '_>>().map_err(refused)? {
            let (row, statics) = self.shape.read(columns.map_err(refused)?).map_err(refused)?;
            if let Some(statics) = statics.filter(|statics| partition.as_ref() != Some(&statics.partition)) {
                partition = Some(statics.partition.clone());
                rows.push(statics);
            }
            rows.extend(row);
        }
        self.learn(&rows);
        let next = match paging {
            PagingStateResponse::HasMorePages { state } => {
                let mark = state.as_bytes_slice().map(|bytes| Bytes::copy_from_slice(bytes)).unwrap_or_default();
                Some(Cursor { mark, partition })
            }
            PagingStateResponse::NoMorePages => None,
        };
        let read = rows.len() as u64;
        Ok(Page { rows, next, read, read_at, took: read_at.elapsed(), tombstones, mark: None })
    }

    async fn read(&self, key: &Row) -> Result<Option<Row>, StreamError> {
        let keys = key.partition.iter().chain(key.clustering.iter().flatten()).map(|bytes| Value::Raw(bytes));
        let values = Values(keys.collect());
        if key.clustering.is_some() {
            let rows = self.rows_of(&self.read, values).await?;
            return Ok(rows.into_iter().find_map(|(row, _)| row));
        }
        let rows = self.rows_of(&self.read_static, values).await?;
        Ok(rows.into_iter().find_map(|(_, statics)| statics))
    }

    async fn partitions(&self, tokens: Tokens, limit: i32) -> Result<Vec<i64>, StreamError> {
        let Some(tokens) = Tokens::new(tokens.first.max(i64::MIN + 1), tokens.last) else { return Ok(vec![]) };
        let values = Values(vec![Value::Long(tokens.first), Value::Long(tokens.last), Value::Int(limit)]);
        let result = self.session.execute_unpaged(&self.distinct, values).await.map_err(failed)?;
        let result = result.into_rows_result().map_err(refused)?;
        let mut found = Vec::new();
        for columns in result.rows::<ColumnIterator<'_, '_>>().map_err(refused)? {
            let last = columns.map_err(refused)?.last().transpose().map_err(refused)?;
            let token =
                last.and_then(|column| column.slice).and_then(|slice| <[u8; 8]>::try_from(slice.as_slice()).ok());
            found.extend(token.map(i64::from_be_bytes));
        }
        Ok(found)
    }

    fn partition_text(&self, row: &Row) -> String {
        let values = row.partition.iter().zip(&self.key_types).map(|(bytes, typ)| {
            CqlValue::deserialize(typ, Some(FrameSlice::new(bytes)))
                .map_or_else(|_| "?".to_owned(), |value| text(&value))
        });
        format!("({})", values.collect::<Vec<_>>().join(", "))
    }

    fn compaction(&self, tokens: Tokens) -> String {
        let Tokens { first, last } = tokens;
        let (keyspace, table) = (&self.spec.keyspace, &self.spec.table);
        format!(
            "nodetool compact -st {first} -et {last} {keyspace} {table} (Cassandra; nodetool garbagecollect {keyspace} {table} where disk \
             is short), nodetool compact {keyspace} {table} (Scylla), once gc_grace_seconds have passed"
        )
    }
}

fn text(value: &CqlValue) -> String {
    match value {
        CqlValue::Text(text) | CqlValue::Ascii(text) => format!("{text:?}"),
        CqlValue::BigInt(number) => number.to_string(),
        CqlValue::Int(number) => number.to_string(),
        CqlValue::SmallInt(number) => number.to_string(),
        CqlValue::TinyInt(number) => number.to_string(),
        CqlValue::Boolean(truth) => truth.to_string(),
        CqlValue::Uuid(id) => id.to_string(),
        other => format!("{other:?}"),
    }
}
