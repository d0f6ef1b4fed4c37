//! The StatefulSet controller's decision: which Pods and claims to make, which Pods to delete, what the status says. Pure. Pods and
//! claims have names fixed by their ordinal, so a decision made twice can never make a surplus one. Claims are never deleted
//! here: with whenDeleted Delete they belong to the set and go with it by garbage collection.

mod build;
pub mod drive;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use thiserror::Error;

use super::pods;

pub use build::{REVISION_LABEL, revision_name};

/// Why a StatefulSet is left alone.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// Rolling updates that stop at an ordinal need stored revisions.
    #[error(
        "spec.updateStrategy.rollingUpdate.partition {0} is not supported by these controllers: remove it or use OnDelete"
    )]
    Partition(i32),
    /// Claims outlive a smaller number of replicas.
    #[error(
        "spec.persistentVolumeClaimRetentionPolicy.whenScaled Delete is not supported by these controllers: use Retain"
    )]
    ClaimRetention,
    /// A strategy that does not exist.
    #[error("spec.updateStrategy.type {0} is unknown: use OnDelete or RollingUpdate")]
    Strategy(String),
    /// The name leaves no room for the revision label.
    #[error("metadata.name is longer than 52 characters, so the revision label would not fit: shorten it")]
    Name,
    /// The set has no spec.
    #[error("spec is missing: give replicas, selector and template")]
    NoSpec,
}

/// What to do for one StatefulSet now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Claims to make, before the Pods that use them.
    pub claims: Vec<PersistentVolumeClaim>,
    /// Pods to make, lowest ordinal first.
    pub create: Vec<Pod>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Pods of the right name and labels that nobody owns: to adopt.
    pub adopt: Vec<Arc<Pod>>,
    /// Names taken by Pods of somebody else.
    pub taken: Vec<String>,
    /// The status to report.
    pub status: StatefulSetStatus,
}

/// What is known when deciding.
pub struct View<'a> {
    /// The set.
    pub set: &'a StatefulSet,
    /// Every Pod of the set's namespace.
    pub pods: &'a [Arc<Pod>],
    /// Names of the claims in the set's namespace.
    pub claims: &'a dyn Fn(&str) -> bool,
    /// Unix time in seconds.
    pub now: i64,
}

struct Settings {
    replicas: i32,
    start: i32,
    ordered: bool,
    rolling: bool,
}

fn settings(set: &StatefulSet) -> Result<Settings, Refusal> {
    let spec = set.spec.as_ref().ok_or(Refusal::NoSpec)?;
    if set.name_any().len() > 52 {
        return Err(Refusal::Name);
    }
    let retention = spec.persistent_volume_claim_retention_policy.as_ref();
    if retention.is_some_and(|policy| policy.when_scaled.as_deref() == Some("Delete")) {
        return Err(Refusal::ClaimRetention);
    }
    let strategy = spec.update_strategy.as_ref();
    let rolling = match strategy.and_then(|strategy| strategy.type_.as_deref()).unwrap_or("RollingUpdate") {
        "OnDelete" => false,
        "RollingUpdate" => true,
        other => return Err(Refusal::Strategy(other.to_owned())),
    };
    let partition = strategy
        .and_then(|strategy| strategy.rolling_update.as_ref())
        .and_then(|rolling| rolling.partition)
        .unwrap_or(0);
    if rolling && partition > 0 {
        return Err(Refusal::Partition(partition));
    }
    Ok(Settings {
        replicas: spec.replicas.unwrap_or(1).max(0),
        start: spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).max(0),
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        rolling,
    })
}

/// Decides for one StatefulSet. A set that is leaving gets an empty plan: its Pods are the garbage collector's.
///
/// # Errors
/// [`Refusal`] when the set asks for something these controllers do not do.
pub fn decide(view: &View<'_>) -> Result<Plan, Refusal> {
    let settings = settings(view.set)?;
    let mut plan = Plan::default();
    let (mine, adopt, taken) = sort_pods(view);
    plan.adopt = adopt;
    plan.taken = taken;
    let update = revision_name(view.set);
    plan.status = status::status(view, &settings, &mine, &update);
    if view.set.metadata.deletion_timestamp.is_some() {
        return Ok(Plan { status: plan.status, ..Plan::default() });
    }
    let wanted = settings.start..settings.start.saturating_add(settings.replicas);
    let all_settled = fill(view, &settings, &mine, &mut plan);
    let condemned: Vec<_> = mine.iter().filter(|(ordinal, _)| !wanted.contains(ordinal)).map(|(_, pod)| pod).collect();
    shrink(&settings, &condemned, all_settled, &mut plan);
    if settings.rolling && all_settled && condemned.is_empty() && plan.delete.is_empty() {
        let outdated = mine.values().rev().find(|pod| pods::label(&pod.metadata, REVISION_LABEL) != update);
        plan.delete.extend(outdated.cloned());
    }
    Ok(plan)
}

type Sorted = (BTreeMap<i32, Arc<Pod>>, Vec<Arc<Pod>>, Vec<String>);

fn sort_pods(view: &View<'_>) -> Sorted {
    let uid = view.set.uid().unwrap_or_default();
    let selector = view.set.spec.as_ref().map(|spec| &spec.selector);
    let prefix = format!("{}-", view.set.name_any());
    let (mut mine, mut adopt, mut taken) = (BTreeMap::new(), Vec::new(), Vec::new());
    for pod in view.pods {
        let name = pod.name_any();
        let Some(ordinal) = name.strip_prefix(&prefix).and_then(ordinal) else { continue };
        if pods::controlled_by(&pod.metadata, &uid) {
            mine.insert(ordinal, pod.clone());
        } else if pods::controller(&pod.metadata).is_none()
            && selector.is_some_and(|selector| super::selector::matches(selector, pod.metadata.labels.as_ref()))
            && !pods::is_leaving(pod)
        {
            adopt.push(pod.clone());
            taken.push(name);
        } else {
            taken.push(name);
        }
    }
    (mine, adopt, taken)
}

fn ordinal(text: &str) -> Option<i32> {
    let plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// Makes missing Pods and replaces ended ones; true when every wanted Pod is there and Ready.
fn fill(view: &View<'_>, settings: &Settings, mine: &BTreeMap<i32, Arc<Pod>>, plan: &mut Plan) -> bool {
    let mut settled = true;
    for ordinal in settings.start..settings.start.saturating_add(settings.replicas) {
        let ready = match mine.get(&ordinal) {
            None => {
                let name = format!("{}-{ordinal}", view.set.name_any());
                if !plan.taken.contains(&name) {
                    plan.claims.extend(
                        build::claims(view.set, ordinal).into_iter().filter(|claim| !(view.claims)(&claim.name_any())),
                    );
                    plan.create.push(build::pod(view.set, ordinal));
                }
                false
            }
            Some(pod) if pods::is_ended(pod) && !pods::is_leaving(pod) => {
                plan.delete.push(pod.clone());
                false
            }
            Some(pod) => pods::is_ready(pod),
        };
        settled &= ready;
        if !ready && settings.ordered {
            return false;
        }
    }
    settled
}

fn shrink(settings: &Settings, condemned: &[&Arc<Pod>], all_settled: bool, plan: &mut Plan) {
    if !settings.ordered {
        plan.delete.extend(condemned.iter().filter(|pod| !pods::is_leaving(pod)).map(|pod| (*pod).clone()));
        return;
    }
    if condemned.iter().any(|pod| pods::is_leaving(pod)) || !all_settled {
        return;
    }
    plan.delete.extend(condemned.last().map(|pod| (*pod).clone()));
}
