//! The node lifecycle controller. It decides from heartbeats (as seen by its own clock, never the writer's) that a node is lost:
//! Ready becomes Unknown, the node is tainted, its Pods are marked not ready, and after the toleration time they are deleted. Pods that
//! do not tolerate another taint of their node are deleted, too. It never touches a node that renews.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, PodCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt};

use super::act::{self, ActError};
use super::mirror::Seen;
use super::pods;
use super::taints;
use super::world::{LEASE_NAMESPACE, World};

/// The taint key of a node whose agent is not heard.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint key of a node whose agent reports itself not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// What is wanted of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Report Ready as Unknown.
    pub mark_unknown: bool,
    /// The taints it should carry, when they differ from what it has.
    pub taints: Option<Vec<Taint>>,
}

/// Decides about one node. `silent` is how long no heartbeat was seen.
pub fn judge(node: &Node, silent: Duration, grace: Duration) -> Verdict {
    let lost = silent >= grace;
    let ready = ready_status(node);
    let status = if lost { "Unknown" } else { ready.as_str() };
    let have: Vec<Taint> = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut want: Vec<Taint> =
        have.iter().filter(|taint| taint.key != UNREACHABLE && taint.key != NOT_READY).cloned().collect();
    let key = match status {
        "True" => None,
        "False" => Some(NOT_READY),
        _ => Some(UNREACHABLE),
    };
    for effect in key.map(|_| ["NoSchedule", "NoExecute"]).into_iter().flatten() {
        let key = key.unwrap_or(UNREACHABLE).to_owned();
        let kept = have.iter().find(|taint| taint.key == key && taint.effect == effect).cloned();
        want.push(kept.unwrap_or(Taint { key, effect: effect.to_owned(), ..Taint::default() }));
    }
    let same = want.len() == have.len() && want.iter().all(|taint| have.contains(taint));
    Verdict { mark_unknown: lost && ready != "Unknown", taints: (!same).then_some(want) }
}

fn ready_status(node: &Node) -> String {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or(&[]);
    conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .map_or_else(|| "Unknown".to_owned(), |condition| condition.status.clone())
}

/// The Pods to delete from a node that has been unreachable for `lost`: those whose toleration has run out.
pub fn evictions(pods_there: &[Arc<Pod>], lost: Duration, default_after: Duration) -> Vec<Arc<Pod>> {
    pods_there
        .iter()
        .filter(|pod| !pods::is_leaving(pod) && !pods::is_ended(pod))
        .filter(|pod| patience(pod, default_after).is_some_and(|patience| lost >= patience))
        .cloned()
        .collect()
}

/// How long a Pod tolerates an unreachable node; None for ever.
fn patience(pod: &Pod, default_after: Duration) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or(&[]);
    let matching: Vec<_> = tolerations
        .iter()
        .filter(|toleration| {
            let key = toleration.key.as_deref().unwrap_or("");
            let effect = toleration.effect.as_deref().unwrap_or("");
            (key == UNREACHABLE || key.is_empty()) && (effect.is_empty() || effect == "NoExecute")
        })
        .collect();
    if matching.is_empty() {
        return Some(default_after);
    }
    let finite = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
    finite.map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()))
}

struct Heard {
    renewal: String,
    at: Instant,
    lost_since: Option<Instant>,
}

/// The node lifecycle controller.
#[derive(Default)]
pub struct Nodes {
    heard: HashMap<String, Heard>,
    writes: HashMap<String, Seen>,
    pod_writes: HashMap<String, Seen>,
    tainted: taints::Clock,
}

impl Nodes {
    /// One look at every node; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let nodes = world.nodes.all();
        self.heard.retain(|name, _| nodes.iter().any(|node| node.metadata.name.as_ref() == Some(name)));
        self.writes.retain(|name, _| nodes.iter().any(|node| node.metadata.name.as_ref() == Some(name)));
        let all = world.pods.all();
        self.tainted.keep(&all);
        self.pod_writes.retain(|uid, _| all.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        let mut fine = true;
        for node in nodes {
            let there: Vec<_> =
                all.iter().filter(|pod| pods::node(pod) == node.metadata.name.as_deref()).cloned().collect();
            if let Err(error) = self.one(world, &node, &there).await {
                if !error.is_conflict() {
                    tracing::warn!(node = %node.name_any(), error = %error, "node round failed");
                }
                fine = false;
            }
        }
        fine
    }

    async fn one(&mut self, world: &World, node: &Arc<Node>, there: &[Arc<Pod>]) -> Result<(), ActError> {
        let name = node.name_any();
        let now = Instant::now();
        let heard = self.listen(world, node, now);
        let silent = now.duration_since(heard.at);
        let lost = silent >= world.options.node_grace;
        heard.lost_since = lost.then(|| heard.lost_since.unwrap_or(now));
        let lost_for = heard.lost_since.map(|since| now.duration_since(since));
        if self.writes.get(&name).is_none_or(|mark| world.nodes.has_seen(*mark)) {
            let verdict = judge(node, silent, world.options.node_grace);
            if let Some(version) = write_verdict(world, node, &verdict).await? {
                self.writes.insert(name, world.nodes.mark(version));
            }
        }
        let have = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or(&[]);
        for pod in self.tainted.due(have, there, now) {
            evict(world, &pod, "deleted: it does not tolerate a taint of its node (any more)").await?;
        }
        let Some(lost_for) = lost_for else { return Ok(()) };
        self.mark_pods(world, there).await?;
        for pod in evictions(there, lost_for, world.options.eviction_after) {
            evict(world, &pod, "deleted: its node has been unreachable for longer than the Pod tolerates").await?;
        }
        Ok(())
    }

    fn listen(&mut self, world: &World, node: &Node, now: Instant) -> &mut Heard {
        let name = node.name_any();
        let lease = world.leases.get(LEASE_NAMESPACE, &name);
        let renewed = lease.and_then(|lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone()));
        let beat = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref())
            .and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"))
            .filter(|condition| condition.status == "True")
            .and_then(|condition| condition.last_heartbeat_time.clone());
        let renewal = format!("{renewed:?} {beat:?}");
        let heard =
            self.heard.entry(name).or_insert_with(|| Heard { renewal: renewal.clone(), at: now, lost_since: None });
        if heard.renewal != renewal {
            heard.renewal = renewal;
            heard.at = now;
        }
        heard
    }

    async fn mark_pods(&mut self, world: &World, there: &[Arc<Pod>]) -> Result<(), ActError> {
        for pod in there.iter().filter(|pod| pods::has_ready_condition(pod)) {
            let uid = pod.uid().unwrap_or_default();
            if self.pod_writes.get(&uid).is_some_and(|mark| !world.pods.has_seen(*mark)) {
                continue;
            }
            let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            conditions.retain(|condition| condition.type_ != "Ready");
            conditions.push(PodCondition {
                type_: "Ready".into(),
                status: "False".into(),
                reason: Some("NodeNotReady".into()),
                last_transition_time: Some(Time(Timestamp::now())),
                ..PodCondition::default()
            });
            let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
            let status = serde_json::json!({ "conditions": conditions });
            let version = act::patch_status(&api, pod.as_ref(), &status, &world.writes).await?;
            self.pod_writes.insert(uid, world.pods.mark(version));
        }
        Ok(())
    }
}

async fn evict(world: &World, pod: &Arc<Pod>, why: &str) -> Result<(), ActError> {
    let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
    act::delete(&api, pod.as_ref(), None, &world.writes).await?;
    act::remark(&world.recorder, pod.as_ref(), EventType::Normal, "TaintManagerEviction", why.to_owned()).await;
    Ok(())
}

async fn write_verdict(world: &World, node: &Arc<Node>, verdict: &Verdict) -> Result<Option<u64>, ActError> {
    let api: Api<Node> = Api::all(world.client.clone());
    if verdict.mark_unknown {
        let mut conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let before = conditions.iter().find(|condition| condition.type_ == "Ready").cloned();
        conditions.retain(|condition| condition.type_ != "Ready");
        conditions.push(NodeCondition {
            type_: "Ready".into(),
            status: "Unknown".into(),
            reason: Some("NodeStatusUnknown".into()),
            message: Some("the node agent stopped posting node status".into()),
            last_heartbeat_time: before.and_then(|condition| condition.last_heartbeat_time),
            last_transition_time: Some(Time(Timestamp::now())),
        });
        let status = serde_json::json!({ "conditions": conditions });
        let version = act::patch_status(&api, node.as_ref(), &status, &world.writes).await?;
        let note = format!("Node {} status is now: NodeNotReady", node.name_any());
        act::remark(&world.recorder, node.as_ref(), EventType::Normal, "NodeNotReady", note).await;
        return Ok(Some(version));
    }
    let Some(taints) = &verdict.taints else { return Ok(None) };
    let body = serde_json::json!({ "spec": { "taints": taints } });
    act::patch(&api, node.as_ref(), body, &world.writes).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus, PodSpec, Toleration};

    const GRACE: Duration = Duration::from_secs(40);

    fn node(ready: &str, taints: Vec<Taint>) -> Node {
        let condition = NodeCondition { type_: "Ready".into(), status: ready.into(), ..NodeCondition::default() };
        Node {
            spec: Some(NodeSpec { taints: Some(taints), ..NodeSpec::default() }),
            status: Some(NodeStatus { conditions: Some(vec![condition]), ..NodeStatus::default() }),
            ..Node::default()
        }
    }

    #[test]
    fn a_node_that_renews_is_left_alone() {
        let verdict = judge(&node("True", vec![]), Duration::from_secs(39), GRACE);
        assert_eq!(verdict, Verdict { mark_unknown: false, taints: None });
    }

    #[test]
    fn a_silent_node_becomes_unknown_and_tainted_once() {
        let verdict = judge(&node("True", vec![]), GRACE, GRACE);
        assert!(verdict.mark_unknown);
        let taints = verdict.taints.unwrap();
        assert!(taints.iter().all(|taint| taint.key == UNREACHABLE) && taints.len() == 2);
        let again = judge(&node("Unknown", taints), Duration::from_secs(99), GRACE);
        assert_eq!(again, Verdict { mark_unknown: false, taints: None }, "nothing changed, so nothing is written");
    }

    #[test]
    fn a_node_that_returns_loses_only_our_taints() {
        let own = Taint { key: "team".into(), effect: "NoSchedule".into(), ..Taint::default() };
        let ours = Taint { key: UNREACHABLE.into(), effect: "NoExecute".into(), ..Taint::default() };
        let verdict = judge(&node("True", vec![own.clone(), ours]), Duration::ZERO, GRACE);
        assert_eq!(verdict.taints, Some(vec![own]));
    }

    #[test]
    fn pods_are_evicted_when_their_own_toleration_runs_out() {
        let plain = Arc::new(Pod { spec: Some(PodSpec::default()), ..Pod::default() });
        let stays = |seconds| {
            let toleration = Toleration {
                key: Some(UNREACHABLE.into()),
                effect: Some("NoExecute".into()),
                operator: Some("Exists".into()),
                toleration_seconds: seconds,
                ..Toleration::default()
            };
            let spec = PodSpec { tolerations: Some(vec![toleration]), ..PodSpec::default() };
            Arc::new(Pod { spec: Some(spec), ..Pod::default() })
        };
        let default = Duration::from_secs(300);
        let all = [plain, stays(Some(10)), stays(None)];
        assert_eq!(evictions(&all, Duration::from_secs(20), default).len(), 1);
        assert_eq!(evictions(&all, default, default).len(), 2, "a toleration without end is for ever");
    }
}
