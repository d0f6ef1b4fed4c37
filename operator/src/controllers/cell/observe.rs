//! What a cell's reconcile looks at: its fleet, its StorageCell, and how many heads name it. While it serves, the number comes from
//! the directory's hints; before it may go, from the heads themselves.

use cell_crds::{Cell, Fleet};
use cell_proto::unit::{BUCKETS, Unit};
use cell_runtime::View;
use kube::ResourceExt;

use super::super::databases;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{GUILD_LABEL, dedicated_cell, token_keys};
use crate::rpc;

/// Everything the later stages decide on.
pub(super) struct Seen {
    pub(super) fleet: Option<Fleet>,
    /// The StorageCell that serves it.
    pub(super) serving: String,
    pub(super) storage_exists: bool,
    pub(super) storage_stalled: Option<String>,
    /// The StorageCell is being deleted, and held because this cell refers to it.
    pub(super) storage_leaves: bool,
    pub(super) token_keys: String,
    /// Units by the directory; none when it is not known.
    pub(super) units: Option<i32>,
    /// It was made for one guild, which is elsewhere, and nobody wants it there.
    pub(super) is_left: bool,
    /// Why a cell that is being deleted is held.
    pub(super) held: Option<String>,
    /// It is being deleted and nothing holds it.
    pub(super) may_go: bool,
}

pub(super) async fn observe(cell: &Cell, context: &Context) -> Result<Seen, ReconcileError> {
    let namespace = &context.settings.namespace;
    let fleet = context.stores.fleet();
    let serving = databases::serving(cell);
    let storage = context.stores.storage_cell(namespace, &serving);
    let keys =
        fleet.as_ref().map(|fleet| fleet.spec.token_keys_ref.clone().unwrap_or_else(|| token_keys(&fleet.name_any())));
    let link = fleet.as_ref().map(|fleet| context.hub.link_to(&fleet.spec.etcd));
    let view = link.as_ref().filter(|link| link.directory.is_synced()).map(|link| link.directory.view());
    let name = cell.name_any();
    let mut seen = Seen {
        serving,
        storage_exists: storage.is_some(),
        storage_stalled: storage.as_ref().filter(|storage| !leaves(storage)).and_then(stalled),
        storage_leaves: storage.as_ref().is_some_and(leaves),
        token_keys: keys.unwrap_or_default(),
        units: view.and_then(|view| i32::try_from(count_units(&view, &name)).ok()),
        is_left: false,
        held: None,
        may_go: false,
        fleet,
    };
    seen.is_left = seen.units == Some(0) && is_left(cell, context);
    if cell.metadata.deletion_timestamp.is_some() {
        seen.held = hold(cell, context, &seen).await?;
        seen.may_go = seen.held.is_none();
    }
    Ok(seen)
}

/// A deletion cannot be taken back, and what is on the StorageCell goes on until it is empty of cells.
fn leaves(storage: &cell_crds::StorageCell) -> bool {
    storage.metadata.deletion_timestamp.is_some()
}

/// Whether a cell that was made for one guild is of no use to it: no wish names it, and no move under way does.
fn is_left(cell: &Cell, context: &Context) -> bool {
    let name = cell.name_any();
    let Some(guild_id) = cell.labels().get(GUILD_LABEL).filter(|guild_id| dedicated_cell(guild_id) == name) else {
        return false;
    };
    let guild = context.stores.guild(&context.settings.namespace, &format!("g-{guild_id}"));
    let wanted = guild.is_some_and(|guild| {
        let placement = guild.spec.placement.as_ref();
        let promoted = guild.status.as_ref().and_then(|status| status.placement_reason.as_deref()) == Some("Promoted");
        promoted || placement.is_some_and(|place| place.dedicated.is_some() || place.cell.as_ref() == Some(&name))
    });
    let moving = context.stores.all_moves().iter().any(|one| {
        let ended = one.status.as_ref().is_some_and(|status| status.result.is_some());
        !ended && (one.spec.to == name || one.spec.from == name)
    });
    !wanted && !moving
}

fn stalled(storage: &cell_crds::StorageCell) -> Option<String> {
    let conditions = &storage.status.as_ref()?.conditions;
    let stalled = cell_crds::condition::find(conditions, cell_crds::ConditionType::Stalled)?;
    (stalled.status == "True").then(|| stalled.message.clone())
}

/// Logs that the directory places in the cell.
fn count_units(view: &View, cell: &str) -> usize {
    let buckets = (0..BUCKETS).filter(|bucket| {
        view.place(&Unit::Bucket(*bucket).log()).is_some_and(|place| place.cell == cell && !place.merged)
    });
    let snapshot = view.to_snapshot();
    let guilds = snapshot.routes.iter().filter(|(log, hint)| log.starts_with('g') && hint.cell == cell && !hint.merged);
    buckets.count() + guilds.count()
}

/// Why the cell may not go. Only heads can say that it may: what cannot be read holds it.
async fn hold(cell: &Cell, context: &Context, seen: &Seen) -> Result<Option<String>, ReconcileError> {
    let name = cell.name_any();
    let Some(fleet) = &seen.fleet else {
        // Without a fleet nothing can read heads, and nothing serves them either: its data stays in the StorageCell. One that cannot be
        // decoded still rules them.
        return context.unread_fleet().await;
    };
    let link = context.hub.link_to(&fleet.spec.etcd);
    let view = link.directory.view().clone();
    let beside = context
        .stores
        .all_cells()
        .into_iter()
        .filter(|other| databases::serving(other) == seen.serving)
        .find_map(|other| rpc::data_members_of(&view, &other.name_any()).into_iter().next());
    let Some(member) = beside else {
        if !link.directory.is_synced() {
            return Ok(Some("etcd does not answer, so it is not known who could read the heads".into()));
        }
        let never_ran = cell.status.as_ref().is_none_or(|status| status.pods.is_none());
        if never_ran || !seen.storage_exists {
            return Ok(None);
        }
        return Ok(Some("no data service on its StorageCell is live to read the heads".into()));
    };
    let heads = rpc::all_heads(&link, &member.grpc_address, &name).await?;
    let open: Vec<&str> = heads
        .iter()
        .filter(|head| head.cell == name && head.moved_to.is_empty())
        .map(|head| head.log.as_str())
        .collect();
    if open.is_empty() {
        return Ok(None);
    }
    let some = open.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    Ok(Some(format!("{} heads name it ({some}, …); move those units to another cell first", open.len())))
}
