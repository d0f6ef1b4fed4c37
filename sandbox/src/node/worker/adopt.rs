//! Takes over what an earlier agent left running: each container's newest run is found on disk, checked by pid, start time and Pod
//! UID, and handed to the machine. It starts nothing.

use rustix::process::Signal;

use super::{Run, Worker};
use crate::node::machine::container::Exit;
use crate::node::machine::{Adopted, AdoptedState};
use crate::node::process::record::{Found, RunFolder, RunRecord, attempts};
use crate::node::process::start::{self, Outcome, exit_of, lost};
use crate::node::status::container_id;

impl Worker {
    /// Finds and takes over the Pod's runs.
    pub(super) async fn adopt(&mut self) {
        for index in 0..self.machine.containers.len() {
            let Some(name) = self.machine.containers.get(index).map(|container| container.plan.name.clone()) else {
                continue;
            };
            let found = attempts(&self.node.settings.state, &self.uid, &name);
            let Some(attempt) = found.last().copied() else { continue };
            self.adopt_run(index, &name, attempt).await;
        }
    }

    async fn adopt_run(&mut self, index: usize, name: &str, attempt: u32) {
        let folder = RunFolder::of(&self.node.settings.state, &self.uid, name, attempt);
        let Some(spec) = folder.spec() else { return };
        let last = attempt.checked_sub(1).and_then(|before| {
            RunFolder::of(&self.node.settings.state, &self.uid, name, before).exit().map(|exit| exit_of(&exit))
        });
        let state = match folder.find(&self.uid) {
            Found::Running(record) => self.adopt_running(index, name, attempt, folder, record),
            Found::Ended(exit) => AdoptedState::Ended(exit_of(&exit)),
            Found::Abandoned(record) => {
                start::signal(&record, Signal::KILL);
                end_rest(spec.mark()).await;
                AdoptedState::Ended(lost(record.started_ms))
            }
            Found::Lost(record) => {
                end_rest(spec.mark()).await;
                AdoptedState::Ended(self.lost_run(record))
            }
            Found::Beginning => match start::await_record(&folder, &self.uid).await {
                Ok(Outcome::Running(record)) => self.adopt_running(index, name, attempt, folder, record),
                Ok(Outcome::Ended(exit)) => AdoptedState::Ended(exit_of(&exit)),
                Err(_) => AdoptedState::Ended(self.lost_run(None)),
            },
        };
        tracing::info!(pod = %self.uid, container = name, attempt, found = describe(&state), "run adopted");
        let found = Adopted { attempt, backoff: spec.backoff(), last, state };
        self.machine.adopt(index, found, self.node.clock.now());
    }

    fn lost_run(&self, record: Option<RunRecord>) -> Exit {
        lost(record.map_or(self.taken_ms, |record| record.started_ms))
    }

    fn adopt_running(
        &mut self,
        index: usize,
        name: &str,
        attempt: u32,
        folder: RunFolder,
        record: RunRecord,
    ) -> AdoptedState {
        let id = container_id(&self.uid, name, attempt);
        let statuses = self.pod.status.as_ref().and_then(|status| status.container_statuses.as_deref()).unwrap_or(&[]);
        let was_ready =
            statuses.iter().any(|status| status.container_id.as_deref() == Some(id.as_str()) && status.ready);
        let started_ms = record.started_ms;
        let run = Run { attempt, folder, record };
        self.watch(index, run.clone());
        self.runs.insert(index, run);
        AdoptedState::Running { started_ms, was_ready }
    }
}

/// What the run forked would hold its ports and volumes beside the next attempt; its shim would have ended it.
async fn end_rest(mark: String) {
    let _ended = tokio::task::spawn_blocking(move || start::end_marked(&mark)).await;
}

fn describe(state: &AdoptedState) -> &'static str {
    match state {
        AdoptedState::Running { .. } => "running",
        AdoptedState::Ended(_) => "ended",
    }
}
