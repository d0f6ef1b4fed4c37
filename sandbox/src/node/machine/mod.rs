//! One Pod's life as a pure machine: inputs are what happened, commands are what to do, and the driver does them. It never touches a
//! process, a file, a clock or the API. After any input, [`PodMachine::advance`] looks at the whole Pod and says what is due.

pub mod backoff;
pub mod container;
pub mod plan;
pub mod probe;
#[cfg(test)]
mod tests;
mod view;
mod words;

use backoff::BackoffPolicy;
use container::{Container, Exit, LOST, State};
use plan::PodPlan;
use probe::ProbeKind;

use super::clock::Now;
pub use words::{Adopted, AdoptedState, Command, Input};

const PREPARE_RETRY_MS: u64 = 2_000;
const START_RETRY_MS: u64 = 5_000;
/// What a container has left after a preStop hook that used up the grace, as in Kubernetes.
const AFTER_HOOK_MS: u64 = 2_000;

/// A Pod on this node.
#[derive(Debug, Clone)]
pub struct PodMachine {
    /// What to run.
    pub plan: PodPlan,
    /// Containers in the plan's order.
    pub containers: Vec<Container>,
    /// Volumes are ready.
    pub prepared: bool,
    policy: BackoffPolicy,
    preparing: bool,
    prepare_at_ms: u64,
    deleting: Option<u64>,
    expired: bool,
}

impl PodMachine {
    /// A Pod not yet begun.
    pub fn new(plan: PodPlan, policy: BackoffPolicy) -> Self {
        let containers = plan.containers.iter().cloned().map(Container::new).collect();
        Self {
            plan,
            containers,
            prepared: false,
            policy,
            preparing: false,
            prepare_at_ms: 0,
            deleting: None,
            expired: false,
        }
    }

    /// Takes over a run found at start; call before the first [`PodMachine::advance`].
    pub fn adopt(&mut self, index: usize, found: Adopted, now: Now) {
        let Some(container) = self.containers.get_mut(index) else { return };
        container.attempt = found.attempt;
        container.backoff = found.backoff;
        container.last = found.last;
        match found.state {
            AdoptedState::Running { started_ms, was_ready } => container.take_over(started_ms, was_ready, now),
            AdoptedState::Ended(exit) => {
                let attempt = found.attempt;
                container.state = State::Starting;
                self.exited(index, attempt, exit, now, &mut Vec::new());
            }
        }
    }

    /// Takes one input and returns what is due after it.
    pub fn handle(&mut self, input: Input, now: Now) -> Vec<Command> {
        let mut commands = Vec::new();
        match input {
            Input::Prepared => {
                self.preparing = false;
                self.prepared = true;
            }
            Input::PrepareFailed(note) => {
                self.preparing = false;
                self.prepare_at_ms = now.mono_ms + PREPARE_RETRY_MS;
                commands.push(Command::Say { warning: true, reason: "FailedMount", note });
            }
            Input::Started { index, started_ms } => self.started(index, started_ms, now, &mut commands),
            Input::StartFailed { index, reason, message } => {
                self.start_failed(index, reason, message, now, &mut commands);
            }
            Input::Exited { index, attempt, exit } => self.exited(index, attempt, exit, now, &mut commands),
            Input::Hooked { index, attempt, failure } => self.hooked(index, attempt, failure, now, &mut commands),
            Input::Expire => self.expire(&mut commands),
            Input::Probed { index, attempt, kind, success, message } => {
                let current = self.containers.get(index).is_some_and(|container| container.attempt == attempt);
                if current {
                    self.probed(index, kind, success.then_some(()).ok_or(message), now, &mut commands);
                }
            }
            Input::Delete { grace_ms } => self.delete(grace_ms, now),
        }
        commands.extend(self.advance(now));
        commands
    }

    fn started(&mut self, index: usize, started_ms: i64, now: Now, commands: &mut Vec<Command>) {
        let Some(container) = self.containers.get_mut(index) else { return };
        if container.state != State::Starting {
            return;
        }
        container.run(started_ms, now);
        let note = format!("Started container {}", container.plan.name);
        commands.push(Command::Say { warning: false, reason: "Started", note });
    }

    fn start_failed(&mut self, index: usize, reason: &'static str, message: String, now: Now, out: &mut Vec<Command>) {
        let Some(container) = self.containers.get_mut(index) else { return };
        let until_ms = now.mono_ms + START_RETRY_MS;
        let waiting = State::Waiting { reason, message: Some(message.clone()), until_ms };
        container.state = waiting;
        out.push(Command::Say { warning: true, reason: "Failed", note: format!("Error: {reason}: {message}") });
    }

    fn exited(&mut self, index: usize, attempt: u32, exit: Exit, now: Now, commands: &mut Vec<Command>) {
        let policy = self.policy;
        let Some(container) = self.containers.get_mut(index) else { return };
        if container.attempt != attempt || matches!(container.state, State::Ended(_)) {
            return;
        }
        let ran_ms = match container.state {
            State::Running { since_ms, .. } => now.mono_ms.saturating_sub(since_ms),
            _ => u64::try_from(exit.finished_ms.saturating_sub(exit.started_ms)).unwrap_or(0),
        };
        let wait_ms = if exit.reason == LOST {
            0
        } else {
            container.backoff = container.backoff.after_exit(&policy, ran_ms);
            container.backoff.wait_ms
        };
        container.end(exit.clone());
        let name = container.plan.name.clone();
        let again = self.containers.get(index).is_some_and(|container| self.restarts(container, &exit));
        if again && !self.ending() {
            self.wait_for_restart(index, exit, wait_ms, now);
            if wait_ms > 0 {
                let note = format!("Back-off {}s restarting failed container {name}", wait_ms / 1000);
                commands.push(Command::Say { warning: true, reason: "BackOff", note });
            }
        }
    }

    fn wait_for_restart(&mut self, index: usize, exit: Exit, wait_ms: u64, now: Now) {
        if let Some(container) = self.containers.get_mut(index) {
            let message = (wait_ms > 0).then(|| format!("back-off {}s restarting failed container", wait_ms / 1000));
            let reason = if wait_ms > 0 { "CrashLoopBackOff" } else { "ContainerCreating" };
            container.last = Some(exit);
            container.attempt = container.attempt.saturating_add(1);
            container.state = State::Waiting { reason, message, until_ms: now.mono_ms + wait_ms };
        }
    }

    fn probed(&mut self, index: usize, kind: ProbeKind, answer: Result<(), String>, now: Now, out: &mut Vec<Command>) {
        let pod_grace = self.plan.grace_ms;
        let Some(container) = self.containers.get_mut(index) else { return };
        if !matches!(container.state, State::Running { .. }) {
            return;
        }
        let restart = container.take_probe(kind, answer.is_ok(), now);
        if let Err(message) = answer {
            let note = format!("{} probe failed: {message}", kind.label());
            out.push(Command::Say { warning: true, reason: "Unhealthy", note });
        }
        if let Some(grace) = restart {
            let name = container.plan.name.clone();
            let note = format!("Container {name} failed {} probe, will be restarted", kind.label().to_lowercase());
            out.push(Command::Say { warning: false, reason: "Killing", note: note.clone() });
            self.stop(index, grace.unwrap_or(pod_grace), Some(note), now, out);
        }
    }

    fn stop(&mut self, index: usize, grace_ms: u64, message: Option<String>, now: Now, out: &mut Vec<Command>) {
        let Some(container) = self.containers.get_mut(index) else { return };
        if let State::Running { started_ms, .. } = container.state {
            container.ready = false;
            let more = if container.plan.hook && grace_ms > 0 { AFTER_HOOK_MS } else { 0 };
            let kill_ms = Some(now.mono_ms + grace_ms + more);
            container.state = State::Stopping { started_ms, kill_ms, message };
            out.push(Command::Stop { index, grace_ms });
        }
    }

    /// The hook is over: what it left of the grace is the container's, and a little in any case.
    fn hooked(&mut self, index: usize, attempt: u32, failure: Option<String>, now: Now, out: &mut Vec<Command>) {
        let Some(container) = self.containers.get_mut(index).filter(|container| container.attempt == attempt) else {
            return;
        };
        if let State::Stopping { kill_ms: Some(kill_ms), .. } = &mut container.state {
            let grace_over_ms = kill_ms.saturating_sub(AFTER_HOOK_MS);
            *kill_ms = grace_over_ms.max(now.mono_ms + AFTER_HOOK_MS).min(*kill_ms);
        }
        if let Some(why) = failure {
            let note = format!("PreStopHook of container {} failed: {why}", container.plan.name);
            out.push(Command::Say { warning: true, reason: "FailedPreStopHook", note });
        }
    }

    /// How long the Pod may run in all, in milliseconds; none once its end is certain.
    pub fn may_run_ms(&self) -> Option<u64> {
        self.plan.deadline_ms.filter(|_| self.goes_on())
    }

    fn goes_on(&self) -> bool {
        !self.ending() && !matches!(self.phase(), "Succeeded" | "Failed")
    }

    fn expire(&mut self, out: &mut Vec<Command>) {
        if self.goes_on() {
            self.expired = true;
            let note = "Pod was active on the node longer than the specified deadline".to_owned();
            out.push(Command::Say { warning: false, reason: "DeadlineExceeded", note });
        }
    }

    fn delete(&mut self, grace_ms: u64, now: Now) {
        let shorter = self.deleting.is_none_or(|before| grace_ms < before);
        if !shorter {
            return;
        }
        self.deleting = Some(grace_ms);
        for container in &mut self.containers {
            if let State::Stopping { kill_ms: Some(kill_ms), .. } = &mut container.state {
                *kill_ms = (*kill_ms).min(now.mono_ms + grace_ms);
            }
        }
    }

    /// What is due now: the whole Pod is looked at, whatever came before.
    pub fn advance(&mut self, now: Now) -> Vec<Command> {
        let mut commands = Vec::new();
        if let Some(grace_ms) = self.deleting.or(self.expired.then_some(self.plan.grace_ms)) {
            for index in 0..self.containers.len() {
                self.stop(index, grace_ms, None, now, &mut commands);
            }
        } else if !self.prepared {
            if !self.preparing && self.prepare_at_ms <= now.mono_ms {
                self.preparing = true;
                commands.push(Command::Prepare);
            }
        } else {
            self.start_due(now, &mut commands);
        }
        if !self.ending() && self.main_over() {
            self.stop_sidecars(now, &mut commands);
        }
        self.kill_due(now, &mut commands);
        if !self.ending() {
            for index in 0..self.containers.len() {
                let Some(container) = self.containers.get_mut(index) else { continue };
                let attempt = container.attempt;
                let due = container.due_probes(now.mono_ms);
                commands.extend(due.into_iter().map(|kind| Command::Probe { index, attempt, kind }));
            }
        }
        commands
    }

    /// The main containers are over: what stayed beside them ends.
    fn stop_sidecars(&mut self, now: Now, commands: &mut Vec<Command>) {
        let grace_ms = self.plan.grace_ms;
        for index in (0..self.containers.len()).rev() {
            if self.containers.get(index).is_some_and(|container| container.plan.sidecar) {
                self.stop(index, grace_ms, None, now, commands);
            }
        }
    }

    fn start_due(&mut self, now: Now, commands: &mut Vec<Command>) {
        for index in 0..self.containers.len() {
            let turn = self.turn(index);
            let Some(container) = self.containers.get_mut(index) else { continue };
            if let State::Waiting { until_ms, .. } = container.state
                && turn
                && until_ms <= now.mono_ms
            {
                container.state = State::Starting;
                commands.push(Command::Start { index, attempt: container.attempt, backoff: container.backoff });
            }
        }
    }

    fn kill_due(&mut self, now: Now, commands: &mut Vec<Command>) {
        for (index, container) in self.containers.iter_mut().enumerate() {
            if let State::Stopping { kill_ms, .. } = &mut container.state
                && kill_ms.is_some_and(|due| due <= now.mono_ms)
            {
                *kill_ms = None;
                commands.push(Command::Kill { index });
            }
        }
    }
}
