//! Which Pods must leave a node because of its NoExecute taints, and when. Pure. The taints of lost nodes are not judged here: how long a
//! node has been lost is known better than when it was tainted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Taint};
use kube::ResourceExt;

use super::nodes::{NOT_READY, UNREACHABLE};
use super::pods;
use super::scheduler::filter::tolerates;

/// How long a Pod may stay on a node with these taints; none for ever.
pub fn patience(pod: &Pod, taints: &[Taint]) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or(&[]);
    let mut shortest: Option<Duration> = None;
    for taint in taints.iter().filter(|taint| taint.effect == "NoExecute") {
        if taint.key == UNREACHABLE || taint.key == NOT_READY {
            continue;
        }
        let used: Vec<_> = tolerations.iter().filter(|one| tolerates(std::slice::from_ref(one), taint)).collect();
        if used.is_empty() {
            return Some(Duration::ZERO);
        }
        let bounds = used.iter().filter_map(|one| one.toleration_seconds);
        let bound = bounds.min().map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
        shortest = shortest.into_iter().chain(bound).min();
    }
    shortest
}

/// Remembers since when each Pod has been on a node that it does not tolerate for ever.
#[derive(Debug, Default)]
pub struct Clock {
    since: HashMap<String, Instant>,
}

impl Clock {
    /// Of the Pods of one node those that must leave now.
    pub fn due(&mut self, taints: &[Taint], there: &[Arc<Pod>], now: Instant) -> Vec<Arc<Pod>> {
        let mut due = Vec::new();
        for pod in there.iter().filter(|pod| !pods::is_leaving(pod) && !pods::is_ended(pod)) {
            let uid = pod.uid().unwrap_or_default();
            match patience(pod, taints) {
                None => {
                    self.since.remove(&uid);
                }
                Some(patience) => {
                    let since = *self.since.entry(uid).or_insert(now);
                    if now.duration_since(since) >= patience {
                        due.push(pod.clone());
                    }
                }
            }
        }
        due
    }

    /// Forgets Pods that are gone.
    pub fn keep(&mut self, pods: &[Arc<Pod>]) {
        self.since.retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, tolerations: serde_json::Value) -> Arc<Pod> {
        let spec = json!({ "containers": [], "tolerations": tolerations });
        Arc::new(serde_json::from_value(json!({ "metadata": { "name": name, "uid": name }, "spec": spec })).unwrap())
    }

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), value: Some("v".into()), effect: effect.into(), ..Taint::default() }
    }

    #[test]
    fn a_pod_stays_as_long_as_its_shortest_toleration_and_not_at_all_without_one() {
        let taints = [taint("a", "NoExecute"), taint("b", "NoExecute"), taint("c", "NoSchedule")];
        let seconds = |tolerations| patience(&pod("p", tolerations), &taints).map(|patience| patience.as_secs());
        assert_eq!(seconds(json!([])), Some(0));
        assert_eq!(seconds(json!([{ "key": "a", "operator": "Exists" }])), Some(0), "b is not tolerated");
        assert_eq!(seconds(json!([{ "operator": "Exists" }])), None);
        let both = json!([{ "key": "a", "value": "v", "tolerationSeconds": 9 }, { "operator": "Exists", "tolerationSeconds": 20 }]);
        assert_eq!(seconds(both), Some(9));
        assert_eq!(patience(&pod("p", json!([])), &taints[2..]), None, "NoSchedule sends nobody away");
        assert_eq!(patience(&pod("p", json!([])), &[taint(UNREACHABLE, "NoExecute")]), None);
    }

    #[test]
    fn the_time_runs_from_the_taint_and_stops_with_it() {
        let mut clock = Clock::default();
        let (short, none) = (pod("s", json!([{ "operator": "Exists", "tolerationSeconds": 5 }])), pod("n", json!([])));
        let there = [short, none];
        let tainted = [taint("a", "NoExecute")];
        let began = Instant::now();
        let names = |due: Vec<Arc<Pod>>| due.iter().map(|pod| pod.name_any()).collect::<Vec<_>>();
        let later = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(names(clock.due(&tainted, &there, began)), ["n"]);
        assert!(names(clock.due(&[], &there, later(3))).is_empty());
        assert_eq!(names(clock.due(&tainted, &there[..1], later(4))), Vec::<String>::new());
        assert!(names(clock.due(&tainted, &there[..1], later(8))).is_empty(), "the first taint was taken away");
        assert_eq!(names(clock.due(&tainted, &there[..1], later(9))), ["s"]);
        clock.keep(&[]);
        assert!(clock.since.is_empty());
    }
}
