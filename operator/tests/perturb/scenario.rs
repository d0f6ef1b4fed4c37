//! What a user does in a run, and the end that it must come to. Every scenario but the first begins on a fleet that is Ready. Most take
//! back what they did, so that the next run finds the same fleet; the others get a fleet of their own for every run.

use std::sync::atomic::{AtomicI64, Ordering};

use cell_proto::unit::Unit;
use serde_json::json;

use super::dedicated::{self, Cause};
use super::migrate::{self, Course};
use super::snapshot::{Snapshot, take};
use super::stage::{Stage, small_cell};

static GUILDS: AtomicI64 = AtomicI64::new(71_000_001);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// From nothing to a fleet that is Ready.
    FleetUp,
    /// A StorageCell and a cell come and go.
    ComeAndGo,
    /// A cell gets another Pod and other flags, and is set back.
    Resize,
    /// A guild is pinned to the other cell.
    Pin,
    /// A Move to its end.
    Move,
    /// A Move that is rolled back while it holds.
    RollBack,
    /// A Move that waits for its target, and is aborted.
    Abort,
    /// A guild that is hot gets a cell of its own and is moved there.
    Promote,
    /// A guild is given a cell of its own, which is later taken away again.
    Dedicate,
    /// Everything is migrated to another StorageCell.
    Migrate,
    /// Some buckets are migrated, and rolled back after their cutover.
    MigrateBack,
    /// A migration is aborted before anything is cut over.
    MigrateAbort,
}

impl Scenario {
    pub const ALL: [Self; 12] = [
        Self::FleetUp,
        Self::ComeAndGo,
        Self::Resize,
        Self::Pin,
        Self::Move,
        Self::RollBack,
        Self::Abort,
        Self::Promote,
        Self::Dedicate,
        Self::Migrate,
        Self::MigrateBack,
        Self::MigrateAbort,
    ];

    /// Kinds whose watch matters to it.
    pub fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::FleetUp | Self::ComeAndGo => &["fleets", "storagecells", "cells", "statefulsets"],
            Self::Resize => &["cells", "statefulsets"],
            Self::Pin => &["guilds", "moves", "cells"],
            Self::Move | Self::RollBack | Self::Abort => &["moves"],
            Self::Promote | Self::Dedicate => &["guilds", "moves", "cells", "statefulsets"],
            Self::Migrate | Self::MigrateBack | Self::MigrateAbort => {
                &["storagemigrations", "storagecells", "cells", "statefulsets"]
            }
        }
    }

    /// Kinds that are read past the caches.
    pub fn read(self) -> &'static [&'static str] {
        match self {
            Self::FleetUp => &["statefulsets", "secrets", "services", "poddisruptionbudgets", "pods"],
            Self::ComeAndGo | Self::Resize => &["statefulsets", "secrets", "pods", "cells"],
            Self::Promote | Self::Dedicate => &["cells", "moves", "statefulsets", "guilds"],
            Self::Migrate | Self::MigrateBack | Self::MigrateAbort => {
                &["cells", "storagecells", "statefulsets", "deployments", "secrets", "storagemigrations"]
            }
            _ => &["moves"],
        }
    }

    /// Children that somebody may delete.
    pub fn children(self) -> &'static [&'static str] {
        match self {
            Self::FleetUp => &[
                "services/prod-entry",
                "statefulsets/main-store",
                "services/main-store",
                "statefulsets/shared-1-data",
                "poddisruptionbudgets/shared-1-guild",
                "secrets/shared-2-storage",
                "pods/shared-2-gateway-0",
            ],
            Self::Resize => &[
                "statefulsets/shared-1-gateway",
                "poddisruptionbudgets/shared-1-gateway",
                "secrets/shared-1-storage",
                "pods/shared-1-gateway-0",
                "pods/shared-1-data-0",
            ],
            Self::ComeAndGo => &["statefulsets/extra-guild", "poddisruptionbudgets/extra-data", "services/spare-store"],
            Self::Migrate | Self::MigrateBack | Self::MigrateAbort => &[
                "statefulsets/mig-coordinator",
                "services/mig-coordinator",
                "deployments/mig-workers",
                "secrets/mig-migration-storage",
                "secrets/shared-1-storage",
                "statefulsets/shared-2-data",
            ],
            _ => &[],
        }
    }

    /// Whether it needs an empty namespace.
    pub fn begins_empty(self) -> bool {
        self == Self::FleetUp
    }

    /// Whether a fleet is of no use to the next run: what it did cannot be taken back, or is the end that is looked at.
    pub fn uses_up(self) -> bool {
        matches!(self, Self::FleetUp | Self::Promote | Self::Migrate | Self::MigrateBack | Self::MigrateAbort)
    }

    /// Plays it. The snapshot is of its end, before anything is taken back.
    ///
    /// # Errors
    /// What did not happen.
    pub async fn play(self, stage: &Stage) -> Result<Snapshot, String> {
        match self {
            Self::FleetUp => {
                stage.make_fleet().await;
                stage.settled("the fleet getting Ready", || stage.all_ready()).await?;
                Ok(take(stage, &[]).await)
            }
            Self::ComeAndGo => come_and_go(stage).await,
            Self::Resize => resize(stage).await,
            Self::Pin => pin(stage).await,
            Self::Move => one_move(stage, Ending::Complete).await,
            Self::RollBack => one_move(stage, Ending::RollBack).await,
            Self::Abort => one_move(stage, Ending::Abort).await,
            Self::Promote => dedicated::play(stage, Cause::Heat).await,
            Self::Dedicate => dedicated::play(stage, Cause::Wish).await,
            Self::Migrate => migrate::play(stage, Course::ToTheEnd).await,
            Self::MigrateBack => migrate::play(stage, Course::RolledBack).await,
            Self::MigrateAbort => migrate::play(stage, Course::Aborted).await,
        }
    }
}

pub(super) async fn gone(stage: &Stage, objects: &[(&str, &str)]) -> Result<(), String> {
    for (plural, name) in objects {
        if let Some(one) = stage.get(plural, name).await {
            return Err(format!("{plural}/{name} is there: {}", one["status"]));
        }
    }
    Ok(())
}

async fn come_and_go(stage: &Stage) -> Result<Snapshot, String> {
    stage.create("storagecells", "spare", json!({"engine": "embedded", "embedded": {"size": "1Gi"}})).await;
    stage.create("cells", "extra", small_cell()).await;
    stage.settled("the new ones getting Ready", || stage.all_ready()).await?;
    let end = take(stage, &[]).await;
    stage.delete("storagecells", "spare").await;
    stage.delete("cells", "extra").await;
    let left = [
        ("storagecells", "spare"),
        ("cells", "extra"),
        ("statefulsets", "extra-gateway"),
        ("statefulsets", "extra-guild"),
        ("statefulsets", "extra-data"),
        ("secrets", "extra-storage"),
        ("poddisruptionbudgets", "extra-data"),
        ("statefulsets", "spare-store"),
        ("services", "spare-store"),
        ("networkpolicies", "spare-database"),
        ("pods", "extra-data-0"),
        ("pods", "spare-store-0"),
    ];
    stage.settled("what was deleted going", || gone(stage, &left)).await?;
    Ok(end)
}

async fn resize(stage: &Stage) -> Result<Snapshot, String> {
    let role = |gateway: i64, args: &[&str]| json!({"roles": {"gateway": {"replicas": gateway}, "data": {"template": {"extraArgs": args}}}});
    // Twice at once: the first may never be seen.
    stage.set("cells", "shared-1", role(3, &[])).await?;
    stage.set("cells", "shared-1", role(2, &["--linger-us=900"])).await?;
    stage.settled("the change", || stage.all_ready()).await?;
    let end = take(stage, &[]).await;
    stage.set("cells", "shared-1", json!({"roles": {"gateway": {"replicas": 1}, "data": {"template": null}}})).await?;
    stage.settled("the change taken back", || stage.all_ready()).await?;
    Ok(end)
}

/// A guild that no run had, its bucket's cell, and the other one.
pub(super) fn guild(stage: &Stage) -> (String, String, String) {
    let id = GUILDS.fetch_add(1, Ordering::Relaxed);
    let from = stage.fakes.world.lock().heads[&Unit::bucket(id).log()].cell.clone();
    let to = if from == "shared-1" { "shared-2" } else { "shared-1" };
    (id.to_string(), from, to.to_owned())
}

pub(super) fn words(guild: &str, from: &str, to: &str) -> Vec<(String, String)> {
    [(guild, "GUILD"), (from, "FROM"), (to, "TO")].map(|(word, general)| (word.to_owned(), general.to_owned())).into()
}

/// Only what is of the guild: where it came from differs from run to run, and with it what is said of cells.
pub(super) fn of_guild(snapshot: Snapshot) -> Snapshot {
    snapshot
        .into_iter()
        .filter(|(what, _)| what.contains("GUILD") || what.starts_with("moves/") || what.starts_with("etcd "))
        .collect()
}

async fn pin(stage: &Stage) -> Result<Snapshot, String> {
    let (id, from, to) = guild(stage);
    let name = format!("g-{id}");
    stage.create("guilds", &name, json!({"guildId": id, "placement": {"cell": to}})).await;
    let there = || async {
        let log = format!("g{id}");
        let at = stage.fakes.world.lock().heads.get(&log).map(|head| head.cell.clone());
        if at.as_ref() != Some(&to) {
            return Err(format!("the guild is in {at:?}, {to} is wanted"));
        }
        stage.all_ready().await
    };
    stage.settled("the guild being where it is pinned", there).await?;
    let end = of_guild(take(stage, &words(&id, &from, &to)).await);
    stage.delete("guilds", &name).await;
    let moves = super::stage::objects(&stage.user, &stage.namespace, "moves").await;
    let names: Vec<String> =
        moves.iter().filter_map(|one| one["metadata"]["name"].as_str().map(str::to_owned)).collect();
    for one in &names {
        stage.delete("moves", one).await;
    }
    let left: Vec<(&str, &str)> =
        names.iter().map(|one| ("moves", one.as_str())).chain([("guilds", name.as_str())]).collect();
    stage.settled("the guild's rules going", || gone(stage, &left)).await?;
    Ok(end)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Complete,
    RollBack,
    Abort,
}

async fn one_move(stage: &Stage, ending: Ending) -> Result<Snapshot, String> {
    let (id, from, to) = guild(stage);
    let window = if ending == Ending::RollBack { 3_600 } else { 0 };
    let name = format!("move-{id}");
    let status = |wanted: &'static str, field: &'static str| {
        let name = name.clone();
        async move {
            let status = stage.get("moves", &name).await.unwrap_or_default()["status"].clone();
            if status[field].as_str().is_some_and(|text| text.starts_with(wanted)) {
                Ok(())
            } else {
                Err(status.to_string())
            }
        }
    };
    if ending == Ending::Abort {
        // Nobody lives there.
        stage.create("cells", "empty", small_cell()).await;
    }
    let target = if ending == Ending::Abort { "empty" } else { to.as_str() };
    let spec = json!({"guild": id, "from": from, "to": target, "rollbackWindowSeconds": window});
    stage.create("moves", &name, spec).await;
    let result = match ending {
        Ending::Complete => "Completed",
        Ending::RollBack => {
            stage.settled("the move holding", || status("Hold", "step")).await?;
            stage.set("moves", &name, json!({"rollback": true})).await?;
            "RolledBack"
        }
        Ending::Abort => {
            stage.settled("the move waiting", || status("", "blockedBy")).await?;
            stage.set("moves", &name, json!({"abort": true})).await?;
            "Aborted"
        }
    };
    stage.settled("the move's end", || status(result, "result")).await?;
    let end = of_guild(take(stage, &words(&id, &from, &to)).await);
    {
        let world = stage.fakes.world.lock();
        let log = format!("g{id}");
        let at = world.heads.get(&log).map_or(from.clone(), |head| head.cell.clone());
        let changes = world.head_changes.get(&log).copied().unwrap_or_default();
        let wanted = match ending {
            Ending::Complete => (to.clone(), 1),
            Ending::RollBack => (from.clone(), 2),
            Ending::Abort => (from.clone(), 0),
        };
        if (at.clone(), changes) != wanted {
            return Err(format!("the head is in {at} after {changes} changes; {wanted:?} are right"));
        }
    }
    stage.delete("moves", &name).await;
    let left = [("moves", name.as_str())];
    stage.settled("the Move going", || gone(stage, &left)).await?;
    if ending == Ending::Abort {
        stage.delete("cells", "empty").await;
        let left = [("cells", "empty"), ("pods", "empty-data-0")];
        stage.settled("the empty cell going", || gone(stage, &left)).await?;
    }
    Ok(end)
}
