//! One fleet in a namespace of its own, with fake cells, and its operators behind wires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cell_proto::directory::RouteHint;
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
use crate::harness::fakes::Fakes;

/// Nobody changes anything for so long: everything that was begun has ended.
const QUIET: Duration = Duration::from_millis(350);
static STAGES: AtomicU32 = AtomicU32::new(0);

pub struct Stage {
    pub user: Client,
    pub namespace: String,
    pub wire: Arc<Wire>,
    pub fakes: Fakes,
    directory: Directory,
    registrations: Mutex<Vec<Registration>>,
    cells: grpc_wire::Sender,
    commands: mpsc::Sender<Command>,
    admin: Admin,
    pub etcd: String,
    stop: CancellationToken,
}

pub fn api(client: &Client, namespace: &str, plural: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource(plural))
}

/// All objects of a kind.
pub async fn objects(client: &Client, namespace: &str, plural: &str) -> Vec<Value> {
    let listed = api(client, namespace, plural).list(&Default::default()).await;
    let items = listed.map(|list| list.items).unwrap_or_default();
    items.into_iter().map(|item| serde_json::to_value(item).unwrap()).collect()
}

/// One object.
pub async fn object(client: &Client, namespace: &str, plural: &str, name: &str) -> Option<Value> {
    if name.is_empty() {
        return None;
    }
    let found = api(client, namespace, plural).get_opt(name).await.ok().flatten();
    found.map(|found| serde_json::to_value(found).unwrap())
}

impl Stage {
    /// An empty namespace with one operator; `shared-1` and `shared-2` live in the directory.
    pub async fn empty(ground: &Ground, bug: Bug) -> Self {
        let number = STAGES.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("stage-{number}");
        ground.namespace(&namespace).await;
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
        let mut wired: Option<(String, String)> = None;
        for mut member in self.fakes.start(cell, "main").await {
            let address = match wired.take().filter(|(of, _)| *of == member.grpc_address) {
                Some((_, address)) => address,
                None => grpc_wire::serve(&member.grpc_address, self.cells.clone()).await,
            };
            wired = Some((member.grpc_address.clone(), address.clone()));
            member.grpc_address = address;
            self.registrations.lock().push(self.directory.register(member));
        }
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
