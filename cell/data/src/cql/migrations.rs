//! The keyspace's schema as numbered steps. Each may be repeated, is agreed on by all nodes before the next begins, and is recorded when
//! done. A schema newer than this version knows is refused; it is never changed backwards.

use cell_store::StoreError;
use cell_store::schema::{Compaction, Schema, Table};
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::statement::Statement;
use scylla::value::{CqlValue, Row};

use super::connect::Connection;
use super::error::{Effect, failed, unreadable};
use super::settings::{Replication, Settings};
use super::statements::rows_of;

/// The newest version known here.
pub const VERSION: u32 = Schema::VERSION;

const RECORD: &str = "schema_versions";

/// Dropped segments and overwritten cursors are garbage at once; three hours are what hints of a lost replica live, and a segment that
/// came back later would lie below every cursor.
const LOG_GRACE_SECONDS: u32 = 10_800;

fn create_table(settings: &Settings, table: &Table) -> String {
    let columns =
        table.partition.iter().chain(&table.clustering).map(|key| format!("\"{}\" {}", key.name, key.kind.cql()));
    let values = table.values.iter().map(|name| format!("\"{name}\" blob"));
    let columns: Vec<_> = columns.chain(values).collect();
    let mut key = format!("({})", super::rows::list(&table.partition));
    let mut order = String::new();
    if !table.clustering.is_empty() {
        key += &format!(", {}", super::rows::list(&table.clustering));
        let direction = if table.descending { "DESC" } else { "ASC" };
        let each: Vec<_> = table.clustering.iter().map(|key| format!("\"{}\" {direction}", key.name)).collect();
        order = format!("CLUSTERING ORDER BY ({}) AND ", each.join(", "));
    }
    let compaction = match table.compaction {
        Compaction::Leveled => "{'class': 'LeveledCompactionStrategy'}".to_owned(),
        Compaction::TimeWindow { days } => format!(
            "{{'class': 'TimeWindowCompactionStrategy', 'compaction_window_unit': 'DAYS', 'compaction_window_size': '{days}'}}"
        ),
    };
    format!(
        "CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY ({key})) WITH {order}compaction = {compaction}",
        settings.table(&table.name),
        columns.join(", "),
    )
}

fn log_tables(settings: &Settings) -> [String; 3] {
    [
        format!(
            "CREATE TABLE IF NOT EXISTS {} (log text PRIMARY KEY, cell text, term bigint, appender text, segment bigint, \
             moved_to text, moved_at bigint) WITH compaction = {{'class': 'LeveledCompactionStrategy'}}",
            settings.table("heads")
        ),
        // Written once, read in a row, dropped whole: the plainest compaction does least.
        format!(
            "CREATE TABLE IF NOT EXISTS {} (log text, segment bigint, number bigint, term bigint static, sealed boolean static, \
             last bigint static, last_timestamp bigint static, last_snowflake bigint static, timestamp bigint, operation blob, \
             body blob, PRIMARY KEY ((log, segment), number)) WITH gc_grace_seconds = {LOG_GRACE_SECONDS} \
             AND compaction = {{'class': 'SizeTieredCompactionStrategy'}}",
            settings.table("segments")
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (log text, name text, value bigint, PRIMARY KEY ((log), name)) \
             WITH compaction = {{'class': 'LeveledCompactionStrategy'}}",
            settings.table("cursors")
        ),
    ]
}

/// The steps from one version to the next.
fn steps(version: u32, settings: &Settings, schema: &Schema) -> Vec<String> {
    let logs = if version == 1 { log_tables(settings).to_vec() } else { Vec::new() };
    let tables = schema.tables().filter(|table| table.since == version);
    logs.into_iter().chain(tables.map(|table| create_table(settings, table))).collect()
}

async fn query(session: &Session, text: String) -> Result<Vec<Row>, ExecutionError> {
    let mut statement = Statement::new(text);
    statement.set_is_idempotent(true);
    let result = session.query_unpaged(statement, ()).await?;
    Ok(if result.is_rows() { rows_of(result).unwrap_or_default() } else { Vec::new() })
}

/// The version that is there; none when the keyspace or its record is not.
///
/// # Errors
/// [`StoreError::Unavailable`].
pub async fn version(connection: &Connection) -> Result<Option<u32>, StoreError> {
    let text = format!("SELECT version FROM {} WHERE id = 0", connection.settings.table(RECORD));
    let rows = match query(&connection.session, text).await {
        Ok(rows) => rows,
        Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(
            DbError::Invalid | DbError::ConfigError,
            _,
        ))) => return Ok(None),
        Err(error) => return Err(failed(&error, Effect::Read)),
    };
    let number = |row: Row| match row.columns.into_iter().next() {
        Some(Some(CqlValue::Int(number))) => u32::try_from(number).map_err(unreadable),
        other => Err(unreadable(format!("{other:?} is no version"))),
    };
    let versions: Vec<u32> = rows.into_iter().map(number).collect::<Result<_, _>>()?;
    Ok(versions.into_iter().max())
}

fn newer(settings: &Settings, found: u32) -> StoreError {
    let path = format!("keyspace {} of StorageCell {}", settings.keyspace, settings.name);
    StoreError::NewerVersion { path, found, supported: VERSION }
}

/// Refuses a keyspace whose schema is not the one known here.
///
/// # Errors
/// [`StoreError::Unavailable`] when it is older or not there, [`StoreError::NewerVersion`].
pub async fn check(connection: &Connection) -> Result<(), StoreError> {
    let settings = &connection.settings;
    match version(connection).await? {
        Some(VERSION) => Ok(()),
        Some(found) if found > VERSION => Err(newer(settings, found)),
        found => Err(StoreError::Unavailable(format!(
            "keyspace {} of StorageCell {} has schema version {}, this version needs {VERSION}; run `cell migrate probe --name {} \
             --apply-schema`",
            settings.keyspace,
            settings.name,
            found.unwrap_or(0),
            settings.name
        ))),
    }
}

/// The statement that makes the keyspace.
fn create_keyspace(connection: &Connection) -> String {
    let settings = &connection.settings;
    let state = connection.session.get_cluster_state();
    let of_node = |node: &std::sync::Arc<scylla::cluster::Node>| node.datacenter.clone();
    let datacenter = settings.datacenter.clone().or_else(|| state.get_nodes_info().iter().find_map(of_node));
    let nodes = state.get_nodes_info().iter().filter(|node| node.datacenter == datacenter).count();
    let options = match &settings.replication {
        Some(Replication::Options(options)) => {
            let each: Vec<_> =
                options.iter().map(|(key, value)| format!("'{}': '{value}'", key.replace('\'', "''"))).collect();
            let class = if options.contains_key("class") { "" } else { "'class': 'NetworkTopologyStrategy', " };
            format!("{class}{}", each.join(", "))
        }
        other => {
            let factor = match other {
                Some(Replication::Factor(factor)) => u64::from(*factor),
                _ => nodes.clamp(1, 3) as u64,
            };
            let datacenter = datacenter.unwrap_or_else(|| "datacenter1".to_owned()).replace('\'', "''");
            format!("'class': 'NetworkTopologyStrategy', '{datacenter}': '{factor}'")
        }
    };
    let suffix = connection.capabilities.keyspace_suffix();
    format!("CREATE KEYSPACE IF NOT EXISTS \"{}\" WITH replication = {{{options}}}{suffix}", settings.keyspace)
}

async fn apply(connection: &Connection, text: String) -> Result<(), StoreError> {
    query(&connection.session, text).await.map_err(|error| failed(&error, Effect::Write))?;
    agree(connection).await
}

/// Waits until all nodes have one schema.
pub(super) async fn agree(connection: &Connection) -> Result<(), StoreError> {
    let agreed = connection.session.await_schema_agreement().await;
    agreed.map(drop).map_err(|error| StoreError::Unavailable(format!("the nodes do not agree on a schema: {error}")))
}

/// Brings a keyspace to the version known here; one process at a time. May be repeated after any failure.
///
/// # Errors
/// [`StoreError::NewerVersion`], and what the server says.
pub async fn ensure(connection: &Connection, schema: &Schema) -> Result<u32, StoreError> {
    let found = version(connection).await?.unwrap_or(0);
    if found > VERSION {
        return Err(newer(&connection.settings, found));
    }
    if found == VERSION {
        return Ok(VERSION);
    }
    agree(connection).await?;
    let record = connection.settings.table(RECORD);
    if found == 0 {
        apply(connection, create_keyspace(connection)).await?;
        let columns = "id int, version int, applied timestamp, PRIMARY KEY ((id), version)";
        apply(connection, format!("CREATE TABLE IF NOT EXISTS {record} ({columns})")).await?;
    }
    for next in found + 1..=VERSION {
        for statement in steps(next, &connection.settings, schema) {
            apply(connection, statement).await?;
        }
        let text = format!("INSERT INTO {record} (id, version, applied) VALUES (0, {next}, toTimestamp(now()))");
        query(&connection.session, text).await.map_err(|error| failed(&error, Effect::Write))?;
        tracing::info!(keyspace = %connection.settings.keyspace, version = next, "the schema was brought forward");
    }
    Ok(VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        let file = r#"{"name":"s","engine":"scylla","contactPoints":["a:1"],"keyspace":"k"}"#;
        Settings::parse("s", file).unwrap()
    }

    #[test]
    fn every_version_has_steps_that_may_be_repeated() {
        for version in 1..=VERSION {
            let steps = steps(version, &settings(), Schema::platform());
            assert!(!steps.is_empty());
            assert!(steps.iter().all(|step| step.contains("IF NOT EXISTS")), "{steps:#?}");
        }
        assert!(steps(VERSION + 1, &settings(), Schema::platform()).is_empty());
    }

    #[test]
    fn messages_lie_from_new_to_old_by_channel_and_bucket() {
        let table = create_table(&settings(), Schema::platform().get("messages").unwrap());
        assert!(table.contains("PRIMARY KEY ((\"channel_id\", \"bucket\"), \"message_id\")"), "{table}");
        assert!(table.contains("CLUSTERING ORDER BY (\"message_id\" DESC)"), "{table}");
        let users = create_table(&settings(), Schema::platform().get("users").unwrap());
        assert!(users.contains("PRIMARY KEY ((\"user_id\"))) WITH compaction"), "{users}");
    }
}
