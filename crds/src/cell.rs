//! `Cell`: gateways, guild nodes and data services on one StorageCell.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A cell: it fails alone, except that cells on one StorageCell share its failures.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "Cell",
    plural = "cells",
    singular = "cell",
    shortname = "cll",
    category = "cellplane",
    namespaced,
    status = "CellStatus",
    derive = "PartialEq",
    selectable = ".spec.storageCellRef",
    doc = "A cell: gateways, guild nodes and data services on one StorageCell.",
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name must have at most 40 characters, so that the names of its objects stay legal").reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.metadata.name.matches('^[a-z][-a-z0-9]*$')").message("metadata.name must begin with a letter and hold only a-z, 0-9 and '-': hosts are named after it").reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.spec.storageCellRef == oldSelf.spec.storageCellRef || (has(self.status) && has(self.status.storage) && self.spec.storageCellRef == self.status.storage.serving)").message("storageCellRef cannot change here: it takes a StorageMigration, and follows status.storage.serving after it").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Availability", type_ = "string", json_path = ".spec.availability"),
    printcolumn(name = "Storage", type_ = "string", json_path = ".spec.storageCellRef"),
    printcolumn(name = "Units", type_ = "integer", json_path = ".status.units"),
    printcolumn(name = "Blocked-by", type_ = "string", json_path = ".status.blockedBy", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct CellSpec {
    /// Replicas and resources of each role.
    #[serde(default)]
    pub roles: Roles,
    /// Name of the StorageCell that holds this cell's data. A cell changes it only by a
    /// StorageMigration; after one, it may be set to what `status.storage.serving` names.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub storage_cell_ref: String,
    /// VoiceRegions whose SFUs this cell uses. Not supported yet: the cell is Stalled when it is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub voice_regions: Vec<String>,
    /// Share of new sessions and of bootstrap buckets, relative to the other cells.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: i32,
    /// Whether the cell takes new units and sessions.
    #[serde(default)]
    pub availability: Availability,
    /// How an evacuation behaves. Passive: it acts only while `availability` is Evacuated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evacuation_policy: Option<EvacuationPolicy>,
}

fn default_weight() -> i32 {
    100
}

/// Replicas and resources of each role.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Roles {
    /// Sockets, sessions, REST.
    #[serde(default)]
    pub gateway: RoleSpec,
    /// Guild actors.
    #[serde(default)]
    pub guild: RoleSpec,
    /// Logs.
    #[serde(default)]
    pub data: RoleSpec,
}

/// Replicas and resources of one role.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RoleSpec {
    /// How many Pods.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 500))]
    pub replicas: i32,
    /// What each Pod asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<RoleTemplate>,
}

fn default_replicas() -> i32 {
    2
}

impl Default for RoleSpec {
    fn default() -> Self {
        Self { replicas: default_replicas(), template: None }
    }
}

/// What each Pod of a role asks for.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RoleTemplate {
    /// CPU request, as a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?m?$"))]
    pub cpu: Option<String>,
    /// Memory request and limit, as a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[0-9]+(\.[0-9]+)?([EPTGMk]i?)?$"))]
    pub memory: Option<String>,
    /// Labels that the node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    pub node_selector: BTreeMap<String, String>,
    /// Further flags of the role's program, for tuning (`--name=value` each).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 3, max = 200), regex(pattern = r"^--[a-z0-9-]+(=.*)?$")))]
    pub extra_args: Vec<String>,
}

/// Whether a cell takes new units and sessions.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Availability {
    /// Takes new units and sessions.
    #[default]
    Active,
    /// Keeps what it has, takes nothing new.
    Cordoned,
    /// Gives everything away. Not supported yet: the cell is Stalled and nothing moves.
    Evacuated,
}

/// How an evacuation behaves.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationPolicy {
    /// Longest time the evacuation may take, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub deadline_seconds: Option<i32>,
    /// Most client reconnects a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub reconnects_per_second: Option<i32>,
    /// Most units moved at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_unavailable: Option<i32>,
}

/// What the operator saw.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CellStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// How many heads name this cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<i32>,
    /// Ready Pods of each role, as `gateway 2/2, guild 2/2, data 2/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<String>,
    /// Where the data is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<CellStorage>,
    /// What the cell waits for; empty when nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}

/// Where a cell's data is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct CellStorage {
    /// Name of the StorageCell that serves. After a StorageMigration of everything this rules, whatever the spec says.
    pub serving: String,
    /// StorageCells that units of this cell were carried to one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub others: Vec<String>,
}
