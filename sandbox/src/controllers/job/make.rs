//! The Pod of a Job. Pure; the caller chooses the random part of its name.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::{FINALIZER, INDEX};

const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// A Pod of the Job; an Indexed Job's carries its index as annotation, label, host name and environment variable.
pub fn pod(job: &Job, index: Option<u32>, suffix: &str) -> Pod {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let given = template.metadata.unwrap_or_default();
    let mut spec = template.spec.unwrap_or_default();
    let (mut labels, mut annotations) = (given.labels.unwrap_or_default(), given.annotations.unwrap_or_default());
    let stem = index.map_or_else(|| job.name_any(), |index| format!("{}-{index}", job.name_any()));
    if let Some(index) = index {
        labels.insert(INDEX.into(), index.to_string());
        annotations.insert(INDEX.into(), index.to_string());
        let host = stem.clone();
        spec.hostname.get_or_insert(host);
        let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        containers.for_each(tell_index);
    }
    let mut finalizers = given.finalizers.unwrap_or_default();
    finalizers.push(FINALIZER.into());
    let present = |map: BTreeMap<String, String>| (!map.is_empty()).then_some(map);
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("{}-{suffix}", stem.chars().take(57).collect::<String>())),
            namespace: job.namespace(),
            labels: present(labels),
            annotations: present(annotations),
            finalizers: Some(finalizers),
            owner_references: job.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

fn tell_index(container: &mut Container) {
    let all = container.env.get_or_insert_default();
    if all.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), api_version: None };
    let from = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    all.push(EnvVar { name: INDEX_VARIABLE.into(), value: None, value_from: Some(from) });
}
