//! Storage migrations as a person starts, steers and follows them.

use cellctl::kinds::Kind;
use cellctl::sandbox::objects::embedded_storage;
use serde_json::{Value, json};

use super::{Guild, Sandbox, wait_for};

/// Stages in the order in which a run goes through them.
const ORDER: [&str; 8] = ["Prepare", "DualWrite", "Backfill", "Verify", "ShadowRead", "Cutover", "Reverse", "Complete"];

impl Sandbox {
    /// A second embedded store, once it is Ready.
    pub async fn another_store(&self, name: &str) {
        self.apply(Kind::StorageCells, name, embedded_storage()).await.unwrap();
        wait_for(&format!("StorageCell {name} to be Ready"), 90, async || {
            let found = self.get(Kind::StorageCells, name).await?;
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            if ready { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }

    /// Plans and starts a migration of a guild's bucket, as far as before its cutover.
    pub async fn start_migration(&self, guild: &Guild, sides: (&str, &str), name: &str) {
        self.start_migration_to(guild, sides, name, "ShadowRead").await;
    }

    /// The same as far as a stage. Every read is compared, and one is enough.
    pub async fn start_migration_to(&self, guild: &Guild, (from, to): (&str, &str), name: &str, stage: &str) {
        let bucket = guild.located(self).await["bucket"].as_str().unwrap().to_owned();
        let what = [
            "--from",
            from,
            "--to",
            to,
            "--units",
            &bucket,
            "--name",
            name,
            "--target-stage",
            stage,
            "--rollback-window-seconds",
            "0",
        ];
        let planned = self.cellctl(&[&["migration", "plan", "-o", "json"], &what[..]].concat()).await.done().json();
        let hash = planned["hash"].as_str().unwrap().to_owned();
        self.cellctl(&[&["migration", "start", "--yes", "--plan-hash", &hash], &what[..]].concat()).await.done();
        // A sandbox has no default StorageClass.
        let spec = json!({"spec": {"shadowRead": {"perTenThousand": 10_000, "minSamples": 1},
            "workers": {"storageClassName": "cellplane-local"}}});
        let patch = kube::api::Patch::Merge(&spec);
        self.api(Kind::StorageMigrations).patch(name, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until a migration is at a stage, or past it.
    pub async fn reach_stage(&self, name: &str, stage: &str) {
        let place = |wanted: &Value| ORDER.iter().position(|one| wanted == one);
        self.migration(name, &format!("be at {stage}"), |status| place(&status["stage"]) >= place(&json!(stage))).await;
    }

    /// Waits until a migration has gone as far as it may.
    pub async fn reach_goal(&self, name: &str, stage: &str) -> Value {
        let waits =
            |status: &Value| status["blockedBy"].as_str().is_some_and(|why| why.starts_with("TargetStageReached"));
        self.migration(name, &format!("wait at {stage}"), |status| status["stage"] == stage && waits(status)).await
    }

    /// Waits until a migration is over; how it ended.
    pub async fn migrated(&self, name: &str) -> String {
        let status = self.migration(name, "end", |status| status["result"].is_string()).await;
        status["result"].as_str().unwrap().to_owned()
    }

    async fn migration(&self, name: &str, what: &str, there: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("migration {name} to {what}"), 120, async || {
            let found = self.get(Kind::StorageMigrations, name).await?;
            let status = &found["status"];
            if there(status) { Ok(status.clone()) } else { Err(format!("{status}")) }
        })
        .await
    }
}
