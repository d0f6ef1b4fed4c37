//! Writing rows to a CQL table as they were: each group of cells at its own write time and for what is left of its time to live, unlogged
//! batches of one partition, columns without a value left unset so that no tombstone is made.

use std::sync::Arc;

use async_trait::async_trait;
use scylla::statement::batch::{Batch, BatchStatement, BatchType};
use scylla::statement::prepared::PreparedStatement;

use super::raw::{Value, Values};
use super::schema::{ColumnSpec, names, quoted};
use super::table::{CqlTable, failed};
use crate::row::{Cell, Row};
use crate::stream::{StreamError, Target};

/// A row without a cell was made by an INSERT of its key alone. Its write time cannot be read, so it is written as the oldest write there
/// can be: whatever else was written or deleted there, wins.
pub const MARKER_US: i64 = 1;

/// What writing needs, prepared at the first write.
pub(super) struct Statements {
    /// The row with its marker.
    insert: PreparedStatement,
    /// More cells of a row.
    update: Option<PreparedStatement>,
    statics: Option<PreparedStatement>,
    delete_row: PreparedStatement,
    /// By column.
    delete_cell: Vec<PreparedStatement>,
}

impl CqlTable {
    async fn statements(&self) -> Result<Arc<Statements>, StreamError> {
        if let Some(statements) = self.statements.lock().clone() {
            return Ok(statements);
        }
        let statements = Arc::new(self.prepare_writes().await?);
        *self.statements.lock() = Some(statements.clone());
        Ok(statements)
    }

    async fn prepare(&self, text: String) -> Result<PreparedStatement, StreamError> {
        let prepared = self.session.prepare(text).await;
        let mut statement =
            prepared.map_err(|error| StreamError::Unavailable(format!("failed to prepare a write: {error}")))?;
        // Each write carries its own time: twice is once.
        statement.set_is_idempotent(true);
        Ok(statement)
    }

    async fn prepare_writes(&self) -> Result<Statements, StreamError> {
        let spec = &self.spec;
        let table = format!("{}.{}", quoted(&spec.keyspace), quoted(&spec.table));
        let keys = [&spec.partition[..], &spec.clustering[..]].concat();
        let columns = [&keys[..], &spec.regulars[..]].concat();
        let marks = vec!["?"; columns.len()].join(", ");
        let list = |columns: &[ColumnSpec], between: &str| {
            columns.iter().map(|column| format!("{} = ?", quoted(&column.name))).collect::<Vec<_>>().join(between)
        };
        let insert = format!("INSERT INTO {table} ({}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?", names(&columns));
        let update = |set: &[ColumnSpec], keys: &[ColumnSpec]| {
            format!("UPDATE {table} USING TIMESTAMP ? AND TTL ? SET {} WHERE {}", list(set, ", "), list(keys, " AND "))
        };
        let mut delete_cell = Vec::new();
        for (index, column) in spec.values().iter().enumerate() {
            let keys = if index < spec.statics.len() { &spec.partition } else { &keys };
            let text =
                format!("DELETE {} FROM {table} USING TIMESTAMP ? WHERE {}", quoted(&column.name), list(keys, " AND "));
            delete_cell.push(self.prepare(text).await?);
        }
        Ok(Statements {
            insert: self.prepare(insert).await?,
            update: match spec.regulars.is_empty() {
                true => None,
                false => Some(self.prepare(update(&spec.regulars, &keys)).await?),
            },
            statics: match spec.statics.is_empty() {
                true => None,
                false => Some(self.prepare(update(&spec.statics, &spec.partition)).await?),
            },
            delete_row: self
                .prepare(format!("DELETE FROM {table} USING TIMESTAMP ? WHERE {}", list(&keys, " AND ")))
                .await?,
            delete_cell,
        })
    }

    fn cells_of<'a>(&self, cells: &[&'a Cell], statics: bool) -> impl Iterator<Item = Value<'a>> {
        let fixed = self.spec.statics.len();
        let columns = if statics { 0..fixed } else { fixed..fixed + self.spec.regulars.len() };
        let cells = cells.to_vec();
        columns.map(move |column| {
            let cell = cells.iter().find(|cell| usize::from(cell.column) == column);
            cell.map_or(Value::Unset, |cell| Value::Raw(&cell.value))
        })
    }

    fn bind<'a>(&self, statements: &Statements, row: &'a Row, out: &mut Vec<(PreparedStatement, Values<'a>)>) {
        let ttl = |ttl: u32| Value::Int(i32::try_from(ttl).unwrap_or(i32::MAX));
        let Some(clustering) = &row.clustering else {
            for (at, life, cells) in row.groups() {
                let Some(statement) = &statements.statics else { continue };
                let mut values = vec![Value::Long(at), ttl(life)];
                values.extend(self.cells_of(&cells, true));
                values.extend(keys(row));
                out.push((statement.clone(), Values(values)));
            }
            return;
        };
        debug_assert_eq!(clustering.len(), self.spec.clustering.len());
        let mut groups = row.groups();
        if groups.is_empty() {
            groups.push((MARKER_US, 0, vec![]));
        }
        for (index, (at, life, cells)) in groups.into_iter().enumerate() {
            if index == 0 {
                let mut values: Vec<Value<'a>> = keys(row).collect();
                values.extend(self.cells_of(&cells, false));
                values.extend([Value::Long(at), ttl(life)]);
                out.push((statements.insert.clone(), Values(values)));
            } else if let Some(update) = &statements.update {
                let mut values = vec![Value::Long(at), ttl(life)];
                values.extend(self.cells_of(&cells, false));
                values.extend(keys(row));
                out.push((update.clone(), Values(values)));
            }
        }
    }
}

fn keys(row: &Row) -> impl Iterator<Item = Value<'_>> {
    row.partition.iter().chain(row.clustering.iter().flatten()).map(|bytes| Value::Raw(bytes))
}

#[async_trait]
impl Target for CqlTable {
    async fn write(&self, rows: &[Row]) -> Result<(), StreamError> {
        let statements = self.statements().await?;
        let mut bound = Vec::with_capacity(rows.len());
        for row in rows {
            self.bind(&statements, row, &mut bound);
        }
        if bound.len() <= 1 {
            let Some((statement, values)) = bound.pop() else { return Ok(()) };
            return self.session.execute_unpaged(&statement, values).await.map(|_| ()).map_err(failed);
        }
        let (texts, values): (Vec<BatchStatement>, Vec<Values<'_>>) =
            bound.into_iter().map(|(statement, values)| (statement.into(), values)).unzip();
        let mut batch = Batch::new_with_statements(BatchType::Unlogged, texts);
        batch.set_is_idempotent(true);
        self.session.batch(&batch, values).await.map(|_| ()).map_err(failed)
    }

    async fn delete_row(&self, row: &Row, at_us: i64) -> Result<(), StreamError> {
        let statements = self.statements().await?;
        let values = std::iter::once(Value::Long(at_us)).chain(keys(row)).collect();
        self.session.execute_unpaged(&statements.delete_row, Values(values)).await.map(|_| ()).map_err(failed)
    }

    async fn delete_cells(&self, row: &Row, cells: &[Cell]) -> Result<(), StreamError> {
        let statements = self.statements().await?;
        for cell in cells {
            let Some(statement) = statements.delete_cell.get(usize::from(cell.column)) else { continue };
            let values = std::iter::once(Value::Long(cell.written_us)).chain(keys(row)).collect();
            self.session.execute_unpaged(statement, Values(values)).await.map_err(failed)?;
        }
        Ok(())
    }
}
