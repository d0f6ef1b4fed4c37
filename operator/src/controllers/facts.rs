//! What planning wants to know of cells, gathered from caches and the directory's view. No I/O.

use cell_crds::{Availability, Cell};
use cell_plan::checks::{Availability as PlanAvailability, CellFacts};
use cell_proto::directory::Role;
use cell_runtime::View;
use kube::ResourceExt;

/// The facts of a cell.
pub fn cell_facts(cell: &Cell, view: &View) -> CellFacts {
    let name = cell.name_any();
    let live = |role| view.members_of(role, &name).filter(|member| !member.draining).count();
    CellFacts {
        storage_cell: super::databases::serving(cell),
        availability: match cell.spec.availability {
            Availability::Active => PlanAvailability::Active,
            Availability::Cordoned => PlanAvailability::Cordoned,
            Availability::Evacuated => PlanAvailability::Evacuated,
        },
        deleting: cell.metadata.deletion_timestamp.is_some(),
        data_nodes: live(Role::Data),
        guild_nodes: live(Role::Guild),
        name,
    }
}
