//! The demo's hand on the cluster: it states wishes in the guild's resource, follows the Moves the operator makes of them, and kills
//! processes of Pods. It never moves anything itself.

use std::time::Duration;

use cell_crds::{Guild, Move, MoveResult};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::blocked;
use crate::connect::within;
use crate::exit::CommandError;
use crate::kinds::guild_object;
use crate::progress::{Phase, Progress};
use crate::sandbox::down::pod_processes;
use crate::sandbox::objects::NAMESPACE;
use crate::sandbox::state::StateDir;

/// Who the demo is to the API.
pub(super) const MANAGER: &str = "cellctl-demo";
/// Between two looks at a resource.
pub(super) const EVERY: Duration = Duration::from_millis(50);

/// How one move went. This is the shape of `moves[]` in the demo's JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// The Move's name.
    pub name: String,
    /// From which cell.
    pub from: String,
    /// To which.
    pub to: String,
    /// Who wanted it.
    pub cause: String,
    /// Completed, Aborted, RolledBack or Refused.
    pub outcome: String,
    /// How long commands were held at the switch; absent when it never came to it.
    pub pause_ms: Option<f64>,
}

/// A hand on one sandbox's cluster.
#[derive(Clone, Debug)]
pub struct Hand {
    guilds: Api<Guild>,
    moves: Api<Move>,
    pods: Api<Pod>,
    state: StateDir,
    guild_id: String,
}

impl Hand {
    /// A hand for a guild.
    pub fn new(client: &Client, state: &StateDir, guild_id: i64) -> Self {
        Self {
            guilds: Api::namespaced(client.clone(), NAMESPACE),
            moves: Api::namespaced(client.clone(), NAMESPACE),
            pods: Api::namespaced(client.clone(), NAMESPACE),
            state: state.clone(),
            guild_id: guild_id.to_string(),
        }
    }

    /// Makes the guild's resource: promote it when it has more sessions than this for two seconds.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn promote_above(&self, sessions: usize) -> Result<(), CommandError> {
        let guild: Guild = serde_json::from_value(json!({
            "apiVersion": format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION),
            "kind": "Guild",
            "metadata": {"name": guild_object(&self.guild_id), "namespace": NAMESPACE},
            "spec": {"guildId": self.guild_id, "promotion": {"auto": true, "sessionsAbove": sessions, "holdForSeconds": 2}},
        }))
        .map_err(|error| anyhow::Error::from(error).context("build guild"))?;
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        within(self.guilds.create(&parameters, &guild)).await.map(|_| ())
    }

    /// Pins the guild to a cell and ends its promotion.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn pin(&self, cell: &str) -> Result<(), CommandError> {
        let patch = Patch::Merge(json!({"spec": {"promotion": null, "placement": {"cell": cell}}}));
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        within(self.guilds.patch(&guild_object(&self.guild_id), &parameters, &patch)).await.map(|_| ())
    }

    /// Waits until the operator has made a Move of the guild that is not among those known.
    ///
    /// # Errors
    /// [`CommandError::TimedOut`], saying what the guild waits for.
    pub async fn next_move(&self, known: &[Moved], timeout: Duration, phase: &Phase) -> Result<String, CommandError> {
        let deadline = Instant::now() + timeout;
        loop {
            let everything = ListParams::default();
            let Some(moves) = patiently(self.moves.list(&everything), deadline, phase).await? else { continue };
            let moves = moves.items;
            let of_guild = |found: &&Move| {
                let unit = format!("g{}", self.guild_id);
                found.spec.guild.as_deref() == Some(&self.guild_id)
                    || found.spec.units.as_ref().is_some_and(|units| units.contains(&unit))
            };
            let name = moves.iter().filter(of_guild).filter_map(|found| found.metadata.name.clone());
            if let Some(name) = name.into_iter().find(|name| known.iter().all(|moved| moved.name != *name)) {
                return Ok(name);
            }
            let name = guild_object(&self.guild_id);
            let Some(guild) = patiently(self.guilds.get(&name), deadline, phase).await? else { continue };
            let guild = serde_json::to_value(guild).unwrap_or_default();
            let hotness = guild["status"]["hotness"].as_str().unwrap_or("not judged yet");
            let why = format!("guild is {hotness}; {}", blocked::of_resource(&guild));
            phase.note(&format!("waiting for the operator to make a move: {why}"));
            if Instant::now() > deadline {
                return Err(timed_out("a move of the guild", why));
            }
            sleep(EVERY).await;
        }
    }

    /// Waits until a Move is at a step, or past it, or over.
    ///
    /// # Errors
    /// [`CommandError::TimedOut`].
    pub async fn reach(
        &self,
        name: &str,
        steps: &[&str],
        timeout: Duration,
        phase: &Phase,
    ) -> Result<String, CommandError> {
        let deadline = Instant::now() + timeout;
        loop {
            let Some(found) = patiently(self.moves.get(name), deadline, phase).await? else { continue };
            let status = found.status.unwrap_or_default();
            let step = status.step.unwrap_or_default();
            if steps.contains(&step.as_str()) || status.result.is_some() {
                return Ok(step);
            }
            phase.note(&format!("step {}", if step.is_empty() { "not begun" } else { &step }));
            if Instant::now() > deadline {
                return Err(timed_out(
                    &format!("move {name} to begin"),
                    status.blocked_by.unwrap_or_else(|| format!("step {step}")),
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Follows a Move to its end.
    ///
    /// # Errors
    /// [`CommandError::TimedOut`].
    pub async fn follow(&self, name: &str, timeout: Duration, phase: &Phase) -> Result<Moved, CommandError> {
        let deadline = Instant::now() + timeout;
        loop {
            let Some(found) = patiently(self.moves.get(name), deadline, phase).await? else { continue };
            if let Some(moved) = moved(&found) {
                return Ok(moved);
            }
            let value = serde_json::to_value(&found).unwrap_or_default();
            let step = value["status"]["step"].as_str().unwrap_or("not begun");
            let why = blocked::of_resource(&value);
            phase.note(&format!("{} → {}: {step}: {why}", found.spec.from, found.spec.to));
            if Instant::now() > deadline {
                return Err(timed_out(&format!("move {name}"), format!("{step}: {why}")));
            }
            sleep(EVERY).await;
        }
    }

    /// Kills the process of a Pod with SIGKILL.
    ///
    /// # Errors
    /// [`CommandError::Failed`] when it has none.
    pub async fn kill(&self, pod: &str, progress: &Progress) -> Result<(), CommandError> {
        let uid = within(self.pods.get(pod)).await?.metadata.uid.unwrap_or_default();
        let processes = pod_processes(&self.state);
        let killed = processes
            .iter()
            .filter(|process| process.pod_uid == uid)
            .filter(|process| process.record.signal(Signal::KILL));
        let pids: Vec<String> = killed.map(|process| process.record.pid.to_string()).collect();
        if pids.is_empty() {
            return Err(CommandError::Failed(anyhow::anyhow!("pod {pod} has no process to kill")));
        }
        progress.say(&format!("killed: {pod} (pid {}) with SIGKILL", pids.join(", ")));
        Ok(())
    }

    /// Names of the Ready Pods of a component in a cell; in any cell when none is given.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn ready_pods(&self, component: &str, cell: Option<&str>) -> Result<Vec<String>, CommandError> {
        let mut labels = format!("app.kubernetes.io/component={component}");
        if let Some(cell) = cell {
            labels.push_str(&format!(",cellplane.dev/cell={cell}"));
        }
        let listed = within(self.pods.list(&ListParams::default().labels(&labels))).await?;
        let ready = listed.items.iter().filter_map(|pod| {
            let value = serde_json::to_value(pod).ok()?;
            (blocked::condition_status(&value, "Ready") == "True").then(|| pod.metadata.name.clone()).flatten()
        });
        let mut names: Vec<String> = ready.collect();
        names.sort();
        Ok(names)
    }
}

/// A busy machine may keep the API from answering for a while: `None` means to ask again, until the deadline.
pub(super) async fn patiently<T>(
    request: impl Future<Output = kube::Result<T>>,
    deadline: Instant,
    phase: &Phase,
) -> Result<Option<T>, CommandError> {
    match within(request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error @ CommandError::Refused(_)) => Err(error),
        Err(error) if Instant::now() > deadline => Err(error),
        Err(error) => {
            phase.note(&error.to_string());
            sleep(EVERY).await;
            Ok(None)
        }
    }
}

fn moved(found: &Move) -> Option<Moved> {
    let status = found.status.as_ref()?;
    let outcome = match status.result? {
        MoveResult::Completed => "Completed",
        MoveResult::Aborted => "Aborted",
        MoveResult::RolledBack => "RolledBack",
        MoveResult::Refused => "Refused",
    };
    Some(Moved {
        name: found.metadata.name.clone().unwrap_or_default(),
        from: found.spec.from.clone(),
        to: found.spec.to.clone(),
        cause: format!("{:?}", found.spec.cause),
        outcome: outcome.to_owned(),
        pause_ms: status.held_microseconds.map(|microseconds| microseconds as f64 / 1000.0),
    })
}

pub(super) fn timed_out(waited_for: &str, blocked_by: String) -> CommandError {
    CommandError::TimedOut {
        waited_for: waited_for.to_owned(),
        blocked_by,
        next: "run it again with --keep, then look with cellctl sandbox status and cellctl describe moves".to_owned(),
    }
}
