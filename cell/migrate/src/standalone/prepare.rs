//! Before anything is copied: both addresses, both connections, both schemas, and what the state file is to remember the pair by.

use std::collections::BTreeMap;
use std::sync::Arc;

use scylla::client::session::Session;

use super::args::{Consistency, RunFlags};
use crate::copy::Pair;
use crate::stream::cql::{
    Address, ConnectError, CqlTable, Credentials, Link, SchemaError, TableSpec, connect, read_table,
};

/// Why it was not begun.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Address, files, network.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// Tables.
    #[error("{0}")]
    Schema(#[from] SchemaError),
    /// The same table on both sides.
    #[error("{0} is both source and target")]
    Same(String),
}

/// Both sides, ready.
pub struct Prepared {
    /// By table.
    pub pairs: BTreeMap<String, Pair>,
    /// What the state file remembers.
    pub source: String,
    /// The same of the target.
    pub target: String,
    /// What is missing in the target and would be made.
    pub to_create: Vec<String>,
}

struct End {
    session: Arc<Session>,
    address: Address,
}

async fn reach(flags: &RunFlags, from: bool) -> Result<End, PrepareError> {
    let (flag, text, credentials, ca, datacenter, prefix) = if from {
        ("--from", &flags.from, &flags.from_credentials, &flags.from_ca, &flags.from_datacenter, "CELL_MIGRATE_FROM")
    } else {
        ("--to", &flags.to, &flags.to_credentials, &flags.to_ca, &flags.to_datacenter, "CELL_MIGRATE_TO")
    };
    let address = Address::parse(flag, text)?;
    let link = Link {
        contact_points: address.contact_points.clone(),
        keyspace: address.keyspace.clone(),
        credentials: Credentials::find(credentials.as_deref(), prefix)?,
        ca: ca.clone(),
        consistency: match flags.consistency {
            Consistency::One => scylla::statement::Consistency::One,
            Consistency::Quorum => scylla::statement::Consistency::Quorum,
            Consistency::LocalQuorum => scylla::statement::Consistency::LocalQuorum,
            Consistency::All => scylla::statement::Consistency::All,
        },
        datacenter: datacenter.clone(),
    };
    Ok(End { session: Arc::new(connect(&link).await?), address })
}

/// Which table of the source goes to which of the target.
fn table_names(flags: &RunFlags, from: &Address, to: &Address) -> Result<Vec<(String, String)>, PrepareError> {
    match (&from.table, &to.table, flags.tables.as_slice()) {
        (Some(from), to, []) => Ok(vec![(from.clone(), to.clone().unwrap_or_else(|| from.clone()))]),
        (None, None, [_, ..]) => Ok(flags.tables.iter().map(|table| (table.clone(), table.clone())).collect()),
        (None, _, []) => {
            Err(PrepareError::Usage("--from names no table; write /keyspace.table, or give --table".to_owned()))
        }
        _ => Err(PrepareError::Usage("--table goes with addresses that name only the keyspace".to_owned())),
    }
}

/// Reaches both sides and compares their tables; makes the target's only with --create-table.
///
/// # Errors
/// [`PrepareError`].
pub async fn prepare(flags: &RunFlags) -> Result<Prepared, PrepareError> {
    // Before anything is dialled, both addresses must make sense.
    Address::parse("--to", &flags.to)?;
    let (from, to) = (reach(flags, true).await?, reach(flags, false).await?);
    let mut prepared =
        Prepared { pairs: BTreeMap::new(), source: String::new(), target: String::new(), to_create: vec![] };
    let (mut sources, mut targets) = (Vec::new(), Vec::new());
    for (source_name, target_name) in table_names(flags, &from.address, &to.address)? {
        let source = read_table(&from.session, &from.address.keyspace, &source_name).await?;
        let source = source.ok_or_else(|| {
            let name = format!("{}.{source_name}", from.address.keyspace);
            SchemaError::Read { table: name, why: "there is no such table; check --from".to_owned() }
        })?;
        source.check_supported()?;
        let Some(target) = target_table(flags, &to, &source, &target_name, &mut prepared).await? else { continue };
        source.check_same(&target)?;
        if source.identity() == target.identity() {
            return Err(PrepareError::Same(source.name()));
        }
        sources.push(source.identity());
        targets.push(target.identity());
        let table = source.name();
        // Both sides number columns as the source does.
        let target = TableSpec { statics: source.statics.clone(), regulars: source.regulars.clone(), ..target };
        let pair = Pair {
            source: Arc::new(CqlTable::open(from.session.clone(), source).await?),
            target: Arc::new(CqlTable::open(to.session.clone(), target).await?),
        };
        prepared.pairs.insert(table, pair);
    }
    (prepared.source, prepared.target) = (sources.join(" "), targets.join(" "));
    Ok(prepared)
}

async fn target_table(
    flags: &RunFlags,
    to: &End,
    source: &TableSpec,
    name: &str,
    prepared: &mut Prepared,
) -> Result<Option<TableSpec>, PrepareError> {
    let keyspace = &to.address.keyspace;
    if let Some(target) = read_table(&to.session, keyspace, name).await? {
        return Ok(Some(target));
    }
    let full = format!("{keyspace}.{name}");
    if !flags.create_table {
        return Err(SchemaError::Missing(full).into());
    }
    let statement = source.create_statement(keyspace, name);
    if flags.dry_run {
        prepared.to_create.push(statement);
        return Ok(None);
    }
    let made = to.session.query_unpaged(statement, ()).await;
    made.map_err(|error| SchemaError::Read { table: full.clone(), why: format!("failed to create it: {error}") })?;
    let target = read_table(&to.session, keyspace, name).await?;
    Ok(Some(target.ok_or(SchemaError::Missing(full))?))
}
