//! The controllers a small cluster needs: StatefulSets, Deployments, ReplicaSets, Jobs, a scheduler with local volumes, node lifecycle,
//! EndpointSlices and Pod garbage. Each is a pure decision and a thin driver over ordinary API calls. They write nothing when nothing
//! changed, and never act on a view older than their own last write. They never touch a custom resource.

pub mod act;
mod availability;
pub mod endpoints;
pub mod garbage;
pub mod job;
pub mod mirror;
pub mod nodes;
pub mod pods;
pub mod quantity;
pub mod scheduler;
pub mod selector;
#[cfg(test)]
mod simulation;
pub mod statefulset;
pub mod taints;
pub mod workload;
pub mod world;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::runtime::events::Recorder;
use kube::{Api, Client};
use tokio::task::JoinSet;

use scheduler::claims::{LOCAL_CLASS, LOCAL_PROVISIONER};
use world::{Changes, World};

/// Periods and limits of the controllers.
#[derive(Debug, Clone)]
pub struct Options {
    /// A node is lost when no heartbeat was seen for this long.
    pub node_grace: Duration,
    /// Pods without a toleration of their own leave a lost node after this long.
    pub eviction_after: Duration,
    /// Every controller looks at everything at least this often.
    pub resync: Duration,
    /// The wait before a Job's failed Pod is replaced.
    pub job_backoff: job::Backoff,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_grace: Duration::from_secs(40),
            eviction_after: Duration::from_secs(300),
            resync: Duration::from_secs(5),
            job_backoff: job::Backoff::default(),
        }
    }
}

/// Runs every controller until `shutdown` completes.
pub async fn run(client: Client, shutdown: impl Future<Output = ()>) {
    run_with(client, Options::default(), shutdown).await;
}

/// Runs every controller with these options until `shutdown` completes.
pub async fn run_with(client: Client, options: Options, shutdown: impl Future<Output = ()>) {
    let recorder = Recorder::new(client.clone(), "cellplane-sandbox".to_owned().into());
    let (world, feeds) = World::new(client, options, recorder);
    let world = Arc::new(world);
    let mut tasks = JoinSet::new();
    for feed in feeds {
        tasks.spawn(feed);
    }
    tasks.spawn(ensure_storage_class(world.client.clone()));
    spawn_controllers(&world, &mut tasks);
    shutdown.await;
    tasks.shutdown().await;
    tracing::info!(writes = world.writes.count(), "controllers stopped");
}

macro_rules! controller {
    ($tasks:expr, $world:expr, $kind:ty, [$($mirror:ident),+]) => {{
        let world = $world.clone();
        let changes = Changes::new(vec![$(world.$mirror.changes()),+]);
        $tasks.spawn(async move {
            let mut controller = <$kind>::default();
            let mut pace = Pace::new(changes, world.options.resync);
            loop {
                pace.wait(&world).await;
                let fine = controller.round(&world).await;
                pace.note(fine);
            }
        });
    }};
}

fn spawn_controllers(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    controller!(tasks, world, statefulset::drive::StatefulSets, [sets, pods, claims]);
    controller!(tasks, world, workload::replica_set_drive::ReplicaSets, [replica_sets, pods]);
    controller!(tasks, world, workload::deployment_drive::Deployments, [deployments, replica_sets, pods]);
    spawn_jobs(world.clone(), tasks);
    controller!(tasks, world, scheduler::drive::Scheduler, [pods, nodes, claims, volumes]);
    controller!(tasks, world, nodes::Nodes, [nodes, leases, pods]);
    controller!(tasks, world, endpoints::Endpoints, [services, pods, nodes, slices]);
    controller!(tasks, world, garbage::Garbage, [pods, nodes]);
}

/// Jobs have deadlines and back-offs: they are looked at again when one is due.
fn spawn_jobs(world: Arc<World>, tasks: &mut JoinSet<()>) {
    let changes = Changes::new(vec![world.jobs.changes(), world.pods.changes()]);
    tasks.spawn(async move {
        let mut controller = job::drive::Jobs::default();
        let mut pace = Pace::new(changes, world.options.resync);
        loop {
            pace.wait(&world).await;
            let fine = controller.round(&world).await;
            pace.note(fine);
            pace.resync = controller.due(&world).map_or(world.options.resync, |due| due.min(world.options.resync));
        }
    });
}

/// When a controller looks again: at a change, at the resync, and sooner after a failure.
struct Pace {
    changes: Changes,
    resync: Duration,
    retry: Option<Duration>,
}

impl Pace {
    fn new(changes: Changes, resync: Duration) -> Self {
        Self { changes, resync, retry: Some(Duration::ZERO) }
    }

    async fn wait(&mut self, world: &World) {
        loop {
            let at_most = self.retry.unwrap_or(self.resync);
            self.changes.next(at_most).await;
            if world.synced() {
                return;
            }
            self.retry = Some(Duration::from_millis(100));
        }
    }

    fn note(&mut self, fine: bool) {
        let next = |before: Duration| (before * 2).clamp(Duration::from_millis(100), Duration::from_secs(2));
        self.retry = if fine { None } else { Some(next(self.retry.unwrap_or_default())) };
    }
}

/// The class of local volumes is there from the start and the default, so that claims need no preparation.
async fn ensure_storage_class(client: Client) {
    let api: Api<StorageClass> = Api::all(client);
    let default = [("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned())];
    let class = StorageClass {
        metadata: kube::core::ObjectMeta {
            name: Some(LOCAL_CLASS.into()),
            annotations: Some(default.into()),
            ..Default::default()
        },
        provisioner: LOCAL_PROVISIONER.into(),
        reclaim_policy: Some("Delete".into()),
        volume_binding_mode: Some("WaitForFirstConsumer".into()),
        ..StorageClass::default()
    };
    for _ in 0..60 {
        match act::call("create", api.create(&PostParams::default(), &class)).await {
            Ok(_) => return,
            Err(error) if error.is_conflict() => return,
            Err(error) => tracing::debug!(error = %error, "storage class not there yet"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    tracing::warn!(class = LOCAL_CLASS, "storage class could not be created: claims of that class still bind");
}
