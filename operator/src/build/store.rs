//! The objects of an embedded StorageCell: one store Pod with a volume, behind a headless Service.

use cell_crds::{DeletionPolicy, Fleet, StorageCell};
use cell_proto::directory::Role;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, Service, ServicePort, ServiceSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use super::cell::on_delete;
use super::pod::{Common, PodShape, common_args, mount, template};
use crate::names::{GRPC_PORT, IMAGE_ANNOTATION, STORAGE_CELL_LABEL, labels, selector, stateful_set};

/// Where the store's data is, relative to `/`.
const DATA_DIR: &str = "var/lib/cellplane-store";

/// The StatefulSet of the store.
pub fn set(storage: &StorageCell, fleet: &Fleet, common: Common<'_>) -> StatefulSet {
    let name = storage.name_any();
    let embedded = storage.spec.embedded.clone().unwrap_or_default();
    let mut args = common_args(Role::Store.label(), &name, common, &fleet.spec.etcd.prefix);
    args.push(format!("--data-dir={DATA_DIR}"));
    // Without it the program's own default holds, and no Pod is replaced for its sake.
    args.extend(embedded.reserve_bytes().map(|bytes| format!("--reserve-bytes={bytes}")));
    let selects = selector(&name, Role::Store.label());
    let mut pod_labels = labels(&name, Role::Store.label());
    pod_labels.insert(STORAGE_CELL_LABEL.into(), name.clone());
    let pod = template(PodShape {
        component: Role::Store.label(),
        image: &fleet.spec.image.cell,
        pull_policy: fleet.spec.image.pull_policy,
        args,
        labels: pod_labels,
        selector: selects.clone(),
        template: None,
        ports: Vec::new(),
        mounts: vec![mount("data", DATA_DIR)],
        volumes: Vec::new(),
    });
    let claim = PersistentVolumeClaim {
        metadata: ObjectMeta { name: Some("data".into()), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: embedded.storage_class_name,
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(embedded.size))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    let kept = match storage.spec.deletion_policy {
        DeletionPolicy::Retain => "Retain",
        DeletionPolicy::Delete => "Delete",
    };
    let given = [(IMAGE_ANNOTATION.to_owned(), fleet.spec.image.cell.clone())];
    StatefulSet {
        metadata: ObjectMeta { annotations: Some(given.into()), ..metadata(storage) },
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            service_name: Some(stateful_set(&name, Role::Store)),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(on_delete()),
            selector: LabelSelector { match_labels: Some(selects), ..LabelSelector::default() },
            template: pod,
            volume_claim_templates: Some(vec![claim]),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some(kept.to_owned()),
                when_scaled: Some("Retain".into()),
            }),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// Whether a store's set was given another image than the fleet's of now. Of a set that does not say it is not known, and its container
/// does not tell: others may write images anew.
pub fn has_other_image(set: &StatefulSet, image: &str) -> bool {
    set.annotations().get(IMAGE_ANNOTATION).is_some_and(|given| given != image)
}

/// The headless Service that governs the set.
pub fn service(storage: &StorageCell) -> Service {
    Service {
        metadata: metadata(storage),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(selector(&storage.name_any(), Role::Store.label())),
            publish_not_ready_addresses: Some(true),
            ports: Some(vec![ServicePort {
                name: Some("grpc".into()),
                port: GRPC_PORT,
                target_port: Some(IntOrString::Int(GRPC_PORT)),
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn metadata(storage: &StorageCell) -> ObjectMeta {
    let name = storage.name_any();
    let mut labels = labels(&name, Role::Store.label());
    labels.insert(STORAGE_CELL_LABEL.into(), name.clone());
    ObjectMeta {
        name: Some(stateful_set(&name, Role::Store)),
        labels: Some(labels),
        owner_references: storage.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}
