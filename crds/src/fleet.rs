//! `Fleet`: one namespace, one etcd prefix, the cells that share the first 4096 buckets.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::cell::Roles;

/// A fleet: one per namespace. References never cross it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "Fleet",
    plural = "fleets",
    singular = "fleet",
    shortname = "flt",
    category = "cellplane",
    namespaced,
    status = "FleetStatus",
    derive = "PartialEq",
    doc = "A fleet: one per namespace; its cells share one etcd prefix and one entry address.",
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name must have at most 40 characters, so that the names of its objects stay legal").reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.metadata.name.matches('^[a-z][-a-z0-9]*$')").message("metadata.name must begin with a letter and hold only a-z, 0-9 and '-': hosts are named after it").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Cells", type_ = "integer", json_path = ".status.cells"),
    printcolumn(name = "Bootstrapped", type_ = "boolean", json_path = ".status.bootstrapped"),
    printcolumn(name = "Paused", type_ = "boolean", json_path = ".spec.paused", priority = 1),
    printcolumn(name = "Control plane", type_ = "string", json_path = ".status.controlPlaneAddress", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct FleetSpec {
    /// The etcd that holds membership, route hints and operations. Never Kubernetes' own.
    pub etcd: EtcdSpec,
    /// The one address that clients know.
    pub entry: EntrySpec,
    /// Images of the cells' programs.
    pub image: ImageSpec,
    /// Name of the Secret with the token keys (`current`, optionally `previous`; at least 32 random bytes each). When empty, the
    /// operator makes `<fleet>-token-keys`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub token_keys_ref: Option<String>,
    /// Names of the cells that share the 4096 buckets once, when all of them are Ready, by weight. Later cells get units only by
    /// Moves.
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("bootstrapCells cannot change: the buckets were shared once; use Moves").reason(Reason::FieldValueInvalid))]
    pub bootstrap_cells: Vec<String>,
    /// The shape of the cells that promotion and `guild dedicate` make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated_template: Option<DedicatedTemplate>,
    /// While set, the operator changes nothing in this fleet; runs under way stop at their step.
    #[serde(default)]
    pub paused: bool,
}

/// Where the fleet's etcd is.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EtcdSpec {
    /// host:port of each member.
    #[schemars(length(min = 1, max = 9), inner(length(min = 3, max = 253)))]
    pub endpoints: Vec<String>,
    /// Prefix of every key of this fleet; the Fleet's UID claims it.
    #[schemars(length(min = 2, max = 200), regex(pattern = r"^/[A-Za-z0-9._/-]+/$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("etcd.prefix cannot change").reason(Reason::FieldValueInvalid))]
    pub prefix: String,
    /// Secret with client certificate and password. Not supported yet: the fleet is Stalled when it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_ref: Option<String>,
}

/// The address that clients know.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EntrySpec {
    /// Host that clients connect to; used in gateway URLs.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Port that clients connect to. Also the NodePort when it lies in 30000–32767 and `service` is NodePort.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Secret with the entry's certificate (`tls.crt`, `tls.key`). Not supported yet: the fleet is Stalled when it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tls_secret_ref: Option<String>,
    /// Type of the entry's Service.
    #[serde(default)]
    pub service: EntryService,
}

/// Type of the entry's Service.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EntryService {
    /// A port on every node.
    #[default]
    NodePort,
    /// Inside the Kubernetes cluster only.
    ClusterIP,
    /// An external load balancer.
    LoadBalancer,
}

/// Images of the cells' programs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Image of the `cell` program.
    #[schemars(length(min = 1, max = 500))]
    pub cell: String,
    /// Pull policy; empty for Kubernetes' default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When images are pulled.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// At every start.
    Always,
    /// When the node lacks it.
    IfNotPresent,
    /// Never.
    Never,
}

/// The shape of cells made for one guild.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct DedicatedTemplate {
    /// Replicas and resources of each role.
    #[serde(default)]
    pub roles: Roles,
}

/// What the operator saw.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct FleetStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// The operator's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How many cells the fleet has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cells: Option<i32>,
    /// The 4096 buckets have heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrapped: Option<bool>,
    /// URL of the control-plane API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_address: Option<String>,
    /// URL that clients use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_url: Option<String>,
}
