//! The shape of a CQL table: read from the cluster's own schema tables, judged (what cannot be copied truly is refused with the reason),
//! compared between both sides, and turned into statements.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use scylla::client::session::Session;
use uuid::Uuid;

/// What a column is in its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of the partition key.
    Partition,
    /// Of the clustering key.
    Clustering,
    /// One value for a whole partition.
    Static,
    /// A value of a row.
    Regular,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnSpec {
    /// Name.
    pub name: String,
    /// CQL type as the schema tables write it.
    pub cql_type: String,
    /// Descending clustering order.
    pub descending: bool,
}

/// A table's shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableSpec {
    /// Keyspace.
    pub keyspace: String,
    /// Name.
    pub table: String,
    /// Given anew at each CREATE TABLE.
    pub id: String,
    /// The cluster's name.
    pub cluster: String,
    /// Of the partition key, in order.
    pub partition: Vec<ColumnSpec>,
    /// Of the clustering key, in order.
    pub clustering: Vec<ColumnSpec>,
    /// By name.
    pub statics: Vec<ColumnSpec>,
    /// By name.
    pub regulars: Vec<ColumnSpec>,
    /// Fields of the keyspace's own types.
    pub types: BTreeMap<String, String>,
}

/// Why a table cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The schema could not be read.
    #[error("failed to read the schema of {table}: {why}")]
    Read {
        /// keyspace.table
        table: String,
        /// Why.
        why: String,
    },
    /// There is none.
    #[error("{0} does not exist; check its name, or give --create-table for the target")]
    Missing(String),
    /// It holds what cannot be copied truly.
    #[error("{table} cannot be migrated: {why}")]
    Unsupported {
        /// keyspace.table
        table: String,
        /// Why.
        why: String,
    },
    /// The two sides differ.
    #[error("{target} differs from {source_table}: {why}; alter it, or let --create-table make another one")]
    Differs {
        /// keyspace.table
        source_table: String,
        /// keyspace.table
        target: String,
        /// How.
        why: String,
    },
}

const NATIVE: [&str; 20] = [
    "ascii",
    "bigint",
    "blob",
    "boolean",
    "date",
    "decimal",
    "double",
    "duration",
    "float",
    "inet",
    "int",
    "smallint",
    "text",
    "time",
    "timestamp",
    "timeuuid",
    "tinyint",
    "uuid",
    "varchar",
    "varint",
];

/// Whether a value column's type has one write time for the whole value.
fn judge_type(cql_type: &str) -> Result<(), String> {
    if cql_type == "counter" {
        return Err("a counter has no write time, and adding to it twice counts twice".to_owned());
    }
    let collection = ["list<", "set<", "map<"].into_iter().find(|start| cql_type.starts_with(start));
    if collection.is_some() {
        return Err(format!(
            "its {cql_type} is not frozen: each element has a write time of its own that cannot be read"
        ));
    }
    let whole = ["frozen<", "tuple<", "vector<"].into_iter().any(|start| cql_type.starts_with(start));
    if whole || NATIVE.contains(&cql_type) || cql_type.starts_with('\'') {
        return Ok(());
    }
    Err(format!("its type {cql_type} is not frozen: each field has a write time of its own"))
}

/// A name as CQL takes it whatever letters it has.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl TableSpec {
    /// keyspace.table.
    pub fn name(&self) -> String {
        format!("{}.{}", self.keyspace, self.table)
    }

    /// What a ledger remembers the table by: the cluster and the table's own id, so that a table dropped and made anew is another one.
    pub fn identity(&self) -> String {
        format!("{}/{}#{}", self.cluster, self.name(), self.id)
    }

    /// Static columns, then regular ones: a cell's column is an index into this.
    pub fn values(&self) -> Vec<&ColumnSpec> {
        self.statics.iter().chain(&self.regulars).collect()
    }

    /// Refuses what cannot be copied truly.
    ///
    /// # Errors
    /// [`SchemaError::Unsupported`].
    pub fn check_supported(&self) -> Result<(), SchemaError> {
        for column in self.values() {
            judge_type(&column.cql_type).map_err(|why| SchemaError::Unsupported {
                table: self.name(),
                why: format!("column {}: {why}", column.name),
            })?;
        }
        if self.values().len() > 1000 {
            return Err(SchemaError::Unsupported {
                table: self.name(),
                why: "it has more than 1000 columns".to_owned(),
            });
        }
        Ok(())
    }

    /// Refuses a target of another shape.
    ///
    /// # Errors
    /// [`SchemaError::Differs`].
    pub fn check_same(&self, target: &Self) -> Result<(), SchemaError> {
        let parts = [
            ("partition key", &self.partition, &target.partition),
            ("clustering key", &self.clustering, &target.clustering),
            ("static columns", &self.statics, &target.statics),
            ("columns", &self.regulars, &target.regulars),
        ];
        let differs = |why: String| SchemaError::Differs { source_table: self.name(), target: target.name(), why };
        for (what, ours, theirs) in parts {
            if ours != theirs {
                return Err(differs(format!("{what}: {} against {}", list(ours), list(theirs))));
            }
        }
        for (name, fields) in &self.types {
            let used = self.all().any(|column| names_type(&column.cql_type, name));
            if used && target.types.get(name) != Some(fields) {
                return Err(differs(format!("type {name} has other fields, or is missing")));
            }
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &ColumnSpec> {
        self.partition.iter().chain(&self.clustering).chain(&self.statics).chain(&self.regulars)
    }

    /// The statement that makes this table elsewhere.
    pub fn create_statement(&self, keyspace: &str, table: &str) -> String {
        let mut text = format!("CREATE TABLE {}.{} (", quoted(keyspace), quoted(table));
        for column in self.all() {
            let kind = if self.statics.contains(column) { " static" } else { "" };
            let _ = write!(text, "{} {}{kind}, ", quoted(&column.name), column.cql_type);
        }
        let _ = write!(text, "PRIMARY KEY (({})", names(&self.partition));
        if !self.clustering.is_empty() {
            let _ = write!(text, ", {}", names(&self.clustering));
        }
        text.push_str("))");
        if !self.clustering.is_empty() {
            let order = |column: &ColumnSpec| {
                format!("{} {}", quoted(&column.name), if column.descending { "DESC" } else { "ASC" })
            };
            let orders: Vec<String> = self.clustering.iter().map(order).collect();
            let _ = write!(text, " WITH CLUSTERING ORDER BY ({})", orders.join(", "));
        }
        text
    }
}

fn names_type(cql_type: &str, name: &str) -> bool {
    cql_type.split(['<', '>', ',', ' ']).any(|part| part.trim_matches('"') == name)
}

pub(super) fn names(columns: &[ColumnSpec]) -> String {
    columns.iter().map(|column| quoted(&column.name)).collect::<Vec<_>>().join(", ")
}

fn list(columns: &[ColumnSpec]) -> String {
    let one = |column: &ColumnSpec| {
        format!("{} {}{}", column.name, column.cql_type, if column.descending { " desc" } else { "" })
    };
    if columns.is_empty() { "none".to_owned() } else { columns.iter().map(one).collect::<Vec<_>>().join(", ") }
}

/// Reads a table's shape; none when there is no such table.
///
/// # Errors
/// [`SchemaError::Read`], [`SchemaError::Unsupported`] for what is no plain table.
pub async fn read_table(session: &Session, keyspace: &str, table: &str) -> Result<Option<TableSpec>, SchemaError> {
    let name = format!("{keyspace}.{table}");
    let read = |why: String| SchemaError::Read { table: name.clone(), why };
    let unsupported = |why: &str| SchemaError::Unsupported { table: name.clone(), why: why.to_owned() };
    let views = "SELECT view_name FROM system_schema.views WHERE keyspace_name = ? AND view_name = ?";
    if !rows::<(String,)>(session, views, (keyspace, table)).await.map_err(&read)?.is_empty() {
        return Err(unsupported("it is a materialised view; migrate its base table and create the view there"));
    }
    let tables = "SELECT id, flags FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
    let found = rows::<(Uuid, Option<Vec<String>>)>(session, tables, (keyspace, table)).await.map_err(&read)?;
    let Some((id, flags)) = found.into_iter().next() else { return Ok(None) };
    let flags = flags.unwrap_or_default();
    if flags.iter().any(|flag| ["dense", "super"].contains(&flag.as_str()))
        || !flags.iter().any(|flag| flag == "compound")
    {
        return Err(unsupported("it is of COMPACT STORAGE; drop that first"));
    }
    let local = "SELECT cluster_name FROM system.local WHERE key = ?";
    let cluster = rows::<(String,)>(session, local, ("local",)).await.map_err(&read)?;
    let types = "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = ?";
    let types = rows::<(String, Vec<String>, Vec<String>)>(session, types, (keyspace,)).await.map_err(&read)?;
    let mut spec = TableSpec {
        keyspace: keyspace.to_owned(),
        table: table.to_owned(),
        id: id.to_string(),
        cluster: cluster.into_iter().next().map(|(name,)| name).unwrap_or_default(),
        partition: vec![],
        clustering: vec![],
        statics: vec![],
        regulars: vec![],
        types: types.into_iter().map(|(name, names, types)| (name, format!("{names:?} {types:?}"))).collect(),
    };
    let columns = "SELECT column_name, kind, position, type, clustering_order FROM system_schema.columns \
                   WHERE keyspace_name = ? AND table_name = ?";
    let mut columns =
        rows::<(String, String, i32, String, String)>(session, columns, (keyspace, table)).await.map_err(&read)?;
    columns.sort_by(|a, b| (a.2, &a.0).cmp(&(b.2, &b.0)));
    for (name, kind, _, cql_type, order) in columns {
        let column = ColumnSpec { name, cql_type, descending: order == "desc" };
        match kind.as_str() {
            "partition_key" => spec.partition.push(column),
            "clustering" => spec.clustering.push(column),
            "static" => spec.statics.push(column),
            "regular" => spec.regulars.push(column),
            other => return Err(unsupported(&format!("column {} is of an unknown kind {other:?}", column.name))),
        }
    }
    Ok(Some(spec))
}

async fn rows<T>(
    session: &Session,
    query: &str,
    values: impl scylla::serialize::row::SerializeRow,
) -> Result<Vec<T>, String>
where
    T: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
{
    let result = session.query_unpaged(query, values).await.map_err(|error| error.to_string())?;
    let result = result.into_rows_result().map_err(|error| error.to_string())?;
    let rows = result.rows::<T>().map_err(|error| error.to_string())?;
    rows.collect::<Result<Vec<T>, _>>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, cql_type: &str) -> ColumnSpec {
        ColumnSpec { name: name.to_owned(), cql_type: cql_type.to_owned(), descending: false }
    }

    fn spec() -> TableSpec {
        TableSpec {
            keyspace: "ks".into(),
            table: "t".into(),
            id: "1".into(),
            cluster: "c".into(),
            partition: vec![column("a", "bigint"), column("b", "int")],
            clustering: vec![ColumnSpec { descending: true, ..column("C", "timeuuid") }],
            statics: vec![column("s", "text")],
            regulars: vec![column("v", "frozen<address>"), column("w", "tuple<int, text>")],
            types: BTreeMap::from([("address".into(), "x".into()), ("other".into(), "y".into())]),
        }
    }

    #[test]
    fn what_cannot_be_copied_truly_is_refused_with_the_reason() {
        assert!(spec().check_supported().is_ok());
        for (cql_type, word) in [
            ("counter", "twice"),
            ("list<int>", "element"),
            ("map<text, frozen<list<int>>>", "element"),
            ("address", "field"),
        ] {
            let mut wrong = spec();
            wrong.regulars.push(column("z", cql_type));
            let error = wrong.check_supported().unwrap_err().to_string();
            assert!(error.contains("column z") && error.contains(word), "{error}");
        }
        for cql_type in ["frozen<map<text, int>>", "vector<float, 3>", "text", "duration"] {
            assert_eq!(judge_type(cql_type), Ok(()));
        }
    }

    #[test]
    fn a_target_of_another_shape_is_refused_and_the_difference_named() {
        let mut target = spec();
        target.types.insert("other".into(), "z".into());
        assert!(spec().check_same(&target).is_ok(), "a type that the table does not use is no difference");
        target.types.remove("address");
        assert!(spec().check_same(&target).unwrap_err().to_string().contains("address"));
        let mut target = spec();
        target.regulars[0].cql_type = "int".into();
        assert!(spec().check_same(&target).unwrap_err().to_string().contains("v frozen<address>"));
        let mut target = spec();
        target.clustering[0].descending = false;
        assert!(spec().check_same(&target).is_err());
    }

    #[test]
    fn a_table_can_be_made_elsewhere() {
        assert_eq!(
            spec().create_statement("k2", "t2"),
            "CREATE TABLE \"k2\".\"t2\" (\"a\" bigint, \"b\" int, \"C\" timeuuid, \"s\" text static, \"v\" frozen<address>, \
             \"w\" tuple<int, text>, PRIMARY KEY ((\"a\", \"b\"), \"C\")) WITH CLUSTERING ORDER BY (\"C\" DESC)"
        );
    }
}
