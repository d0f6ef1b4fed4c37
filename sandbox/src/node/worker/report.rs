//! Reports the Pod's status: one call at a time, only when it changed, at the resourceVersion it was read at. A status the API
//! already shows is never sent again.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{Api, ResourceExt};

use super::{Happening, Worker};
use crate::controllers::act::{self, ActError};
use crate::controllers::mirror::version_of;
use crate::node::status::{Facts, render, shows};

const FIRST_RETRY_MS: u64 = 500;
const LAST_RETRY_MS: u64 = 8_000;
const CONFLICT_RETRY_MS: u64 = 100;

/// What was sent, and when to try again.
#[derive(Debug, Default)]
pub(super) struct Report {
    in_flight: Option<PodStatus>,
    sent: Option<(PodStatus, u64)>,
    retry_at_ms: u64,
    retry_ms: u64,
}

impl Report {
    /// True while a call is under way.
    pub(super) fn busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// When a failed report is tried again.
    pub(super) fn next_ms(&self) -> Option<u64> {
        (self.retry_at_ms > 0).then_some(self.retry_at_ms)
    }
}

impl Worker {
    /// The status as it should be now.
    pub(super) fn status(&self) -> PodStatus {
        let host_ip = self.node.settings.address.to_string();
        render(&Facts {
            pod: &self.pod,
            machine: &self.machine,
            pod_ip: self.pod_ip.as_deref(),
            host_ip: &host_ip,
            taken_ms: self.taken_ms,
            wall_ms: self.node.clock.now().wall_ms,
        })
    }

    /// Sends the status when the API does not show it.
    pub(super) fn report_if_changed(&mut self) {
        let now = self.node.clock.now().mono_ms;
        if self.missing || self.report.busy() || self.report.retry_at_ms > now {
            return;
        }
        self.report.retry_at_ms = 0;
        let wanted = self.status();
        let have = self.pod.status.clone().unwrap_or_default();
        let version = version_of(self.pod.as_ref());
        if shows(&have, &wanted) {
            return;
        }
        if let Some((sent, answered)) = &self.report.sent {
            let behind = version < *answered;
            let same_words = version == *answered && shows(sent, &wanted);
            if behind || same_words {
                return;
            }
        }
        self.report.in_flight = Some(wanted.clone());
        let (node, pod, happenings) = (self.node.clone(), self.pod.clone(), self.happenings.clone());
        tokio::spawn(async move {
            let api: Api<Pod> = Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
            let outcome = act::patch_status(&api, pod.as_ref(), &wanted, &node.writes).await;
            let _ = happenings.send(Happening::Reported(outcome)).await;
        });
    }

    /// Takes the answer to a report.
    pub(super) fn reported(&mut self, outcome: Result<u64, ActError>) {
        let sent = self.report.in_flight.take();
        let now = self.node.clock.now().mono_ms;
        match outcome {
            Ok(version) => {
                self.report.sent = sent.map(|status| (status, version));
                self.report.retry_ms = 0;
            }
            Err(error) if error.code() == 404 => {}
            Err(error) if error.is_conflict() => self.report.retry_at_ms = now + CONFLICT_RETRY_MS,
            Err(error) => {
                tracing::debug!(pod = %self.uid, error = %error, "status not reported, will be tried again");
                self.report.retry_ms = (self.report.retry_ms * 2).clamp(FIRST_RETRY_MS, LAST_RETRY_MS);
                self.report.retry_at_ms = now + self.report.retry_ms;
            }
        }
    }
}
