//! `StorageCell`: where logs and tables are kept.

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
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Engine", type_ = "string", json_path = ".spec.engine"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.reachableNodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.embedded) || self.engine == 'embedded'").message("embedded is only for engine embedded").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!has(self.external) || self.engine != 'embedded'").message("external is only for engines scylla and cassandra").reason(Reason::FieldValueInvalid))]
pub struct StorageCellSpec {
    /// The database engine. `scylla` and `cassandra` are Stalled until their support lands.
    #[x_kube(validation = Rule::new("self == oldSelf").message("engine cannot change: data moves by a StorageMigration").reason(Reason::FieldValueInvalid))]
    pub engine: Engine,
    /// The embedded engine's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedded: Option<EmbeddedSpec>,
    /// A database that is run elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
    /// Keyspace of the tables (scylla, cassandra).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 48), regex(pattern = r"^[a-z][a-z0-9_]*$"))]
    pub keyspace: Option<String>,
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
}

fn default_size() -> String {
    "10Gi".to_owned()
}

impl Default for EmbeddedSpec {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None }
    }
}

/// A database that is run elsewhere.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalSpec {
    /// host:port of nodes to start from.
    #[schemars(length(min = 1, max = 32), inner(length(min = 3, max = 253)))]
    pub contact_points: Vec<String>,
    /// Secret with `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_ref: Option<String>,
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
}
