//! Keeps the view equal to etcd: one read of the prefix, then a watch from that revision; again after any loss. While etcd is away
//! the last view stays, so sends go on; only failure detection waits.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use cell_proto::directory::{Buckets, Member, Migration, RouteHint};
use etcd_client::{Client, Event, EventType, GetOptions, KeyValue, WatchOptions};
use rand::Rng;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Directory, DirectoryError, Snapshot, View, view::SNAPSHOT_VERSION};

/// After an outage, members that etcd no longer lists stay in the view this long: their leases ran out, they did not.
const RETURN_GRACE: Duration = Duration::from_secs(8);
/// How often the snapshot is written at most.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn run(directory: Directory, shutdown: CancellationToken) {
    let mut pause = Duration::from_millis(100);
    let mut outage = false;
    while !shutdown.is_cancelled() {
        let ended = tokio::select! {
            () = shutdown.cancelled() => break,
            ended = follow(&directory, outage) => ended,
        };
        let was_synced = directory.0.synced.swap(false, Ordering::AcqRel);
        if let Err(error) = ended {
            if was_synced {
                tracing::warn!(%error, "the directory is away; going on with the last known routes");
            } else {
                tracing::debug!(%error, "the directory is still away");
            }
        }
        outage = true;
        pause = if was_synced { Duration::from_millis(100) } else { (pause * 2).min(Duration::from_secs(2)) };
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(pause.mul_f64(jitter)) => {}
        }
    }
    write_snapshot(&directory);
}

async fn follow(directory: &Directory, after_outage: bool) -> Result<(), DirectoryError> {
    let unavailable = |error: etcd_client::Error| directory.unavailable(error);
    let mut client = directory.connect().await?;
    let mut absent = load(directory, &mut client, after_outage).await?;
    let revision = absent.revision + 1;
    let prefix = directory.keys().prefix().to_owned();
    let options = WatchOptions::new().with_prefix().with_start_revision(revision);
    let mut stream = client.watch(prefix.as_str(), Some(options)).await.map_err(unavailable)?;
    directory.0.synced.store(true, Ordering::Release);
    directory.change(|_| ());
    write_snapshot(directory);
    let forget_at = Instant::now() + RETURN_GRACE;
    let mut write_at: Option<Instant> = None;
    let mut probe = tokio::time::interval(Duration::from_secs(3));
    probe.reset();
    loop {
        let due = write_at.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            message = stream.message() => {
                let message = message.map_err(unavailable)?.ok_or_else(|| directory.unavailable("the watch ended"))?;
                if message.canceled() {
                    return Err(directory.unavailable(format!("the watch was cancelled: {}", message.cancel_reason())));
                }
                if !message.events().is_empty() {
                    apply(directory, message.events(), &mut absent.members);
                    write_at.get_or_insert_with(|| Instant::now() + SNAPSHOT_EVERY);
                }
            }
            // A silent watch may be a dead connection: ask something that must be answered.
            _ = probe.tick() => { client.get(directory.keys().fleet(), None).await.map_err(unavailable)?; }
            () = tokio::time::sleep_until(forget_at), if !absent.members.is_empty() => {
                directory.change(|view| absent.members.drain().for_each(|id| view.remove_member(&id)));
            }
            () = tokio::time::sleep_until(due), if write_at.is_some() => {
                write_at = None;
                write_snapshot(directory);
            }
        }
    }
}

/// What the first read left to do.
struct Loaded {
    revision: i64,
    /// Members of the old view that etcd does not list.
    members: HashSet<String>,
}

async fn load(directory: &Directory, client: &mut Client, after_outage: bool) -> Result<Loaded, DirectoryError> {
    let prefix = directory.keys().prefix().to_owned();
    let found = client
        .get(prefix.as_str(), Some(GetOptions::new().with_prefix()))
        .await
        .map_err(|error| directory.unavailable(error))?;
    let revision = found.header().map_or(0, etcd_client::ResponseHeader::revision);
    let mut listed = HashSet::new();
    let old: HashSet<String> = directory.view().members().map(|member| member.id.clone()).collect();
    directory.change(|view| {
        let ended: Vec<String> = view.migrations().map(|migration| migration.run_id.clone()).collect();
        ended.iter().for_each(|run_id| view.remove_migration(run_id));
        for pair in found.kvs() {
            if let Some(id) = take_over(directory, view, pair) {
                listed.insert(id);
            }
        }
        if !after_outage {
            old.difference(&listed).for_each(|id| view.remove_member(id));
        }
    });
    let members = if after_outage { old.difference(&listed).cloned().collect() } else { HashSet::new() };
    Ok(Loaded { revision, members })
}

/// Takes one pair over; names the member if it was one.
fn take_over(directory: &Directory, view: &mut View, pair: &KeyValue) -> Option<String> {
    let keys = directory.keys();
    let key = String::from_utf8_lossy(pair.key());
    let malformed = |error: serde_json::Error| tracing::warn!(%key, %error, "a directory value was passed over");
    if key.starts_with(&keys.members()) {
        let member: Member = serde_json::from_slice(pair.value()).map_err(malformed).ok()?;
        let id = member.id.clone();
        view.set_member(member);
        return Some(id);
    }
    if let Some(log) = key.strip_prefix(keys.routes().as_str()) {
        let hint: RouteHint = serde_json::from_slice(pair.value()).map_err(malformed).ok()?;
        view.set_route(log, hint);
    } else if key.starts_with(keys.migrations().as_str()) {
        let migration: Migration = serde_json::from_slice(pair.value()).map_err(malformed).ok()?;
        view.set_migration(migration);
    } else if *key == keys.buckets() {
        let buckets: Buckets = serde_json::from_slice(pair.value()).map_err(malformed).ok()?;
        view.set_buckets(buckets);
    }
    None
}

fn apply(directory: &Directory, events: &[Event], absent: &mut HashSet<String>) {
    let (members, migrations) = (directory.keys().members(), directory.keys().migrations());
    directory.change(|view| {
        for event in events {
            let Some(pair) = event.kv() else { continue };
            match event.event_type() {
                EventType::Put => {
                    if let Some(id) = take_over(directory, view, pair) {
                        absent.remove(&id);
                    }
                }
                EventType::Delete => {
                    let key = String::from_utf8_lossy(pair.key());
                    if let Some(id) = key.strip_prefix(members.as_str()).and_then(|rest| rest.rsplit('/').next()) {
                        view.remove_member(id);
                    }
                    if let Some(run_id) = key.strip_prefix(migrations.as_str()) {
                        view.remove_migration(run_id);
                    }
                }
            }
        }
    });
}

pub(super) fn read_snapshot(state_dir: Option<&Path>) -> Option<Snapshot> {
    let path = state_dir?.join("directory.json");
    let bytes = std::fs::read(&path).ok()?;
    match serde_json::from_slice::<Snapshot>(&bytes) {
        Ok(snapshot) if snapshot.version == SNAPSHOT_VERSION => Some(snapshot),
        Ok(snapshot) => {
            tracing::warn!(version = snapshot.version, "the directory snapshot has another version and is ignored");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the directory snapshot is unreadable and is ignored");
            None
        }
    }
}

fn write_snapshot(directory: &Directory) {
    let Some(state_dir) = directory.0.config.state_dir.as_deref() else { return };
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(state_dir)?;
        let bytes = serde_json::to_vec(&directory.view().to_snapshot())?;
        let temporary = state_dir.join("directory.json.new");
        std::fs::write(&temporary, bytes)?;
        std::fs::rename(temporary, state_dir.join("directory.json"))
    };
    if let Err(error) = write() {
        tracing::warn!(%error, "failed to write the directory snapshot");
    }
}
