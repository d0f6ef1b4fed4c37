//! The demo's second act: while the guild talks, its logs are carried to another StorageCell, cut over, brought back, and cut over again.
//! It states wishes in `StorageMigration` resources and reads their status; it copies and compares nothing itself.

use std::time::Duration;

use cell_crds::{MigrationResult, StorageCell, StorageMigration, StorageMigrationStatus};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::moves::{EVERY, MANAGER, patiently, timed_out};
use crate::blocked;
use crate::connect::within;
use crate::exit::CommandError;
use crate::progress::Phase;
use crate::sandbox::objects::{NAMESPACE, STORAGE};

/// The StorageCell that the guild goes to.
pub const SECOND: &str = "second";

/// How one migration went. This is the shape of `migrations[]` in the demo's JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Migrated {
    /// The StorageMigration's name.
    pub name: String,
    /// From which StorageCell.
    pub from: String,
    /// To which.
    pub to: String,
    /// The bucket that was carried, with the guilds split out of it.
    pub unit: String,
    /// Completed, Aborted, RolledBack or Refused.
    pub outcome: String,
    /// The last comparison of both sides.
    pub receipt: Receipt,
    /// Reads that were also asked of the copy.
    pub shadow_samples: i64,
    /// How long commands were held at most at a cutover; absent when there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
}

/// What a comparison of both sides found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// Nothing missing, extra or differing, and every range compared.
    pub clean: bool,
    /// Rows compared.
    pub rows: i64,
}

impl Migrated {
    /// What is wrong with it, given how it should have ended.
    pub fn fault(&self, wanted: &str) -> Option<String> {
        if self.outcome != wanted {
            return Some(format!("storage migration {} ended as {}, not {wanted}", self.name, self.outcome));
        }
        (!self.receipt.clean).then(|| format!("the receipt of storage migration {} is not clean", self.name))
    }
}

/// The storage act's hand on the cluster.
#[derive(Clone, Debug)]
pub struct StorageHand {
    cells: Api<StorageCell>,
    migrations: Api<StorageMigration>,
}

fn object<T: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value) -> Result<T, CommandError> {
    let api_version = format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION);
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    serde_json::from_value(object).map_err(|error| anyhow::Error::from(error).context(format!("build {kind}")).into())
}

impl StorageHand {
    /// A hand on a sandbox's cluster.
    pub fn new(client: &Client) -> Self {
        Self {
            cells: Api::namespaced(client.clone(), NAMESPACE),
            migrations: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// Makes the second StorageCell and waits until it is Ready.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn make_second(&self, spec: Value, timeout: Duration, phase: &Phase) -> Result<(), CommandError> {
        let deadline = Instant::now() + timeout;
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        within(self.cells.create(&parameters, &object("StorageCell", SECOND, spec)?)).await?;
        loop {
            let Some(found) = patiently(self.cells.get(SECOND), deadline, phase).await? else { continue };
            let value = serde_json::to_value(found).unwrap_or_default();
            if blocked::condition_status(&value, "Ready") == "True" {
                return Ok(());
            }
            let why = blocked::of_resource(&value);
            phase.note(&format!("StorageCell {SECOND}: {why}"));
            if Instant::now() > deadline {
                return Err(timed_out(&format!("StorageCell {SECOND} to be Ready"), why));
            }
            sleep(EVERY).await;
        }
    }

    /// Begins to carry a bucket, as far as `target_stage` by itself.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn begin(&self, name: &str, unit: &str, target_stage: &str, window: u32) -> Result<(), CommandError> {
        let spec = json!({
            "source": STORAGE,
            "target": SECOND,
            "scope": {"units": [unit]},
            "targetStage": target_stage,
            "rollbackWindowSeconds": window,
            "shadowRead": {"perTenThousand": 10_000, "minSamples": 20},
            "workers": {"replicas": 1, "volumeSize": "64Mi", "storageClassName": "cellplane-local"},
        });
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        within(self.migrations.create(&parameters, &object("StorageMigration", name, spec)?)).await.map(|_| ())
    }

    /// Asks to bring it back.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn roll_back(&self, name: &str) -> Result<(), CommandError> {
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": {"rollback": true}}));
        within(self.migrations.patch(name, &parameters, &patch)).await.map(|_| ())
    }

    /// Follows a migration until it serves from the target (`stage` Reverse) or is over.
    ///
    /// # Errors
    /// [`CommandError::TimedOut`], saying what it waits for.
    pub async fn until_cut_over(&self, name: &str, timeout: Duration, phase: &Phase) -> Result<(), CommandError> {
        let done = |status: &StorageMigrationStatus| status.stage.as_deref() == Some("Reverse");
        self.follow(name, done, timeout, phase).await.map(|_| ())
    }

    /// Follows a migration to its end.
    ///
    /// # Errors
    /// [`CommandError::TimedOut`], saying what it waits for.
    pub async fn until_over(&self, name: &str, timeout: Duration, phase: &Phase) -> Result<Migrated, CommandError> {
        self.follow(name, |_| false, timeout, phase).await.map(|found| migrated(&found))
    }

    async fn follow(
        &self,
        name: &str,
        done: impl Fn(&StorageMigrationStatus) -> bool,
        timeout: Duration,
        phase: &Phase,
    ) -> Result<StorageMigration, CommandError> {
        let deadline = Instant::now() + timeout;
        loop {
            let Some(found) = patiently(self.migrations.get(name), deadline, phase).await? else { continue };
            let status = found.status.clone().unwrap_or_default();
            if status.result.is_some() || done(&status) {
                return Ok(found);
            }
            let why = blocked::of_resource(&serde_json::to_value(&found).unwrap_or_default());
            let stage = status.stage.unwrap_or_else(|| "not begun".to_owned());
            let rows = status.rows.map(|rows| format!(", {rows} rows")).unwrap_or_default();
            phase.note(&format!("{stage}{rows}: {why}"));
            if Instant::now() > deadline {
                return Err(timed_out(&format!("storage migration {name}"), format!("{stage}: {why}")));
            }
            sleep(EVERY).await;
        }
    }
}

fn migrated(found: &StorageMigration) -> Migrated {
    let status = found.status.clone().unwrap_or_default();
    let outcome = match status.result {
        Some(MigrationResult::Completed) => "Completed",
        Some(MigrationResult::Aborted) => "Aborted",
        Some(MigrationResult::RolledBack) => "RolledBack",
        Some(MigrationResult::Refused) => "Refused",
        None => "unfinished",
    };
    let receipt = status.receipt.unwrap_or_default();
    Migrated {
        name: found.metadata.name.clone().unwrap_or_default(),
        from: found.spec.source.clone(),
        to: found.spec.target.clone(),
        unit: found.spec.scope.units.join(","),
        outcome: outcome.to_owned(),
        receipt: Receipt { clean: receipt.clean, rows: receipt.rows },
        shadow_samples: status.shadow.map_or(0, |shadow| shadow.samples),
        pause_ms: status.held_microseconds.map(|microseconds| microseconds as f64 / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(outcome: &str, clean: bool) -> Migrated {
        let status = json!({"result": outcome, "receipt": {"clean": clean, "rows": 7}, "heldMicroseconds": 1500});
        let spec = json!({"source": "main", "target": "second", "scope": {"units": ["b0001"]}});
        let mut found: StorageMigration = object("StorageMigration", "there", spec).unwrap();
        found.status = Some(serde_json::from_value(status).unwrap());
        migrated(&found)
    }

    #[test]
    fn a_migration_must_end_as_it_was_told_and_with_a_clean_receipt() {
        assert_eq!(one("Completed", true).fault("Completed"), None);
        assert_eq!(one("Completed", true).pause_ms, Some(1.5));
        assert!(one("RolledBack", true).fault("Completed").unwrap().contains("ended as RolledBack"));
        assert!(one("Completed", false).fault("Completed").unwrap().contains("not clean"));
    }
}
