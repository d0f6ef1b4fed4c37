//! When and why a Job ends, and its conditions. Pure. A verdict once announced (SuccessCriteriaMet, FailureTarget) stands; the last
//! word (Complete, Failed) repeats its reason. Conditions change their time only when they flip.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;

use super::counting::Counted;
use super::{Wish, time};
use crate::controllers::pods;

const SUCCESS: &str = "SuccessCriteriaMet";
const FAILURE: &str = "FailureTarget";

/// Why a Job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ending {
    interim: &'static str,
    reason: String,
    /// What people are told.
    pub message: String,
}

impl Ending {
    fn new(interim: &'static str, reason: &str, message: &str) -> Self {
        Self { interim, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Whether it ends badly.
    pub(super) fn failed(&self) -> bool {
        self.interim == FAILURE
    }

    /// The reason of the event.
    pub(super) fn event(&self) -> &'static str {
        match self.reason.as_str() {
            "DeadlineExceeded" => "DeadlineExceeded",
            "PodFailurePolicy" => "PodFailurePolicy",
            _ => "BackoffLimitExceeded",
        }
    }

    /// Sets the interim condition; true when it was not there.
    pub(super) fn announce(&self, status: &mut JobStatus, now: i64) -> bool {
        let first = !condition_holds(status, self.interim);
        if first {
            set(status, self.interim, "True", (&self.reason, &self.message), now);
        }
        first
    }

    /// Sets the last condition.
    pub(super) fn conclude(&self, status: &mut JobStatus, now: i64) {
        let kind = if self.failed() { "Failed" } else { "Complete" };
        set(status, kind, "True", (&self.reason, &self.message), now);
        if !self.failed() {
            status.completion_time = time(now);
        }
        status.active = None;
        status.ready = Some(0);
    }
}

/// Whether the Job has said its last word.
pub fn is_finished(status: &JobStatus) -> bool {
    condition_holds(status, "Complete") || condition_holds(status, "Failed")
}

/// The Unix second of the last word.
pub fn finished_at(status: &JobStatus) -> Option<i64> {
    let last = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True");
    last.and_then(|condition| condition.last_transition_time.as_ref()).map(|at| at.0.as_second())
}

/// Whether a condition is True.
pub fn condition_holds(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Sets a condition.
pub(super) fn set(status: &mut JobStatus, kind: &str, value: &str, (reason, message): (&str, &str), now: i64) {
    let all = status.conditions.get_or_insert_default();
    let fresh = JobCondition {
        last_probe_time: time(now),
        last_transition_time: time(now),
        message: Some(message.to_owned()),
        reason: Some(reason.to_owned()),
        status: value.to_owned(),
        type_: kind.to_owned(),
    };
    match all.iter_mut().find(|condition| condition.type_ == kind) {
        Some(old) if old.status == value => {}
        Some(old) => *old = fresh,
        None => all.push(fresh),
    }
}

/// Whether and why the Job ends now. `status` is what is about to be reported.
pub(super) fn verdict(
    wish: &Wish<'_>,
    status: &JobStatus,
    counted: &Counted,
    mine: &[Arc<Pod>],
    active: &[Arc<Pod>],
    now: i64,
) -> Option<Ending> {
    for interim in [FAILURE, SUCCESS] {
        let announced = status.conditions.iter().flatten().find(|one| one.type_ == interim && one.status == "True");
        if let Some(said) = announced {
            let (reason, message) = (said.reason.as_deref().unwrap_or(""), said.message.as_deref().unwrap_or(""));
            return Some(Ending::new(interim, reason, message));
        }
    }
    if let Some(message) = &counted.fatal {
        return Some(Ending::new(FAILURE, "PodFailurePolicy", message));
    }
    let complete = match wish.completions {
        Some(all) => counted.succeeded() >= all,
        None => counted.succeeded() > 0 && active.is_empty(),
    };
    if complete && !wish.suspended {
        return Some(Ending::new(SUCCESS, "CompletionsReached", "Reached expected number of succeeded pods"));
    }
    if counted.failed() > wish.backoff_limit || too_many_restarts(wish, mine) {
        let message = "Job has reached the specified backoff limit";
        return Some(Ending::new(FAILURE, "BackoffLimitExceeded", message));
    }
    let started = status.start_time.as_ref().map(|at| at.0.as_second()).filter(|_| !wish.suspended);
    let late = started.zip(wish.spec.active_deadline_seconds).is_some_and(|(start, seconds)| now >= start + seconds);
    late.then(|| Ending::new(FAILURE, "DeadlineExceeded", "Job was active longer than specified deadline"))
}

/// Under OnFailure a container fails again and again within one Pod: its restarts are counted instead.
fn too_many_restarts(wish: &Wish<'_>, mine: &[Arc<Pod>]) -> bool {
    let policy = wish.spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    if policy != Some("OnFailure") {
        return false;
    }
    let restarts: i32 = mine
        .iter()
        .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"))
        .filter_map(|pod| pod.status.as_ref())
        .flat_map(|status| {
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
        })
        .map(|container| container.restart_count)
        .sum();
    if wish.backoff_limit == 0 { restarts > 0 } else { restarts >= wish.backoff_limit }
}
