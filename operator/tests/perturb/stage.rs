//! One fleet in a namespace of its own, with fake cells, and its operators behind wires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cell_proto::directory::{Member, Role, RouteHint};
use cell_proto::v1::Head;
use cell_runtime::directory::{DirectoryConfig, Registration};
use cell_runtime::{CancellationToken, Directory};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::ground::{Ground, LIMIT};
use super::grpc_wire;
use super::lives::{Admin, Command, Driver};
use super::mutant::{Bug, Mutant};
use super::truth::{OURS, ready};
use super::wire::{Wire, resource};
use crate::harness::fakes::{Fakes, member_of};

/// Nobody changes anything for so long: everything that was begun has ended.
const QUIET: Duration = Duration::from_millis(350);
static STAGES: AtomicU32 = AtomicU32::new(0);

pub struct Stage {
    pub user: Client,
    pub namespace: String,
    pub wire: Arc<Wire>,
    pub fakes: Fakes,
    directory: Directory,
    registrations: Mutex<Vec<(String, Registration)>>,
    cells: grpc_wire::Sender,
    commands: mpsc::Sender<Command>,
    admin: Admin,
    pub etcd: String,
    stop: CancellationToken,
}

pub fn api(client: &Client, namespace: &str, plural: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(plural))
}

/// An answer, or none of a kind that is not served. On a busy machine a request may fail, and that says nothing of what is there.
async fn sure<T, Fut>(ask: impl Fn() -> Fut) -> Option<T>
where
    Fut: Future<Output = kube::Result<T>>,
{
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Some(answer),
            Err(kube::Error::Api(status)) if status.code == 404 => return None,
            Err(error) if began.elapsed() > LIMIT => panic!("the API server does not answer: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// All objects of a kind.
pub async fn objects(client: &Client, namespace: &str, plural: &str) -> Vec<Value> {
    let listed = sure(|| async { api(client, namespace, plural).list(&Default::default()).await }).await;
    let items = listed.map(|list| list.items).unwrap_or_default();
    items.into_iter().map(|item| serde_json::to_value(item).unwrap()).collect()
}

/// One object.
pub async fn object(client: &Client, namespace: &str, plural: &str, name: &str) -> Option<Value> {
    if name.is_empty() {
        return None;
    }
    let found = sure(|| async { api(client, namespace, plural).get_opt(name).await }).await;
    found.flatten().map(|found| serde_json::to_value(found).unwrap())
}

impl Stage {
    /// An empty namespace with one operator; `shared-1` and `shared-2` live in the directory.
    pub async fn empty(ground: &Ground, bug: Bug) -> Self {
        let number = STAGES.fetch_add(1, Ordering::Relaxed);
        let namespace = ground.namespace(number).await;
        let prefix = format!("/cellplane/{namespace}/");
        let (wire, orders) = Wire::new(ground.user.clone(), &namespace, &prefix, Mutant::of(bug));
        let stop = CancellationToken::new();
        let config = DirectoryConfig { endpoints: vec![ground.etcd.clone()], prefix, state_dir: None };
        let (commands, commanded) = mpsc::channel(4);
        let stage = Self {
            user: ground.user.clone(),
            namespace,
            wire: wire.clone(),
            fakes: Fakes::default(),
            directory: Directory::start(config, stop.clone()),
            registrations: Mutex::default(),
            cells: Arc::default(),
            commands,
            admin: Admin::default(),
            etcd: ground.etcd.clone(),
            stop,
        };
        for cell in ["shared-1", "shared-2"] {
            stage.run_cell(cell).await;
        }
        tokio::spawn(routes(stage.fakes.clone(), stage.directory.clone(), stage.stop.clone()));
        let driver = Driver::new(wire, &ground.etcd, stage.cells.clone(), stage.admin.clone(), number);
        tokio::spawn(driver.run(orders, commanded));
        stage
    }

    /// With a fleet that is Ready.
    pub async fn ready(ground: &Ground, bug: Bug) -> Result<Self, String> {
        let stage = Self::empty(ground, bug).await;
        stage.make_fleet().await;
        stage.settled("the fleet getting Ready", || stage.all_ready()).await?;
        Ok(stage)
    }

    /// A cell's processes appear in the directory, behind the wire.
    pub async fn run_cell(&self, cell: &str) {
        let members = self.fakes.start(cell, "main").await;
        let Some(first) = members.first() else { return };
        let address = grpc_wire::serve(&first.grpc_address, self.cells.clone()).await;
        for member in members {
            self.register(cell, Member { grpc_address: address.clone(), ..member });
        }
    }

    fn register(&self, of: &str, member: Member) {
        let registration = self.directory.register(member);
        self.registrations.lock().push((of.to_owned(), registration));
    }

    /// A cell's processes end and leave the directory.
    pub async fn end_cell(&self, cell: &str) {
        let ended: Vec<Registration> = {
            let mut all = self.registrations.lock();
            let (ended, kept) = std::mem::take(&mut *all).into_iter().partition(|(of, _)| of == cell);
            *all = kept;
            ended.into_iter().map(|(_, registration): (String, Registration)| registration).collect()
        };
        for registration in ended {
            registration.withdraw().await;
        }
    }

    /// A second StorageCell; the stores of both live, and so does the coordinator of a migration, behind the wire.
    pub async fn run_storage(&self, name: &str, migration: &str) {
        self.create("storagecells", name, json!({"engine": "embedded", "embedded": {"size": "1Gi"}})).await;
        for store in ["main", name] {
            self.register(store, member_of(Role::Store, store, store, "127.0.0.1:1"));
        }
        let coordinator = self.fakes.start_coordinator(migration).await;
        let address = grpc_wire::serve(&coordinator.grpc_address, self.cells.clone()).await;
        self.register(migration, Member { grpc_address: address, ..coordinator });
    }

    /// A guild node reports how busy a guild is.
    pub async fn report_load(&self, guild_id: &str, sessions: i64) {
        let load = json!({"guilds": [{"guildId": guild_id, "sessions": sessions, "messagesPerSecond": 0}]});
        let key = self.directory.keys().load("shared-1-guild-0");
        self.directory.put(&key, load.to_string().into_bytes(), None).await.unwrap();
    }

    /// Whether a key of the fleet's etcd is there.
    pub async fn has_key(&self, key: impl FnOnce(&cell_proto::directory::Keys) -> String) -> bool {
        let wanted = key(self.directory.keys());
        self.keys().await.iter().any(|(found, _)| format!("{}{found}", self.wire.prefix) == wanted)
    }

    pub async fn create(&self, plural: &str, name: &str, spec: Value) {
        let kind = resource(plural);
        let object =
            json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        api(&self.user, &self.namespace, plural).create(&PostParams::default(), &object).await.unwrap();
    }

    /// Sets fields of a spec as a user does.
    pub async fn set(&self, plural: &str, name: &str, spec: Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({"spec": spec}));
        let sent = api(&self.user, &self.namespace, plural).patch(name, &PatchParams::default(), &patch).await;
        sent.map(|_| ()).map_err(|error| error.to_string())
    }

    pub async fn delete(&self, plural: &str, name: &str) {
        let _gone_already = api(&self.user, &self.namespace, plural).delete(name, &Default::default()).await;
    }

    pub async fn get(&self, plural: &str, name: &str) -> Option<Value> {
        object(&self.user, &self.namespace, plural, name).await
    }

    /// One StorageCell, two cells and the Fleet over them.
    pub async fn make_fleet(&self) {
        let embedded =
            json!({"engine": "embedded", "embedded": {"size": "1Gi", "storageClassName": "cellplane-local"}});
        self.create("storagecells", "main", embedded).await;
        for cell in ["shared-1", "shared-2"] {
            self.create("cells", cell, small_cell()).await;
        }
        let fleet = json!({
            "etcd": {"endpoints": [self.etcd], "prefix": self.wire.prefix},
            "entry": {"host": "127.0.0.1", "port": 80, "service": "ClusterIP"},
            "image": {"cell": "cellplane/cell:dev"},
            "bootstrapCells": ["shared-1", "shared-2"],
            "dedicatedTemplate": {"roles": small_cell()["roles"]},
        });
        self.create("fleets", "prod", fleet).await;
    }

    /// Everything that has conditions is Ready, of its newest generation.
    pub async fn all_ready(&self) -> Result<(), String> {
        for plural in OURS {
            for one in objects(&self.user, &self.namespace, plural).await {
                let observed = &one["status"]["observedGeneration"];
                let is_ready = ready(&one["status"]).is_some_and(|(status, _)| status == "True");
                if !is_ready || *observed != one["metadata"]["generation"] {
                    return Err(format!("{plural}/{}: {}", one["metadata"]["name"], one["status"]));
                }
            }
        }
        Ok(())
    }

    /// Waits until `goal` holds while nobody changes anything.
    ///
    /// # Errors
    /// What was last in the way.
    pub async fn settled<Fut>(&self, what: &str, goal: impl Fn() -> Fut) -> Result<(), String>
    where
        Fut: Future<Output = Result<(), String>>,
    {
        let started = Instant::now();
        let mut last = String::new();
        while started.elapsed() < LIMIT {
            if let Some(wrong) = self.wire.violations().first() {
                return Err(wrong.clone());
            }
            if self.wire.quiet_for(QUIET) {
                match goal().await {
                    Ok(()) if self.wire.quiet_for(QUIET) => {
                        println!("{}: {what} took {:?}", self.namespace, started.elapsed());
                        return Ok(());
                    }
                    Ok(()) => "it does not come to rest".clone_into(&mut last),
                    Err(why) => last = why,
                }
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        Err(format!("{what} did not happen: {last}"))
    }

    /// Waits until `goal` holds, whatever else goes on.
    ///
    /// # Errors
    /// What was last in the way.
    pub async fn eventually<Fut>(&self, what: &str, goal: impl Fn() -> Fut) -> Result<(), String>
    where
        Fut: Future<Output = Result<(), String>>,
    {
        let started = Instant::now();
        loop {
            match goal().await {
                Ok(()) => return Ok(()),
                Err(last) if started.elapsed() > LIMIT => return Err(format!("{what} did not happen: {last}")),
                Err(_) => tokio::time::sleep(Duration::from_millis(60)).await,
            }
        }
    }

    /// Cuts every watch.
    pub fn cut(&self) {
        self.wire.cut().cancel();
    }

    /// Every operator dies and one begins anew; waits until it has looked at everything. Answers what it changed.
    ///
    /// # Errors
    /// It looked not at everything in time.
    pub async fn looks_again(&self) -> Result<Vec<String>, String> {
        let before = self.wire.effects().len();
        let (done, told) = oneshot::channel();
        self.command(Command::Restart(done), told).await;
        let looked = || async {
            let seen = self.admin.reconciles().await;
            for plural in OURS {
                let kind = plural.trim_end_matches('s');
                let there = objects(&self.user, &self.namespace, plural).await.len() as u64;
                if seen.get(kind).copied().unwrap_or_default() < there {
                    return Err(format!("{plural}: {there} are there, reconciled were {seen:?}"));
                }
            }
            Ok(())
        };
        self.settled("everything being looked at", looked).await?;
        let effects = self.wire.effects();
        Ok(effects.iter().skip(before).map(|(effect, nth)| format!("{effect}#{nth}")).collect())
    }

    /// Waits until only one operator is left.
    pub async fn alone(&self) {
        let (done, told) = oneshot::channel();
        self.command(Command::Alone(done), told).await;
    }

    async fn command(&self, command: Command, told: oneshot::Receiver<()>) {
        assert!(self.commands.send(command).await.is_ok(), "the operators' driver has ended");
        told.await.unwrap();
    }

    /// The fleet's keys in etcd, without its prefix.
    pub async fn keys(&self) -> Vec<(String, String)> {
        let mut client = self.directory.connect().await.unwrap();
        let options = etcd_client::GetOptions::new().with_prefix();
        let found = client.get(self.wire.prefix.as_str(), Some(options)).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let pair = |pair: &etcd_client::KeyValue| {
            (text(pair.key()).trim_start_matches(&self.wire.prefix).to_owned(), text(pair.value()))
        };
        found.kvs().iter().map(pair).collect()
    }
}

/// Publishes where guilds are, as guild nodes do.
async fn routes(fakes: Fakes, directory: Directory, stop: CancellationToken) {
    let mut published = BTreeMap::new();
    while !stop.is_cancelled() {
        let heads: Vec<(String, RouteHint)> = {
            let world = fakes.world.lock();
            let guilds = world.heads.range("g".to_owned()..).map(|(_, head)| head);
            let merged = |head: &Head| head.moved_to.starts_with("log:");
            let hint = |head: &Head| RouteHint {
                cell: head.cell.clone(),
                term: head.term,
                data_owner: String::new(),
                guild_owner: String::new(),
                merged: merged(head),
            };
            guilds.map(|head| (head.log.clone(), hint(head))).collect()
        };
        for (log, hint) in heads {
            if published.get(&log) != Some(&hint) && directory.publish_route(&log, &hint).await.is_ok() {
                published.insert(log, hint);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A cell of one Pod each.
pub fn small_cell() -> Value {
    let one = json!({"replicas": 1});
    json!({"storageCellRef": "main", "roles": {"gateway": one, "guild": one, "data": one}})
}
