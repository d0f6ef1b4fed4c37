//! Builds the Pods and claims of a StatefulSet. Infallible and deterministic: the same set and ordinal give the same object.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::controllers::pods;

/// The label that says which template a Pod was made from.
pub const REVISION_LABEL: &str = "controller-revision-hash";
const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The name of the revision the set's template is.
pub fn revision_name(set: &StatefulSet) -> String {
    let hash = set.spec.as_ref().map(|spec| pods::template_hash(&spec.template)).unwrap_or_default();
    format!("{}-{hash}", set.name_any())
}

/// The Pod of one ordinal.
pub fn pod(set: &StatefulSet, ordinal: i32) -> Pod {
    let Some(spec) = set.spec.as_ref() else { return Pod::default() };
    let name = format!("{}-{ordinal}", set.name_any());
    let template = &spec.template;
    let given = template.metadata.clone().unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.insert(NAME_LABEL.into(), name.clone());
    labels.insert(INDEX_LABEL.into(), ordinal.to_string());
    labels.insert(REVISION_LABEL.into(), revision_name(set));
    let mut pod_spec = template.spec.clone().unwrap_or_default();
    pod_spec.hostname = Some(name.clone());
    pod_spec.subdomain = spec.service_name.clone().filter(|service| !service.is_empty());
    let mut volumes = pod_spec.volumes.take().unwrap_or_default();
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume = template.name_any();
        volumes.retain(|other| other.name != volume);
        let claim_name = claim_name(set, &volume, ordinal);
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource { claim_name, read_only: None }),
            ..Volume::default()
        });
    }
    pod_spec.volumes = (!volumes.is_empty()).then_some(volumes);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.namespace(),
            labels: Some(labels),
            annotations: given.annotations,
            finalizers: given.finalizers,
            owner_references: set.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(pod_spec),
        status: None,
    }
}

fn claim_name(set: &StatefulSet, template: &str, ordinal: i32) -> String {
    format!("{template}-{}-{ordinal}", set.name_any())
}

/// The claims of one ordinal. They outlive the set, unless its policy says that they go with it: then it owns them.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = set.spec.as_ref() else { return Vec::new() };
    let retention = spec.persistent_volume_claim_retention_policy.as_ref();
    let goes_along = retention.is_some_and(|policy| policy.when_deleted.as_deref() == Some("Delete"));
    let owner = set.owner_ref(&()).filter(|_| goes_along);
    let selected = spec.selector.match_labels.clone().unwrap_or_default();
    spec.volume_claim_templates
        .iter()
        .flatten()
        .map(|template| {
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(selected.clone());
            PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(claim_name(set, &template.name_any(), ordinal)),
                    namespace: set.namespace(),
                    labels: Some(labels),
                    annotations: template.metadata.annotations.clone(),
                    owner_references: owner.clone().map(|owner| vec![owner]),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            }
        })
        .collect()
}
