//! Shares the buckets once. What has a head keeps it: an empty etcd beside existing heads is adopted, and a bootstrap that was cut
//! short goes on where it stopped. The assignment in etcd is written last, so it never speaks of heads that do not exist.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cell_crds::condition::is_ready;
use cell_crds::{Cell, Fleet, Reason};
use cell_plan::bootstrap::{BUCKETS, BootstrapCell, assign};
use cell_proto::directory::Buckets;
use cell_proto::unit::Unit;
use cell_proto::v1::Head;
use etcd_client::{Compare, CompareOp, TxnOp};
use kube::ResourceExt;

use super::observe::Seen;
use crate::context::Context;
use crate::directory::{Link, LinkError};
use crate::error::ReconcileError;
use crate::report::Standing;
use crate::rpc;

pub(super) async fn bootstrap(fleet: &Fleet, context: &Context, seen: &Seen) -> Result<Standing, ReconcileError> {
    let done = || {
        let message = format!("{} cells, {BUCKETS} buckets", seen.cells.len());
        Ok(Standing::Ready(Reason::AsDesired, message))
    };
    if seen.has_buckets {
        return done();
    }
    let link = context.hub.link_to(&fleet.spec.etcd);
    if let Some(waiting) = missing_cells(fleet, seen, &link) {
        return Ok(waiting);
    }
    let existing = existing_heads(&link, &seen.cells).await?;
    let plan = match plan(fleet, seen, &existing) {
        Ok(plan) => plan,
        Err(stalled) => return Ok(stalled),
    };
    for (cell, heads) in plan.missing {
        let Some(member) = rpc::data_members_of(&link.directory.view(), &cell).into_iter().next() else {
            let message = format!("cell {cell} has no live data service to create heads with");
            return Ok(Standing::Reconciling(Reason::WaitingForCells, message));
        };
        let created = rpc::create_heads(&link, &member.grpc_address, heads).await?;
        tracing::info!(cell, created, "heads created");
    }
    write_buckets(&link, &plan.buckets).await?;
    if plan.adopted > 0 {
        tracing::info!(adopted = plan.adopted, "existing heads were adopted");
    }
    done()
}

/// Every bootstrap cell must be Ready and show a live data service; and every StorageCell in use must be readable, else heads in it
/// would be overlooked.
fn missing_cells(fleet: &Fleet, seen: &Seen, link: &Link) -> Option<Standing> {
    let view = link.directory.view();
    let lives = |name: &str| !rpc::data_members_of(&view, name).is_empty();
    let waiting: Vec<String> = fleet
        .spec
        .bootstrap_cells
        .iter()
        .filter_map(|name| match seen.cells.iter().find(|cell| cell.name_any() == *name) {
            None => Some(format!("{name} (does not exist)")),
            Some(cell) if !is_cell_ready(cell) => Some(format!("{name} (not Ready)")),
            Some(_) if !lives(name) => Some(format!("{name} (no live data service in the directory)")),
            Some(_) => None,
        })
        .collect();
    if !waiting.is_empty() {
        let message =
            format!("the buckets are shared once all bootstrap cells are Ready; waiting for {}", waiting.join(", "));
        return Some(Standing::Reconciling(Reason::WaitingForCells, message));
    }
    let readable: BTreeSet<&str> = seen
        .cells
        .iter()
        .filter(|cell| lives(&cell.name_any()))
        .map(|cell| cell.spec.storage_cell_ref.as_str())
        .collect();
    let unread = seen.cells.iter().find(|cell| !readable.contains(cell.spec.storage_cell_ref.as_str()))?;
    let message = format!(
        "StorageCell {} of cell {} may hold heads and has no live data service to read them",
        unread.spec.storage_cell_ref,
        unread.name_any()
    );
    Some(Standing::Reconciling(Reason::WaitingForCells, message))
}

fn is_cell_ready(cell: &Cell) -> bool {
    cell.status.as_ref().is_some_and(|status| is_ready(&status.conditions, cell.metadata.generation))
}

/// The cell of every bucket that has a head, in any StorageCell of the fleet.
async fn existing_heads(link: &Link, cells: &[Cell]) -> Result<HashMap<u16, String>, ReconcileError> {
    let mut read = BTreeSet::new();
    let mut found: HashMap<u16, (u64, String)> = HashMap::new();
    for cell in cells {
        if read.contains(&cell.spec.storage_cell_ref) {
            continue;
        }
        let Some(member) = rpc::data_members_of(&link.directory.view(), &cell.name_any()).into_iter().next() else {
            continue;
        };
        read.insert(cell.spec.storage_cell_ref.clone());
        for head in rpc::all_heads(link, &member.grpc_address, "").await? {
            if let Ok(Unit::Bucket(bucket)) = head.log.parse() {
                // Two StorageCells with a head of one bucket: the higher term sealed or was claimed last.
                let entry = found.entry(bucket).or_insert((head.term, head.cell.clone()));
                if head.term > entry.0 {
                    *entry = (head.term, head.cell);
                }
            }
        }
    }
    Ok(found.into_iter().map(|(bucket, (_, cell))| (bucket, cell)).collect())
}

struct Plan {
    missing: BTreeMap<String, Vec<Head>>,
    buckets: Buckets,
    adopted: usize,
}

fn plan(fleet: &Fleet, seen: &Seen, existing: &HashMap<u16, String>) -> Result<Plan, Standing> {
    let weight = |name: &String| {
        let cell = seen.cells.iter().find(|cell| cell.name_any() == *name);
        BootstrapCell {
            name: name.clone(),
            weight: cell.and_then(|cell| u32::try_from(cell.spec.weight).ok()).unwrap_or_default(),
        }
    };
    let cells: Vec<BootstrapCell> = fleet.spec.bootstrap_cells.iter().map(weight).collect();
    let wanted = assign(&cells).map_err(|error| Standing::Stalled(Reason::InvalidSpec, error.to_string()))?;
    let mut names = wanted.cells.clone();
    let (mut missing, mut assignment) = (BTreeMap::<String, Vec<Head>>::new(), Vec::new());
    for (bucket, index) in (0..BUCKETS).zip(&wanted.buckets) {
        if let Some(cell) = existing.get(&bucket) {
            let at = names.iter().position(|name| name == cell).unwrap_or_else(|| {
                names.push(cell.clone());
                names.len() - 1
            });
            assignment.push(u16::try_from(at).unwrap_or_default());
        } else {
            let cell = wanted.cells[usize::from(*index)].clone();
            let head = Head { log: Unit::Bucket(bucket).log(), cell: cell.clone(), ..Head::default() };
            missing.entry(cell).or_default().push(head);
            assignment.push(*index);
        }
    }
    Ok(Plan { missing, buckets: Buckets { cells: names, assignment }, adopted: existing.len() })
}

async fn write_buckets(link: &Link, buckets: &Buckets) -> Result<(), LinkError> {
    let key = link.keys().buckets();
    let value = serde_json::to_vec(buckets)
        .map_err(|error| LinkError::Malformed { key: key.clone(), message: error.to_string() })?;
    let guard = Compare::version(key.as_str(), CompareOp::Equal, 0);
    link.write(vec![guard], vec![TxnOp::put(key, value, None)]).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fleet::observe::Prefix;
    use crate::fixtures::{cell, fleet};

    fn seen() -> Seen {
        Seen {
            is_second: false,
            cells: vec![cell("shared-1", "main"), cell("shared-2", "main")],
            prefix: Prefix::Ours,
            has_buckets: false,
            missing_keys: None,
        }
    }

    #[test]
    fn a_new_fleet_gets_a_head_for_every_bucket() {
        let plan = plan(&fleet(), &seen(), &HashMap::new()).unwrap();
        let heads: usize = plan.missing.values().map(Vec::len).sum();
        assert_eq!((heads, plan.buckets.assignment.len(), plan.adopted), (4096, 4096, 0));
        assert!(plan.missing.values().all(|heads| heads.len() > 1800), "two cells of equal weight share about equally");
    }

    #[test]
    fn existing_heads_are_adopted_wherever_they_are_and_only_the_rest_is_made() {
        let existing: HashMap<u16, String> = (0..4000).map(|bucket| (bucket, "old-cell".to_owned())).collect();
        let plan = plan(&fleet(), &seen(), &existing).unwrap();
        assert_eq!(plan.missing.values().map(Vec::len).sum::<usize>(), 96);
        assert_eq!(plan.buckets.cell_of(17), Some("old-cell"));
        assert!(plan.buckets.cell_of(4090).unwrap().starts_with("shared-"));
    }

    #[test]
    fn a_bootstrap_cut_short_goes_on_with_the_same_placement() {
        let whole = plan(&fleet(), &seen(), &HashMap::new()).unwrap();
        let half: HashMap<u16, String> =
            (0..2048).map(|bucket| (bucket, whole.buckets.cell_of(bucket).unwrap().to_owned())).collect();
        let rest = plan(&fleet(), &seen(), &half).unwrap();
        assert_eq!(rest.buckets, whole.buckets);
    }
}
