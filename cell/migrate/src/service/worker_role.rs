//! The worker role: leases from the migration's coordinator, found by the directory, over stores found by their StorageCell's name.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use cell_proto::directory::Role;
use cell_proto::unit::Unit;
use cell_runtime::{Admin, CancellationToken, Channels, Directory, Readiness, listen};
use cell_store::{Store, StoreError};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

use super::{Place, RemoteDesk, ServiceError};
use crate::copy::Pair;
use crate::ranges::{Grant, Phase};
use crate::stream::StreamError;
use crate::stream::store::StoreTable;
use crate::stream::unit::{Order, Plan, UnitTable, is_enumerated};
use crate::worker::{Tables, Worker};

/// Finds the store of a StorageCell.
pub type Stores = dyn Fn(&str) -> Result<Arc<dyn Store>, StoreError> + Send + Sync;

/// What `cell migrate worker` is told.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Of the process.
    pub place: Place,
    /// Ranges at work at once.
    pub ranges: u16,
}

/// The platform's tables, in two StorageCells.
pub struct StoreTables {
    /// By StorageCell.
    pub stores: Arc<Stores>,
}

#[async_trait]
impl Tables for StoreTables {
    async fn pair(&self, grant: &Grant) -> Result<Pair, StreamError> {
        let store = |name: &str| (self.stores)(name).map_err(|error| StreamError::Unavailable(error.to_string()));
        let buckets = buckets(&grant.lane.unit)?;
        let (table, stores) = (&grant.lane.table, [store(&grant.source)?, store(&grant.target)?]);
        let [source, target] = stores.clone().map(|store| StoreTable::new(store, table, buckets.clone()));
        let (source, target) = (source?, target?);
        let Some(buckets) = buckets.filter(|buckets| is_enumerated(table, buckets.len())) else {
            return Ok(Pair { source: Arc::new(source), target: Arc::new(target) });
        };
        let order = if grant.phase == Phase::Backfill { Order::NewestFirst } else { Order::ByToken };
        // What only the target knows would be extra: a comparison must see it.
        Ok(match Plan::of(&stores, table, &buckets, grant.tokens, order).await?.map(Arc::new) {
            None => Pair { source: Arc::new(source), target: Arc::new(target) },
            Some(plan) => Pair {
                source: Arc::new(UnitTable::new(source, plan.clone())),
                target: Arc::new(UnitTable::new(target, plan)),
            },
        })
    }
}

fn buckets(units: &str) -> Result<Option<BTreeSet<u16>>, StreamError> {
    if units.is_empty() {
        return Ok(None);
    }
    let bucket = |unit: &str| match unit.parse() {
        Ok(Unit::Bucket(bucket)) => Ok(bucket),
        _ => Err(StreamError::Refused(format!("unit {unit:?} is no bucket"))),
    };
    units.split(',').map(bucket).collect::<Result<_, _>>().map(Some)
}

/// Works until `shutdown`.
///
/// # Errors
/// [`ServiceError`].
pub async fn run(
    config: WorkerConfig,
    stores: impl FnOnce(Directory, Arc<Channels>) -> Arc<Stores>,
    shutdown: CancellationToken,
) -> Result<(), ServiceError> {
    let place = config.place;
    let admin = SocketAddr::new(place.listen_address, place.admin_port);
    listen::check_plaintext(admin, place.plaintext, "--admin-port")?;
    let admin = listen::bind(admin, "--admin-port").await?;
    let readiness = Readiness::not_ready("starting");
    tokio::spawn(Admin::new(readiness.clone(), Registry::with_prefix("cellplane")).serve(admin, shutdown.clone()));
    let directory = Directory::start(place.directory.clone(), shutdown.clone());
    let channels = Arc::new(Channels::default());
    let tables = Arc::new(StoreTables { stores: stores(directory.clone(), channels.clone()) });
    let migration = place.migration.clone();
    let resolve = move || {
        let view = directory.view();
        view.members_of(Role::Migrate, &migration).map(|member| member.grpc_address.clone()).next()
    };
    let desk = Arc::new(RemoteDesk::new(resolve, channels, &place.run_id));
    readiness.set_ready();
    tracing::info!(migration = %place.migration, run = %place.run_id, ranges = config.ranges, "the worker works");
    let mut workers = JoinSet::new();
    for number in 0..config.ranges.max(1) {
        let worker = Worker::named(format!("{}/{number}", place.member_id));
        let (desk, tables, stop) = (desk.clone(), tables.clone(), shutdown.clone());
        workers.spawn(async move { worker.run(desk, tables, stop).await });
    }
    while let Some(ended) = workers.join_next().await {
        if let Ok(ended) = ended {
            ended?;
        }
    }
    Ok(())
}
