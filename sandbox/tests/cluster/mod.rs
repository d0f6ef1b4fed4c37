//! A whole small cluster for tests: the sandbox's API in this process, node agents as processes of their own. Each cluster holds a
//! loopback /16 of its own. Everything it started is ended when it is dropped, and nothing else.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cell_sandbox::controllers;
use cell_sandbox::kube_api;
use cell_sandbox::node::process::strays;
use cell_sandbox::store::{Store, StoreOptions};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long a test waits for anything.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// One test's cluster.
pub struct Cluster {
    pub dir: TempDir,
    pub client: Client,
    pub kubeconfig: PathBuf,
    pub token: String,
    octet: u8,
    agents: BTreeMap<u8, Child>,
    controllers: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    api: Option<(kube_api::serve::KubeApi, Store)>,
    kubernetes_port: u16,
    _range: TcpListener,
}

/// Takes a free 127.x.0.0/16: whoever can listen on its last address has it.
fn take_range() -> (u8, TcpListener) {
    (128..=250)
        .find_map(|octet| Some((octet, TcpListener::bind((Ipv4Addr::new(127, octet, 255, 254), 61_000)).ok()?)))
        .expect("a free loopback range")
}

impl Cluster {
    /// The API and the controllers, with a short node grace; agents are started by [`Cluster::agent`].
    pub async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let (octet, range) = take_range();
        let (api, store) = serve(dir.path(), octet, 0).await;
        let client = connect(&api.kubeconfig).await;
        let mut cluster = Self {
            client,
            kubeconfig: api.kubeconfig.clone(),
            token: api.token().to_owned(),
            kubernetes_port: api.address.port(),
            octet,
            agents: BTreeMap::new(),
            controllers: None,
            api: Some((api, store)),
            dir,
            _range: range,
        };
        cluster.start_controllers();
        cluster
    }

    fn start_controllers(&mut self) {
        let (stop, stopped) = oneshot::channel::<()>();
        let options = controllers::Options {
            node_grace: Duration::from_secs(4),
            eviction_after: Duration::from_secs(300),
            resync: Duration::from_secs(1),
            job_backoff: controllers::job::Backoff { first: 1, most: 2 },
        };
        let running = controllers::run_with(self.client.clone(), options, async {
            let _ = stopped.await;
        });
        self.controllers = Some((stop, tokio::spawn(running)));
    }

    /// Ends API and controllers, as when the sandbox process stops; agents and Pods go on.
    pub async fn stop_api(&mut self) {
        if let Some((stop, task)) = self.controllers.take() {
            let _ = stop.send(());
            let _ = task.await;
        }
        if let Some((api, store)) = self.api.take() {
            api.stop().await;
            store.close().await;
        }
    }

    /// Serves the same store at the same port again.
    pub async fn start_api(&mut self) {
        let (api, store) = serve(self.dir.path(), self.octet, self.kubernetes_port).await;
        self.api = Some((api, store));
        self.start_controllers();
    }

    /// The node's own address.
    pub fn node_address(&self, number: u8) -> IpAddr {
        Ipv4Addr::new(127, self.octet, number, 1).into()
    }

    /// The agent's state directory.
    pub fn state(&self, number: u8) -> PathBuf {
        self.dir.path().join(format!("node-{number}"))
    }

    /// Starts the agent of node `n<number>` in a zone.
    pub fn agent(&mut self, number: u8, zone: &str) {
        self.agent_with(number, zone, &[]);
    }

    /// The same with further flags.
    pub fn agent_with(&mut self, number: u8, zone: &str, more: &[&str]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("agent-{number}.log")));
        let child = Command::new(env!("CARGO_BIN_EXE_cell-node"))
            .args(["--node-name", &format!("n{number}"), "--zone", zone])
            .args(["--address", &self.node_address(number).to_string()])
            .args(["--pod-cidr", &format!("127.{}.{number}.0/24", self.octet)])
            .args(["--kubeconfig", self.kubeconfig.to_str().unwrap()])
            .args(["--state-dir", self.state(number).to_str().unwrap()])
            .args(["--image", "sh:test=/bin/sh", "--heartbeat", "0.5", "--restart-backoff", "1"])
            .args(more)
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        self.agents.insert(number, child);
    }

    /// SIGKILLs an agent; its Pods go on.
    pub fn kill_agent(&mut self, number: u8) {
        if let Some(mut child) = self.agents.remove(&number) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Every process recorded under a node's state: (shim, container) pids of runs not ended.
    pub fn processes(&self, number: u8) -> Vec<(i32, i32)> {
        let mut found = Vec::new();
        walk(&self.state(number).join("run"), &mut |path| {
            let ended = path.with_file_name("exit.json").exists();
            if path.ends_with("record.json") && !ended {
                let record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
                let pid = |name: &str| i32::try_from(record[name].as_i64().unwrap()).unwrap();
                found.push((pid("shimPid"), pid("pid")));
            }
        });
        found
    }

    /// A power cut at one node: agent, shims and processes are killed at once.
    pub fn cut_power(&mut self, number: u8) {
        let processes = self.processes(number);
        self.kill_agent(number);
        for (shim, process) in processes {
            kill(shim);
            kill(process);
        }
    }

    /// Creates or updates by server-side apply.
    pub async fn apply(&self, api_path: &str, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap();
        let uri = format!("{api_path}/{name}?fieldManager=test&force=true");
        let request = http::Request::patch(uri)
            .header("content-type", "application/apply-patch+yaml")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        self.client.request(request).await.unwrap()
    }

    /// Pods of the default namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// One Pod when `test` holds for it.
    pub async fn pod_when(&self, name: &str, what: &str, test: impl Fn(&Pod) -> bool) -> Pod {
        let api = self.pods();
        eventually(&format!("pod {name} {what}"), || async { api.get_opt(name).await.ok().flatten().filter(&test) })
            .await
    }

    /// Waits until so many nodes are Ready.
    pub async fn nodes_ready(&self, count: usize) {
        let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        eventually(&format!("{count} ready nodes"), || async {
            let nodes = api.list(&ListParams::default()).await.ok()?.items;
            let ready = nodes.iter().filter(|node| controllers::scheduler::NodeView::of(node).ready).count();
            (ready == count).then_some(())
        })
        .await;
    }

    /// Cordons or uncordons a node.
    pub async fn cordon(&self, number: u8, cordoned: bool) {
        let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        let body = json!({ "spec": { "unschedulable": cordoned } });
        api.patch(&format!("n{number}"), &PatchParams::default(), &Patch::Merge(&body)).await.unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for number in self.agents.keys() {
                let log =
                    std::fs::read_to_string(self.dir.path().join(format!("agent-{number}.log"))).unwrap_or_default();
                eprintln!("agent {number}:\n{log}");
            }
        }
        let numbers: Vec<u8> = (1..=9).collect();
        for number in numbers {
            let processes = self.processes(number);
            self.kill_agent(number);
            for (shim, process) in processes.into_iter().chain(self.processes(number)) {
                kill(shim);
                kill(process);
            }
            for uid in std::fs::read_dir(self.state(number).join("run")).into_iter().flatten().flatten() {
                let mark = format!("{}/", uid.file_name().to_string_lossy());
                strays::end(|| strays::marked(&mark), || ());
            }
        }
    }
}

async fn serve(dir: &Path, octet: u8, port: u16) -> (kube_api::serve::KubeApi, Store) {
    std::fs::create_dir_all(dir.join("api")).unwrap();
    let store = Store::open(&dir.join("store"), StoreOptions::sandbox()).unwrap();
    let listen = (Ipv4Addr::new(127, octet, 0, 1), port).into();
    let api = kube_api::serve::serve(store.clone(), &dir.join("api"), listen).await.unwrap();
    (api, store)
}

async fn connect(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, visit) } else { visit(&path) }
    }
}

/// SIGKILLs one process by pid.
pub fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Waits until `look` finds something; fails with `what` after the deadline.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "not seen in time: {what}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// True when the Pod is Ready and stays.
pub fn ready(pod: &Pod) -> bool {
    controllers::pods::is_ready(pod)
}

/// Restarts of the Pod's first container.
pub fn restarts(pod: &Pod) -> i32 {
    pod.status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref()?.first())
        .map_or(0, |one| one.restart_count)
}

/// The Pod's address.
pub fn address(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default()
}

/// A Pod that runs a shell script.
pub fn shell_pod(name: &str, script: &str, more: Value) -> Value {
    let mut container = json!({ "name": "main", "image": "sh:test", "args": ["-c", script] });
    let mut spec = json!({ "terminationGracePeriodSeconds": 2 });
    for (key, value) in more.as_object().into_iter().flatten() {
        match key.as_str() {
            "container" => container.as_object_mut().unwrap().extend(value.as_object().unwrap().clone()),
            _ => spec[key] = value.clone(),
        }
    }
    spec["containers"] = json!([container]);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default", "labels": { "app": name } }, "spec": spec })
}

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
