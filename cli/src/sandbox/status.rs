//! How a sandbox stands: its processes, endpoints, nodes and Pods. Changes nothing.

use kube::Client;
use serde::Serialize;
use serde_json::Value;

use super::launch::components;
use super::objects::{entry, etcd_endpoint};
use super::ready::{Seen, look};
use super::state::{Settings, StateDir};
use crate::args::Global;
use crate::blocked;
use crate::commands::sandbox::from_state;
use crate::connect::Connection;
use crate::exit::CommandError;

/// How a sandbox stands. This is the shape of `sandbox status -o json`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Where it keeps itself.
    pub state_dir: String,
    /// All its processes run.
    pub running: bool,
    /// Its Fleet is Ready.
    pub ready: bool,
    /// What it waits for; empty when ready.
    pub blocked_by: String,
    /// Where everything is.
    pub endpoints: Endpoints,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its Pods.
    pub pods: Vec<Pod>,
}

/// Where everything is.
#[derive(Clone, Debug, Serialize)]
pub struct Endpoints {
    /// Base URL of the REST API.
    pub rest: String,
    /// URL of the websocket.
    pub gateway: String,
    /// URL of the etcd API.
    pub etcd: String,
    /// URL of the Kubernetes API.
    pub kubernetes: String,
    /// Path of the kubeconfig.
    pub kubeconfig: String,
}

/// A process of the sandbox itself.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// `sandbox` or `node-N`.
    pub component: String,
    /// Process id; 0 when it does not run.
    pub pid: i32,
    /// Whether it runs.
    pub running: bool,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it takes new Pods.
    pub schedulable: bool,
}

/// A Pod.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// Its address.
    pub address: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// What it waits for; `-` when nothing.
    pub blocked_by: String,
}

/// The endpoints of a sandbox with a network.
///
/// # Errors
/// [`CommandError::Refused`] when there is no sandbox.
pub fn endpoints(state: &StateDir, settings: &Settings) -> Result<Endpoints, CommandError> {
    let network = state.network().ok_or_else(|| absent(state))?;
    let entry = entry(network, settings);
    Ok(Endpoints {
        rest: format!("http://{entry}/api/v10"),
        gateway: format!("ws://{entry}"),
        etcd: format!("http://{}", etcd_endpoint(network, settings)),
        kubernetes: format!("https://{}:{}", network.control_address(), settings.kubernetes_port),
        kubeconfig: state.kubeconfig().display().to_string(),
    })
}

/// There is no sandbox here.
pub fn absent(state: &StateDir) -> CommandError {
    CommandError::refused("--name", format!("there is no sandbox in {}", state.root().display()), "cellctl sandbox up")
}

/// Looks at a sandbox.
///
/// # Errors
/// [`CommandError::Refused`] when there is none.
pub async fn of(state: &StateDir) -> Result<Status, CommandError> {
    let settings = state.settings().map_err(from_state)?.ok_or_else(|| absent(state))?;
    let endpoints = endpoints(state, &settings)?;
    let processes = processes(state, &settings);
    let running = processes.iter().all(|process| process.running);
    let control = processes.first().is_some_and(|process| process.running);
    let seen = if control { client(state).await.map(|client| (client, settings.nodes)) } else { None };
    let looked = match seen {
        Some((client, nodes)) => look(&client, nodes).await,
        None => {
            Err(CommandError::Failed(anyhow::anyhow!("the sandbox does not run; start it with cellctl sandbox up")))
        }
    };
    let (seen, blocked_by) = match looked {
        Ok(seen) => {
            let blocker = seen.blocker().unwrap_or_default();
            (seen, blocker)
        }
        Err(error) => (Seen::default(), error.to_string()),
    };
    let dead =
        processes.iter().find(|process| !process.running).map(|process| format!("{} does not run", process.component));
    let blocked_by = if blocked_by.is_empty() { dead.unwrap_or_default() } else { blocked_by };
    Ok(Status {
        name: settings.name.clone(),
        state_dir: state.root().display().to_string(),
        running,
        ready: blocked_by.is_empty(),
        blocked_by,
        endpoints,
        processes,
        nodes: seen.nodes.iter().map(node).collect(),
        pods: seen.pods.iter().map(pod).collect(),
    })
}

async fn client(state: &StateDir) -> Option<Client> {
    Connection::from_file(&state.kubeconfig(), &Global::default()).await.ok().map(|connection| connection.client)
}

fn processes(state: &StateDir, settings: &Settings) -> Vec<Process> {
    let process = |component: String| {
        let alive = state.process(&component).filter(super::process::ProcessRecord::is_alive);
        Process { running: alive.is_some(), pid: alive.map_or(0, |record| record.pid), component }
    };
    components(settings.nodes).into_iter().map(process).collect()
}

fn node(node: &Value) -> Node {
    Node {
        name: text(&node["metadata"]["name"]),
        zone: text(&node["metadata"]["labels"]["topology.kubernetes.io/zone"]),
        ready: blocked::condition_status(node, "Ready") == "True",
        schedulable: node["spec"]["unschedulable"] != true,
    }
}

fn pod(pod: &Value) -> Pod {
    Pod {
        name: text(&pod["metadata"]["name"]),
        node: text(&pod["spec"]["nodeName"]),
        address: text(&pod["status"]["podIP"]),
        ready: blocked::condition_status(pod, "Ready") == "True",
        blocked_by: blocked::of_pod(pod),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
