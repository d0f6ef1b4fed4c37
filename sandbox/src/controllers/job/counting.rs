//! Counts ended Pods once each. Pure. A Pod's UID is in `uncountedTerminatedPods` from when its end was seen until its finalizer is
//! gone; only then is it in the totals, so that neither a crash nor a late view counts it twice or not at all.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::policy::{self, Judgement};
use super::{Indexes, Wish, index_of, size, tracked};
use crate::controllers::pods;

/// What was counted.
pub(super) struct Counted {
    succeeded: i32,
    failed: i32,
    waiting_succeeded: Vec<String>,
    waiting_failed: Vec<String>,
    /// Indexes that have succeeded.
    pub completed: Indexes,
    indexed: bool,
    /// Pods whose count is stored: their finalizer may go.
    pub release: Vec<Arc<Pod>>,
    /// A Pod failed in a way that ends the Job: the message.
    pub fatal: Option<String>,
    pending_release: bool,
}

impl Counted {
    /// Successes, counted or about to be.
    pub(super) fn succeeded(&self) -> i32 {
        self.succeeded + size(self.waiting_succeeded.len())
    }

    /// Failures, counted or about to be.
    pub(super) fn failed(&self) -> i32 {
        self.failed + size(self.waiting_failed.len())
    }

    /// Nothing is left to count.
    pub(super) fn settled(&self) -> bool {
        self.waiting_succeeded.is_empty() && self.waiting_failed.is_empty() && !self.pending_release
    }

    /// Writes the totals.
    pub(super) fn report(&self, status: &mut JobStatus, wish: &Wish<'_>) {
        status.succeeded = (self.succeeded > 0).then_some(self.succeeded);
        status.failed = (self.failed > 0).then_some(self.failed);
        let list = |uids: &[String]| (!uids.is_empty()).then(|| uids.to_vec());
        status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: list(&self.waiting_succeeded),
            failed: list(&self.waiting_failed),
        });
        if wish.indexed {
            status.completed_indexes = Some(self.completed.to_string()).filter(|text| !text.is_empty());
        }
    }
}

/// Counts for one Job: `before` is its status as stored, `mine` are its Pods.
pub(super) fn count(wish: &Wish<'_>, before: &JobStatus, mine: &[Arc<Pod>]) -> Counted {
    let stored = before.uncounted_terminated_pods.clone().unwrap_or_default();
    let (stored_succeeded, stored_failed) = (stored.succeeded.unwrap_or_default(), stored.failed.unwrap_or_default());
    let held = |uid: &String| mine.iter().any(|pod| pod.uid().as_ref() == Some(uid) && tracked(pod));
    let keep = |uids: &[String]| -> Vec<String> { uids.iter().filter(|uid| held(uid)).cloned().collect() };
    let (waiting_succeeded, waiting_failed) = (keep(&stored_succeeded), keep(&stored_failed));
    let gone = |all: &[String], kept: &[String]| size(all.len() - kept.len());
    let before_completed = Indexes::parse(before.completed_indexes.as_deref().unwrap_or(""));
    let mut counted = Counted {
        succeeded: before.succeeded.unwrap_or(0) + gone(&stored_succeeded, &waiting_succeeded),
        failed: before.failed.unwrap_or(0) + gone(&stored_failed, &waiting_failed),
        waiting_succeeded,
        waiting_failed,
        completed: before_completed.clone(),
        indexed: wish.indexed,
        release: Vec::new(),
        fatal: None,
        pending_release: false,
    };
    for pod in mine.iter().filter(|pod| tracked(pod)) {
        let uid = pod.uid().unwrap_or_default();
        if stored_succeeded.contains(&uid) || stored_failed.contains(&uid) {
            counted.release.push(pod.clone());
        } else {
            counted.take(wish, pod, uid, &before_completed);
        }
    }
    if wish.indexed {
        counted.succeeded = counted.completed.count();
    }
    counted
}

impl Counted {
    /// A tracked Pod that the stored status does not name.
    fn take(&mut self, wish: &Wish<'_>, pod: &Arc<Pod>, uid: String, before_completed: &Indexes) {
        if pods::phase(pod) == "Succeeded" {
            match index_of(pod).filter(|_| self.indexed) {
                // The list of indexes is what is stored of it.
                Some(index) if before_completed.has(index) => self.release.push(pod.clone()),
                Some(index) => {
                    self.completed.add(index);
                    self.pending_release = true;
                }
                None => self.waiting_succeeded.push(uid),
            }
            return;
        }
        let ended = pods::phase(pod) == "Failed";
        if !ended && (wish.wait_for_leaving || !pods::is_leaving(pod)) {
            return;
        }
        match policy::judge(wish.spec, pod) {
            Judgement::Ignore => {
                self.release.push(pod.clone());
                self.pending_release = true;
            }
            Judgement::Count => self.waiting_failed.push(uid),
            Judgement::FailJob(message) => {
                self.waiting_failed.push(uid);
                self.fatal.get_or_insert(message);
            }
        }
    }
}

/// The Unix second a Pod ended: its last container's end, else its deletion, else its making.
pub(super) fn ended_at(pod: &Pod) -> Option<i64> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or(&[]);
    let ends = statuses
        .iter()
        .filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref())
        .map(|at| at.0.as_second());
    let otherwise = pod.metadata.deletion_timestamp.as_ref().or(pod.metadata.creation_timestamp.as_ref());
    ends.max().or_else(|| otherwise.map(|at| at.0.as_second()))
}
