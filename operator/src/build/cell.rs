//! The objects of a cell: one StatefulSet and one disruption budget for each role. Pods are replaced by the operator, one at a time,
//! so the sets are OnDelete.

use cell_crds::{Availability, Cell, Fleet, RoleSpec};
use cell_proto::directory::Role;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{SecretVolumeSource, Volume};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use super::pod::{Common, PodShape, common_args, mount, template};
use super::storage::{STORAGE_DIR, volume};
use crate::names::{CELL_LABEL, ENTRY_LABEL, HTTP_PORT, labels, selector, stateful_set, storage_secret};

/// Where the token keys are, relative to `/`.
const TOKEN_KEYS_DIR: &str = "etc/cellplane/token-keys";

/// What a cell's objects are built from, all of it checked.
#[derive(Clone, Copy, Debug)]
pub struct CellInput<'a> {
    /// The cell.
    pub cell: &'a Cell,
    /// Its fleet.
    pub fleet: &'a Fleet,
    /// The StorageCell that serves it.
    pub serving: &'a str,
    /// Name of the Secret with the token keys.
    pub token_keys: &'a str,
    /// What all Pods are told.
    pub common: Common<'a>,
}

/// The roles that a cell runs, in the order in which they are rolled out: who writes a new kind of entry comes after those who read it.
pub const ROLES: [Role; 3] = [Role::Data, Role::Guild, Role::Gateway];

fn role_spec(cell: &Cell, role: Role) -> &RoleSpec {
    match role {
        Role::Gateway => &cell.spec.roles.gateway,
        Role::Guild => &cell.spec.roles.guild,
        Role::Data | Role::Store | Role::Migrate => &cell.spec.roles.data,
    }
}

/// How many Pods a role has.
pub fn replicas(cell: &Cell, role: Role) -> i32 {
    role_spec(cell, role).replicas
}

/// The value of the entry label on a cell's gateways.
pub fn entry_label(cell: &Cell) -> &'static str {
    if cell.spec.availability == Availability::Active { "true" } else { "false" }
}

/// The StatefulSet of a role.
pub fn set(input: &CellInput<'_>, role: Role) -> StatefulSet {
    let name = input.cell.name_any();
    let spec = role_spec(input.cell, role);
    let prefix = &input.fleet.spec.etcd.prefix;
    // Where the data is matters to data services only: the other roles keep their Pods when it changes.
    let storage_cell = if role == Role::Data { input.serving } else { &input.cell.spec.storage_cell_ref };
    let mut args = common_args(role.label(), storage_cell, input.common, prefix);
    args.insert(1, format!("--cell={name}"));
    let mut pod_labels = labels(&name, role.label());
    pod_labels.insert(CELL_LABEL.into(), name.clone());
    let (mut ports, mut mounts, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
    if role == Role::Data {
        args.push(format!("--storage-dir={STORAGE_DIR}"));
        mounts.push(mount("storage", STORAGE_DIR));
        volumes.push(volume(&storage_secret(&name)));
    }
    if role == Role::Gateway {
        let entry = &input.fleet.spec.entry;
        args.push(format!("--http-port={HTTP_PORT}"));
        args.push(format!("--public-url=http://{}:{}", entry.host, entry.port));
        args.push(format!("--token-keys-dir={TOKEN_KEYS_DIR}"));
        ports.push(("http", HTTP_PORT));
        mounts.push(mount("token-keys", TOKEN_KEYS_DIR));
        let secret = SecretVolumeSource {
            secret_name: Some(input.token_keys.to_owned()),
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        };
        volumes.push(Volume { name: "token-keys".into(), secret: Some(secret), ..Volume::default() });
        // New Pods join the entry; the operator takes Pods of a cordoned cell out of it without replacing them.
        pod_labels.insert(ENTRY_LABEL.into(), "true".into());
    }
    let selects = selector(&name, role.label());
    let pod = template(PodShape {
        component: role.label(),
        image: &input.fleet.spec.image.cell,
        pull_policy: input.fleet.spec.image.pull_policy,
        args,
        labels: pod_labels,
        selector: selects.clone(),
        template: spec.template.as_ref(),
        ports,
        mounts,
        volumes,
    });
    StatefulSet {
        metadata: metadata(input.cell, role),
        spec: Some(StatefulSetSpec {
            replicas: Some(spec.replicas),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(on_delete()),
            selector: LabelSelector { match_labels: Some(selects), ..LabelSelector::default() },
            template: pod,
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

pub(super) fn on_delete() -> StatefulSetUpdateStrategy {
    StatefulSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None }
}

fn metadata(cell: &Cell, role: Role) -> ObjectMeta {
    let name = cell.name_any();
    let mut labels = labels(&name, role.label());
    labels.insert(CELL_LABEL.into(), name.clone());
    ObjectMeta {
        name: Some(stateful_set(&name, role)),
        labels: Some(labels),
        owner_references: cell.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The disruption budget of a role: one Pod at a time, which at a size of one still lets a node be drained.
pub fn budget(cell: &Cell, role: Role) -> PodDisruptionBudget {
    let selects = selector(&cell.name_any(), role.label());
    PodDisruptionBudget {
        metadata: metadata(cell, role),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector { match_labels: Some(selects), ..LabelSelector::default() }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
