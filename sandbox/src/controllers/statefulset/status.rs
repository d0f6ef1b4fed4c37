//! The status of a StatefulSet, counted as Kubernetes counts it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSetStatus;
use k8s_openapi::api::core::v1::Pod;

use super::{REVISION_LABEL, Settings, View};
use crate::controllers::{availability, pods};

/// Counts the set's Pods. With OnDelete the current revision stays the first one, as in Kubernetes; the Pods' labels tell the rest.
pub(super) fn status(
    view: &View<'_>,
    settings: &Settings,
    mine: &BTreeMap<i32, Arc<Pod>>,
    update: &str,
) -> StatefulSetStatus {
    let before = view.set.status.clone().unwrap_or_default();
    let minimum = view.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let mut current = before.current_revision.filter(|name| !name.is_empty()).unwrap_or_else(|| update.to_owned());
    let count = |test: &dyn Fn(&Pod) -> bool| mine.values().filter(|pod| test(pod)).count() as i32;
    let at =
        |revision: &str| count(&|pod| !pods::is_leaving(pod) && pods::label(&pod.metadata, REVISION_LABEL) == revision);
    let replicas = mine.len() as i32;
    let ready = count(&pods::is_ready);
    let updated = at(update);
    if settings.rolling && updated == replicas && ready == replicas && replicas == settings.replicas {
        current = update.to_owned();
    }
    StatefulSetStatus {
        available_replicas: Some(count(&|pod| availability::is_available(pod, minimum, view.now))),
        collision_count: Some(before.collision_count.unwrap_or(0)),
        conditions: before.conditions,
        current_replicas: Some(at(&current)),
        current_revision: Some(current),
        observed_generation: view.set.metadata.generation,
        ready_replicas: Some(ready),
        replicas,
        update_revision: Some(update.to_owned()),
        updated_replicas: Some(updated),
    }
}
