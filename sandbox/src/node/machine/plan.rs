//! What of a Pod's spec the machine needs: containers in order, restart policy, grace. Pure.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::probe::{ProbeKind, ProbeSettings};

/// When ended containers start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever the exit.
    Always,
    /// After a failure.
    OnFailure,
    /// Not at all.
    Never,
}

/// One container to run.
#[derive(Debug, Clone)]
pub struct ContainerPlan {
    /// Name.
    pub name: String,
    /// Runs to its end before the main ones.
    pub init: bool,
    /// An init container that is to run as long as the main ones.
    pub sidecar: bool,
    /// Probes by kind.
    pub probes: Vec<(ProbeKind, ProbeSettings)>,
    /// It has a preStop hook.
    pub hook: bool,
}

/// A Pod to run.
#[derive(Debug, Clone)]
pub struct PodPlan {
    /// Init containers first, in order.
    pub containers: Vec<ContainerPlan>,
    /// Restart policy of the main containers.
    pub restart: RestartPolicy,
    /// Milliseconds from SIGTERM to SIGKILL.
    pub grace_ms: u64,
    /// Milliseconds that the whole Pod may take, from its start; none without a bound.
    pub deadline_ms: Option<u64>,
}

impl PodPlan {
    /// Reads a Pod.
    pub fn of(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let restart = match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        };
        let init = spec.init_containers.iter().flatten().map(|container| plan(container, true));
        let main = spec.containers.iter().map(|container| plan(container, false));
        Self {
            containers: init.chain(main).collect(),
            restart,
            grace_ms: spec.termination_grace_period_seconds.unwrap_or(30).max(0).unsigned_abs() * 1000,
            deadline_ms: spec.active_deadline_seconds.map(|seconds| seconds.max(0).unsigned_abs().saturating_mul(1000)),
        }
    }
}

fn plan(container: &Container, init: bool) -> ContainerPlan {
    let sidecar = init && container.restart_policy.as_deref() == Some("Always");
    let probes = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
    ];
    let probes = probes
        .into_iter()
        .filter(|_| !init || sidecar)
        .filter_map(|(kind, probe)| probe.as_ref().map(|probe| (kind, ProbeSettings::of(probe, kind))));
    let hook = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some());
    ContainerPlan { name: container.name.clone(), init, sidecar, probes: probes.collect(), hook }
}
