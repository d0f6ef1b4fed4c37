//! Scenarios of a guild that gets a cell of its own: because it is hot, or because somebody says so. Its processes begin once the cell
//! is there, as a kubelet would have it.

use serde_json::json;

use super::scenario::{gone, guild, of_guild, words};
use super::snapshot::{Snapshot, take};
use super::stage::{Stage, objects};

/// Why it gets one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was hot for long enough; nothing is taken back.
    Heat,
    /// `placement.dedicated`; it is pinned back afterwards, and the cell deleted.
    Wish,
}

/// The guild's head is in this cell after so many changes, and its Moves have ended.
async fn lives_in(stage: &Stage, id: &str, cell: &str, changes: u32) -> Result<(), String> {
    {
        let world = stage.fakes.world.lock();
        let log = format!("g{id}");
        let at = world.heads.get(&log).map(|head| head.cell.clone());
        let seen = world.head_changes.get(&log).copied().unwrap_or_default();
        if at.as_deref() != Some(cell) || seen != changes {
            return Err(format!("the head is in {at:?} after {seen} changes; {cell} after {changes} is right"));
        }
    }
    for one in objects(&stage.user, &stage.namespace, "moves").await {
        if one["status"]["result"] != "Completed" {
            return Err(format!("moves/{}: {}", one["metadata"]["name"], one["status"]));
        }
    }
    stage.all_ready().await
}

/// Plays one.
///
/// # Errors
/// What did not happen.
pub async fn play(stage: &Stage, cause: Cause) -> Result<Snapshot, String> {
    let (id, from, to) = guild(stage);
    let (name, own) = (format!("g-{id}"), format!("g-{id}-cell"));
    let spec = match cause {
        Cause::Heat => {
            json!({"guildId": id, "promotion": {"auto": true, "sessionsAbove": 100, "holdForSeconds": 1}})
        }
        Cause::Wish => json!({"guildId": id, "placement": {"dedicated": {}}}),
    };
    stage.create("guilds", &name, spec).await;
    if cause == Cause::Heat {
        stage.report_load(&id, 500).await;
    }
    let made = || async { stage.get("cells", &own).await.map(|_| ()).ok_or_else(|| "no cell of its own".to_owned()) };
    stage.eventually("the cell of its own", made).await?;
    stage.run_cell(&own).await;
    stage.settled("the guild in its own cell", || lives_in(stage, &id, &own, 1)).await?;
    let end = of_guild(take(stage, &words(&id, &from, &to)).await);
    if cause == Cause::Heat {
        return Ok(end);
    }
    stage.set("guilds", &name, json!({"placement": {"dedicated": null, "cell": from}})).await?;
    stage.settled("the guild back where it was", || lives_in(stage, &id, &from, 2)).await?;
    stage.delete("guilds", &name).await;
    stage.delete("cells", &own).await;
    let mut left = vec![("guilds".to_owned(), name)];
    for one in objects(&stage.user, &stage.namespace, "moves").await {
        let name = one["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        stage.delete("moves", &name).await;
        left.push(("moves".to_owned(), name));
    }
    let children = ["gateway", "guild", "data"].map(|role| ("statefulsets".to_owned(), format!("{own}-{role}")));
    left.extend(children);
    left.push(("secrets".to_owned(), format!("{own}-storage")));
    left.push(("pods".to_owned(), format!("{own}-data-0")));
    left.push(("cells".to_owned(), own.clone()));
    let left: Vec<(&str, &str)> = left.iter().map(|(plural, name)| (plural.as_str(), name.as_str())).collect();
    stage.settled("its cell going", || gone(stage, &left)).await?;
    stage.end_cell(&own).await;
    Ok(end)
}
