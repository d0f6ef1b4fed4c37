//! The Job that looks at a database once: it answers in its termination message, and nothing of it is kept.

use cell_crds::Fleet;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::pod::{PodShape, mount, template};
use super::storage::{STORAGE_DIR, volume};
use crate::names::{STORAGE_CELL_LABEL, labels, selector};

/// Longest time a look may take, in seconds.
const DEADLINE_SECONDS: i64 = 120;
/// A finished Job goes after this long, in seconds.
const KEPT_SECONDS: i32 = 600;

/// Where the summary is left: a container's termination message, relative to `/`.
const REPORT: &str = "dev/termination-log";

/// What a probe's Job is built from.
#[derive(Clone, Debug)]
pub struct ProbeInput<'a> {
    /// Name of the Job.
    pub job: &'a str,
    /// The StorageCell.
    pub storage_cell: &'a str,
    /// Secret with its file.
    pub secret: &'a str,
    /// Who owns it.
    pub owner: Option<OwnerReference>,
    /// The fleet.
    pub fleet: &'a Fleet,
}

/// The Job.
pub fn job(input: &ProbeInput<'_>) -> Job {
    let mut pod_labels = labels(input.storage_cell, "probe");
    pod_labels.insert(STORAGE_CELL_LABEL.into(), input.storage_cell.to_owned());
    let mut pod = template(PodShape {
        component: "probe",
        image: &input.fleet.spec.image.cell,
        pull_policy: input.fleet.spec.image.pull_policy,
        args: vec![
            "migrate".into(),
            "probe".into(),
            format!("--storage-dir={STORAGE_DIR}"),
            format!("--name={}", input.storage_cell),
            // A StorageCell is there for the cells' tables: they are brought forward before anything is said of it.
            "--apply-schema".into(),
            format!("--report={REPORT}"),
        ],
        labels: pod_labels.clone(),
        selector: selector(input.storage_cell, "probe"),
        template: None,
        ports: Vec::new(),
        mounts: vec![mount("storage", STORAGE_DIR)],
        volumes: vec![volume(input.secret)],
    });
    if let Some(spec) = &mut pod.spec {
        spec.restart_policy = Some("Never".into());
        for container in &mut spec.containers {
            // It serves nothing: what it finds is its exit.
            container.ports = None;
            (container.startup_probe, container.liveness_probe, container.readiness_probe) = (None, None, None);
            container.termination_message_policy = Some("FallbackToLogsOnError".into());
        }
    }
    Job {
        metadata: ObjectMeta {
            name: Some(input.job.to_owned()),
            labels: Some(pod_labels),
            owner_references: input.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            ttl_seconds_after_finished: Some(KEPT_SECONDS),
            template: pod,
            ..JobSpec::default()
        }),
        status: None,
    }
}
