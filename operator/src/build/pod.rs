//! The Pod of a role: flags, probes, security and volumes that all roles share. Paths in flags are relative to the working directory
//! `/`, so that the same flags fit a container and a folder.

use std::collections::BTreeMap;

use cell_crds::cell::RoleTemplate;
use cell_crds::fleet::PullPolicy;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction,
    ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile,
    SecurityContext, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::names::{ADMIN_PORT, GRPC_PORT};

/// Where the directory snapshot goes, relative to `/`.
pub(super) const STATE_DIR: &str = "var/lib/cellplane";
/// User of the containers; no image needs another.
const USER: i64 = 65_532;
/// Longest time a role may take to drain.
const GRACE_SECONDS: i64 = 45;

/// What differs between roles.
pub(super) struct PodShape<'a> {
    pub(super) component: &'a str,
    pub(super) image: &'a str,
    pub(super) pull_policy: Option<PullPolicy>,
    pub(super) args: Vec<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) selector: BTreeMap<String, String>,
    pub(super) template: Option<&'a RoleTemplate>,
    pub(super) ports: Vec<(&'a str, i32)>,
    pub(super) mounts: Vec<VolumeMount>,
    pub(super) volumes: Vec<Volume>,
}

/// What all Pods of a fleet are told.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    /// The fleet's etcd, as the cells shall reach it.
    pub etcd_endpoints: &'a [String],
    /// They may speak plaintext beyond loopback.
    pub plaintext: bool,
}

/// What every role is told: who it is and where the directory is.
pub(super) fn common_args(role: &str, storage_cell: &str, common: Common<'_>, prefix: &str) -> Vec<String> {
    let mut args = vec![
        role.to_owned(),
        format!("--storage-cell={storage_cell}"),
        format!("--etcd-endpoints={}", common.etcd_endpoints.join(",")),
        format!("--etcd-prefix={prefix}"),
        format!("--grpc-port={GRPC_PORT}"),
        format!("--admin-port={ADMIN_PORT}"),
        format!("--state-dir={STATE_DIR}"),
    ];
    if common.plaintext {
        args.push("--plaintext".to_owned());
    }
    args
}

pub(super) fn template(shape: PodShape<'_>) -> PodTemplateSpec {
    let mut args = shape.args;
    if let Some(template) = shape.template {
        args.extend(template.extra_args.iter().cloned());
    }
    let mut mounts = vec![mount("state", STATE_DIR)];
    mounts.extend(shape.mounts);
    let state = EmptyDirVolumeSource::default();
    let mut volumes = vec![Volume { name: "state".into(), empty_dir: Some(state), ..Volume::default() }];
    volumes.extend(shape.volumes);
    let mut ports = vec![("grpc", GRPC_PORT), ("admin", ADMIN_PORT)];
    ports.extend(shape.ports);
    let port = |(name, number): (&str, i32)| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    let container = Container {
        name: shape.component.to_owned(),
        image: Some(shape.image.to_owned()),
        image_pull_policy: shape.pull_policy.map(|policy| format!("{policy:?}")),
        working_dir: Some("/".into()),
        args: Some(args),
        env: Some(vec![from_field("POD_NAME", "metadata.name"), from_field("POD_IP", "status.podIP")]),
        ports: Some(ports.into_iter().map(port).collect()),
        volume_mounts: Some(mounts),
        resources: Some(resources(shape.template)),
        startup_probe: Some(probe("/livez", 1, 60)),
        liveness_probe: Some(probe("/livez", 10, 3)),
        readiness_probe: Some(probe("/readyz", 1, 2)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let node_selector = shape.template.map(|template| template.node_selector.clone());
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(shape.labels), ..ObjectMeta::default() }),
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(volumes),
            node_selector: node_selector.filter(|selector| !selector.is_empty()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            topology_spread_constraints: Some(
                ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
                    .map(|key| spread(key, &shape.selector))
                    .into(),
            ),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
    }
}

pub(super) fn mount(name: &str, relative: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: format!("/{relative}"), ..VolumeMount::default() }
}

fn from_field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), api_version: Some("v1".into()) };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    }
}

fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(ADMIN_PORT),
            scheme: Some("HTTP".into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

fn resources(template: Option<&RoleTemplate>) -> ResourceRequirements {
    let cpu = template.and_then(|template| template.cpu.clone()).unwrap_or_else(|| "50m".into());
    let memory = template.and_then(|template| template.memory.clone());
    let mut requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu))]);
    requests.insert("memory".to_owned(), Quantity(memory.clone().unwrap_or_else(|| "64Mi".into())));
    ResourceRequirements {
        requests: Some(requests),
        limits: memory.map(|memory| BTreeMap::from([("memory".to_owned(), Quantity(memory))])),
        ..ResourceRequirements::default()
    }
}

fn spread(key: &str, selector: &BTreeMap<String, String>) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".into(),
        label_selector: Some(LabelSelector { match_labels: Some(selector.clone()), ..LabelSelector::default() }),
        ..TopologySpreadConstraint::default()
    }
}
