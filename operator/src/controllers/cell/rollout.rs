//! Looks at an OnDelete set, which changes nothing, and replaces its outdated Pods, one at a time, and sound ones only in the set's
//! turn. The Pods are read anew from the API server, so that a cache that lags never makes it take two. Only the controller that applies
//! a set may advance it.

use cell_plan::rollout::{PLACING_MS, PodFacts, Rollout, Turn, goes_first, next, under_way};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;

use crate::context::Context;
use crate::error::ReconcileError;

const REVISION_LABEL: &str = "controller-revision-hash";

/// How a set stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetState {
    /// All Pods run the newest revision and are Ready.
    Ready {
        /// How many.
        pods: usize,
    },
    /// Something is awaited.
    Waiting(String),
}

impl SetState {
    /// Ready Pods, for the summary.
    pub fn ready_pods(&self) -> String {
        match self {
            Self::Ready { pods } => pods.to_string(),
            Self::Waiting(why) => {
                why.split(' ').next().filter(|word| word.parse::<u32>().is_ok()).unwrap_or("?").into()
            }
        }
    }
}

/// A set as the API server has it.
pub struct Look {
    name: String,
    wanted: usize,
    /// Since when its controller has not seen its newest change: until it has, it is not known which Pods are outdated.
    unseen_since_ms: Option<i64>,
    pods: Vec<Pod>,
    facts: Vec<PodFacts>,
    short_since_ms: Option<i64>,
}

impl Look {
    /// What keeps sound Pods of other sets from going: a replacement, or one that may begin in a moment.
    pub fn under_way(&self, now_ms: i64) -> Option<String> {
        let unseen = self.unseen_since_ms.filter(|since_ms| now_ms.saturating_sub(*since_ms) < PLACING_MS);
        unseen.map(|_| self.unseen()).or_else(|| under_way(&self.facts, self.short_since_ms, now_ms))
    }

    /// What it has to do before sets that go after it.
    pub fn goes_first(&self, now_ms: i64) -> Option<String> {
        match self.unseen_since_ms {
            Some(_) => Some(self.unseen()),
            None => goes_first(&self.facts, self.short_since_ms, now_ms),
        }
    }

    fn unseen(&self) -> String {
        format!("the change of StatefulSet {} has not been seen by its controller", self.name)
    }
}

/// How a set stands after a step.
pub struct Advanced {
    /// How.
    pub state: SetState,
    /// The Pod that was taken in this step.
    pub replaced: Option<String>,
}

/// Reads a set's Pods.
///
/// # Errors
/// [`ReconcileError::Request`].
pub async fn look(context: &Context, set: &StatefulSet, now_ms: i64) -> Result<Look, ReconcileError> {
    let name = set.name_any();
    let spec = set.spec.clone().unwrap_or_default();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    let generation = set.metadata.generation.unwrap_or_default();
    let since = |kind: &str, what: &str, is_so: bool| {
        let key = format!("{kind}/{name}");
        if is_so {
            return Some(context.awaits(&key, what, now_ms));
        }
        context.awaits_no_more(&key);
        None
    };
    let is_unseen = status.observed_generation.unwrap_or_default() < generation;
    let unseen_since_ms = since("unseen", &generation.to_string(), is_unseen);
    let labels = spec.selector.match_labels.clone().unwrap_or_default();
    let labels = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let pods = context.applier.api::<Pod>().list(&ListParams::default().labels(&labels)).await;
    let pods = pods.map_err(ReconcileError::request("list", "Pod", &name))?.items;
    let newest = status.update_revision.or(status.current_revision);
    let facts: Vec<PodFacts> = pods.iter().map(|pod| facts(pod, newest.as_deref())).collect();
    let short_since_ms = since("short", "pods", facts.len() < wanted);
    Ok(Look { unseen_since_ms, short_since_ms, name, wanted, pods, facts })
}

/// Takes the next step of a set's rollout and answers how it stands.
///
/// # Errors
/// [`ReconcileError::Request`].
pub async fn advance(context: &Context, set: &Look, turn: &Turn) -> Result<Advanced, ReconcileError> {
    let (name, wanted, facts) = (&set.name, set.wanted, &set.facts);
    let waiting = |why: String| Advanced { state: SetState::Waiting(why), replaced: None };
    if set.unseen_since_ms.is_some() {
        return Ok(waiting("the StatefulSet's change has not been seen by its controller".into()));
    }
    let ready = facts.iter().filter(|pod| pod.ready && pod.gone_by_ms.is_none()).count();
    if facts.len() > wanted {
        return Ok(waiting(format!("{ready} pods are ready, {} are to go", facts.len() - wanted)));
    }
    Ok(match next(facts, wanted, turn) {
        Rollout::Complete if ready == wanted => Advanced { state: SetState::Ready { pods: ready }, replaced: None },
        Rollout::Complete => waiting(format!("{ready} of {wanted} pods are ready")),
        Rollout::Waiting(why) => waiting(format!("{ready} of {wanted} pods are ready; {why}")),
        Rollout::Replace(victim) => {
            if let Some(pod) = set.pods.iter().find(|pod| pod.name_any() == victim) {
                tracing::info!(set = name, pod = victim, "replacing an outdated pod");
                context.applier.delete(pod).await?;
            }
            let why = format!("{ready} of {wanted} pods are ready; pod {victim} is being replaced");
            Advanced { state: SetState::Waiting(why), replaced: Some(victim) }
        }
    })
}

fn facts(pod: &Pod, newest: Option<&str>) -> PodFacts {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is = |kind: &str, status: &str| {
        conditions.iter().any(|condition| condition.type_ == kind && condition.status == status)
    };
    let revision = pod.labels().get(REVISION_LABEL).map(String::as_str);
    PodFacts {
        name: pod.name_any(),
        // A set whose status names no revision yet gives no ground to call a Pod outdated.
        up_to_date: newest.is_none_or(|newest| revision == Some(newest)),
        ready: is("Ready", "True"),
        unscheduled: is("PodScheduled", "False"),
        made_ms: pod.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond()),
        gone_by_ms: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_millisecond()),
    }
}
