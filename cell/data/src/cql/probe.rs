//! What an operator asks of a CQL StorageCell before trusting it with data: each node's reach, version and clock, privileges, schema,
//! replication, and whether conditions work. It changes nothing but a scratch table of its own, and the schema when told to.

use std::collections::BTreeMap;
use std::time::Duration;

use cell_store::StoreError;
use cell_store::schema::Schema;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::Statement;
use scylla::value::{CqlValue, Row};
use serde::Serialize;

use super::capability::Capabilities;
use super::connect::{Connection, connect};
use super::migrations;
use super::settings::Settings;
use super::statements::{is_applied, rows_of};

/// Clocks further apart than this are a problem: plain writes are ordered by them after a switch of owners.
const MAX_SKEW_MS: i64 = 1000;
/// Characters of a summary's error.
const MAX_ERROR: usize = 400;
/// A scratch table of this age belongs to no probe that still runs.
const LEFT_OVER_MINUTES: i64 = 15;
/// The most that one probe drops of what others left.
const MOST_SWEPT: usize = 20;
/// The longest wait for one node.
const NODE: Duration = Duration::from_secs(5);

/// One node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// host:port.
    pub address: String,
    /// Where it says it is.
    pub datacenter: String,
    /// Where it says it is.
    pub rack: String,
    /// It answered.
    pub reachable: bool,
    /// Its version; empty when it did not answer.
    pub version: String,
    /// Its clock minus ours, in milliseconds, give or take half a round trip.
    pub clock_skew_ms: Option<i64>,
}

/// What the credentials may do, each tried on a scratch table.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Privileges {
    /// Create and drop tables.
    pub create: bool,
    /// Change tables.
    pub alter: bool,
    /// Write rows.
    pub modify: bool,
    /// Read rows.
    pub select: bool,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// The StorageCell.
    pub name: String,
    /// Nothing stands against using it.
    pub ok: bool,
    /// What does, each with its remedy.
    pub problems: Vec<String>,
    /// What the server is and can do; none when it was not reached.
    pub server: Option<Capabilities>,
    /// Each node that the cluster names.
    pub nodes: Vec<NodeReport>,
    /// Nodes by datacenter.
    pub datacenters: BTreeMap<String, usize>,
    /// All nodes have one schema.
    pub schema_agreement: bool,
    /// Version of the platform's tables; none: not there.
    pub schema_version: Option<u32>,
    /// The version that is needed.
    pub schema_needed: u32,
    /// What may be done.
    pub privileges: Privileges,
    /// A conditional write was made, and one refused.
    pub conditions: bool,
    /// The keyspace's replication; empty when there is no keyspace.
    pub replication: BTreeMap<String, String>,
}

impl ProbeReport {
    /// A report that says only why nothing could be asked.
    pub fn failed(name: &str, problem: String) -> Self {
        Self {
            name: name.to_owned(),
            ok: false,
            problems: vec![problem],
            server: None,
            nodes: Vec::new(),
            datacenters: BTreeMap::new(),
            schema_agreement: false,
            schema_version: None,
            schema_needed: migrations::VERSION,
            privileges: Privileges::default(),
            conditions: false,
            replication: BTreeMap::new(),
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What whoever started the probe decides by.
    pub fn summary(&self) -> ProbeSummary {
        let Privileges { create, alter, modify, select } = self.privileges;
        let tried = [("create", create), ("alter", alter), ("modify", modify), ("select", select)];
        // A keyspace that is not there says nothing about privileges.
        let missing = tried.iter().filter(|(_, has)| !has && !self.replication.is_empty());
        ProbeSummary {
            ok: self.ok,
            error: self.problems.join("; ").chars().take(MAX_ERROR).collect(),
            nodes: self.nodes.iter().filter(|node| node.reachable).count(),
            version: self.server.as_ref().map(|server| server.version.clone()).unwrap_or_default(),
            schema_version: self.schema_version.unwrap_or(0),
            missing_privileges: missing.map(|(name, _)| (*name).to_owned()).collect(),
        }
    }
}

/// A report in few bytes: it must fit a Pod's termination message, of which 2 KiB are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeSummary {
    /// Nothing stands against using it.
    pub ok: bool,
    /// What does, cut short.
    pub error: String,
    /// Nodes that answered.
    pub nodes: usize,
    /// The server's version.
    pub version: String,
    /// Version of the platform's tables; 0: not there.
    pub schema_version: u32,
    /// Privileges tried in vain.
    pub missing_privileges: Vec<String>,
}

impl ProbeSummary {
    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Probes what `text` (a StorageCell's file) names; with `apply`, brings the schema forward first.
pub async fn probe(name: &str, text: &str, apply: bool) -> ProbeReport {
    let settings = match Settings::parse(name, text) {
        Ok(settings) => settings,
        Err(message) => return ProbeReport::failed(name, Settings::refused(name, &message).to_string()),
    };
    let connection = match connect(settings).await {
        Ok(connection) => connection,
        Err(error) => return ProbeReport::failed(name, error.to_string()),
    };
    let mut report = ProbeReport::failed(name, String::new());
    report.problems.clear();
    report.server = Some(connection.capabilities.clone());
    nodes(&connection, &mut report).await;
    if apply && let Err(error) = migrations::ensure(&connection, Schema::platform()).await {
        report.problems.push(format!("failed to apply the schema: {error}"));
    }
    schema(&connection, &mut report).await;
    if report.replication.is_empty() {
        let keyspace = &connection.settings.keyspace;
        report.problems.push(format!("there is no keyspace {keyspace}; run again with --apply-schema"));
    } else {
        scratch(&connection, &mut report).await;
    }
    report.ok = report.problems.is_empty();
    report
}

async fn ask_node(connection: &Connection, node: &std::sync::Arc<Node>) -> Option<(String, i64)> {
    let mut statement =
        Statement::new("SELECT release_version, toUnixTimestamp(now()) FROM system.local WHERE key = 'local'");
    let target = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(node.clone()), None);
    statement.set_load_balancing_policy(Some(target));
    statement.set_consistency(scylla::statement::Consistency::One);
    let before = cell_runtime::unix_ms();
    let result = tokio::time::timeout(NODE, connection.session.query_unpaged(statement, ())).await.ok()?.ok()?;
    let after = cell_runtime::unix_ms();
    let row = rows_of(result).ok()?.into_iter().next()?;
    match row.columns.as_slice() {
        [Some(CqlValue::Text(version)), Some(CqlValue::BigInt(there))] => {
            Some((version.clone(), there - i64::midpoint(before, after)))
        }
        _ => None,
    }
}

async fn nodes(connection: &Connection, report: &mut ProbeReport) {
    let state = connection.session.get_cluster_state();
    for node in state.get_nodes_info() {
        let answer = ask_node(connection, node).await;
        let found = NodeReport {
            address: format!("{}:{}", node.address.ip(), node.address.port()),
            datacenter: node.datacenter.clone().unwrap_or_default(),
            rack: node.rack.clone().unwrap_or_default(),
            reachable: answer.is_some(),
            clock_skew_ms: answer.as_ref().map(|(_, skew)| *skew),
            version: answer.map(|(version, _)| version).unwrap_or_default(),
        };
        *report.datacenters.entry(found.datacenter.clone()).or_default() += 1;
        if !found.reachable {
            report
                .problems
                .push(format!("node {} did not answer; start it or remove it from the cluster", found.address));
        }
        if let Some(skew) = found.clock_skew_ms.filter(|skew| skew.abs() > MAX_SKEW_MS) {
            report.problems.push(format!("the clock of node {} is {skew} ms off; synchronise it", found.address));
        }
        report.nodes.push(found);
    }
    if let Some(wanted) = &connection.settings.datacenter
        && !report.datacenters.contains_key(wanted)
    {
        report.problems.push(format!("no node is in datacenter {wanted:?}; correct `datacenter`"));
    }
}

async fn schema(connection: &Connection, report: &mut ProbeReport) {
    report.schema_agreement = matches!(connection.session.check_schema_agreement().await, Ok(Some(_)));
    if !report.schema_agreement {
        report.problems.push("the nodes do not have one schema; wait, or find the node that lags".to_owned());
    }
    match migrations::version(connection).await {
        Ok(version) => report.schema_version = version,
        Err(error) => report.problems.push(format!("failed to read the schema's version: {error}")),
    }
    if let Err(error) = migrations::check(connection).await {
        report.problems.push(error.to_string());
    }
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows = connection.session.query_unpaged(text, (connection.settings.keyspace.as_str(),)).await;
    let row = rows.ok().and_then(|result| rows_of(result).ok()).and_then(|rows| rows.into_iter().next());
    if let Some(Row { columns }) = row
        && let Some(Some(CqlValue::Map(options))) = columns.into_iter().next()
    {
        let text = |value: CqlValue| match value {
            CqlValue::Text(text) => text,
            other => format!("{other:?}"),
        };
        report.replication = options.into_iter().map(|(key, value)| (text(key), text(value))).collect();
    }
}

async fn tried(connection: &Connection, report: &mut ProbeReport, what: &str, text: String) -> bool {
    match connection.session.query_unpaged(text, ()).await {
        Ok(_) => true,
        Err(error) => {
            let keyspace = &connection.settings.keyspace;
            report
                .problems
                .push(format!("{what} failed in keyspace {keyspace}; grant it or mend the cluster: {error}"));
            false
        }
    }
}

async fn condition(connection: &Connection, table: &str) -> Result<bool, StoreError> {
    let text = format!("INSERT INTO {table} (id, value) VALUES (2, 2) IF NOT EXISTS");
    let mut applied = [false, false];
    for outcome in &mut applied {
        let result = connection.session.query_unpaged(text.clone(), ()).await;
        *outcome = is_applied(result.map_err(|error| StoreError::UnknownOutcome(error.to_string()))?)?;
    }
    Ok(applied == [true, false])
}

/// A scratch table's name: when it was made, in minutes, and a number of its own.
fn scratch_name(unix_ms: i64, number: u32) -> String {
    format!("probe_{:08x}_{number:08x}", unix_ms / 60_000)
}

/// Whether a table is the scratch table of a probe that was killed before it dropped it.
fn is_left_over(table: &str, unix_ms: i64) -> bool {
    let hex = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some((made, _)) =
        table.strip_prefix("probe_").and_then(|rest| rest.split_once('_')).filter(|(a, b)| hex(a) && hex(b))
    else {
        return false;
    };
    i64::from_str_radix(made, 16).is_ok_and(|made| unix_ms / 60_000 - made >= LEFT_OVER_MINUTES)
}

/// Drops what killed probes left. What cannot be dropped now, a later probe drops.
async fn sweep(connection: &Connection) {
    let text = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let found = connection.session.query_unpaged(text, (connection.settings.keyspace.as_str(),)).await;
    let rows = found.ok().and_then(|result| rows_of(result).ok()).unwrap_or_default();
    let names = rows.into_iter().filter_map(|row| match row.columns.into_iter().next() {
        Some(Some(CqlValue::Text(name))) => Some(name),
        _ => None,
    });
    for name in names.filter(|name| is_left_over(name, cell_runtime::unix_ms())).take(MOST_SWEPT) {
        let drop = format!("DROP TABLE IF EXISTS {}", connection.settings.table(&name));
        match connection.session.query_unpaged(drop, ()).await {
            Ok(_) => tracing::info!(table = name, "dropped what a killed probe left"),
            Err(error) => tracing::debug!(table = name, %error, "what a killed probe left stays for now"),
        }
    }
}

async fn scratch(connection: &Connection, report: &mut ProbeReport) {
    sweep(connection).await;
    let table = connection.settings.table(&scratch_name(cell_runtime::unix_ms(), rand::random::<u32>()));
    let create = format!("CREATE TABLE {table} (id int PRIMARY KEY, value int)");
    report.privileges.create = tried(connection, report, "creating a table", create).await;
    if !report.privileges.create {
        return;
    }
    let alter = format!("ALTER TABLE {table} ADD more int");
    report.privileges.alter = tried(connection, report, "changing a table", alter).await;
    let modify = format!("INSERT INTO {table} (id, value) VALUES (1, 1)");
    report.privileges.modify = tried(connection, report, "writing", modify).await;
    report.privileges.select =
        tried(connection, report, "reading", format!("SELECT value FROM {table} WHERE id = 1")).await;
    match condition(connection, &table).await {
        Ok(true) => report.conditions = true,
        Ok(false) => {
            report.problems.push("a conditional write was answered wrongly; do not use this cluster".to_owned())
        }
        Err(error) => report.problems.push(format!("a conditional write failed: {error}")),
    }
    tried(connection, report, "dropping a table", format!("DROP TABLE {table}")).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_tables_with_the_name_of_a_probes_are_left_over() {
        let made = 1_700_000_000_000;
        let name = scratch_name(made, 0xabc);
        assert!(is_left_over(&name, made + 15 * 60_000));
        assert!(!is_left_over(&name, made + 14 * 60_000), "its probe may still run");
        for other in ["messages", "probe_", "probe_me_now", "probe_00000001", "probe_00000001_0000000g", "probe_1_2"] {
            assert!(!is_left_over(other, made), "{other}");
        }
    }
}
