//! What every controller is given: clients, caches, the link to etcd. It decides nothing.

use std::collections::HashMap;
use std::sync::Arc;

use cell_crds::{Cell, Fleet, Guild, Move, StorageCell, StorageMigration};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::apply::Applier;
use crate::build::Common;
use crate::controllers::migration::Live;
use crate::directory::{Hub, Link};
use crate::error::ReconcileError;
use crate::health::Ages;
use crate::loads::Loads;
use crate::metrics::Metrics;

/// Most objects whose failures in a row are remembered.
const MOST_FAILURES: usize = 10_000;

/// Most waits whose beginnings are remembered.
const MOST_WAITS: usize = 10_000;

/// What does not change while the process lives.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fleet's namespace.
    pub namespace: String,
    /// This program's version.
    pub version: String,
    /// URL of the control-plane API served here.
    pub control_plane_address: String,
    /// Whether the cells' Pods are told to speak plaintext beyond loopback.
    pub cell_plaintext: bool,
}

/// Shared by all controllers and the API.
pub struct Context {
    /// Reads and writes objects.
    pub applier: Applier,
    /// Sends events.
    pub recorder: Recorder,
    /// The link to the fleet's etcd.
    pub hub: Hub,
    /// What the watches hold.
    pub stores: Stores,
    /// The metrics.
    pub metrics: Metrics,
    /// Ages for health.
    pub ages: Arc<Ages>,
    /// Load of guilds, shared by all who ask.
    pub loads: Loads,
    /// What does not change.
    pub settings: Settings,
    failures: Mutex<HashMap<String, u32>>,
    migrations: Mutex<HashMap<String, Live>>,
    /// What is awaited, and since when.
    waits: Mutex<HashMap<String, (String, i64)>>,
    filled: watch::Sender<bool>,
}

impl Context {
    /// Everything, assembled.
    pub fn new(
        applier: Applier,
        recorder: Recorder,
        hub: Hub,
        stores: Stores,
        (metrics, ages): (Metrics, Arc<Ages>),
        settings: Settings,
    ) -> Self {
        Self {
            applier,
            recorder,
            hub,
            stores,
            metrics,
            ages,
            loads: Loads::default(),
            settings,
            failures: Mutex::default(),
            migrations: Mutex::default(),
            waits: Mutex::default(),
            filled: watch::Sender::new(false),
        }
    }

    /// The link, if the fleet is known and rules this namespace.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.hub.link()
    }

    /// What all Pods of the fleet are told.
    pub fn common<'a>(&self, fleet: &'a Fleet) -> Common<'a> {
        Common { etcd_endpoints: &fleet.spec.etcd.endpoints, plaintext: self.settings.cell_plaintext }
    }

    /// Says that every cache is filled.
    pub fn set_filled(&self) {
        self.filled.send_replace(true);
    }

    /// Waits until every cache is filled: what is not in one then does not exist. Before that nothing is concluded.
    pub async fn when_filled(&self) {
        // The sender lives as long as `self`: this cannot fail.
        let mut filled = self.filled.subscribe();
        let _always = filled.wait_for(|filled| *filled).await.is_ok();
    }

    /// What this process remembers of a migration's run beside what is stored.
    pub fn live_migration(&self, run_id: &str) -> Option<Live> {
        self.migrations.lock().get(run_id).cloned()
    }

    /// Remembers it until the next pass; nothing once the run has ended.
    pub fn keep_migration(&self, run_id: &str, live: Option<Live>) {
        let mut migrations = self.migrations.lock();
        match live {
            Some(live) => migrations.insert(run_id.to_owned(), live),
            None => migrations.remove(run_id),
        };
    }

    /// Since when `key` waits for `what`, in Unix milliseconds: now, if it did not before. A new life of the operator begins anew.
    pub fn awaits(&self, key: &str, what: &str, now_ms: i64) -> i64 {
        let mut waits = self.waits.lock();
        if waits.len() >= MOST_WAITS && !waits.contains_key(key) {
            waits.clear();
        }
        let wait = waits.entry(key.to_owned()).or_insert_with(|| (what.to_owned(), now_ms));
        if wait.0 != what {
            *wait = (what.to_owned(), now_ms);
        }
        wait.1
    }

    /// What it waited for has come.
    pub fn awaits_no_more(&self, key: &str) {
        self.waits.lock().remove(key);
    }

    /// Where no fleet is known: why not, if the API server has one after all. None when there is none.
    ///
    /// # Errors
    /// [`ReconcileError::Request`].
    pub async fn unread_fleet(&self) -> Result<Option<String>, ReconcileError> {
        let listed = self.applier.api::<Fleet>().list_metadata(&ListParams::default()).await;
        let listed = listed.map_err(ReconcileError::request("list", "Fleet", &self.settings.namespace))?;
        let Some(name) = listed.items.first().map(ResourceExt::name_any) else { return Ok(None) };
        let invalid = self.stores.fleets.state().iter().find_map(|one| one.0.as_ref().err().map(ToString::to_string));
        Ok(Some(match invalid {
            Some(why) => format!("Fleet {name} cannot be decoded, so its etcd is not known: {why}; repair it"),
            None => format!("Fleet {name} exists and has not been read yet"),
        }))
    }

    /// How often this object's reconcile failed in a row, this failure included.
    pub fn count_failure(&self, key: String) -> u32 {
        let mut failures = self.failures.lock();
        if failures.len() >= MOST_FAILURES {
            failures.clear();
        }
        let count = failures.entry(key).or_default();
        *count += 1;
        *count
    }

    /// This object's reconcile succeeded.
    pub fn clear_failures(&self, key: &str) {
        self.failures.lock().remove(key);
    }
}

type Cache<K> = Store<DeserializeGuard<K>>;

/// The watches' caches.
#[derive(Clone)]
pub struct Stores {
    /// All fleets of the namespace.
    pub fleets: Cache<Fleet>,
    /// All StorageCells.
    pub storage_cells: Cache<StorageCell>,
    /// All cells.
    pub cells: Cache<Cell>,
    /// All guilds with rules.
    pub guilds: Cache<Guild>,
    /// All moves.
    pub moves: Cache<Move>,
    /// All storage migrations.
    pub migrations: Cache<StorageMigration>,
}

fn find<K>(cache: &Cache<K>, namespace: &str, name: &str) -> Option<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope> + Clone + 'static,
{
    let key: ObjectRef<DeserializeGuard<K>> = ObjectRef::new(name).within(namespace);
    cache.get(&key).and_then(|object| object.0.as_ref().ok().cloned())
}

fn all<K>(cache: &Cache<K>) -> Vec<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    cache.state().iter().filter_map(|object| object.0.as_ref().ok().cloned()).collect()
}

fn undecoded<K>(cache: &Cache<K>) -> impl Iterator<Item = String> + use<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    cache.state().into_iter().filter(|object| object.0.is_err()).map(|object| object.name_any())
}

impl Stores {
    /// Names of the cells that cannot be decoded: what they refer to is not known.
    pub fn undecoded_cells(&self) -> impl Iterator<Item = String> + use<> {
        undecoded(&self.cells)
    }

    /// Names of the storage migrations that cannot be decoded.
    pub fn undecoded_migrations(&self) -> impl Iterator<Item = String> + use<> {
        undecoded(&self.migrations)
    }

    /// The fleet that rules the namespace: the oldest.
    pub fn fleet(&self) -> Option<Fleet> {
        let age = |fleet: &Fleet| (fleet.metadata.creation_timestamp.clone(), fleet.name_any());
        all(&self.fleets).into_iter().min_by_key(age)
    }

    /// One StorageCell.
    pub fn storage_cell(&self, namespace: &str, name: &str) -> Option<StorageCell> {
        find(&self.storage_cells, namespace, name)
    }

    /// One cell.
    pub fn cell(&self, namespace: &str, name: &str) -> Option<Cell> {
        find(&self.cells, namespace, name)
    }

    /// All cells, by name.
    pub fn all_cells(&self) -> Vec<Cell> {
        let mut cells = all(&self.cells);
        cells.sort_by_key(ResourceExt::name_any);
        cells
    }

    /// One guild's rules.
    pub fn guild(&self, namespace: &str, name: &str) -> Option<Guild> {
        find(&self.guilds, namespace, name)
    }

    /// One move.
    pub fn a_move(&self, namespace: &str, name: &str) -> Option<Move> {
        find(&self.moves, namespace, name)
    }

    /// All moves, by name.
    pub fn all_moves(&self) -> Vec<Move> {
        let mut moves = all(&self.moves);
        moves.sort_by_key(ResourceExt::name_any);
        moves
    }

    /// One storage migration.
    pub fn migration(&self, namespace: &str, name: &str) -> Option<StorageMigration> {
        find(&self.migrations, namespace, name)
    }

    /// All storage migrations, by name.
    pub fn all_migrations(&self) -> Vec<StorageMigration> {
        let mut migrations = all(&self.migrations);
        migrations.sort_by_key(ResourceExt::name_any);
        migrations
    }
}
