//! One Pod's driver: feeds the machine what happens and does what it says. Processes, files and API calls run in tasks of their own,
//! so that a slow disk or an absent API server never delays a deadline. It decides nothing about the Pod's life.

mod adopt;
mod finish;
mod report;
mod run;
mod tokens;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::events::EventType;
use tokio::sync::mpsc;

use super::machine::plan::PodPlan;
use super::machine::{Command, Input, PodMachine};
use super::process::record::{RunFolder, RunRecord};
use super::shared::Node;
use crate::controllers::act;
use crate::controllers::pods;

pub use finish::remove_orphan;

/// What the agent tells a worker.
#[derive(Debug)]
pub enum Message {
    /// The Pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has no such Pod any more.
    Missing,
}

/// A process a worker keeps.
#[derive(Debug, Clone)]
struct Run {
    attempt: u32,
    folder: RunFolder,
    record: RunRecord,
}

/// What a worker's tasks report back.
enum Happening {
    Input(Input),
    Began { index: usize, run: Run },
    Reported(Result<u64, act::ActError>),
    Token { audience: String, token: Option<tokens::Token> },
}

struct Worker {
    node: Node,
    uid: String,
    pod: Arc<Pod>,
    machine: PodMachine,
    runs: HashMap<usize, Run>,
    /// preStop hooks under way: they end with their container.
    hooks: HashMap<usize, tokio::task::AbortHandle>,
    happenings: mpsc::Sender<Happening>,
    said: HashMap<String, u64>,
    report: report::Report,
    tokens: tokens::Tokens,
    pod_ip: Option<String>,
    taken_ms: i64,
    missing: bool,
    refresh_at_ms: u64,
}

/// Events of one wording are sent at most this often.
const SAY_AGAIN_MS: u64 = 60_000;
/// Different wordings remembered per Pod.
const SAID_LIMIT: usize = 64;
/// The longest sleep; everything due is looked at again at least this often.
const LONGEST_SLEEP_MS: u64 = 5_000;

/// Runs one Pod to its end. Returns when nothing of it is left on this node.
pub async fn run(node: Node, pod: Arc<Pod>, inbox: mpsc::Receiver<Message>) {
    let (happenings, events) = mpsc::channel(64);
    let plan = PodPlan::of(&pod);
    let machine = PodMachine::new(plan, node.settings.backoff);
    let taken_ms = node.clock.now().wall_ms;
    let mut worker = Worker {
        uid: pod.uid().unwrap_or_default(),
        machine,
        runs: HashMap::new(),
        hooks: HashMap::new(),
        happenings,
        said: HashMap::new(),
        report: report::Report::default(),
        tokens: tokens::Tokens::of(&pod),
        pod_ip: None,
        taken_ms,
        missing: false,
        refresh_at_ms: 0,
        node,
        pod,
    };
    worker.take_address();
    worker.adopt().await;
    let pod = worker.pod.clone();
    worker.heed(pod);
    if worker.live(inbox, events).await == End::Finished {
        worker.finish().await;
    }
}

/// Why a worker stopped.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The Pod is to go and nothing of it runs.
    Finished,
    /// The agent stops: Pods go on.
    AgentStops,
}

impl Worker {
    async fn live(&mut self, mut inbox: mpsc::Receiver<Message>, mut events: mpsc::Receiver<Happening>) -> End {
        let mut maps = self.node.config_maps.changes();
        let mut secrets = self.node.secrets.changes();
        loop {
            let now = self.node.clock.now();
            if self.expires_ms().is_some_and(|at| at <= now.mono_ms) {
                self.input(Input::Expire);
            }
            let commands = self.machine.advance(now);
            self.execute(commands);
            self.report_if_changed();
            if self.machine.gone() && !self.report.busy() {
                return End::Finished;
            }
            let sleep = self.sleep_ms(now.mono_ms);
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(Message::Pod(pod)) => self.heed(pod),
                    Some(Message::Missing) => self.vanish(),
                    None => return End::AgentStops,
                },
                Some(happening) = events.recv() => self.happened(happening),
                _ = maps.changed() => self.refresh_soon(),
                _ = secrets.changed() => self.refresh_soon(),
                () = tokio::time::sleep(Duration::from_millis(sleep)) => {}
            }
            self.refresh_if_due();
            let renew = self.tokens.due(self.node.clock.now().mono_ms);
            self.ask_for_tokens(&renew);
        }
    }

    fn sleep_ms(&self, now_ms: u64) -> u64 {
        let refresh = Some(self.refresh_at_ms).filter(|at| *at > 0);
        let due = [self.machine.next_ms(), self.report.next_ms(), refresh, self.expires_ms()];
        let due = due.into_iter().flatten().min().unwrap_or(u64::MAX);
        due.saturating_sub(now_ms).clamp(1, LONGEST_SLEEP_MS)
    }

    /// When the Pod has run for as long as it may, in monotonic milliseconds; none once that has been said.
    fn expires_ms(&self) -> Option<u64> {
        let allowed = self.machine.may_run_ms()?;
        let told = self.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        let began_ms = told.map_or(self.taken_ms, |time| time.0.as_millisecond());
        let now = self.node.clock.now();
        let ran_ms = u64::try_from(now.wall_ms.saturating_sub(began_ms)).unwrap_or(0);
        Some(now.mono_ms + allowed.saturating_sub(ran_ms))
    }

    fn heed(&mut self, pod: Arc<Pod>) {
        self.pod = pod;
        if pods::is_leaving(&self.pod) {
            let seconds = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(30).max(0).unsigned_abs();
            self.input(Input::Delete { grace_ms: seconds * 1000 });
        }
        self.refresh_soon();
    }

    /// The object is gone while processes may still run: they get the grace the Pod asked for.
    fn vanish(&mut self) {
        if !self.missing {
            self.missing = true;
            let grace_ms = self.machine.plan.grace_ms;
            self.input(Input::Delete { grace_ms });
        }
    }

    fn input(&mut self, input: Input) {
        if let Input::Exited { index, .. } = &input
            && let Some(hook) = self.hooks.remove(index)
        {
            hook.abort();
        }
        let commands = self.machine.handle(input, self.node.clock.now());
        self.execute(commands);
    }

    fn happened(&mut self, happening: Happening) {
        match happening {
            Happening::Input(input) => self.input(input),
            Happening::Began { index, run } => {
                let started_ms = run.record.started_ms;
                self.runs.insert(index, run);
                self.input(Input::Started { index, started_ms });
            }
            Happening::Reported(outcome) => self.reported(outcome),
            Happening::Token { audience, token } => self.token_came(audience, token),
        }
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Prepare => self.prepare(),
                Command::Start { index, attempt, backoff } => self.start(index, attempt, backoff),
                Command::Probe { index, attempt, kind } => self.probe(index, attempt, kind),
                Command::Stop { index, grace_ms } => self.stop(index, grace_ms),
                Command::Kill { index } => self.kill(index),
                Command::Say { warning, reason, note } => self.say(warning, reason, note),
            }
        }
    }

    /// Publishes an event unless the same was said a moment ago.
    fn say(&mut self, warning: bool, reason: &'static str, note: String) {
        let now = self.node.clock.now().mono_ms;
        self.said.retain(|_, at| now.saturating_sub(*at) < SAY_AGAIN_MS);
        let wording = format!("{reason} {note}");
        if self.said.contains_key(&wording) || self.said.len() >= SAID_LIMIT {
            self.node.counters.events_held.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return;
        }
        self.said.insert(wording, now);
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        let (node, pod) = (self.node.clone(), self.pod.clone());
        tokio::spawn(async move { act::remark(&node.recorder, pod.as_ref(), kind, reason, note).await });
    }

    fn take_address(&mut self) {
        let host_network = self.pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        if host_network {
            self.pod_ip = Some(self.node.settings.address.to_string());
            return;
        }
        match self.node.addresses.lock().take(&self.uid) {
            Ok(address) => self.pod_ip = Some(address.to_string()),
            Err(error) => tracing::warn!(pod = %self.pod.name_any(), error = %error, "no address for a pod"),
        }
    }
}
