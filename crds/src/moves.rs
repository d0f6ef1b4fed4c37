//! `Move`: units to another cell under live traffic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// One run that brings units to another cell under live traffic.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "Move",
    plural = "moves",
    singular = "move",
    shortname = "mv",
    category = "cellplane",
    namespaced,
    status = "MoveStatus",
    derive = "PartialEq",
    selectable = ".spec.from",
    selectable = ".spec.to",
    doc = "One run that brings units to another cell under live traffic. What it moves cannot change; abort and rollback can be set.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must have at most 63 characters").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.step"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.from"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.to"),
    printcolumn(name = "Result", type_ = "string", json_path = ".status.result"),
    printcolumn(name = "Blocked-by", type_ = "string", json_path = ".status.blockedBy"),
    printcolumn(name = "Guild", type_ = "string", json_path = ".spec.guild", priority = 1),
    printcolumn(name = "Cause", type_ = "string", json_path = ".spec.cause", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.guild) != has(self.units)").message("a Move takes exactly one of guild and units").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("self.from != self.to || (has(self.mergeIntoBucket) && self.mergeIntoBucket)").message("from and to are the same cell, which only a Move with mergeIntoBucket may name").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("has(self.guild) == has(oldSelf.guild) && has(self.units) == has(oldSelf.units)").message("what a Move moves cannot change; make another Move").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!(has(oldSelf.abort) && oldSelf.abort) || (has(self.abort) && self.abort)").message("abort cannot be taken back").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!(has(oldSelf.rollback) && oldSelf.rollback) || (has(self.rollback) && self.rollback)").message("rollback cannot be taken back").reason(Reason::FieldValueInvalid))]
pub struct MoveSpec {
    /// Units by name (`b0000`–`b4095`, `g<guild id>`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 2, max = 20), regex(pattern = r"^(b[0-9]{4}|g[1-9][0-9]{0,18})$"))
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("units cannot change").reason(Reason::FieldValueInvalid))]
    pub units: Option<Vec<String>>,
    /// A guild id; the guild is split out of its bucket first where it is still in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 19), regex(pattern = r"^[1-9][0-9]{0,18}$"))]
    #[x_kube(validation = Rule::new("self.size() < 19 || self <= '9223372036854775807'").message("guild must be at most 9223372036854775807").reason(Reason::FieldValueInvalid))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("guild cannot change").reason(Reason::FieldValueInvalid))]
    pub guild: Option<String>,
    /// The cell that has it now.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("from cannot change").reason(Reason::FieldValueInvalid))]
    pub from: String,
    /// The cell that shall have it.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("to cannot change").reason(Reason::FieldValueInvalid))]
    pub to: String,
    /// Who wants it.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("cause cannot change").reason(Reason::FieldValueInvalid))]
    pub cause: MoveCause,
    /// Longest time until the commit point, in seconds; past it the move undoes itself.
    #[serde(default = "default_deadline")]
    #[schemars(range(min = 1, max = 86_400))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("deadlineSeconds cannot change").reason(Reason::FieldValueInvalid))]
    pub deadline_seconds: i32,
    /// How long the source stays warm after the commit point, in seconds, so that a rollback is quick.
    #[serde(default = "default_rollback_window")]
    #[schemars(range(min = 0, max = 604_800))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("rollbackWindowSeconds cannot change").reason(Reason::FieldValueInvalid))]
    pub rollback_window_seconds: i32,
    /// After the end, the Move is deleted once this many seconds have passed. Empty: it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_after_finished_seconds: Option<i32>,
    /// Merge the guild back into its bucket at the end (`guild release`). With `from` and `to` the same cell nothing is switched: the
    /// guild is there already and is only merged.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("mergeIntoBucket cannot change").reason(Reason::FieldValueInvalid))]
    pub merge_into_bucket: bool,
    /// Undo what was done so far. Refused after the commit point. Cannot be taken back. It has no default in the schema: nobody owns
    /// the field before somebody sets it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    /// Bring the units back. Possible after the commit point, until the rollback window is over. Cannot be taken back. It has no
    /// default in the schema either.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
}

fn default_deadline() -> i32 {
    600
}

fn default_rollback_window() -> i32 {
    30
}

/// Who wants a Move.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MoveCause {
    /// A person, through cellctl, the API or kubectl.
    #[default]
    Requested,
    /// A Guild's placement.
    Placement,
    /// A Guild's promotion.
    Promotion,
    /// A Guild's release back to its bucket.
    Release,
    /// The operator, for an unfinished run whose Move was removed: undone before its commit point, finished after it.
    Orphaned,
}

/// How a Move ended.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveResult {
    /// The units are served by the target.
    Completed,
    /// Undone before the commit point.
    Aborted,
    /// Undone after it.
    RolledBack,
    /// Refused before anything was done.
    Refused,
}

/// Whether a rollback is possible now.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackReadiness {
    /// The commit point has not been reached: abort instead.
    NotYet,
    /// The source is warm.
    Ready,
    /// The window is over.
    Over,
}

/// What the operator saw.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MoveStatus {
    /// The generation that was last looked at, and that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true. An ended Move is Ready when it did what was last asked of it: reason
    /// `Completed`, or `Aborted` or `RolledBack` because `spec.abort` or `spec.rollback` asked for it. One that was refused, or that
    /// undid itself (its deadline, a cell that refuses it), is not Ready and Stalled: it will not be tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// Names the run in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The step under way: Validate, Split, Warm, Prove, Switch, TakeOver, Hold, Merge, Complete, Abort, Rollback, Done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// When the step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_since: Option<Time>,
    /// The last number that the target had when it was last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<i64>,
    /// How long commands were held at the switch, in microseconds. Empty before it, and when it is not known: the operator ended between
    /// the switch and its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_microseconds: Option<i64>,
    /// Whether a rollback is possible now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_readiness: Option<RollbackReadiness>,
    /// Until when a rollback is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_until: Option<Time>,
    /// What the run waits for; never empty while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// How it ended; `conditions` says whether that is what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<MoveResult>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
