//! Statements by their text, prepared once, and sent by their kind: with which consistency, and whether they may be repeated.

use std::collections::HashMap;
use std::sync::Arc;

use cell_store::StoreError;
use parking_lot::Mutex;
use scylla::errors::ExecutionError;
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlValue, MaybeUnset, Row};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::connect::Connection;
use super::error::{Effect, failed, is_unreached, unreadable};
use super::settings::{Levels, Settings};

/// Statements remembered; their texts are made here, so there are few.
const MAX_STATEMENTS: usize = 2048;

/// What is bound to a statement.
pub(super) type Values = Vec<MaybeUnset<CqlValue>>;

/// How a statement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// At a quorum; may be repeated, also speculatively.
    Read,
    /// Settles what is in flight first; may be repeated, but is not raced.
    SerialRead,
    /// A page of a scan: a read that may take long and is asked of one replica set at a time.
    Scan,
    /// Plain write with its own time; may be repeated.
    Write,
    /// Conditional write; sent once.
    Condition,
}

impl Kind {
    fn effect(self) -> Effect {
        match self {
            Self::Read | Self::SerialRead | Self::Scan => Effect::Read,
            Self::Write => Effect::Write,
            Self::Condition => Effect::Condition,
        }
    }
}

/// One page.
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    pub(super) next: PagingStateResponse,
    /// What the server says of tombstones it went over; empty: nothing.
    pub(super) warning: String,
}

/// The statements of one session.
pub(super) struct Statements {
    pub(super) connection: Connection,
    levels: Levels,
    prepared: Mutex<HashMap<(String, Kind), Arc<PreparedStatement>>>,
    backoff: Backoff,
}

impl Statements {
    pub(super) fn new(connection: Connection) -> Result<Self, StoreError> {
        let levels = connection.settings.levels();
        let levels = levels.map_err(|message| Settings::refused(&connection.settings.name, &message))?;
        Ok(Self { connection, levels, prepared: Mutex::default(), backoff: Backoff::default() })
    }

    /// A table of the keyspace, as texts have it.
    pub(super) fn table(&self, name: &str) -> String {
        self.connection.settings.table(name)
    }

    fn answered<T>(&self, result: Result<T, ExecutionError>, effect: Effect) -> Result<T, StoreError> {
        match result {
            Ok(value) => {
                self.backoff.reached();
                Ok(value)
            }
            Err(error) => {
                if is_unreached(&error) {
                    self.backoff.lost(Instant::now());
                } else {
                    self.backoff.reached();
                }
                Err(failed(&error, effect))
            }
        }
    }

    /// The statement of a text, prepared when it is new.
    pub(super) async fn prepare(&self, text: &str, kind: Kind) -> Result<Arc<PreparedStatement>, StoreError> {
        let key = (text.to_owned(), kind);
        if let Some(known) = self.prepared.lock().get(&key) {
            return Ok(known.clone());
        }
        self.backoff.pass().await;
        let prepared = self.connection.session.prepare(text).await.map_err(ExecutionError::PrepareError);
        // Preparing does nothing, whatever is prepared.
        let mut statement = self.answered(prepared, Effect::Read)?;
        statement.set_consistency(match kind {
            Kind::SerialRead if self.levels.serial == SerialConsistency::Serial => Consistency::Serial,
            Kind::SerialRead => Consistency::LocalSerial,
            Kind::Read | Kind::Scan => self.levels.read,
            Kind::Write | Kind::Condition => self.levels.write,
        });
        statement.set_serial_consistency(Some(self.levels.serial));
        statement.set_is_idempotent(kind != Kind::Condition);
        match kind {
            Kind::Condition => statement.set_execution_profile_handle(Some(self.connection.once.clone())),
            Kind::SerialRead | Kind::Scan => {
                statement.set_execution_profile_handle(Some(self.connection.steady.clone()));
            }
            Kind::Read | Kind::Write => {}
        }
        if kind == Kind::Scan {
            statement.set_request_timeout(Some(super::connect::PAGE));
        }
        let statement = Arc::new(statement);
        let mut known = self.prepared.lock();
        if known.len() >= MAX_STATEMENTS {
            known.clear();
        }
        known.insert(key, statement.clone());
        Ok(statement)
    }

    /// Sends one statement and takes its whole answer.
    pub(super) async fn run(&self, text: &str, kind: Kind, values: Values) -> Result<QueryResult, StoreError> {
        let statement = self.prepare(text, kind).await?;
        self.backoff.pass().await;
        let result = self.connection.session.execute_unpaged(&statement, values).await;
        self.answered(result, kind.effect())
    }

    /// Sends one statement and takes its rows.
    pub(super) async fn rows(&self, text: &str, kind: Kind, values: Values) -> Result<Vec<Row>, StoreError> {
        rows_of(self.run(text, kind, values).await?)
    }

    /// Sends one statement and takes one page.
    pub(super) async fn page(
        &self,
        (text, kind): (&str, Kind),
        values: &Values,
        size: i32,
        state: PagingState,
    ) -> Result<Answer, StoreError> {
        let statement = self.prepare(text, kind).await?;
        let mut statement = PreparedStatement::clone(&statement);
        statement.set_page_size(size);
        self.backoff.pass().await;
        let result = self.connection.session.execute_single_page(&statement, values, state).await;
        let (result, next) = self.answered(result, kind.effect())?;
        let warning = result.warnings().find(|warning| warning.contains("tombstone")).unwrap_or_default().to_owned();
        Ok(Answer { rows: rows_of(result)?, next, warning })
    }

    /// Sends statements of one partition together.
    pub(super) async fn batch(&self, statements: Vec<(String, Values)>, kind: Kind) -> Result<QueryResult, StoreError> {
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(self.levels.write);
        batch.set_serial_consistency(Some(self.levels.serial));
        batch.set_is_idempotent(kind == Kind::Write);
        if kind == Kind::Condition {
            batch.set_execution_profile_handle(Some(self.connection.once.clone()));
        }
        let mut all = Vec::with_capacity(statements.len());
        let mut before: Option<(String, Arc<PreparedStatement>)> = None;
        for (text, values) in statements {
            // A batch is mostly one text many times.
            let statement = match before.take() {
                Some((same, statement)) if same == text => statement,
                _ => self.prepare(&text, kind).await?,
            };
            batch.append_statement(PreparedStatement::clone(&statement));
            before = Some((text, statement));
            all.push(values);
        }
        self.backoff.pass().await;
        let result = self.connection.session.batch(&batch, all).await;
        self.answered(result, kind.effect())
    }
}

/// The rows of an answer.
pub(super) fn rows_of(result: QueryResult) -> Result<Vec<Row>, StoreError> {
    let rows = result.into_rows_result().map_err(unreadable)?;
    rows.rows::<Row>().map_err(unreadable)?.map(|row| row.map_err(unreadable)).collect()
}

/// Whether a condition held.
pub(super) fn is_applied(result: QueryResult) -> Result<bool, StoreError> {
    let rows = rows_of(result).map_err(|error| StoreError::UnknownOutcome(error.to_string()))?;
    match rows.first().and_then(|row| row.columns.first()) {
        Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
        _ => Err(StoreError::UnknownOutcome("the server did not say whether the condition held".to_owned())),
    }
}
