//! Stops a sandbox: its agents first, so that nothing is started again, then what their Pods run, stores last, then the APIs. State
//! stays. Pods are found by the agents' own run records, checked by pid, start time and boot.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::launch::CONTROL;
use super::process::{self, ProcessRecord};
use super::state::StateDir;
use crate::exit::CommandError;
use crate::progress::Progress;

/// Time a Pod's process gets to drain.
const POD_GRACE: Duration = Duration::from_secs(15);
const AGENT_GRACE: Duration = Duration::from_secs(15);

/// A process that a Pod runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodProcess {
    /// The Pod's UID.
    pub pod_uid: String,
    /// The process, leader of its own group.
    pub record: ProcessRecord,
    /// A store: others need it until they have ended.
    pub is_store: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunRecord {
    pod_uid: String,
    boot_id: String,
    pid: i32,
    start_ticks: u64,
}

#[derive(Deserialize)]
struct RunSpec {
    program: PathBuf,
    args: Vec<String>,
}

/// The live processes of all Pods of a sandbox.
pub fn pod_processes(state: &StateDir) -> Vec<PodProcess> {
    let mut found = Vec::new();
    for agent in folders(state.root()).filter(|path| is_agent(path)) {
        for pod in folders(&agent.join("run")) {
            for run in folders(&pod).flat_map(|container| folders(&container).collect::<Vec<_>>()) {
                found.extend(read_run(&run).filter(|run| run.record.is_alive()));
            }
        }
    }
    found
}

fn is_agent(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("node-"))
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| path.is_dir())
}

fn read_run(folder: &Path) -> Option<PodProcess> {
    let record: RunRecord = serde_json::from_slice(&fs::read(folder.join("record.json")).ok()?).ok()?;
    let spec: RunSpec = serde_json::from_slice(&fs::read(folder.join("spec.json")).ok()?).ok()?;
    let is_store = spec.args.first().is_some_and(|role| role == "store");
    let record_of = ProcessRecord {
        component: record.pod_uid.clone(),
        pid: record.pid,
        start_time: record.start_ticks,
        boot: record.boot_id,
        program: spec.program,
        arguments: spec.args,
        program_written_ms: 0,
    };
    Some(PodProcess { pod_uid: record.pod_uid, record: record_of, is_store })
}

/// Stops everything of a sandbox.
///
/// # Errors
/// [`CommandError::Failed`] when a process does not end.
pub async fn stop(state: &StateDir, progress: &Progress) -> Result<(), CommandError> {
    let phase = progress.phase("down", None);
    let (control, agents): (Vec<_>, Vec<_>) =
        state.processes().into_iter().partition(|record| record.component == CONTROL);
    phase.note("stopping the node agents");
    stop_all(agents.clone(), AGENT_GRACE).await?;
    let (stores, others): (Vec<_>, Vec<_>) = pod_processes(state).into_iter().partition(|pod| pod.is_store);
    let pods = stores.len() + others.len();
    for (wave, whose) in [(others, ""), (stores, " of stores")] {
        match wave.len() {
            0 => {}
            1 => phase.note(&format!("stopping a Pod{whose}")),
            count => phase.note(&format!("stopping {count} Pods{whose}")),
        }
        stop_all(wave.into_iter().map(|pod| pod.record).collect(), POD_GRACE).await?;
    }
    phase.note("stopping the APIs");
    stop_all(control.clone(), AGENT_GRACE).await?;
    for record in agents.iter().chain(&control) {
        state.forget_process(&record.component);
    }
    phase.finish(&format!("stopped {} processes of the sandbox and {pods} of its Pods", agents.len() + control.len()));
    Ok(())
}

async fn stop_all(records: Vec<ProcessRecord>, grace: Duration) -> Result<(), CommandError> {
    let stops = records.iter().map(|record| record.stop(grace));
    let outcomes = futures::future::join_all(stops).await;
    outcomes.into_iter().collect::<Result<Vec<()>, process::ProcessError>>().map_err(anyhow::Error::from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sandbox::process::{Launch, start};

    fn run_record(folder: &Path, record: &ProcessRecord, uid: &str, args: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        let text = json!({"podUid": uid, "bootId": record.boot, "pid": record.pid, "startTicks": record.start_time,
            "shimPid": 1, "shimTicks": 1, "startedMs": 1});
        fs::write(folder.join("record.json"), text.to_string()).unwrap();
        fs::write(folder.join("spec.json"), json!({"program": "/bin/sleep", "args": args}).to_string()).unwrap();
    }

    #[tokio::test]
    async fn stopping_ends_agents_and_pods_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::find("default", Some(folder.path())).unwrap();
        let _lock = state.lock().unwrap();
        let sleeper = |component: &str| {
            let log = folder.path().join("log");
            start(Launch { component, program: Path::new("/bin/sleep"), arguments: vec!["300".into()], log: &log })
                .unwrap()
        };
        let (agent, pod, stranger) = (sleeper("node-1"), sleeper("pod"), sleeper("stranger"));
        state.write_process(&agent).unwrap();
        run_record(&folder.path().join("node-1/run/u1/main/0"), &pod, "u1", &["store"]);
        // The pid was used again: same pid, another start time.
        let stale = ProcessRecord { start_time: stranger.start_time + 7, ..stranger.clone() };
        run_record(&folder.path().join("node-1/run/u2/main/0"), &stale, "u2", &["guild"]);
        fs::create_dir_all(folder.path().join("node-1/run/u3/main/0")).unwrap();

        let found = pod_processes(&state);
        assert_eq!(found.iter().map(|pod| (pod.pod_uid.as_str(), pod.is_store)).collect::<Vec<_>>(), [("u1", true)]);
        stop(&state, &Progress::silent()).await.unwrap();
        assert!(!agent.is_alive() && !pod.is_alive());
        assert!(stranger.is_alive(), "a stranger with the pid of an old Pod lives on");
        assert_eq!(state.processes(), vec![]);
        stranger.stop(Duration::from_secs(5)).await.unwrap();
    }
}
