//! The real operator over the sandbox's Kubernetes API with many Guild objects: what it writes while nothing changes, and how soon it acts
//! on one edit. The peer of the latter is the API alone: a write of the same kind of object until a watch of it shows it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cell_crds::{Cell, Fleet as FleetResource, Guild, Move, StorageCell};
use cell_proto::unit::bucket_of;
use cell_runtime::CancellationToken;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fleet::{Fleet, LIMIT, PREFIX};
use crate::kubelet;
use crate::measure;

const NAMESPACE: &str = "fleet";
const GROUP: &str = "cellplane.dev/v1alpha1";
const CELLS: [&str; 2] = ["shared-1", "shared-2"];
const IDLE: Duration = Duration::from_secs(30);
const EDITS: usize = 7;

/// A Kubernetes client and what runs beside it.
struct Cluster {
    client: Client,
    fleet: Fleet,
    admin_port: u16,
}

impl Cluster {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K>(&self, object: Value) -> anyhow::Result<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        Ok(self.api::<K>().create(&PostParams::default(), &serde_json::from_value(object)?).await?)
    }

    async fn start(stop: &CancellationToken) -> anyhow::Result<Self> {
        let fleet = Fleet::start(&CELLS).await?;
        let read = Kubeconfig::read_from(&fleet.kubeconfig)?;
        let kubernetes = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(kubernetes.clone())?;
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in cell_crds::all() {
            definitions.create(&PostParams::default(), &definition).await?;
        }
        let metadata = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        let admin_port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = cell_operator::Config {
            namespace: NAMESPACE.into(),
            member_id: "cellplane-operator-0".into(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            api_port: 0,
            admin_port,
            etcd_endpoints: Vec::new(),
            cell_plaintext: false,
        };
        tokio::spawn(cell_operator::run(config, kubernetes, stop.clone()));
        Ok(Self { client, fleet, admin_port })
    }

    async fn create_fleet(&self) -> anyhow::Result<()> {
        let roles = json!({"gateway": {"replicas": 1}, "guild": {"replicas": 1}, "data": {"replicas": 1}});
        let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec});
        let embedded =
            json!({"engine": "embedded", "embedded": {"size": "1Gi", "storageClassName": "cellplane-local"}});
        self.create::<StorageCell>(object("StorageCell", "main", embedded)).await?;
        for cell in CELLS {
            self.create::<Cell>(object("Cell", cell, json!({"storageCellRef": "main", "roles": roles}))).await?;
        }
        let spec = json!({
            "etcd": {"endpoints": [self.fleet.etcd], "prefix": PREFIX},
            "entry": {"host": "127.0.0.1", "port": 30080},
            "image": {"cell": "cellplane/cell:dev"},
            "bootstrapCells": CELLS,
            "dedicatedTemplate": {"roles": roles},
        });
        self.create::<FleetResource>(object("Fleet", "prod", spec)).await?;
        let assigned = |view: &cell_runtime::View| view.buckets().cell_of(0).is_some();
        if !self.fleet.directory.wait_for(LIMIT, assigned).await {
            let fleet = self.api::<FleetResource>().get("prod").await?;
            bail!("the operator did not bootstrap the fleet: {:?}", fleet.status);
        }
        Ok(())
    }

    /// Makes the guilds and waits until the operator has reported on each.
    async fn create_guilds(&self, count: usize) -> anyhow::Result<()> {
        let made = (1..=count).map(|number| async move {
            self.create::<Guild>(
                json!({"apiVersion": GROUP, "kind": "Guild", "metadata": {"name": format!("g-{number}")},
                "spec": {"guildId": number.to_string()}}),
            )
            .await
        });
        futures::stream::iter(made).buffer_unordered(16).try_collect::<Vec<_>>().await?;
        let began = Instant::now();
        loop {
            let reported = self.guilds().await?.iter().filter(|guild| guild.status.is_some()).count();
            if reported == count {
                return Ok(());
            }
            if began.elapsed() > LIMIT * 2 {
                bail!("the operator reported on {reported} of {count} guilds in time");
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn guilds(&self) -> anyhow::Result<Vec<Guild>> {
        Ok(self.api::<Guild>().list(&ListParams::default()).await?.items)
    }

    /// What the operator has written so far, by its own count.
    async fn writes(&self) -> anyhow::Result<u64> {
        let text = crate::process::get(&format!("http://127.0.0.1:{}/metrics", self.admin_port)).await?;
        let lines = text.lines().filter(|line| line.starts_with("cellplane_operator_writes_total"));
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// Waits until nothing has been written for a while.
    async fn settle(&self) -> anyhow::Result<()> {
        let (mut before, began) = (self.writes().await?, Instant::now());
        let mut quiet = 0;
        while quiet < 5 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = self.writes().await?;
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
            if began.elapsed() > LIMIT {
                bail!("the operator still writes: {now} so far");
            }
        }
        Ok(())
    }

    /// From an edit of a guild's placement to the Move that carries it out.
    async fn edit(&self, number: usize) -> anyhow::Result<Duration> {
        let id = i64::try_from(number)?;
        let from = self.fleet.directory.view().buckets().cell_of(bucket_of(id)).context("no cell")?.to_owned();
        let to = if from == CELLS[0] { CELLS[1] } else { CELLS[0] };
        let patch = json!({"spec": {"placement": {"cell": to}}});
        let wanted = number.to_string();
        self.write_to_event::<Move>(number, patch, move |one| one.spec.guild.as_deref() == Some(&wanted)).await
    }

    /// From a write of a guild to a watch showing it, with no operator between: it does nothing for an annotation.
    async fn floor(&self, number: usize) -> anyhow::Result<Duration> {
        let patch = json!({"metadata": {"annotations": {"example.com/note": "seen"}}});
        let name = format!("g-{number}");
        self.write_to_event::<Guild>(number, patch, move |one| one.name_any() == name).await
    }

    async fn write_to_event<K>(
        &self,
        number: usize,
        patch: Value,
        is_it: impl Fn(&K) -> bool,
    ) -> anyhow::Result<Duration>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let version = self.api::<K>().list(&ListParams::default().limit(1)).await?.metadata.resource_version;
        let version = version.context("a list without a resourceVersion")?;
        let watch = self.api::<K>().watch(&WatchParams::default(), &version).await?;
        let mut watch = std::pin::pin!(watch);
        let began = Instant::now();
        let guilds = self.api::<Guild>();
        guilds.patch(&format!("g-{number}"), &PatchParams::default(), &Patch::Merge(&patch)).await?;
        let seen = async {
            while let Some(event) = watch.try_next().await? {
                if matches!(&event, WatchEvent::Added(one) | WatchEvent::Modified(one) if is_it(one)) {
                    return Ok(began.elapsed());
                }
            }
            bail!("the watch ended")
        };
        tokio::time::timeout(LIMIT, seen).await?
    }
}

pub async fn run(guilds: usize) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let cluster = Cluster::start(&stop).await?;
    let kubelet = tokio::spawn(kubelet::declare_ready(cluster.client.clone(), NAMESPACE));
    cluster.create_fleet().await?;
    let began = Instant::now();
    cluster.create_guilds(guilds).await?;
    let filled = began.elapsed();
    cluster.settle().await?;
    let versions = |all: Vec<Guild>| all.iter().filter_map(ResourceExt::resource_version).collect::<Vec<_>>();
    let (before, held) = (cluster.writes().await?, versions(cluster.guilds().await?));
    let used = measure::processor_time(std::process::id())?;
    tokio::time::sleep(IDLE).await;
    let used = measure::processor_time(std::process::id())?.saturating_sub(used);
    let (written, after) = (cluster.writes().await? - before, versions(cluster.guilds().await?));
    let changed = after.iter().zip(&held).filter(|(now, then)| now != then).count();
    measure::figure(
        &format!("operator, {guilds} Guilds, writes to report on all"),
        &format!("{before} in {:.0} s", filled.as_secs_f64()),
    );
    measure::figure(
        &format!("operator, {guilds} Guilds, writes in {} s idle", IDLE.as_secs()),
        &format!("{written} ({changed} changed)"),
    );
    let idle = used.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    measure::figure("  processor while idle, with both APIs and two cells", &format!("{idle:.1} % of one"));
    let (mut acted, mut floor) = (Vec::new(), Vec::new());
    for number in 1..=EDITS.min(guilds / 2) {
        floor.push(cluster.floor(guilds - number).await?);
        acted.push(cluster.edit(number).await?);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let millis = |times: &[Duration], percent| measure::quantile(times, percent).as_secs_f64() * 1e3;
    measure::row(
        &format!("operator, {guilds} Guilds, edit to its Move, median/max"),
        &format!("{:.0}/{:.0} ms", millis(&acted, 50), millis(&acted, 100)),
        &format!("{:.0}/{:.0} ms (API alone)", millis(&floor, 50), millis(&floor, 100)),
        millis(&acted, 50) / millis(&floor, 50),
    );
    kubelet.abort();
    stop.cancel();
    Ok(())
}
