//! `StorageCell`: where logs and tables are kept.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A database that holds the logs and tables of one or more cells.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "StorageCell",
    plural = "storagecells",
    singular = "storagecell",
    shortname = "stc",
    category = "cellplane",
    namespaced,
    status = "StorageCellStatus",
    derive = "PartialEq",
    doc = "A database that holds the logs and tables of one or more cells.",
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name must have at most 40 characters, so that the names of its objects stay legal").reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.metadata.name.matches('^[a-z][-a-z0-9]*$')").message("metadata.name must begin with a letter and hold only a-z, 0-9 and '-': hosts are named after it").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Engine", type_ = "string", json_path = ".spec.engine"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.reachableNodes"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.embedded) || self.engine == 'embedded'").message("embedded is only for engine embedded").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.external) || self.engine != 'embedded'").message("external is only for engines scylla and cassandra").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.managed) || self.engine == 'scylla'").message("managed is only for engine scylla").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("self.engine == 'embedded' || has(self.external) != has(self.managed)").message("engines scylla and cassandra take exactly one of external and managed").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("self.engine == 'embedded' || has(self.keyspace)").message("engines scylla and cassandra need a keyspace").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(oldSelf.keyspace) || (has(self.keyspace) && self.keyspace == oldSelf.keyspace)").message("keyspace cannot change: data moves by a StorageMigration").reason(Reason::FieldValueInvalid))]
pub struct StorageCellSpec {
    /// The database engine.
    #[x_kube(validation = Rule::new("self == oldSelf").message("engine cannot change: data moves by a StorageMigration").reason(Reason::FieldValueInvalid))]
    pub engine: Engine,
    /// The embedded engine's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedSpec>,
    /// A database that is run elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
    /// A database that the Scylla operator runs for this StorageCell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedSpec>,
    /// Keyspace of the tables (scylla, cassandra).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 48), regex(pattern = r"^[a-z][a-z0-9_]*$"))]
    pub keyspace: Option<String>,
    /// Copies of every row in each datacenter, by its name; used when the keyspace is made. Empty: three in the one of
    /// `external.datacenter` or `managed.datacenter`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 8, "additionalProperties" = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 100}))]
    pub replication: BTreeMap<String, i32>,
    /// How many copies must answer (scylla, cassandra).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    /// What happens to the data when the resource is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// The database engine.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// One Pod with an embedded store on a volume.
    Embedded,
    /// ScyllaDB.
    Scylla,
    /// Apache Cassandra.
    Cassandra,
}

/// The embedded engine's shape.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EmbeddedSpec {
    /// Size of the volume, as a Kubernetes quantity.
    #[serde(default = "default_size")]
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^[0-9]+(Mi|Gi|Ti)$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("embedded.size cannot change").reason(Reason::FieldValueInvalid))]
    pub size: String,
    /// StorageClass of the volume; empty for the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("embedded.storageClassName cannot change").reason(Reason::FieldValueInvalid))]
    pub storage_class_name: Option<String>,
    /// The store refuses writes while less than this is free on the volume, as a Kubernetes quantity; what was acknowledged stays
    /// readable. Empty: 64Mi. Changing it replaces the store's Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 16), regex(pattern = r"^[0-9]{1,6}(Mi|Gi|Ti)$"))]
    pub reserve: Option<String>,
}

impl EmbeddedSpec {
    /// `reserve` in bytes; none when it is empty or no quantity that the schema allows.
    pub fn reserve_bytes(&self) -> Option<u64> {
        let text = self.reserve.as_deref()?;
        let shift = match text.get(text.len().checked_sub(2)?..)? {
            "Mi" => 20,
            "Gi" => 30,
            "Ti" => 40,
            _ => return None,
        };
        text.get(..text.len() - 2)?.parse::<u64>().ok()?.checked_mul(1 << shift)
    }
}

fn default_size() -> String {
    "10Gi".to_owned()
}

impl Default for EmbeddedSpec {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None, reserve: None }
    }
}

/// A database that is run elsewhere.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalSpec {
    /// host:port of nodes to start from.
    #[schemars(length(min = 1, max = 32), inner(length(min = 3, max = 253)))]
    pub contact_points: Vec<String>,
    /// Secret with `username` and `password`. It may be changed at any time: the cells follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_ref: Option<String>,
    /// Speak TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSpec>,
    /// The datacenter whose nodes are asked; empty: the first contact point's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub datacenter: Option<String>,
}

/// How TLS is spoken with the database.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TlsSpec {
    /// Secret with `ca.crt`: who signed the nodes' certificates.
    #[schemars(length(min = 1, max = 253))]
    pub ca_secret_ref: String,
}

/// A database that the Scylla operator runs: built as a `ScyllaCluster` of the same name.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ManagedSpec {
    /// Version of ScyllaDB.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[0-9A-Za-z.+-]+$"))]
    pub version: String,
    /// Name of the datacenter.
    #[serde(default = "default_datacenter")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("managed.datacenter cannot change").reason(Reason::FieldValueInvalid))]
    pub datacenter: String,
    /// Racks, one node each at least.
    #[schemars(length(min = 1, max = 16))]
    pub racks: Vec<RackSpec>,
    /// Secret with `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_ref: Option<String>,
}

fn default_datacenter() -> String {
    "dc1".to_owned()
}

/// One rack of a managed database.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RackSpec {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"))]
    pub name: String,
    /// Nodes in it.
    #[schemars(range(min = 1, max = 100))]
    pub members: i32,
    /// Volume of each node, as a Kubernetes quantity.
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^[0-9]+(Mi|Gi|Ti)$"))]
    pub storage: String,
    /// StorageClass of the volumes; empty for the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// CPUs of each node, as a Kubernetes quantity.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?m?$"))]
    pub cpu: String,
    /// Memory of each node, as a Kubernetes quantity.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?([EPTGMk]i?)?$"))]
    pub memory: String,
}

/// How many copies must answer.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// A majority in the datacenter.
    LocalQuorum,
    /// A majority of all.
    Quorum,
    /// A majority in each datacenter, for writes.
    EachQuorum,
}

/// What happens to the data when the resource is deleted.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeletionPolicy {
    /// Volumes and keyspace stay.
    #[default]
    Retain,
    /// Volumes go with the resource.
    Delete,
}

/// What the operator saw.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct StorageCellStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// Nodes of the database that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable_nodes: Option<i32>,
    /// Version of the tables' schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_version: Option<i32>,
    /// Version of the database, as its nodes say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Privileges that the credentials lack; empty when none do or it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub missing_privileges: Vec<String>,
    /// Hash of what was probed: another one is probed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probed_hash: Option<String>,
    /// Ranges that need a compaction or another look, as migrations found them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub flagged_ranges: Vec<FlaggedRange>,
}

/// A range of a table that needs someone.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FlaggedRange {
    /// The table.
    pub table: String,
    /// First token.
    pub first_token: i64,
    /// Last token.
    pub last_token: i64,
    /// The partition, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// slow, failing, tombstones, large-partition.
    pub kind: String,
    /// What to do.
    pub message: String,
}
