//! Pod garbage: Pods bound to a node that was deleted (or declared out of service) are removed without waiting for an agent that
//! will not answer. It never removes a Pod of a node that merely is silent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};

use super::act::{self, ActError};
use super::pods;
use super::world::World;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A node must be missing this long: an agent that registers late must not lose its Pods.
const MISSING_FOR: Duration = Duration::from_secs(20);

/// Why a Pod is garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its node does not exist.
    NodeMissing,
    /// It is leaving and its node is declared out of service.
    OutOfService,
    /// It is leaving and was never bound.
    NeverBound,
    /// Keep it.
    Keep,
}

/// Judges one Pod.
pub fn judge(pod: &Pod, node: Option<&Node>) -> Verdict {
    match (pods::node(pod), node) {
        (None, _) if pods::is_leaving(pod) => Verdict::NeverBound,
        (None, _) => Verdict::Keep,
        (Some(_), None) => Verdict::NodeMissing,
        (Some(_), Some(node)) => {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or(&[]);
            let out = taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
            if out && pods::is_leaving(pod) { Verdict::OutOfService } else { Verdict::Keep }
        }
    }
}

/// The Pod garbage collector.
#[derive(Default)]
pub struct Garbage {
    missing: HashMap<String, Instant>,
}

impl Garbage {
    /// One look at every Pod; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let now = Instant::now();
        let all = world.pods.all();
        self.missing.retain(|name, _| {
            world.nodes.get("", name).is_none() && all.iter().any(|pod| pods::node(pod) == Some(name.as_str()))
        });
        let mut fine = true;
        for pod in all {
            let node = pods::node(&pod).and_then(|name| world.nodes.get("", name));
            let remove = match judge(&pod, node.as_deref()) {
                Verdict::Keep => false,
                Verdict::OutOfService | Verdict::NeverBound => true,
                Verdict::NodeMissing => {
                    let name = pods::node(&pod).unwrap_or("").to_owned();
                    now.duration_since(*self.missing.entry(name).or_insert(now)) >= MISSING_FOR
                }
            };
            if remove && let Err(error) = force_delete(world, &pod).await {
                tracing::warn!(pod = %pod.name_any(), error = %error, "pod garbage not removed");
                fine = false;
            }
        }
        fine
    }
}

async fn force_delete(world: &World, pod: &Arc<Pod>) -> Result<(), ActError> {
    if let Some(name) = pods::node(pod)
        && world.nodes.get("", name).is_none()
    {
        let nodes: Api<Node> = Api::all(world.client.clone());
        if act::call("read", nodes.get_opt(name)).await?.is_some() {
            return Ok(());
        }
    }
    let api: Api<Pod> = Api::namespaced(world.client.clone(), &pod.namespace().unwrap_or_default());
    act::delete(&api, pod.as_ref(), Some(0), &world.writes).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{NodeSpec, PodSpec, Taint};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    fn pod(node: Option<&str>, leaving: bool) -> Pod {
        let mut pod =
            Pod { spec: Some(PodSpec { node_name: node.map(str::to_owned), ..PodSpec::default() }), ..Pod::default() };
        pod.metadata.deletion_timestamp = leaving.then_some(Time(Timestamp::UNIX_EPOCH));
        pod
    }

    #[test]
    fn a_silent_node_keeps_its_pods_and_a_deleted_one_does_not() {
        let node = Node::default();
        assert_eq!(judge(&pod(Some("a"), true), Some(&node)), Verdict::Keep);
        assert_eq!(judge(&pod(Some("a"), false), None), Verdict::NodeMissing);
        assert_eq!(judge(&pod(None, true), None), Verdict::NeverBound);
    }

    #[test]
    fn out_of_service_removes_only_pods_that_are_leaving() {
        let taint = Taint { key: OUT_OF_SERVICE.into(), effect: "NoExecute".into(), ..Taint::default() };
        let node =
            Node { spec: Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() }), ..Node::default() };
        assert_eq!(judge(&pod(Some("a"), false), Some(&node)), Verdict::Keep);
        assert_eq!(judge(&pod(Some("a"), true), Some(&node)), Verdict::OutOfService);
    }
}
