//! The objects of a migration: a coordinator with a volume, which knows what is done, and workers, which know nothing.

use cell_crds::{Fleet, StorageMigration};
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, Service, ServicePort, ServiceSpec,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use super::pod::{Common, PodShape, STATE_DIR as SNAPSHOT_DIR, mount, template};
use super::storage::{STORAGE_DIR, volume};
use crate::names::{ADMIN_PORT, GRPC_PORT, MIGRATION_LABEL, coordinator, labels, migration_secret, selector, workers};

/// Where the coordinator keeps what is done, relative to `/`.
const STATE_DIR: &str = "var/lib/cellplane-migrate";

/// What a migration's objects are built from.
#[derive(Clone, Copy, Debug)]
pub struct MigrationInput<'a> {
    /// The migration.
    pub migration: &'a StorageMigration,
    /// Its run.
    pub run_id: &'a str,
    /// The fleet.
    pub fleet: &'a Fleet,
    /// What all Pods are told.
    pub common: Common<'a>,
}

impl MigrationInput<'_> {
    fn name(&self) -> String {
        self.migration.name_any()
    }

    fn args(&self, part: &str) -> Vec<String> {
        let mut args = vec![
            "migrate".to_owned(),
            part.to_owned(),
            format!("--run-id={}", self.run_id),
            format!("--migration={}", self.name()),
            format!("--storage-dir={STORAGE_DIR}"),
            format!("--etcd-endpoints={}", self.common.etcd_endpoints.join(",")),
            format!("--etcd-prefix={}", self.fleet.spec.etcd.prefix),
            format!("--grpc-port={GRPC_PORT}"),
            format!("--admin-port={ADMIN_PORT}"),
        ];
        if self.common.plaintext {
            args.push("--plaintext".to_owned());
        }
        args
    }

    fn pod(&self, part: &'static str, args: Vec<String>, with_state: bool) -> PodTemplateSpec {
        let name = self.name();
        let mut pod_labels = labels(&name, part);
        pod_labels.insert(MIGRATION_LABEL.into(), name.clone());
        let mut mounts = vec![mount("storage", STORAGE_DIR)];
        if with_state {
            mounts.push(mount("done", STATE_DIR));
        }
        template(PodShape {
            component: part,
            image: &self.fleet.spec.image.cell,
            pull_policy: self.fleet.spec.image.pull_policy,
            args,
            labels: pod_labels,
            selector: selector(&name, part),
            template: None,
            ports: Vec::new(),
            mounts,
            volumes: vec![volume(&migration_secret(&name))],
        })
    }

    fn metadata(&self, object: String, part: &str) -> ObjectMeta {
        let mut labels = labels(&self.name(), part);
        labels.insert(MIGRATION_LABEL.into(), self.name());
        ObjectMeta {
            name: Some(object),
            labels: Some(labels),
            owner_references: self.migration.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    fn selects(&self, part: &str) -> LabelSelector {
        LabelSelector { match_labels: Some(selector(&self.name(), part)), ..LabelSelector::default() }
    }
}

/// The coordinator. Its volume goes with it: what is done is of no use to another run.
pub fn coordinator_set(input: &MigrationInput<'_>) -> StatefulSet {
    let spec = &input.migration.spec;
    let mut args = input.args("coordinator");
    args.push(format!("--state-dir={STATE_DIR}"));
    args.push(format!("--source={}", spec.source));
    args.push(format!("--target={}", spec.target));
    if !spec.scope.units.is_empty() {
        args.push(format!("--units={}", spec.scope.units.join(",")));
    }
    let claim = PersistentVolumeClaim {
        metadata: ObjectMeta { name: Some("done".into()), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: spec.workers.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(spec.workers.volume_size.clone()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    StatefulSet {
        metadata: input.metadata(coordinator(&input.name()), "coordinator"),
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            service_name: Some(coordinator(&input.name())),
            pod_management_policy: Some("Parallel".into()),
            selector: input.selects("coordinator"),
            template: input.pod("coordinator", args, true),
            volume_claim_templates: Some(vec![claim]),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some("Delete".into()),
                when_scaled: Some("Retain".into()),
            }),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// The headless Service that governs the coordinator's set.
pub fn coordinator_service(input: &MigrationInput<'_>) -> Service {
    Service {
        metadata: input.metadata(coordinator(&input.name()), "coordinator"),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(selector(&input.name(), "coordinator")),
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

/// A worker keeps nothing but the directory's snapshot.
fn worker_args(input: &MigrationInput<'_>) -> Vec<String> {
    let mut args = input.args("worker");
    args.push(format!("--state-dir={SNAPSHOT_DIR}"));
    args
}

/// The workers.
pub fn worker_deployment(input: &MigrationInput<'_>) -> Deployment {
    Deployment {
        metadata: input.metadata(workers(&input.name()), "worker"),
        spec: Some(DeploymentSpec {
            replicas: Some(input.migration.spec.workers.replicas),
            selector: input.selects("worker"),
            template: input.pod("worker", worker_args(input), false),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}
