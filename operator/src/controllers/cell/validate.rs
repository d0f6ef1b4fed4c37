//! Whether a cell can be worked on, and how it stands once its objects are applied. Pure.

use cell_crds::{Availability, Cell, Fleet, Reason};

use super::observe::Seen;
use super::rollout::SetState;
use crate::build::cell::ROLES;
use crate::report::Standing;

/// # Errors
/// The standing that says what is in the way.
pub(super) fn validate<'a>(cell: &Cell, seen: &'a Seen) -> Result<&'a Fleet, Standing> {
    let Some(fleet) = &seen.fleet else {
        if let Some(held) = &seen.held {
            return Err(Standing::Stalled(Reason::HoldsUnits, held.clone()));
        }
        let message = "no Fleet in this namespace: create one; it names the etcd and the image".to_owned();
        return Err(Standing::Reconciling(Reason::NoFleet, message));
    };
    if fleet.spec.paused {
        let message = "Fleet.spec.paused is set: nothing is changed until it is unset".to_owned();
        return Err(Standing::Stalled(Reason::Paused, message));
    }
    if !seen.storage_exists {
        let message = format!("spec.storageCellRef: StorageCell {} does not exist; create it", seen.serving);
        return Err(Standing::Stalled(Reason::ReferenceNotFound, message));
    }
    if let Some(stalled) = &seen.storage_stalled
        && cell.metadata.deletion_timestamp.is_none()
    {
        let message = format!("StorageCell {} is stalled: {stalled}", seen.serving);
        return Err(Standing::Stalled(Reason::StorageNotReady, message));
    }
    if !cell.spec.voice_regions.is_empty() {
        let message = "spec.voiceRegions is not supported yet: voice comes with a later version; unset it".to_owned();
        return Err(Standing::Stalled(Reason::NotSupported, message));
    }
    Ok(fleet)
}

/// How the cell stands, its objects applied.
pub(super) fn standing(cell: &Cell, seen: &Seen, states: &[SetState]) -> Standing {
    if let Some(held) = &seen.held {
        return Standing::Stalled(Reason::HoldsUnits, held.clone());
    }
    if cell.spec.availability == Availability::Evacuated {
        let message = "spec.availability Evacuated is not supported yet: the cell goes on and nothing moves; use Cordoned and Moves";
        return Standing::Stalled(Reason::NotSupported, message.into());
    }
    let waiting = ROLES.iter().zip(states).find_map(|(role, state)| match state {
        SetState::Ready { .. } => None,
        SetState::Waiting(why) => Some(format!("{}: {why}", role.label())),
    });
    match waiting {
        Some(why) => Standing::Reconciling(Reason::PodsNotReady, why),
        None if cell.spec.availability == Availability::Cordoned => {
            Standing::Ready(Reason::Cordoned, "all pods are ready; it gets no new units and sessions".into())
        }
        None if seen.storage_leaves => Standing::Ready(Reason::StorageDeleting, leaving(seen)),
        None if seen.serving != cell.spec.storage_cell_ref => {
            Standing::Ready(Reason::StorageRefOutdated, outdated(cell, seen))
        }
        None if seen.is_left => {
            let name = cell.metadata.name.as_deref().unwrap_or_default();
            let message = format!(
                "all pods are ready; it has no unit and nobody asks for it: kubectl delete cell {name} frees its pods"
            );
            Standing::Ready(Reason::Empty, message)
        }
        None => Standing::Ready(Reason::AsDesired, "all pods are ready".into()),
    }
}

fn leaving(seen: &Seen) -> String {
    let storage = &seen.serving;
    format!(
        "all pods are ready; StorageCell {storage} is being deleted, which cannot be taken back: it serves until this cell is deleted too"
    )
}

/// The spec names what a migration has left behind; it is for people to follow, with the patch for Git.
fn outdated(cell: &Cell, seen: &Seen) -> String {
    format!(
        "all pods are ready; a StorageMigration brought the data to StorageCell {}, spec.storageCellRef names {}: commit {{\"spec\":{{\"storageCellRef\":\"{}\"}}}}",
        seen.serving, cell.spec.storage_cell_ref, seen.serving
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cell, fleet};

    fn seen() -> Seen {
        Seen {
            fleet: Some(fleet()),
            serving: "main".into(),
            storage_exists: true,
            storage_stalled: None,
            storage_leaves: false,
            is_left: false,
            token_keys: "prod-token-keys".into(),
            units: Some(3),
            held: None,
            may_go: false,
        }
    }

    fn ready() -> Vec<SetState> {
        vec![SetState::Ready { pods: 2 }; 3]
    }

    #[test]
    fn a_cell_that_refers_to_nothing_is_stalled() {
        let mut nothing = seen();
        nothing.storage_exists = false;
        let refused = validate(&cell("a", "main"), &nothing).unwrap_err();
        assert_eq!(refused.reason(), Reason::ReferenceNotFound);
        assert!(refused.message().contains("main"));
    }

    #[test]
    fn a_cell_serves_on_while_its_storage_cell_is_being_deleted_and_held() {
        let mut leaving = seen();
        leaving.storage_leaves = true;
        assert!(validate(&cell("a", "main"), &leaving).is_ok());
        let found = standing(&cell("a", "main"), &leaving, &ready());
        assert!(matches!(&found, Standing::Ready(Reason::StorageDeleting, why) if why.contains("StorageCell main")));
    }

    #[test]
    fn a_storage_cell_that_is_stalled_is_not_said_to_be_missing() {
        let mut stalled = seen();
        stalled.storage_stalled = Some("spec.engine scylla is not supported".into());
        assert_eq!(validate(&cell("a", "main"), &stalled).unwrap_err().reason(), Reason::StorageNotReady);
    }

    #[test]
    fn a_cell_that_nobody_needs_says_how_to_delete_it() {
        let mut left = seen();
        left.is_left = true;
        let found = standing(&cell("a", "main"), &left, &ready());
        assert!(matches!(&found, Standing::Ready(Reason::Empty, why) if why.contains("kubectl delete cell a")));
    }

    #[test]
    fn a_spec_that_a_migration_left_behind_shows_the_patch_for_git() {
        let mut moved = seen();
        moved.serving = "next".into();
        let standing = standing(&cell("a", "main"), &moved, &ready());
        assert!(matches!(&standing, Standing::Ready(Reason::StorageRefOutdated, _)), "{standing:?}");
        assert!(standing.message().contains(r#"{"spec":{"storageCellRef":"next"}}"#), "{standing:?}");
    }

    #[test]
    fn a_cell_that_is_held_by_a_fleet_that_cannot_be_read_says_so() {
        let mut unread = seen();
        (unread.fleet, unread.held) = (None, Some("Fleet prod cannot be decoded".into()));
        let refused = validate(&cell("a", "main"), &unread).unwrap_err();
        assert!(matches!(&refused, Standing::Stalled(Reason::HoldsUnits, why) if why.contains("prod")), "{refused:?}");
        unread.held = None;
        assert_eq!(validate(&cell("a", "main"), &unread).unwrap_err().reason(), Reason::NoFleet);
    }

    #[test]
    fn what_is_not_built_is_refused_honestly() {
        let mut evacuated = cell("a", "main");
        evacuated.spec.availability = Availability::Evacuated;
        assert!(matches!(standing(&evacuated, &seen(), &ready()), Standing::Stalled(Reason::NotSupported, _)));
        let mut voice = cell("a", "main");
        voice.spec.voice_regions = vec!["eu".into()];
        assert_eq!(validate(&voice, &seen()).unwrap_err().reason(), Reason::NotSupported);
    }

    #[test]
    fn a_cell_is_ready_when_all_its_sets_are_and_says_what_it_waits_for() {
        assert!(matches!(standing(&cell("a", "main"), &seen(), &ready()), Standing::Ready(Reason::AsDesired, _)));
        let mut states = ready();
        states[1] = SetState::Waiting("1 of 2 pods are ready".into());
        let waiting = standing(&cell("a", "main"), &seen(), &states);
        assert!(waiting.message().starts_with("guild: 1 of 2"), "{waiting:?}");
        let mut held = seen();
        held.held = Some("4 heads name it".into());
        assert_eq!(standing(&cell("a", "main"), &held, &ready()).reason(), Reason::HoldsUnits);
    }
}
