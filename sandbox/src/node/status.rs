//! The status a Pod reports: phase, conditions, containers. Pure. Conditions of other writers are kept; a time moves only with its
//! status, so an unchanged Pod renders to the same status for ever.

use k8s_openapi::api::core::v1::{
    Container as ApiContainer, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use kube::ResourceExt;

use super::clock::api_time;
use super::machine::PodMachine;
use super::machine::container::{Container, Exit, State};

/// What a status is rendered from.
pub struct Facts<'a> {
    /// The Pod as the API has it.
    pub pod: &'a Pod,
    /// Its machine.
    pub machine: &'a PodMachine,
    /// Its address, when it has one.
    pub pod_ip: Option<&'a str>,
    /// The node's address.
    pub host_ip: &'a str,
    /// Unix milliseconds when this agent first took it up.
    pub taken_ms: i64,
    /// Unix milliseconds now.
    pub wall_ms: i64,
}

/// The container's id as the API shows it.
pub fn container_id(uid: &str, container: &str, attempt: u32) -> String {
    format!("cellplane://{uid}/{container}/{attempt}")
}

/// Renders the whole status.
pub fn render(facts: &Facts<'_>) -> PodStatus {
    let before = facts.pod.status.clone().unwrap_or_default();
    let spec = facts.pod.spec.clone().unwrap_or_default();
    let uid = facts.pod.uid().unwrap_or_default();
    let statuses = |init: bool, specs: &[ApiContainer]| -> Vec<ContainerStatus> {
        let all = facts.machine.containers.iter().filter(|container| container.plan.init == init);
        all.zip(specs).map(|(container, spec)| container_status(&uid, container, spec)).collect()
    };
    let init = statuses(true, spec.init_containers.as_deref().unwrap_or(&[]));
    let ended = |phase: &&str| matches!(*phase, "Succeeded" | "Failed");
    // An end once told stands, also when nothing is left on disk to tell it from, or only exit codes without what they followed from.
    let told = before.phase.as_deref().filter(ended);
    if told.is_some() && !ended(&facts.machine.phase()) {
        return before;
    }
    let phase = told.unwrap_or(facts.machine.phase());
    let expired = phase == "Failed" && facts.machine.expired();
    let why = if told.is_some() { (before.reason.clone(), before.message.clone()) } else { reason(expired) };
    PodStatus {
        conditions: Some(conditions(facts, phase, before.conditions.as_deref().unwrap_or(&[]))),
        container_statuses: Some(statuses(false, &spec.containers)),
        init_container_statuses: (!init.is_empty()).then_some(init),
        host_ip: Some(facts.host_ip.to_owned()),
        host_ips: Some(vec![HostIP { ip: facts.host_ip.to_owned() }]),
        pod_ip: facts.pod_ip.map(str::to_owned),
        pod_ips: facts.pod_ip.map(|ip| vec![PodIP { ip: ip.to_owned() }]),
        phase: Some(phase.to_owned()),
        reason: why.0,
        message: why.1,
        start_time: before.start_time.or_else(|| api_time(facts.taken_ms)),
        ..PodStatus::default()
    }
}

fn reason(expired: bool) -> (Option<String>, Option<String>) {
    let message = "Pod was active on the node longer than the specified deadline";
    (expired.then(|| "DeadlineExceeded".to_owned()), expired.then(|| message.to_owned()))
}

/// True when the API already shows what `wanted` says.
pub fn shows(have: &PodStatus, wanted: &PodStatus) -> bool {
    have.phase == wanted.phase
        && have.reason == wanted.reason
        && have.conditions == wanted.conditions
        && have.container_statuses == wanted.container_statuses
        && have.init_container_statuses == wanted.init_container_statuses
        && have.host_ip == wanted.host_ip
        && have.pod_ip == wanted.pod_ip
        && have.start_time == wanted.start_time
}

fn container_status(uid: &str, container: &Container, spec: &ApiContainer) -> ContainerStatus {
    let image = spec.image.clone().unwrap_or_default();
    let ran = container.last.is_some() || !matches!(container.state, State::Waiting { .. } | State::Starting);
    let shown = match container.state {
        State::Waiting { .. } | State::Starting => container.attempt.saturating_sub(1),
        _ => container.attempt,
    };
    let previous = |exit: &Exit| terminated(uid, container, container.attempt.saturating_sub(1), exit);
    ContainerStatus {
        container_id: ran.then(|| container_id(uid, &container.plan.name, shown)),
        image_id: format!("cellplane-local://{image}"),
        image,
        last_state: Some(ContainerState {
            terminated: container.last.as_ref().map(previous),
            ..ContainerState::default()
        }),
        name: container.plan.name.clone(),
        ready: container.ready
            || (container.plan.init && matches!(&container.state, State::Ended(exit) if exit.succeeded())),
        restart_count: restarts(container),
        started: Some(container.started),
        state: Some(state(uid, container)),
        ..ContainerStatus::default()
    }
}

/// A run that has not begun is not yet a restart.
fn restarts(container: &Container) -> i32 {
    let begun = match container.state {
        State::Waiting { .. } | State::Starting => container.attempt.saturating_sub(1),
        _ => container.attempt,
    };
    i32::try_from(begun).unwrap_or(i32::MAX)
}

fn state(uid: &str, container: &Container) -> ContainerState {
    match &container.state {
        State::Waiting { reason, message, .. } => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some((*reason).to_owned()), message: message.clone() }),
            ..ContainerState::default()
        },
        State::Starting => ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some("ContainerCreating".into()), message: None }),
            ..ContainerState::default()
        },
        State::Running { started_ms, .. } | State::Stopping { started_ms, .. } => ContainerState {
            running: Some(ContainerStateRunning { started_at: api_time(*started_ms) }),
            ..ContainerState::default()
        },
        State::Ended(exit) => ContainerState {
            terminated: Some(terminated(uid, container, container.attempt, exit)),
            ..ContainerState::default()
        },
    }
}

fn terminated(uid: &str, container: &Container, attempt: u32, exit: &Exit) -> ContainerStateTerminated {
    ContainerStateTerminated {
        container_id: Some(container_id(uid, &container.plan.name, attempt)),
        exit_code: exit.code,
        finished_at: api_time(exit.finished_ms),
        message: exit.message.clone(),
        reason: Some(exit.reason.to_owned()),
        signal: exit.signal,
        started_at: api_time(exit.started_ms),
    }
}

fn conditions(facts: &Facts<'_>, phase: &str, before: &[PodCondition]) -> Vec<PodCondition> {
    let machine = facts.machine;
    let completed = phase == "Succeeded";
    let unready: Vec<_> = machine
        .containers
        .iter()
        .filter(|container| (!container.plan.init || container.plan.sidecar) && !container.ready)
        .map(|container| container.plan.name.as_str())
        .collect();
    let initialized = machine.initialized();
    let containers_ready = initialized && unready.is_empty();
    let gates = facts.pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_deref()).unwrap_or(&[]);
    let gates_open = gates.iter().all(|gate| {
        before.iter().any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let not_ready = if completed {
        Some(("PodCompleted", None))
    } else if !containers_ready {
        Some(("ContainersNotReady", Some(format!("containers with unready status: [{}]", unready.join(" ")))))
    } else {
        None
    };
    let gate_closed = not_ready.is_none() && !gates_open;
    let ready_reason = if gate_closed { Some(("ReadinessGatesNotReady", None)) } else { not_ready.clone() };
    let incomplete = (!initialized).then_some(("ContainersNotInitialized", None));
    let ours = [
        condition(before, "PodScheduled", None, facts.wall_ms),
        condition(before, "Initialized", incomplete, facts.wall_ms),
        condition(before, "ContainersReady", not_ready, facts.wall_ms),
        condition(before, "Ready", ready_reason, facts.wall_ms),
    ];
    let mut all: Vec<PodCondition> =
        before.iter().map(|old| ours.iter().find(|new| new.type_ == old.type_).unwrap_or(old).clone()).collect();
    for one in ours {
        if !all.iter().any(|condition| condition.type_ == one.type_) {
            all.push(one);
        }
    }
    all
}

fn condition(
    before: &[PodCondition],
    kind: &str,
    against: Option<(&str, Option<String>)>,
    wall_ms: i64,
) -> PodCondition {
    let status = if against.is_none() { "True" } else { "False" };
    let old = before.iter().find(|condition| condition.type_ == kind && condition.status == status);
    let time = old.and_then(|condition| condition.last_transition_time.clone()).or_else(|| api_time(wall_ms));
    let (reason, message) = against.map_or((None, None), |(reason, message)| (Some(reason.to_owned()), message));
    PodCondition {
        last_probe_time: None,
        last_transition_time: time,
        message,
        observed_generation: old.and_then(|condition| condition.observed_generation),
        reason,
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node::clock::Now;
    use crate::node::machine::backoff::{Backoff, BackoffPolicy};
    use crate::node::machine::plan::PodPlan;
    use crate::node::machine::{Adopted, AdoptedState};

    #[test]
    fn an_end_once_told_stands_also_when_all_that_is_left_are_exit_codes_of_0() {
        let told = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"});
        let spec = json!({"restartPolicy": "Never", "containers": [{"name": "a"}]});
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": told});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let mut machine = PodMachine::new(PodPlan::of(&pod), BackoffPolicy::default());
        let exit = Exit { code: 0, signal: None, reason: "Completed", message: None, started_ms: 0, finished_ms: 0 };
        let adopted = Adopted {
            attempt: 0,
            backoff: Backoff { wait_ms: 0, exits: 0 },
            last: None,
            state: AdoptedState::Ended(exit),
        };
        machine.adopt(0, adopted, Now { mono_ms: 0, wall_ms: 0 });
        assert_eq!(machine.phase(), "Succeeded");
        let facts = Facts { pod: &pod, machine: &machine, pod_ip: None, host_ip: "127.0.0.1", taken_ms: 0, wall_ms: 0 };
        let status = render(&facts);
        let said = (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref());
        assert_eq!(said, (Some("Failed"), Some("DeadlineExceeded"), Some("too long")));
    }
}
