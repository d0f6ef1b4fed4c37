//! `StorageMigration`: data to another StorageCell under live traffic.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::storage_cell::FlaggedRange;

/// One run that carries logs and tables to another StorageCell.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "cellplane.dev",
    version = "v1alpha1",
    kind = "StorageMigration",
    plural = "storagemigrations",
    singular = "storagemigration",
    shortname = "smg",
    category = "cellplane",
    namespaced,
    status = "StorageMigrationStatus",
    derive = "PartialEq",
    selectable = ".spec.source",
    selectable = ".spec.target",
    doc = "One run that carries logs and tables to another StorageCell under live traffic. Source, target and scope cannot change; how far it goes by itself, its pace, abort and rollback can be set.",
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name must have at most 40 characters, so that the names of its objects stay legal").reason(Reason::FieldValueInvalid),
    validation = Rule::new("self.metadata.name.matches('^[a-z][-a-z0-9]*$')").message("metadata.name must begin with a letter and hold only a-z, 0-9 and '-': hosts are named after it").reason(Reason::FieldValueInvalid),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.source"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target"),
    printcolumn(name = "Stage", type_ = "string", json_path = ".status.stage"),
    printcolumn(name = "Goes-to", type_ = "string", json_path = ".spec.targetStage"),
    printcolumn(name = "Result", type_ = "string", json_path = ".status.result"),
    printcolumn(name = "Blocked-by", type_ = "string", json_path = ".status.blockedBy"),
    printcolumn(name = "Lag", type_ = "integer", json_path = ".status.lagSeconds", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.source != self.target").message("source and target are the same StorageCell").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!(has(oldSelf.abort) && oldSelf.abort) || (has(self.abort) && self.abort)").message("abort cannot be taken back").reason(Reason::FieldValueInvalid))]
#[x_kube(validation = Rule::new("!(has(oldSelf.rollback) && oldSelf.rollback) || (has(self.rollback) && self.rollback)").message("rollback cannot be taken back").reason(Reason::FieldValueInvalid))]
pub struct StorageMigrationSpec {
    /// The StorageCell that has the data.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("source cannot change; make another StorageMigration").reason(Reason::FieldValueInvalid))]
    pub source: String,
    /// The StorageCell that shall have it.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("target cannot change; make another StorageMigration").reason(Reason::FieldValueInvalid))]
    pub target: String,
    /// What is carried.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("scope cannot change; make another StorageMigration").reason(Reason::FieldValueInvalid))]
    pub scope: MigrationScope,
    /// How far the run goes by itself. It can be moved on, never back. The default stops before anything is cut over.
    #[serde(default)]
    #[x_kube(validation = Rule::new("{'Prepare':0,'DualWrite':1,'Backfill':2,'Verify':3,'ShadowRead':4,'Cutover':5,'Complete':6}[self] >= {'Prepare':0,'DualWrite':1,'Backfill':2,'Verify':3,'ShadowRead':4,'Cutover':5,'Complete':6}[oldSelf]").message("targetStage cannot go back: abort or roll back instead").reason(Reason::FieldValueInvalid))]
    pub target_stage: TargetStage,
    /// The pace of copying and comparing. It never holds up a cutover that has begun for a log.
    #[serde(default)]
    pub throttle: Throttle,
    /// Which reads are also asked of the copy, and what is enough.
    #[serde(default)]
    pub shadow_read: ShadowRead,
    /// How long a rollback stays possible after the cutover of the last log, in seconds.
    #[serde(default = "default_rollback_window")]
    #[schemars(range(min = 0, max = 2_592_000))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("rollbackWindowSeconds cannot change").reason(Reason::FieldValueInvalid))]
    pub rollback_window_seconds: i32,
    /// A receipt older than this does not open a cutover, in seconds.
    #[serde(default = "default_receipt_age")]
    #[schemars(range(min = 60, max = 2_592_000))]
    pub receipt_max_age_seconds: i32,
    /// Counts requests to compare both sides again (`cellctl migration verify`); raising it discards the receipt.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 1_000_000))]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("verifyRequests only rises").reason(Reason::FieldValueInvalid))]
    pub verify_requests: i32,
    /// Undo everything. Refused once all logs are cut over. Cannot be taken back; nobody owns the field before somebody sets it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    /// Bring the logs back after a cutover, until Complete. Cannot be taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
    /// Where the side that serves is dead: cut over although entries may be missing on the other. Status says how many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_loss: bool,
    /// Finish without the side that does not serve, if it cannot be reached any more: its copies are not released there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_unreachable: bool,
    /// Shape of the coordinator and its workers.
    #[serde(default)]
    pub workers: WorkersSpec,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

fn default_rollback_window() -> i32 {
    3_600
}

fn default_receipt_age() -> i32 {
    86_400
}

/// What a StorageMigration carries: everything, unless units are named.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct MigrationScope {
    /// Buckets by name (`b0000`–`b4095`); the guilds split out of a bucket go with it. Empty: everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 5, max = 5), regex(pattern = r"^b[0-9]{4}$")))]
    pub units: Vec<String>,
}

/// How far a run goes by itself.
#[derive(
    schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub enum TargetStage {
    /// Only looks.
    Prepare,
    /// Ships every log to the target.
    DualWrite,
    /// Copies what is older.
    Backfill,
    /// Compares.
    Verify,
    /// Asks both sides for a share of the reads, and stops.
    #[default]
    ShadowRead,
    /// Cuts over, and ships back.
    Cutover,
    /// Releases the source after the rollback window.
    Complete,
}

/// The pace of copying and comparing.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Throttle {
    /// Most rows a second; empty: as fast as both sides bear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub rows_per_second: Option<i32>,
    /// Nothing new is begun. What a log's cutover has begun is finished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// Which reads are also asked of the copy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ShadowRead {
    /// Reads of 10,000.
    #[serde(default = "default_shadow")]
    #[schemars(range(min = 0, max = 10_000))]
    pub per_ten_thousand: i32,
    /// This many must have been compared. 0 goes on without any, which is the only way to do so.
    #[serde(default = "default_samples")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub min_samples: i32,
    /// No more than this many may differ.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub max_mismatch: i32,
}

fn default_shadow() -> i32 {
    100
}

fn default_samples() -> i32 {
    100
}

impl Default for ShadowRead {
    fn default() -> Self {
        Self { per_ten_thousand: default_shadow(), min_samples: default_samples(), max_mismatch: 0 }
    }
}

/// Shape of the coordinator and its workers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkersSpec {
    /// How many workers.
    #[serde(default = "default_workers")]
    #[schemars(range(min = 1, max = 256))]
    pub replicas: i32,
    /// Size of the coordinator's volume, as a Kubernetes quantity.
    #[serde(default = "default_volume")]
    #[schemars(length(min = 2, max = 32), regex(pattern = r"^[0-9]+(Mi|Gi)$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("workers.volumeSize cannot change").reason(Reason::FieldValueInvalid))]
    pub volume_size: String,
    /// StorageClass of that volume; empty for the cluster's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
}

fn default_workers() -> i32 {
    2
}

fn default_volume() -> String {
    "1Gi".to_owned()
}

impl Default for WorkersSpec {
    fn default() -> Self {
        Self { replicas: default_workers(), volume_size: default_volume(), storage_class_name: None }
    }
}

/// How a StorageMigration ended.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationResult {
    /// The target serves, the source is released.
    Completed,
    /// Undone before a cutover, or with the logs that were cut over brought back.
    Aborted,
    /// Undone after the cutover.
    RolledBack,
    /// Refused before anything was done.
    Refused,
}

/// Ranges of the phase under way.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct RangesStatus {
    /// Done.
    #[serde(default)]
    pub done: i64,
    /// Failed and not yet done again.
    #[serde(default)]
    pub failed: i64,
    /// Leased to workers.
    #[serde(default)]
    pub in_flight: i64,
    /// All.
    #[serde(default)]
    pub total: i64,
}

/// What the last verification found.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptStatus {
    /// Nothing is missing, extra or differing, and every range was compared.
    #[serde(default)]
    pub clean: bool,
    /// The round of comparing it is of.
    #[serde(default)]
    pub round: i32,
    /// Rows compared.
    #[serde(default)]
    pub rows: i64,
    /// Rows mended.
    #[serde(default)]
    pub repaired: i64,
    /// Mismatches by class, those of no concern included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub mismatches: BTreeMap<String, i64>,
    /// When it was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// Entries of all logs in scope when the comparison began: it covers everything up to there (`cellctl migration report` has them log
    /// by log).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<i64>,
    /// What the source held, by table: the same text for the same rows in the same order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(length(max = 64))]
    pub digests: BTreeMap<String, String>,
}

/// What the shadow reads found.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct ShadowStatus {
    /// Reads compared.
    #[serde(default)]
    pub samples: i64,
    /// Differing ones, by class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub mismatches: BTreeMap<String, i64>,
    /// Not compared: the copy was behind, or the read failed.
    #[serde(default)]
    pub skipped: i64,
}

/// What the operator saw. Figures are rounded and at most 5 s apart.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
pub struct StorageMigrationStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; `Reconciling` and `Stalled` while true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 8))]
    pub conditions: Vec<Condition>,
    /// Names the run in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The stage: Prepare, DualWrite, Backfill, Verify, ShadowRead, Cutover, Reverse, Complete, Abort, Rollback, Done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// When the stage began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_since: Option<Time>,
    /// Logs in scope, as far as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<i64>,
    /// Logs that the target serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs_cut_over: Option<i64>,
    /// Ranges of the phase under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<RangesStatus>,
    /// Parts per million of the phase that are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_ppm: Option<i32>,
    /// Rows of the phase so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<i64>,
    /// Rows a second, to two digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_second: Option<i64>,
    /// Why it is not faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled_by: Option<String>,
    /// Whole seconds that the phase may still take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<i64>,
    /// Entries that the copies lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<i64>,
    /// Whole seconds since the oldest of them was committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<i64>,
    /// The last receipt. It may be stale; `blockedBy` says so where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptStatus>,
    /// What the shadow reads found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowStatus>,
    /// Whether a rollback is possible now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_readiness: Option<super::RollbackReadiness>,
    /// Until when a rollback is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_until: Option<Time>,
    /// Entries that were at risk in cutovers with acceptLoss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries_at_risk: Option<i64>,
    /// Logs failed over with acceptLoss by a data service that never owned them; what they lost is not known, nor in entriesAtRisk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs_with_unknown_loss: Option<i64>,
    /// How long commands were held at most at a cutover, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_microseconds: Option<i64>,
    /// Ranges and partitions found slow, failing, large or full of tombstones, with what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub findings: Vec<FlaggedRange>,
    /// What the run waits for; never empty while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<MigrationResult>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
