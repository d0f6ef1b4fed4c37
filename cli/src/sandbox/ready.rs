//! Whether a sandbox is ready, and if not, what it waits for: nodes, the operator, storage, cells, the fleet, in this order. The
//! judgement is pure; the waiting is not.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::launch::{components, died};
use super::objects::{FLEET, NAMESPACE, OPERATOR};
use super::probe;
use super::state::StateDir;
use crate::blocked;
use crate::connect::within;
use crate::exit::CommandError;
use crate::kinds::Kind;
use crate::progress::Progress;

const EVERY: Duration = Duration::from_millis(250);

/// What was seen of a sandbox's cluster.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Nodes that should be there.
    pub wanted_nodes: u8,
    /// Node objects.
    pub nodes: Vec<Value>,
    /// The operator's Deployment.
    pub operator: Value,
    /// StorageCells.
    pub storage: Vec<Value>,
    /// Cells.
    pub cells: Vec<Value>,
    /// Fleets.
    pub fleets: Vec<Value>,
    /// The fleet's Pods, to say why something is not ready.
    pub pods: Vec<Value>,
    /// What keeps the entry or the control-plane API from answering.
    pub unanswered: Option<String>,
}

impl Seen {
    /// What the sandbox waits for; `None` when it is ready.
    pub fn blocker(&self) -> Option<String> {
        let ready = self.nodes.iter().filter(|node| blocked::condition_status(node, "Ready") == "True").count();
        if ready < usize::from(self.wanted_nodes) {
            return Some(format!("{ready} of {} nodes are Ready", self.wanted_nodes));
        }
        if self.operator["status"]["availableReplicas"].as_i64().unwrap_or(0) < 1 {
            return Some(self.because("the operator is not available", |pod| component(pod) == "operator"));
        }
        for (kind, objects) in
            [(Kind::StorageCells, &self.storage), (Kind::Cells, &self.cells), (Kind::Fleets, &self.fleets)]
        {
            if objects.is_empty() {
                return Some(format!("there are no {} yet", kind.plural()));
            }
            for object in objects {
                let why = blocked::of_resource(object);
                if why != blocked::NOTHING {
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    let what = format!("{} {name}: {why}", kind.singular());
                    return Some(self.because(&what, |pod| belongs(pod, kind, name)));
                }
            }
        }
        // Conditions may be those of before a restart; Pods are reported anew by their agents, and the entry answers only by itself.
        let waiting = self.pods.iter().find(|pod| blocked::of_pod(pod) != blocked::NOTHING);
        waiting
            .map(|pod| format!("pod {}: {}", pod_name(pod), blocked::of_pod(pod)))
            .or_else(|| self.unanswered.clone())
    }

    fn because(&self, what: &str, concerns: impl Fn(&Value) -> bool) -> String {
        let waiting = self.pods.iter().filter(|pod| concerns(pod)).find_map(|pod| {
            let why = blocked::of_pod(pod);
            (why != blocked::NOTHING).then(|| (pod_name(pod), why))
        });
        match waiting {
            Some((name, why)) if !what.contains(name) => format!("{what}; pod {name} ({why})"),
            _ => what.to_owned(),
        }
    }
}

fn pod_name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

fn component(pod: &Value) -> &str {
    pod["metadata"]["labels"]["app.kubernetes.io/component"].as_str().unwrap_or_default()
}

fn belongs(pod: &Value, kind: Kind, name: &str) -> bool {
    match kind {
        Kind::Cells => pod["metadata"]["labels"]["cellplane.dev/cell"] == name,
        Kind::StorageCells => component(pod) == "store",
        _ => false,
    }
}

/// Looks once.
///
/// # Errors
/// [`CommandError`].
pub async fn look(client: &Client, wanted_nodes: u8) -> Result<Seen, CommandError> {
    let mut seen = objects(client, wanted_nodes).await?;
    // Asked only once the objects say that it should answer.
    if seen.blocker().is_none() {
        seen.unanswered = unanswered(&seen.fleets).await;
    }
    Ok(seen)
}

async fn unanswered(fleets: &[Value]) -> Option<String> {
    let status = fleets.first().map(|fleet| &fleet["status"])?;
    for (field, path) in [("entryUrl", "/api/v10/gateway"), ("controlPlaneAddress", cell_api::paths::HEALTH)] {
        let Some(base) = status[field].as_str() else { return Some(format!("Fleet.status.{field} is not set")) };
        if let Some(fault) = probe::fault(&format!("{}{path}", base.trim_end_matches('/'))).await {
            return Some(fault);
        }
    }
    None
}

async fn objects(client: &Client, wanted_nodes: u8) -> Result<Seen, CommandError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let everything = ListParams::default();
    let values = |kind: Kind| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &kind.resource());
        let everything = &everything;
        async move { Ok::<_, CommandError>(encode(within(api.list(everything)).await?.items)) }
    };
    Ok(Seen {
        wanted_nodes,
        nodes: encode(within(nodes.list(&everything)).await?.items),
        operator: encode(vec![within(deployments.get_opt(OPERATOR)).await?]).pop().unwrap_or_default(),
        storage: values(Kind::StorageCells).await?,
        cells: values(Kind::Cells).await?,
        fleets: values(Kind::Fleets).await?,
        pods: values(Kind::Pods).await?,
        unanswered: None,
    })
}

fn encode<T: serde::Serialize>(objects: Vec<T>) -> Vec<Value> {
    objects.iter().filter_map(|object| serde_json::to_value(object).ok()).collect()
}

/// Waits until the sandbox is ready, saying what it waits for whenever that changes.
///
/// # Errors
/// [`CommandError::TimedOut`]; [`CommandError::Failed`] when a process of the sandbox ends.
pub async fn wait(
    client: &Client,
    state: &StateDir,
    nodes: u8,
    timeout: Duration,
    progress: &Progress,
) -> Result<(), CommandError> {
    let phase = progress.phase("fleet", None);
    let deadline = Instant::now() + timeout;
    loop {
        let blocker = match look(client, nodes).await {
            Ok(seen) => seen.blocker(),
            Err(error) => Some(error.to_string()),
        };
        let Some(blocker) = blocker else {
            phase.finish(&format!("{FLEET} is Ready"));
            return Ok(());
        };
        phase.note(&format!("waiting: {blocker}"));
        for component in components(nodes) {
            if state.process(&component).is_some_and(|record| !record.is_alive()) {
                return Err(died(state, &component));
            }
        }
        if Instant::now() > deadline {
            return Err(CommandError::TimedOut {
                waited_for: format!("Fleet {FLEET} to be Ready"),
                blocked_by: blocker,
                next: "cellctl sandbox status, cellctl describe fleets".to_owned(),
            });
        }
        sleep(EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ready(name: &str) -> Value {
        json!({"metadata": {"name": name, "generation": 1},
            "status": {"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    fn seen() -> Seen {
        Seen {
            wanted_nodes: 1,
            nodes: vec![ready("node-1")],
            operator: json!({"status": {"availableReplicas": 1}}),
            storage: vec![ready("main")],
            cells: vec![ready("shared-1")],
            fleets: vec![ready("main")],
            pods: vec![],
            unanswered: None,
        }
    }

    #[test]
    fn a_sandbox_waits_for_the_first_thing_in_order() {
        assert_eq!(seen().blocker(), None);
        let nodes = Seen { wanted_nodes: 3, ..seen() };
        assert_eq!(nodes.blocker().unwrap(), "1 of 3 nodes are Ready");
        let operator = Seen { operator: Value::Null, cells: vec![], ..seen() };
        assert_eq!(operator.blocker().unwrap(), "the operator is not available");
        assert_eq!(Seen { cells: vec![], ..seen() }.blocker().unwrap(), "there are no cells yet");
        let fleet = Seen { fleets: vec![json!({"metadata": {"name": "main"}})], ..seen() };
        assert!(fleet.blocker().unwrap().starts_with("Fleet main: NotObserved"));
    }

    #[test]
    fn conditions_of_before_a_restart_do_not_make_it_ready() {
        let pod = json!({"metadata": {"name": "g-0"}, "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R"}]}});
        assert_eq!(Seen { pods: vec![pod], ..seen() }.blocker().unwrap(), "pod g-0: R");
        let entry = Seen { unanswered: Some("http://x does not answer".into()), ..seen() };
        assert_eq!(entry.blocker().unwrap(), "http://x does not answer");
    }

    #[test]
    fn the_pod_that_holds_a_cell_up_is_named() {
        let cell = json!({"metadata": {"name": "shared-1", "generation": 1}, "status": {"observedGeneration": 1,
            "blockedBy": "PodsNotReady: guild 1/2"}});
        let pod = |name: &str, cell: &str| {
            json!({"metadata": {"name": name, "labels": {"cellplane.dev/cell": cell}},
                "status": {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}})
        };
        let seen =
            Seen { cells: vec![cell], pods: vec![pod("x", "other"), pod("shared-1-guild-1", "shared-1")], ..seen() };
        assert_eq!(
            seen.blocker().unwrap(),
            "Cell shared-1: PodsNotReady: guild 1/2; pod shared-1-guild-1 (CrashLoopBackOff)"
        );
    }
}
