//! What a CQL server can do beyond the common ground, found by asking it. Everything that differs between engines hangs on this one
//! value; no other code looks at an engine's name.

use async_trait::async_trait;
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::statement::Statement;
use scylla::value::{CqlValue, Row};
use serde::{Deserialize, Serialize};

/// What kind of store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// ScyllaDB.
    Scylla,
    /// Apache Cassandra.
    Cassandra,
    /// `cell store`.
    Embedded,
}

/// What a server can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Which engine answered.
    pub engine: Engine,
    /// Its version, as it says.
    pub version: String,
    /// Tables may be spread by tablets instead of the ring.
    pub tablets: bool,
    /// Conditional writes work on tables with tablets.
    pub conditions_on_tablets: bool,
    /// A scan may go past the row cache.
    pub bypass_cache: bool,
    /// A statement may carry its own server-side time-out.
    pub using_timeout: bool,
    /// Requests may go to the very core that holds the row.
    pub shard_aware: bool,
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The server does not know such a thing.
    Unknown,
    /// The server could not be asked.
    Unreachable(String),
}

/// Somebody who answers CQL with the first value of the first row.
#[async_trait]
pub trait Ask: Send + Sync {
    /// Asks one statement.
    ///
    /// # Errors
    /// [`NoAnswer`].
    async fn ask(&self, statement: &str) -> Result<Option<String>, NoAnswer>;
}

#[async_trait]
impl Ask for Session {
    async fn ask(&self, text: &str) -> Result<Option<String>, NoAnswer> {
        let mut statement = Statement::new(text);
        statement.set_is_idempotent(true);
        match self.query_unpaged(statement, ()).await {
            Ok(result) => {
                let rows = result.into_rows_result().map_err(|error| NoAnswer::Unreachable(error.to_string()))?;
                let row = rows.maybe_first_row::<Row>().map_err(|error| NoAnswer::Unreachable(error.to_string()))?;
                Ok(row.and_then(|row| row.columns.into_iter().next().flatten()).map(|value| match value {
                    CqlValue::Text(text) | CqlValue::Ascii(text) => text,
                    other => format!("{other:?}"),
                }))
            }
            Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                DbError::SyntaxError | DbError::Invalid | DbError::Unauthorized | DbError::ConfigError,
                _,
            ))) => Err(NoAnswer::Unknown),
            Err(error) => Err(NoAnswer::Unreachable(error.to_string())),
        }
    }
}

async fn knows(server: &dyn Ask, statement: &str) -> Result<bool, NoAnswer> {
    match server.ask(statement).await {
        Ok(_) => Ok(true),
        Err(NoAnswer::Unknown) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The first two numbers of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(['.', '-', '~']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

impl Capabilities {
    /// Asks a server. `sharded`: the driver was told of shards when it connected.
    ///
    /// # Errors
    /// When the server could not be asked; a server that answers "unknown" is one that cannot.
    pub async fn of(server: &dyn Ask, sharded: bool) -> Result<Self, NoAnswer> {
        let scylla = match server.ask("SELECT version FROM system.versions WHERE key = 'local'").await {
            Ok(version) => Some(version.unwrap_or_default()),
            Err(NoAnswer::Unknown) => None,
            Err(error) => return Err(error),
        };
        let Some(version) = scylla else {
            let version = server.ask("SELECT release_version FROM system.local WHERE key = 'local'").await?;
            return Ok(Self {
                engine: Engine::Cassandra,
                version: version.unwrap_or_default(),
                tablets: false,
                conditions_on_tablets: false,
                bypass_cache: false,
                using_timeout: false,
                shard_aware: false,
            });
        };
        let tablets = knows(server, "SELECT table_id FROM system.tablets LIMIT 1").await?;
        Ok(Self {
            engine: Engine::Scylla,
            tablets,
            // Lightweight transactions on tablets came with 2025.4.
            conditions_on_tablets: tablets && release(&version).is_some_and(|release| release >= (2025, 4)),
            bypass_cache: knows(server, "SELECT key FROM system.local WHERE key = 'local' BYPASS CACHE").await?,
            using_timeout: knows(server, "SELECT key FROM system.local WHERE key = 'local' USING TIMEOUT 2s").await?,
            shard_aware: sharded,
            version,
        })
    }

    /// What a statement that reads much ends with.
    pub fn scan_suffix(&self) -> String {
        let bypass = if self.bypass_cache { " BYPASS CACHE" } else { "" };
        let timeout = if self.using_timeout { " USING TIMEOUT 30s" } else { "" };
        format!("{bypass}{timeout}")
    }

    /// What the creation of a keyspace that holds logs ends with.
    pub fn keyspace_suffix(&self) -> &'static str {
        if self.tablets && !self.conditions_on_tablets { " AND tablets = {'enabled': false}" } else { "" }
    }
}

#[cfg(test)]
mod tests;
