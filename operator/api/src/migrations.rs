//! Storage migrations on the wire: what is asked, what was planned, and the report of a run. How a run stands is read from its
//! resource.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::moves::Check;

/// Asks for a plan, or to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigrationRequest {
    /// The StorageCell that has the data.
    pub source: String,
    /// The StorageCell that shall have it.
    pub target: String,
    /// Buckets by name; empty for everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<String>,
    /// Name of the StorageMigration; made from the plan when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How far it goes by itself; `ShadowRead` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_stage: Option<String>,
    /// How long a rollback stays possible, in seconds; the default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_window_seconds: Option<i32>,
    /// Which reads are also asked of the copy; the defaults when absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shadow: ShadowWish,
    /// The shape of coordinator and workers; the defaults when absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub workers: WorkersWish,
    /// When starting: the hash of the plan that was reviewed. Another plan by now is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
}

fn is_default<T: Default + PartialEq>(wish: &T) -> bool {
    *wish == T::default()
}

/// Which reads are also asked of the copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShadowWish {
    /// Reads of 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_ten_thousand: Option<i32>,
    /// So many must have been compared; 0 goes on without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_samples: Option<i32>,
}

/// The shape of coordinator and workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkersWish {
    /// How many workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Size of the coordinator's volume, as a Kubernetes quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_size: Option<String>,
    /// StorageClass of that volume; the cluster's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
}

/// What would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationPlan {
    /// Name the StorageMigration would have.
    pub name: String,
    /// The StorageCell that has the data.
    pub source: String,
    /// The StorageCell that shall have it.
    pub target: String,
    /// Buckets by name; empty for everything.
    pub units: Vec<String>,
    /// Logs in scope now.
    pub logs: u64,
    /// Cells whose logs they are.
    pub cells: Vec<String>,
    /// The stages, in order.
    pub stages: Vec<String>,
    /// How far it goes by itself.
    pub target_stage: String,
    /// Seconds that a rollback stays possible.
    pub rollback_window_seconds: i32,
    /// Which reads are also asked of the copy; nothing is absent.
    #[serde(default)]
    pub shadow: ShadowWish,
    /// The shape of coordinator and workers; only the StorageClass may be absent.
    #[serde(default)]
    pub workers: WorkersWish,
    /// What was looked at. One that is not ok means that starting would be refused.
    pub checks: Vec<Check>,
    /// Hash of what would run: `start` with it runs exactly this plan or nothing.
    #[serde(default)]
    pub hash: String,
}

impl MigrationPlan {
    /// Sets `hash`, and the name where none was asked for. The number of logs is no part of it: guilds are split out all the time.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        let mut digest = Sha256::new();
        let content = (
            (&self.source, &self.target, &self.units, &self.cells),
            (&self.stages, &self.target_stage, self.rollback_window_seconds, &self.shadow, &self.workers),
            self.checks.iter().map(|check| (&check.name, check.ok)).collect::<Vec<_>>(),
        );
        // Encoding tuples of strings and numbers cannot fail; an empty text would only make every hash differ.
        digest.update(serde_json::to_vec(&content).unwrap_or_default());
        self.hash = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        if self.name.is_empty() {
            self.name = format!("to-{}-{}", self.target.chars().take(26).collect::<String>(), &self.hash[..8]);
        }
        self
    }

    /// The first check that refuses it.
    pub fn refusal(&self) -> Option<&Check> {
        self.checks.iter().find(|check| !check.ok)
    }
}

/// A migration that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStarted {
    /// Name of the StorageMigration.
    pub name: String,
    /// The hash of the plan that runs.
    pub plan_hash: String,
}

/// One range of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationRange {
    /// The table.
    pub table: String,
    /// First token.
    pub first_token: i64,
    /// Last token.
    pub last_token: i64,
    /// done, in-flight, failed or open.
    pub state: String,
    /// Rows.
    pub rows: u64,
    /// Tries.
    pub attempts: u32,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
}

/// A partition or range that needs someone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationFinding {
    /// The table.
    pub table: String,
    /// First token.
    pub first_token: i64,
    /// Last token.
    pub last_token: i64,
    /// The partition, where one was named.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub partition: String,
    /// slow, failing, tombstones or large-partition.
    pub kind: String,
    /// What to do.
    pub message: String,
}

/// Everything about a run that holds no secret and no message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
    /// Name of the StorageMigration.
    pub name: String,
    /// Its spec.
    pub spec: serde_json::Value,
    /// Its status.
    pub status: serde_json::Value,
    /// Both StorageCells: spec and status. Credentials are in Secrets, which are not part of it.
    pub storage_cells: Vec<serde_json::Value>,
    /// What the coordinator says; none when it is not live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<serde_json::Value>,
    /// The ranges of the phase under way.
    #[serde(default)]
    pub ranges: Vec<MigrationRange>,
    /// What needs someone.
    #[serde(default)]
    pub findings: Vec<MigrationFinding>,
    /// Where each log stood when the last comparison began: its receipt covers everything up to there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, u64>,
    /// What could not be read, and why.
    #[serde(default)]
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MigrationPlan {
        MigrationPlan {
            name: String::new(),
            source: "a".into(),
            target: "b".into(),
            units: vec![],
            logs: 4096,
            cells: vec!["shared-1".into()],
            stages: vec!["Prepare".into()],
            target_stage: "ShadowRead".into(),
            rollback_window_seconds: 3600,
            shadow: ShadowWish::default(),
            workers: WorkersWish::default(),
            checks: vec![],
            hash: String::new(),
        }
    }

    #[test]
    fn the_hash_follows_what_would_run_and_names_it() {
        let sealed = plan().sealed();
        assert_eq!(sealed.name, format!("to-b-{}", &sealed.hash[..8]));
        assert_eq!(MigrationPlan { logs: 4097, ..plan() }.sealed().hash, sealed.hash);
        assert_ne!(MigrationPlan { target_stage: "Complete".into(), ..plan() }.sealed().hash, sealed.hash);
        let unproved = ShadowWish { min_samples: Some(0), ..ShadowWish::default() };
        assert_ne!(MigrationPlan { shadow: unproved, ..plan() }.sealed().hash, sealed.hash);
        assert_eq!(MigrationPlan { name: "mine".into(), ..plan() }.sealed().name, "mine");
    }
}
