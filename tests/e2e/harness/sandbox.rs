//! One sandbox of one test: made and taken down by `cellctl`, whatever becomes of the test.

use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cellctl::args::Global;
use cellctl::connect::Connection;
use cellctl::demo::rest::Rest;
use cellctl::kinds::Kind;
use cellctl::sandbox::down::pod_processes;
use cellctl::sandbox::network::Network;
use cellctl::sandbox::objects::NAMESPACE;
use cellctl::sandbox::state::StateDir;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::seats::Seat;
use super::{logs, programs, wait_for};

const COMMAND_DEADLINE: Duration = Duration::from_secs(240);
const MANAGER: &str = "e2e";
/// On a machine that is too busy to answer for seconds, an operator ends itself and is started again; what comes of that is looked at.
const BUSY: &str = "leadership was lost";

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit code.
    pub code: i32,
    /// Data.
    pub stdout: String,
    /// Everything else.
    pub stderr: String,
}

impl Ended {
    /// The command did what it was told.
    pub fn done(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Standard output read as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {:?}; {}", self.stdout, self.stderr))
    }
}

/// A state directory that need not hold a sandbox yet.
pub struct Home {
    folder: tempfile::TempDir,
    /// The state directory.
    pub state: StateDir,
    allowed: Vec<&'static str>,
    _seat: Seat,
}

impl Home {
    /// An empty one.
    pub async fn new(name: &str) -> Self {
        // The only error is that a provider is installed already, which is what is wanted.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // First of all, so that a failure of it leaves nothing to clean up.
        programs::folder();
        let seat = Seat::take().await;
        let folder = tempfile::Builder::new().prefix(&format!("cellplane-e2e-{name}-")).tempdir().unwrap();
        let state = StateDir::find("e2e", Some(&folder.path().join("state"))).unwrap();
        Self { folder, state, allowed: vec![BUSY], _seat: seat }
    }

    /// Runs `cellctl` with these words; those about the cluster mean this sandbox.
    pub async fn cellctl(&self, words: &[&str]) -> Ended {
        let mut command = tokio::process::Command::new(programs::folder().join("cellctl"));
        command.args(words).env("NO_COLOR", "1").env("KUBECONFIG", self.state.kubeconfig()).stdin(Stdio::null());
        command.env("HOME", self.folder.path()).env_remove("XDG_STATE_HOME").kill_on_drop(true);
        if words.first() == Some(&"sandbox") {
            command.args(["--name", "e2e", "--state-dir"]).arg(self.state.root());
        }
        let output = timeout(COMMAND_DEADLINE, command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("cellctl {words:?} ran longer than its deadline")).unwrap();
        Ended {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// `sandbox up`, whatever comes of it.
    pub async fn try_up(&self) -> Ended {
        self.cellctl(&["sandbox", "up", "--no-build", "-o", "json"]).await
    }

    /// From here on, log lines that hold this text are no fault; `reason` says why.
    pub fn allow(&mut self, text: &'static str, reason: &'static str) {
        assert!(!reason.is_empty());
        self.allowed.push(text);
    }

    /// Kills every process that was started for this sandbox, agents and shims and Pods alike, as a power cut would.
    pub async fn cut_the_power(&self) {
        wait_for("the last process to be gone", 20, async || {
            let pids = pids_below(self.folder.path());
            pids.iter().for_each(|pid| kill(*pid));
            if pids.is_empty() { Ok(()) } else { Err(format!("{pids:?} run")) }
        })
        .await;
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            logs::print_tails(self.state.root());
        }
        if failed && std::env::var_os("CELLPLANE_E2E_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            println!("kept: {}", self.folder.path().display());
            return;
        }
        let mut down = std::process::Command::new(programs::folder().join("cellctl"));
        down.args(["sandbox", "down", "--delete", "--yes", "--name", "e2e", "--state-dir"]).arg(self.state.root());
        let down = down.stdin(Stdio::null()).output();
        if !failed && !down.as_ref().is_ok_and(|output| output.status.success()) {
            println!("sandbox down did not end well: {down:?}");
        }
        pids_below(self.folder.path()).into_iter().for_each(kill);
    }
}

/// Processes whose command line or working directory lies below a folder.
fn pids_below(folder: &Path) -> Vec<i32> {
    let word = folder.to_string_lossy().into_owned();
    let own = std::process::id();
    let of = |pid: &i32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let line = String::from_utf8_lossy(&fs::read(proc.join("cmdline")).unwrap_or_default()).into_owned();
        // A zombie has neither.
        line.contains(&word) || fs::read_link(proc.join("cwd")).is_ok_and(|path| path.starts_with(folder))
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| i64::from(*pid) != i64::from(own)).filter(of).collect()
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// A sandbox that was Ready once.
pub struct Sandbox {
    home: Home,
    /// The Kubernetes API.
    pub client: Client,
    /// The REST API behind the entry.
    pub rest: Rest,
    /// What clients connect to.
    pub entry: SocketAddr,
    /// The etcd of its fleet.
    pub etcd: String,
    /// Its addresses.
    pub network: Network,
}

impl Deref for Sandbox {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
    }
}

impl Sandbox {
    /// A new one, Ready.
    pub async fn up(name: &str) -> Self {
        let home = Home::new(name).await;
        let status = home.try_up().await.done().json();
        Self::of(home, &status).await
    }

    async fn of(home: Home, status: &Value) -> Self {
        let endpoint = |name: &str| status["endpoints"][name].as_str().unwrap().to_owned();
        let network = home.state.network().unwrap();
        let rest = Rest::new(&endpoint("rest"), network.client_address(1));
        let entry = endpoint("gateway").trim_start_matches("ws://").parse().unwrap();
        let connection = Connection::from_file(&home.state.kubeconfig(), &Global::default()).await.unwrap();
        let etcd = endpoint("etcd").trim_start_matches("http://").to_owned();
        Self { home, client: connection.client, rest, entry, etcd, network }
    }

    /// For [`Home::allow`].
    pub fn home(&mut self) -> &mut Home {
        &mut self.home
    }

    /// `sandbox up` on the same state.
    pub async fn up_again(&self) -> Ended {
        self.try_up().await.done()
    }

    /// `sandbox down`; the state stays.
    pub async fn down(&self) {
        self.cellctl(&["sandbox", "down"]).await.done();
    }

    /// The API of a kind.
    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), NAMESPACE, &kind.resource())
    }

    /// One object.
    pub async fn get(&self, kind: Kind, name: &str) -> Result<Value, String> {
        let found = self.api(kind).get(name).await.map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(found).unwrap())
    }

    /// All objects of a kind with these labels.
    pub async fn list(&self, kind: Kind, labels: &str) -> Result<Vec<Value>, String> {
        let parameters = ListParams::default().labels(labels);
        let listed = self.api(kind).list(&parameters).await.map_err(|error| error.to_string())?;
        Ok(listed.items.into_iter().map(|item| serde_json::to_value(item).unwrap()).collect())
    }

    /// Applies a resource as a person with `kubectl apply --server-side` would; the server's words where it refuses.
    pub async fn apply(&self, kind: Kind, name: &str, spec: Value) -> Result<Value, String> {
        let group = format!("{}/{}", "cellplane.dev", "v1alpha1");
        let object = json!({"apiVersion": group, "kind": kind.singular(), "metadata": {"name": name}, "spec": spec});
        let parameters = PatchParams::apply(MANAGER);
        match self.api(kind).patch(name, &parameters, &Patch::Apply(&object)).await {
            Ok(applied) => Ok(serde_json::to_value(applied).unwrap()),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Names and restart counts of the Pods.
    pub async fn restarts(&self) -> Vec<(String, i64)> {
        let pods = self.list(Kind::Pods, "").await.unwrap();
        let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(0);
        let mut found: Vec<_> =
            pods.iter().map(|pod| (pod["metadata"]["name"].as_str().unwrap().to_owned(), count(pod))).collect();
        found.sort();
        found
    }

    /// Name and address of the Pods of a component in a cell; in any where none is given.
    pub async fn pods(&self, component: &str, cell: Option<&str>) -> Vec<(String, String)> {
        let cell = cell.map(|cell| format!(",cellplane.dev/cell={cell}")).unwrap_or_default();
        let pods = self.list(Kind::Pods, &format!("app.kubernetes.io/component={component}{cell}")).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut found: Vec<_> =
            pods.iter().map(|pod| (text(&pod["metadata"]["name"]), text(&pod["status"]["podIP"]))).collect();
        found.sort();
        found
    }

    /// SIGKILL to what a Pod runs.
    pub async fn kill_pod(&self, name: &str) {
        let uid = self.get(Kind::Pods, name).await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let killed = pod_processes(&self.state)
            .into_iter()
            .filter(|process| process.pod_uid == uid && process.record.signal(Signal::KILL));
        println!("killed {name}: {} process", killed.count());
    }

    /// SIGKILL to a process of the sandbox itself.
    pub fn kill_component(&self, component: &str) {
        let record = self.state.process(component).unwrap();
        assert!(record.signal(Signal::KILL), "{component} does not run");
    }

    /// Ends a test: no process may have logged an error that is not allowed.
    pub fn end(self) {
        let errors = logs::errors(self.state.root(), &self.allowed);
        let count = errors.len();
        assert!(errors.is_empty(), "{count} unexpected errors in logs:\n{}", errors[..count.min(20)].join("\n"));
    }
}
