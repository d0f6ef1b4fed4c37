//! Replaces outdated Pods of an OnDelete set, one at a time. Before it deletes it reads the Pods anew from the API server, so that a
//! cache that lags never makes it take two.

use cell_plan::rollout::{PodFacts, Rollout, next};
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

/// Takes the next step of a set's rollout and answers how it stands.
///
/// # Errors
/// [`ReconcileError::Request`].
pub async fn advance(context: &Context, set: &StatefulSet) -> Result<SetState, ReconcileError> {
    let name = set.name_any();
    let spec = set.spec.clone().unwrap_or_default();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    if status.observed_generation.unwrap_or_default() < set.metadata.generation.unwrap_or_default() {
        return Ok(SetState::Waiting("the StatefulSet's change has not been seen by its controller".into()));
    }
    let labels = spec.selector.match_labels.clone().unwrap_or_default();
    let labels = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let pods = context.applier.api::<Pod>().list(&ListParams::default().labels(&labels)).await;
    let pods = pods.map_err(ReconcileError::request("list", "Pod", &name))?.items;
    let newest = status.update_revision.or(status.current_revision);
    let facts: Vec<PodFacts> = pods.iter().map(|pod| facts(pod, newest.as_deref())).collect();
    let ready = facts.iter().filter(|pod| pod.ready && !pod.deleting).count();
    if facts.len() > wanted {
        return Ok(SetState::Waiting(format!("{ready} pods are ready, {} are to go", facts.len() - wanted)));
    }
    match next(&facts, wanted) {
        Rollout::Complete if ready == wanted => Ok(SetState::Ready { pods: ready }),
        Rollout::Complete => Ok(SetState::Waiting(format!("{ready} of {wanted} pods are ready"))),
        Rollout::Waiting(why) => Ok(SetState::Waiting(format!("{ready} of {wanted} pods are ready; {why}"))),
        Rollout::Replace(victim) => {
            if let Some(pod) = pods.iter().find(|pod| pod.name_any() == victim) {
                tracing::info!(set = name, pod = victim, "replacing an outdated pod");
                context.applier.delete(pod).await?;
            }
            Ok(SetState::Waiting(format!("{ready} of {wanted} pods are ready; pod {victim} is being replaced")))
        }
    }
}

fn facts(pod: &Pod, newest: Option<&str>) -> PodFacts {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let revision = pod.labels().get(REVISION_LABEL).map(String::as_str);
    PodFacts {
        name: pod.name_any(),
        // A set whose status names no revision yet gives no ground to call a Pod outdated.
        up_to_date: newest.is_none_or(|newest| revision == Some(newest)),
        ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        deleting: pod.metadata.deletion_timestamp.is_some(),
    }
}
