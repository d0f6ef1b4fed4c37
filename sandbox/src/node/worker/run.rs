//! Prepares a Pod's volumes, starts its containers, probes and stops them: each in a task that reports back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, Probe};
use kube::ResourceExt;
use rustix::process::Signal;

use super::{Happening, Run, Worker, tokens};
use crate::node::environment::{self, Sources};
use crate::node::images::program_of;
use crate::node::logs::log_path;
use crate::node::machine::Input;
use crate::node::machine::backoff::Backoff;
use crate::node::machine::probe::ProbeKind;
use crate::node::probing::{self, ProbeError, Target};
use crate::node::process::record::{RunFolder, RunSpec, attempts};
use crate::node::process::start::{self, Outcome, exit_of};
use crate::node::process::strays::MARK;
use crate::node::shared::Node;
use crate::node::volume::place;
use crate::node::volume::source::{self, Shelf, VolumeError};

/// What the volume and environment code needs of a Pod, owned so that a task can take it.
struct Setting {
    node: Node,
    pod: Arc<Pod>,
    uid: String,
    pod_ip: String,
    tokens: tokens::Held,
    kubeconfig: Option<PathBuf>,
}

impl Setting {
    fn with<T>(&self, use_it: impl FnOnce(&Shelf<'_>) -> T) -> T {
        let namespace = self.pod.namespace().unwrap_or_default();
        let host_ip = self.node.settings.address.to_string();
        let config_map = |name: &str| self.node.config_maps.get(&namespace, name);
        let secret = |name: &str| self.node.secrets.get(&namespace, name);
        let sources = Sources {
            pod: &self.pod,
            pod_ip: &self.pod_ip,
            host_ip: &host_ip,
            node_size: self.node.settings.size,
            config_map: &config_map,
            secret: &secret,
        };
        let folder = self.node.mounts_folder(&self.uid);
        let claim = |name: &str| self.node.claims.get(&namespace, name);
        let volume = |name: &str| self.node.volumes.get("", name);
        let token = |audience: &str| self.tokens.get(audience);
        use_it(&Shelf { folder: &folder, sources: &sources, claim: &claim, volume: &volume, token: &token })
    }

    fn prepare(&self) -> Result<(), VolumeError> {
        let folder = self.node.pod_folder(&self.uid);
        let failed = |error| place::PlaceError::Files(folder.display().to_string(), error);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let mounts = place::mounts(&self.pod)?;
        let volumes = self.with(|shelf| source::ready(&self.pod, shelf))?;
        place::link(&folder, &mounts, &|name| volumes.get(name).cloned())?;
        Ok(())
    }

    fn refresh(&self) -> Result<usize, VolumeError> {
        self.with(|shelf| source::refresh(&self.pod, shelf))
    }

    /// The run's spec, or the waiting reason and message why there is none.
    fn spec(&self, container: &Container, attempt: u32, backoff: Backoff) -> Result<RunSpec, (&'static str, String)> {
        let settings = &self.node.settings;
        let folder = self.node.pod_folder(&self.uid);
        let image = container.image.clone().unwrap_or_default();
        let program = self.node.images.program(&image).map_err(|error| ("ErrImageNeverPull", error.to_string()))?;
        let base = self.node.base_env(&self.pod.name_any(), &self.uid, self.kubeconfig.clone());
        let resolved = self
            .with(|shelf| environment::resolve(container, shelf.sources, base))
            .map_err(|error| ("CreateContainerConfigError", error.to_string()))?;
        let path = resolved.env.get("PATH").cloned().unwrap_or_default();
        let program = program_of(program, &resolved.command, &folder, &path)
            .map_err(|error| ("CreateContainerError", error.to_string()))?;
        let message = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
        let message = place::relative(message).map(|path| folder.join(path));
        let directory = match container.working_dir.as_deref().and_then(place::relative) {
            Some(path) => folder.join(path),
            None => folder,
        };
        let mut spec = RunSpec {
            pod_uid: self.uid.clone(),
            container: container.name.clone(),
            attempt,
            backoff_ms: backoff.wait_ms,
            exits: backoff.exits,
            program,
            args: resolved.command.iter().skip(1).chain(&resolved.args).cloned().collect(),
            env: resolved.env.into_iter().collect(),
            directory,
            message,
            log: log_path(&settings.state, &self.uid, &container.name, attempt),
            log_bytes: settings.log_bytes,
            log_files: settings.log_files,
            most_processes: settings.most_processes,
        };
        let mark = spec.mark();
        spec.env.push((MARK.to_owned(), mark));
        Ok(spec)
    }
}

impl Worker {
    fn setting(&self) -> Setting {
        Setting {
            node: self.node.clone(),
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            pod_ip: self.pod_ip.clone().unwrap_or_default(),
            tokens: self.tokens.held(),
            kubeconfig: self.kubeconfig(),
        }
    }

    fn container(&self, index: usize) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        let name = &self.machine.containers.get(index)?.plan.name;
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        all.find(|container| container.name == *name).cloned()
    }

    /// Makes volumes ready, in a task; first the tokens they hold must have come, which calls this again.
    pub(super) fn prepare(&mut self) {
        if self.pod_ip.is_none() {
            self.take_address();
        }
        let address_missing = self.pod_ip.is_none();
        let wanted = self.tokens.wanted();
        self.ask_for_tokens(&wanted);
        if self.tokens.waiting() {
            return;
        }
        let (setting, happenings) = (self.setting(), self.happenings.clone());
        tokio::task::spawn(async move {
            let outcome = if address_missing {
                Err("no free address for the Pod on this node".to_owned())
            } else {
                let prepared = tokio::task::spawn_blocking(move || setting.prepare()).await;
                prepared.map_err(|error| error.to_string()).and_then(|done| done.map_err(|error| error.to_string()))
            };
            let input = outcome.map_or_else(Input::PrepareFailed, |()| Input::Prepared);
            let _ = happenings.send(Happening::Input(input)).await;
        });
    }

    /// Notes that volume content may have changed.
    pub(super) fn refresh_soon(&mut self) {
        if self.refresh_at_ms == 0 && self.machine.prepared {
            self.refresh_at_ms = self.node.clock.now().mono_ms + 50;
        }
    }

    /// Writes changed volume content again.
    pub(super) fn refresh_if_due(&mut self) {
        let now = self.node.clock.now().mono_ms;
        if self.refresh_at_ms == 0 || self.refresh_at_ms > now {
            return;
        }
        self.refresh_at_ms = 0;
        let setting = self.setting();
        tokio::task::spawn_blocking(move || match setting.refresh() {
            Ok(0) => {}
            Ok(changed) => tracing::info!(pod = %setting.uid, changed, "volume content replaced"),
            Err(error) => tracing::debug!(pod = %setting.uid, error = %error, "volume content kept"),
        });
    }

    /// Starts a container, in a task.
    pub(super) fn start(&mut self, index: usize, attempt: u32, backoff: Backoff) {
        let Some(container) = self.container(index) else { return };
        let (setting, happenings) = (self.setting(), self.happenings.clone());
        let node = self.node.clone();
        tokio::spawn(async move {
            let happening = match setting.spec(&container, attempt, backoff) {
                Err((reason, message)) => Happening::Input(Input::StartFailed { index, reason, message }),
                Ok(spec) => begin(&node, index, &spec).await,
            };
            node.counters.starts.fetch_add(1, Ordering::Relaxed);
            let begun = match &happening {
                Happening::Began { run, .. } => Some(run.clone()),
                _ => None,
            };
            let _ = happenings.send(happening).await;
            // Only now: a process that ends at once must not be heard to end before it is heard to begin.
            if let Some(run) = begun {
                spawn_watch(&node, happenings.clone(), index, run);
            }
            forget_old_runs(&node, &setting.uid, &container.name, attempt);
        });
    }

    /// Waits for a run's end, in a task.
    pub(super) fn watch(&self, index: usize, run: Run) {
        spawn_watch(&self.node, self.happenings.clone(), index, run);
    }

    /// Tries a probe, in a task.
    pub(super) fn probe(&mut self, index: usize, attempt: u32, kind: ProbeKind) {
        let Some(container) = self.container(index) else { return };
        let probe: Option<Probe> = match kind {
            ProbeKind::Startup => container.startup_probe.clone(),
            ProbeKind::Readiness => container.readiness_probe.clone(),
            ProbeKind::Liveness => container.liveness_probe.clone(),
        };
        let Some(probe) = probe else { return };
        let target = self.target(index, container);
        let happenings = self.happenings.clone();
        tokio::spawn(async move {
            let outcome = probing::attempt(&probe, &target).await;
            let message = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
            let input = Input::Probed { index, attempt, kind, success: outcome.is_ok(), message };
            let _ = happenings.send(Happening::Input(input)).await;
        });
    }

    fn target(&self, index: usize, container: Container) -> Target {
        let spec = self.runs.get(&index).and_then(|run| run.folder.spec());
        let folder = self.node.pod_folder(&self.uid);
        Target {
            container,
            pod_ip: self.pod_ip.clone().unwrap_or_default(),
            env: spec.as_ref().map(|spec| spec.env.iter().cloned().collect()).unwrap_or_default(),
            directory: spec.map_or(folder, |spec| spec.directory),
        }
    }

    /// Runs the preStop hook, then sends SIGTERM, in a task. Without a grace there is no hook.
    pub(super) fn stop(&mut self, index: usize, grace_ms: u64) {
        let Some(run) = self.runs.get(&index).cloned() else { return };
        let Some(container) = self.container(index) else { return };
        let hook = container.lifecycle.clone().and_then(|lifecycle| lifecycle.pre_stop).filter(|_| grace_ms > 0);
        let Some(hook) = hook else {
            start::signal(&run.record, Signal::TERM);
            return;
        };
        let target = self.target(index, container);
        let happenings = self.happenings.clone();
        let hooking = tokio::spawn(async move {
            let limit = Duration::from_millis(grace_ms);
            let ended = tokio::time::timeout(limit, run_hook(&hook, &target, limit)).await;
            let failure = match ended {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("not over within the grace of {} s", limit.as_secs())),
            };
            start::signal(&run.record, Signal::TERM);
            let _ = happenings.send(Happening::Input(Input::Hooked { index, attempt: run.attempt, failure })).await;
        });
        self.hooks.insert(index, hooking.abort_handle());
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self, index: usize) {
        if let Some(run) = self.runs.get(&index) {
            start::signal(&run.record, Signal::KILL);
        }
    }
}

async fn run_hook(hook: &LifecycleHandler, target: &Target, limit: Duration) -> Result<(), ProbeError> {
    if let Some(exec) = &hook.exec {
        return probing::run(exec.command.as_deref().unwrap_or(&[]), target, limit).await;
    }
    if let Some(action) = &hook.http_get {
        return probing::http_get(action, target).await;
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0).unsigned_abs())).await;
    }
    Ok(())
}

async fn begin(node: &Node, index: usize, spec: &RunSpec) -> Happening {
    let folder = RunFolder::of(&node.settings.state, &spec.pod_uid, &spec.container, spec.attempt);
    let attempt = spec.attempt;
    match start::start(&node.settings.program, &folder, spec).await {
        Ok(Outcome::Running(record)) => Happening::Began { index, run: Run { attempt, folder, record } },
        Ok(Outcome::Ended(exit)) => Happening::Input(Input::Exited { index, attempt, exit: exit_of(&exit) }),
        Err(error) => {
            Happening::Input(Input::StartFailed { index, reason: "CreateContainerError", message: error.to_string() })
        }
    }
}

fn spawn_watch(node: &Node, happenings: tokio::sync::mpsc::Sender<Happening>, index: usize, run: Run) {
    let node = node.clone();
    tokio::spawn(async move {
        let exit = start::wait_for_end(&run.folder, &run.record).await;
        node.counters.exits.fetch_add(1, Ordering::Relaxed);
        let input = Input::Exited { index, attempt: run.attempt, exit };
        let _ = happenings.send(Happening::Input(input)).await;
    });
}

/// Of earlier runs only the one before the present one is kept, with its log.
fn forget_old_runs(node: &Node, uid: &str, container: &str, attempt: u32) {
    let state = &node.settings.state;
    for old in attempts(state, uid, container).into_iter().filter(|old| old + 1 < attempt) {
        let _ = std::fs::remove_dir_all(RunFolder::of(state, uid, container, old).0);
        let log = log_path(state, uid, container, old);
        for age in 0..node.settings.log_files {
            let _ = std::fs::remove_file(crate::node::logs::rotated(&log, age));
        }
    }
}
