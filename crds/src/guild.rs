//! `Guild`: a wish about one guild. Most guilds have none and live where their bucket's head says.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::cell::Roles;

/// A wish about one guild; deleting it removes its rules, never the guild.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "Guild",
    plural = "guilds",
    singular = "guild",
    shortname = "gld",
    category = "cellplane",
    namespaced,
    status = "GuildStatus",
    derive = "PartialEq",
    selectable = ".spec.guildId",
    doc = "A wish about one guild: where it lives and when it is promoted. Named g-<guildId>.",
    validation = Rule::new("self.metadata.name == 'g-' + self.spec.guildId").message("metadata.name must be g-<spec.guildId>").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Cell", type_ = "string", json_path = ".status.cell"),
    printcolumn(name = "Hotness", type_ = "string", json_path = ".status.hotness"),
    printcolumn(name = "Blocked-by", type_ = "string", json_path = ".status.blockedBy", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct GuildSpec {
    /// The guild's id, a decimal Snowflake.
    #[schemars(length(min = 1, max = 19), regex(pattern = r"^[1-9][0-9]{0,18}$"))]
    #[x_kube(validation = Rule::new("self.size() < 19 || self <= '9223372036854775807'").message("guildId must be at most 9223372036854775807").reason(Reason::FieldValueInvalid))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("guildId cannot change").reason(Reason::FieldValueInvalid))]
    pub guild_id: String,
    /// Where the guild should live. Empty: where its bucket lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// When the guild gets a cell of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,
    /// VoiceRegion for this guild's calls. Not supported yet: the guild is Stalled when it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub voice_region: Option<String>,
    /// Bounds of this guild. Not supported yet: the guild is Stalled when they are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<GuildLimits>,
}

/// Where a guild should live: exactly one of the two.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cell) != has(self.dedicated)").message("placement takes exactly one of cell and dedicated").reason(Reason::FieldValueInvalid))]
pub struct Placement {
    /// A cell by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub cell: Option<String>,
    /// A cell of its own, `<guild>-cell`, made by the operator on the StorageCell where the guild is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedicated: Option<Dedicated>,
}

/// A cell of its own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Dedicated {
    /// Its shape; empty for `Fleet.spec.dedicatedTemplate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Roles>,
}

/// When a guild gets a cell of its own.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Promotion {
    /// Promote without asking.
    #[serde(default)]
    pub auto: bool,
    /// Connected sessions above which the guild is hot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub sessions_above: Option<i32>,
    /// Messages a second above which the guild is hot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub messages_per_second_above: Option<i32>,
    /// How long it must be hot first, in seconds.
    #[serde(default = "default_hold")]
    #[schemars(range(min = 0, max = 86_400))]
    pub hold_for_seconds: i32,
}

fn default_hold() -> i32 {
    60
}

/// Bounds of one guild.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GuildLimits {
    /// Most members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 25_000_000))]
    pub members: Option<i32>,
    /// Most messages a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub messages_per_second: Option<i32>,
}

/// How busy a guild is against its promotion thresholds.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hotness {
    /// Below half of every threshold.
    #[default]
    Cold,
    /// From half of a threshold.
    Warm,
    /// Above a threshold.
    Hot,
}

/// What the operator saw.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct GuildStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// The cell that the guild's head names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Why it is there: Bucket, Pinned, Dedicated or Promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_reason: Option<String>,
    /// Its hotness class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hotness: Option<Hotness>,
    /// Since when it is hot without a break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_since: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
    /// The Move that brings it where it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_ref: Option<String>,
    /// What it waits for; empty when nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
}
