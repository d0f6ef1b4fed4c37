//! A sandbox with fake cells and the real operator in one process. Pods are declared Ready by the harness: no node agent runs.

pub mod fakes;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use cell_crds::condition::is_ready;
use cell_crds::{Cell, Fleet, Move, StorageCell};
use cell_operator::{Config, RunError};
use cell_runtime::directory::{DirectoryConfig, Registration};
use cell_runtime::{CancellationToken, Directory};
use cell_sandbox::server::{Options, Ready, run as run_sandbox};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use fakes::Fakes;

pub const NAMESPACE: &str = "fleet";
const PREFIX: &str = "/cellplane/fleet/";
/// How long a test waits for anything.
pub const LIMIT: Duration = Duration::from_secs(60);

pub struct Harness {
    pub client: Client,
    pub kubernetes: kube::Config,
    pub token: String,
    pub etcd: String,
    pub fakes: Fakes,
    directory: Directory,
    registrations: Vec<Registration>,
    stop: CancellationToken,
    /// The same for every life of the operator, as a Service's is.
    api_port: u16,
    _state: tempfile::TempDir,
}

/// A running operator.
pub struct Operator {
    task: JoinHandle<Result<(), RunError>>,
    stop: CancellationToken,
    pub admin_port: u16,
    pub api_port: u16,
}

impl Operator {
    /// Ends it as a crash does: nothing is finished, the Lease is not released.
    pub async fn crash(self) {
        self.task.abort();
        let _aborted = self.task.await;
        self.stop.cancel();
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// What a path of a port answers; none while it is not open yet.
    pub async fn ask(port: u16, path: &str) -> Option<(u16, String)> {
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        Some(http(&format!("127.0.0.1:{port}"), "GET", path, None, "").await)
    }

    /// The sum of a counter over all its labels; 0 while the port is not open yet.
    pub async fn counter(&self, name: &str) -> u64 {
        if tokio::net::TcpStream::connect(("127.0.0.1", self.admin_port)).await.is_err() {
            return 0;
        }
        let text = http(&format!("127.0.0.1:{}", self.admin_port), "GET", "/metrics", None, "").await.1;
        let lines = text.lines().filter(|line| line.starts_with(&format!("cellplane_operator_{name}_total")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// One HTTP/1 exchange; the body of the answer must have a length or end with the connection.
pub async fn http(address: &str, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let auth = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{auth}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Waits until `look` gives something; panics with `what` and the last thing seen at the limit.
pub async fn eventually<T, Fut>(what: &str, mut look: impl FnMut() -> Fut) -> T
where
    Fut: Future<Output = Result<T, String>>,
{
    let started = std::time::Instant::now();
    loop {
        match look().await {
            Ok(found) => return found,
            Err(last) if started.elapsed() > LIMIT => panic!("{what} did not happen: {last}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

impl Harness {
    pub async fn start() -> Self {
        let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
        cell_runtime::telemetry::init(cell_runtime::telemetry::LogFormat::Text);
        let state = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let ready = sandbox(state.path().to_owned(), stop.clone()).await;
        let read = Kubeconfig::read_from(&ready.kubeconfig).unwrap();
        let kubernetes = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(kubernetes.clone()).unwrap();
        let etcd = ready.etcd.trim_start_matches("http://").to_owned();
        let text = std::fs::read_to_string(&ready.kubeconfig).unwrap();
        let token = text.lines().find_map(|line| line.trim().trim_start_matches("- ").strip_prefix("token: ")).unwrap();
        let config = DirectoryConfig { endpoints: vec![etcd.clone()], prefix: PREFIX.into(), state_dir: None };
        let harness = Self {
            token: token.trim_matches('"').to_owned(),
            directory: Directory::start(config, stop.clone()),
            fakes: Fakes::default(),
            registrations: Vec::new(),
            client,
            kubernetes,
            etcd,
            stop,
            api_port: free_port(),
            _state: state,
        };
        harness.install().await;
        tokio::spawn(declare_ready(harness.client.clone(), harness.stop.clone()));
        harness
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn install(&self) {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for definition in cell_crds::all() {
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let metadata = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
        let namespace = k8s_openapi::api::core::v1::Namespace { metadata, ..Default::default() };
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }

    pub fn operator(&self) -> Operator {
        operator(self.kubernetes.clone(), "cellplane-operator-0", self.api_port)
    }

    /// Another operator beside the first.
    pub fn standby(&self) -> Operator {
        operator(self.kubernetes.clone(), "cellplane-operator-1", free_port())
    }

    /// A token of a ServiceAccount that no rule speaks of.
    pub async fn service_account_token(&self) -> String {
        let accounts = self.api::<ServiceAccount>();
        let metadata = ObjectMeta { name: Some("bot".into()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let spec = TokenRequestSpec { audiences: Vec::new(), expiration_seconds: Some(600), bound_object_ref: None };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let issued = accounts.create_token_request("bot", &PostParams::default(), &request).await.unwrap();
        issued.status.unwrap().token
    }

    /// A cell's processes appear in the directory.
    pub async fn run_cell(&mut self, cell: &str) {
        for member in self.fakes.start(cell, "main").await {
            self.registrations.push(self.directory.register(member));
        }
    }

    /// A StorageCell with a store that lives, and the coordinator of a migration to it.
    pub async fn run_storage(&mut self, name: &str, migration: &str) {
        self.create::<StorageCell>(json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "StorageCell",
            "metadata": {"name": name}, "spec": {"engine": "embedded", "embedded": {"size": "1Gi"}}}))
            .await;
        for store in ["main", name] {
            let member = fakes::member_of(cell_proto::directory::Role::Store, store, store, "127.0.0.1:1");
            self.registrations.push(self.directory.register(member));
        }
        let coordinator = self.fakes.start_coordinator(migration).await;
        self.registrations.push(self.directory.register(coordinator));
    }

    /// What a key of the fleet's etcd holds.
    pub async fn stored(&self, key: impl FnOnce(&cell_proto::directory::Keys) -> String) -> Option<String> {
        let mut client = self.directory.connect().await.unwrap();
        let found = client.get(key(self.directory.keys()), None).await.unwrap();
        found.kvs().first().map(|pair| pair.value_str().unwrap().to_owned())
    }

    /// A guild node reports how busy a guild is.
    pub async fn report_load(&self, guild_id: &str, sessions: i64) {
        let load = json!({"guilds": [{"guildId": guild_id, "sessions": sessions, "messagesPerSecond": 0}]});
        let key = self.directory.keys().load("shared-1-guild-0");
        self.directory.put(&key, load.to_string().into_bytes(), None).await.unwrap();
    }

    pub async fn create<K>(&self, spec: serde_json::Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let object: K = serde_json::from_value(spec).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Two cells on one StorageCell and the Fleet over them.
    pub async fn create_fleet(&self) {
        let group = "cellplane.dev/v1alpha1";
        self.create::<StorageCell>(json!({"apiVersion": group, "kind": "StorageCell", "metadata": {"name": "main"},
            "spec": {"engine": "embedded", "embedded": {"size": "1Gi", "storageClassName": "cellplane-local"}}}))
            .await;
        for cell in ["shared-1", "shared-2"] {
            self.create_cell(cell).await;
        }
        self.create::<Fleet>(json!({"apiVersion": group, "kind": "Fleet", "metadata": {"name": "prod"}, "spec": {
            "etcd": {"endpoints": [self.etcd], "prefix": PREFIX},
            "entry": {"host": "127.0.0.1", "port": 30080},
            "image": {"cell": "cellplane/cell:dev"},
            "bootstrapCells": ["shared-1", "shared-2"],
            "dedicatedTemplate": {"roles": {"gateway": {"replicas": 1}, "guild": {"replicas": 1}, "data": {"replicas": 1}}},
        }}))
        .await;
    }

    pub async fn create_cell(&self, name: &str) {
        self.create::<Cell>(json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Cell", "metadata": {"name": name},
            "spec": {"storageCellRef": "main", "roles": {"gateway": {"replicas": 1}, "guild": {"replicas": 1}, "data": {"replicas": 1}}}}))
            .await;
    }

    pub async fn fleet_ready(&self) -> Fleet {
        eventually("the fleet getting Ready", || async {
            let fleet = self.api::<Fleet>().get("prod").await.unwrap();
            let status = fleet.status.clone().unwrap_or_default();
            if is_ready(&status.conditions, fleet.metadata.generation) { Ok(fleet) } else { Err(format!("{status:?}")) }
        })
        .await
    }

    pub async fn create_move(&self, name: &str, spec: serde_json::Value) -> Move {
        self.create::<Move>(
            json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Move", "metadata": {"name": name}, "spec": spec}),
        )
        .await
    }

    pub async fn move_ended(&self, name: &str) -> Move {
        eventually("the move's end", || async {
            let one = self.api::<Move>().get(name).await.unwrap();
            let status = one.status.clone().unwrap_or_default();
            if status.result.is_some() { Ok(one) } else { Err(format!("{status:?}")) }
        })
        .await
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts an operator against any Kubernetes API.
pub fn operator(kubernetes: kube::Config, member_id: &str, api_port: u16) -> Operator {
    let admin_port = free_port();
    let stop = CancellationToken::new();
    let config = Config {
        namespace: NAMESPACE.into(),
        member_id: member_id.into(),
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        api_port,
        admin_port,
        etcd_endpoints: Vec::new(),
        cell_plaintext: false,
    };
    let task = tokio::spawn(cell_operator::run(config, kubernetes, stop.clone()));
    Operator { task, stop, admin_port, api_port }
}

/// Free a moment ago. Another process may take it first; then the operator's start says so.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn sandbox(state_dir: PathBuf, stop: CancellationToken) -> Ready {
    let (tell, told) = tokio::sync::oneshot::channel();
    let options = Options {
        state_dir,
        listen_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        etcd_port: 0,
        kubernetes_port: 0,
        controllers: true,
    };
    let announce = move |ready: &Ready| drop(tell.send(ready.clone()));
    tokio::spawn(async move { run_sandbox(options, announce, stop.cancelled_owned()).await.unwrap() });
    tokio::time::timeout(LIMIT, told).await.unwrap().unwrap()
}

/// Plays the kubelet: every Pod is Running and Ready soon after it was made, and gone soon after it was deleted.
async fn declare_ready(client: Client, stop: CancellationToken) {
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    while !stop.is_cancelled() {
        for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            if pod.metadata.deletion_timestamp.is_some() {
                let params = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
                let _gone_already = pods.delete(&pod.name_any(), &params).await;
                continue;
            }
            let ready = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
            if !ready {
                let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                let patch = Patch::Merge(&status);
                let _deleted_meanwhile = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
