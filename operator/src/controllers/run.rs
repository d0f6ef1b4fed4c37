//! Starts the controllers and wraps every reconcile: outcome, duration, age and back-off in one place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cell_crds::{Cell, Fleet, Guild, Move, StorageCell, StorageMigration};
use cell_runtime::CancellationToken;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Api, ListParams};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use rand::Rng;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

use super::{Outcome, cell, databases, fleet, guild, migration, moves, storage_cell};
use crate::context::{Context, Stores};
use crate::error::ReconcileError;

/// Objects of one kind reconciled at once: enough to overlap waits, few enough to be gentle with the API server.
const CONCURRENCY: u16 = 16;
/// Longest pause after failures in a row.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// How often a watch's cache is compared with the API server.
const AUDIT_PERIOD: Duration = Duration::from_secs(60);
/// Pause between two looks whether the caches are filled at the start.
const FILL_PERIOD: Duration = Duration::from_millis(100);
/// Server-side timeout of a watch, in seconds: below the idle limit of common load balancers.
const WATCH_SECONDS: u32 = 200;

type Guarded<K> = DeserializeGuard<K>;

/// A kind of ours.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + DeserializeOwned
    + Clone
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
}
impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// The controllers before they run: their caches are shared first.
pub struct Controllers {
    client: Client,
    namespace: String,
    fleets: Controller<Guarded<Fleet>>,
    storage_cells: Controller<Guarded<StorageCell>>,
    cells: Controller<Guarded<Cell>>,
    guilds: Controller<Guarded<Guild>>,
    moves: Controller<Guarded<Move>>,
    migrations: Controller<Guarded<StorageMigration>>,
}

fn watched() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Makes the controllers of a namespace and their caches.
pub fn stores(client: &Client, namespace: &str) -> (Controllers, Stores) {
    fn make<K: Kind>(client: &Client, namespace: &str) -> Controller<Guarded<K>> {
        let config = Config::default().concurrency(CONCURRENCY);
        Controller::new(Api::namespaced(client.clone(), namespace), watched()).with_config(config)
    }
    let controllers = Controllers {
        client: client.clone(),
        namespace: namespace.to_owned(),
        fleets: make(client, namespace),
        storage_cells: make(client, namespace),
        cells: make(client, namespace),
        guilds: make(client, namespace),
        moves: make(client, namespace),
        migrations: make(client, namespace),
    };
    let stores = Stores {
        fleets: controllers.fleets.store(),
        storage_cells: controllers.storage_cells.store(),
        cells: controllers.cells.store(),
        guilds: controllers.guilds.store(),
        moves: controllers.moves.store(),
        migrations: controllers.migrations.store(),
    };
    (controllers, stores)
}

/// Runs all controllers until `shutdown`; then lets what runs finish.
pub fn start(controllers: Controllers, context: &Arc<Context>, shutdown: &CancellationToken) -> JoinSet<()> {
    let Controllers { client, namespace, fleets, storage_cells, cells, guilds, moves, migrations } = controllers;
    let sets = || Api::<Guarded<StatefulSet>>::namespaced(client.clone(), &namespace);
    let mut tasks = JoinSet::new();
    // A change of one kind that another depends on looks at all of that other kind again.
    let [(fleet_changed, _), (cell_changed, _)] = [(), ()].map(|()| broadcast::channel::<()>(16));
    let fleets = fleets.reconcile_all_on(pulse(&cell_changed));
    let told = fleet_changed.clone();
    spawn(&mut tasks, fleets, context, shutdown, "fleet", move |object: Fleet, context| {
        let told = told.clone();
        async move {
            let ended = fleet::reconcile(&object, &context).await;
            if ended.as_ref().is_ok_and(|ended| ended.changed) {
                let _nobody_listens = told.send(());
            }
            ended.map(|ended| ended.outcome)
        }
    });
    let storage_cells = storage_cells.owns(sets(), watched()).reconcile_all_on(pulse(&fleet_changed));
    spawn(&mut tasks, storage_cells, context, shutdown, "storagecell", |object: StorageCell, context| async move {
        storage_cell::reconcile(&object, &context).await
    });
    let cells = cells
        .owns(sets(), watched())
        .reconcile_all_on(pulse(&fleet_changed))
        .watches(
            Api::<Guarded<StorageCell>>::namespaced(client.clone(), &namespace),
            watched(),
            cells_of(&context.stores),
        )
        .watches(
            Api::<Guarded<StorageMigration>>::namespaced(client.clone(), &namespace),
            watched(),
            cells_of_migration(&context.stores),
        );
    let told = cell_changed.clone();
    spawn(&mut tasks, cells, context, shutdown, "cell", move |object: Cell, context| {
        let told = told.clone();
        async move {
            let ended = cell::reconcile(&object, &context).await;
            if ended.as_ref().is_ok_and(|ended| ended.changed) {
                let _nobody_listens = told.send(());
            }
            ended.map(|ended| ended.outcome)
        }
    });
    let guilds = guilds.reconcile_all_on(pulse(&cell_changed)).watches(
        Api::<Guarded<Move>>::namespaced(client.clone(), &namespace),
        watched(),
        guild_of_move(&context.stores),
    );
    spawn(&mut tasks, guilds, context, shutdown, "guild", |object: Guild, context| async move {
        guild::reconcile(&object, &context).await
    });

    start_runs(&mut tasks, moves, migrations, context, (shutdown, &fleet_changed));
    tasks.spawn(moves::orphans::watch(context.clone(), shutdown.clone()));
    audits(&mut tasks, &client, context, shutdown);
    let (filling, stop) = (context.clone(), shutdown.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = fill(&client, &filling) => filling.set_filled(),
            () = stop.cancelled() => {}
        }
    });
    tasks
}

/// The controllers of what runs to an end.
fn start_runs(
    tasks: &mut JoinSet<()>,
    moves: Controller<Guarded<Move>>,
    migrations: Controller<Guarded<StorageMigration>>,
    context: &Arc<Context>,
    (shutdown, fleet_changed): (&CancellationToken, &broadcast::Sender<()>),
) {
    let moves = moves.reconcile_all_on(pulse(fleet_changed));
    spawn(tasks, moves, context, shutdown, "move", |object: Move, context| async move {
        moves::reconcile(&object, &context).await
    });

    let migrations = migrations.reconcile_all_on(pulse(fleet_changed));
    spawn(tasks, migrations, context, shutdown, "storagemigration", |object: StorageMigration, context| async move {
        migration::reconcile(&object, &context).await
    });
}

/// A pulse missed while another is handled asks for nothing more than the next one.
fn pulse(sender: &broadcast::Sender<()>) -> impl futures::Stream<Item = ()> + Send + 'static {
    tokio_stream::wrappers::BroadcastStream::new(sender.subscribe()).map(|_| ())
}

fn cells_of(stores: &Stores) -> impl Fn(Guarded<StorageCell>) -> Vec<ObjectRef<Guarded<Cell>>> + Send + Sync + 'static {
    let cells = stores.cells.clone();
    move |storage| {
        let name = storage.name_any();
        let uses = |cell: &&Arc<Guarded<Cell>>| cell.0.as_ref().is_ok_and(|cell| cell.spec.storage_cell_ref == name);
        cells.state().iter().filter(uses).map(|cell| ObjectRef::from_obj(cell.as_ref())).collect()
    }
}

/// A migration that begins or ends changes what its cells must reach. Those that neither side names need no look.
fn cells_of_migration(
    stores: &Stores,
) -> impl Fn(Guarded<StorageMigration>) -> Vec<ObjectRef<Guarded<Cell>>> + Send + Sync + 'static {
    let cells = stores.cells.clone();
    move |object| {
        let Ok(one) = &object.0 else { return Vec::new() };
        let touched = |cell: &&Arc<Guarded<Cell>>| {
            cell.0.as_ref().is_ok_and(|cell| {
                let needed = databases::needed(cell, &[]);
                needed.contains(&one.spec.source) || needed.contains(&one.spec.target)
            })
        };
        cells.state().iter().filter(touched).map(|cell| ObjectRef::from_obj(cell.as_ref())).collect()
    }
}

/// Only guilds that have rules: most moves are of guilds without a `Guild`.
fn guild_of_move(
    stores: &Stores,
) -> impl Fn(Guarded<Move>) -> Option<ObjectRef<Guarded<Guild>>> + Send + Sync + 'static {
    let guilds = stores.guilds.clone();
    move |object| {
        let object = object.0.ok()?;
        let guild = object.spec.guild.as_ref()?;
        let key = ObjectRef::new(&format!("g-{guild}")).within(&object.namespace()?);
        guilds.get(&key).map(|_| key)
    }
}

fn spawn<K, F, Fut>(
    tasks: &mut JoinSet<()>,
    controller: Controller<Guarded<K>>,
    context: &Arc<Context>,
    shutdown: &CancellationToken,
    kind: &'static str,
    reconcile: F,
) where
    K: Kind,
    F: Fn(K, Arc<Context>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
{
    let stop = shutdown.clone();
    let wrapped = move |object: Arc<Guarded<K>>, context: Arc<Context>| {
        let reconcile = reconcile.clone();
        async move { one(kind, &object, context, reconcile).await }
    };
    let policy = move |object: Arc<Guarded<K>>, error: &ReconcileError, context: Arc<Context>| {
        let failures = context.count_failure(format!("{kind}/{}", object.name_any()));
        tracing::warn!(
            kind,
            name = object.name_any(),
            error = format!("{error:#}"),
            label = error.label(),
            failures,
            "reconcile failed"
        );
        Action::requeue(backoff(failures))
    };
    let run =
        controller.graceful_shutdown_on(async move { stop.cancelled().await }).run(wrapped, policy, context.clone());
    tasks.spawn(run.for_each(move |ended| async move {
        if let Err(error) = ended {
            tracing::warn!(kind, error = %error, "the controller's stream reported an error");
        }
    }));
}

/// 0.5 s, doubled at each failure in a row, with jitter.
fn backoff(failures: u32) -> Duration {
    let pause = Duration::from_millis(500).saturating_mul(1 << failures.saturating_sub(1).min(6));
    pause.min(LONGEST_BACKOFF).mul_f64(rand::rng().random_range(0.7..1.0))
}

async fn one<K, F, Fut>(
    kind: &'static str,
    object: &Guarded<K>,
    context: Arc<Context>,
    reconcile: F,
) -> Result<Action, ReconcileError>
where
    K: Kind,
    F: Fn(K, Arc<Context>) -> Fut,
    Fut: Future<Output = Result<Outcome, ReconcileError>>,
{
    context.when_filled().await;
    let started = Instant::now();
    let name = object.name_any();
    let decoded = match &object.0 {
        Ok(decoded) => decoded.clone(),
        Err(invalid) => {
            // The others of its kind go on; this one shows in metrics and log until it is repaired.
            tracing::error!(kind, name, error = %invalid, "the object cannot be decoded and is left alone");
            context.metrics.ended(kind, "undecodable", started.elapsed());
            return Ok(Action::await_change());
        }
    };
    let ended = reconcile(decoded, context.clone()).await;
    let label = ended.as_ref().map_or("failed", |outcome| outcome.label());
    context.metrics.ended(kind, label, started.elapsed());
    context.ages.reconciled(kind);
    tracing::debug!(kind, name, outcome = label, took_ms = started.elapsed().as_millis(), "reconciled");
    let outcome = ended?;
    context.clear_failures(&format!("{kind}/{name}"));
    Ok(outcome.action())
}

/// Waits until every cache holds what the API server lists. (A store's own `wait_until_ready` wakes only one of its waiters, and the
/// controller is one.)
async fn fill(client: &Client, context: &Context) {
    let (namespace, stores) = (&context.settings.namespace, &context.stores);
    tokio::join!(
        filled(Api::<Fleet>::namespaced(client.clone(), namespace), &stores.fleets),
        filled(Api::<StorageCell>::namespaced(client.clone(), namespace), &stores.storage_cells),
        filled(Api::<Cell>::namespaced(client.clone(), namespace), &stores.cells),
        filled(Api::<Guild>::namespaced(client.clone(), namespace), &stores.guilds),
        filled(Api::<Move>::namespaced(client.clone(), namespace), &stores.moves),
        filled(Api::<StorageMigration>::namespaced(client.clone(), namespace), &stores.migrations),
    );
}

async fn filled<K: Kind>(api: Api<K>, store: &Store<Guarded<K>>) {
    loop {
        match api.list_metadata(&ListParams::default()).await {
            Ok(list) => {
                let cached = cached_versions(store);
                if list.items.iter().all(|item| cached.contains_key(&item.name_any())) {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "failed to list at the start; trying again"),
        }
        tokio::time::sleep(FILL_PERIOD).await;
    }
}

/// Compares every cache with the API server now and then: a watch that silently stopped shows as an age that rises.
fn audits(tasks: &mut JoinSet<()>, client: &Client, context: &Arc<Context>, shutdown: &CancellationToken) {
    let stores = context.stores.clone();
    audit(tasks, client, context, shutdown, ("fleet", stores.fleets));
    audit(tasks, client, context, shutdown, ("storagecell", stores.storage_cells));
    audit(tasks, client, context, shutdown, ("cell", stores.cells));
    audit(tasks, client, context, shutdown, ("guild", stores.guilds));
    audit(tasks, client, context, shutdown, ("move", stores.moves));
    audit(tasks, client, context, shutdown, ("storagemigration", stores.migrations));
}

fn audit<K: Kind>(
    tasks: &mut JoinSet<()>,
    client: &Client,
    context: &Arc<Context>,
    shutdown: &CancellationToken,
    (kind, store): (&'static str, Store<Guarded<K>>),
) {
    let api: Api<K> = Api::namespaced(client.clone(), &context.settings.namespace);
    let (context, stop) = (context.clone(), shutdown.clone());
    tasks.spawn(async move {
        let mut before = BTreeMap::new();
        loop {
            match api.list_metadata(&ListParams::default()).await {
                Ok(list) => {
                    let live = versions(&list.items);
                    let cached = cached_versions(&store);
                    // What was already so at the last look and still is not in the cache was not delivered.
                    let lagging = live
                        .iter()
                        .any(|(name, version)| before.get(name) == Some(version) && cached.get(name) != Some(version));
                    if !lagging {
                        context.ages.watched(kind);
                    }
                    if live.is_empty() {
                        context.ages.idle(kind);
                    }
                    before = live;
                }
                Err(error) => tracing::debug!(kind, %error, "failed to list for the watch audit"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(AUDIT_PERIOD) => {}
            }
        }
    });
}

fn versions<K: Resource<DynamicType = ()>>(items: &[PartialObjectMeta<K>]) -> BTreeMap<String, Option<String>> {
    items.iter().map(|item| (item.name_any(), item.metadata.resource_version.clone())).collect()
}

fn cached_versions<K: Kind>(store: &Store<Guarded<K>>) -> BTreeMap<String, Option<String>> {
    store.state().iter().map(|object| (object.name_any(), object.resource_version())).collect()
}
