//! Whether a StorageCell can be worked on. Pure.

use cell_crds::{Engine, Fleet, Reason, StorageCell};

use crate::report::Standing;

/// # Errors
/// The standing that says what is in the way.
pub(super) fn validate<'a>(
    storage: &StorageCell,
    fleet: Option<&'a Fleet>,
    users: &[String],
) -> Result<&'a Fleet, Standing> {
    if storage.metadata.deletion_timestamp.is_some() && !users.is_empty() && fleet.is_none() {
        return Err(referenced(users));
    }
    if storage.spec.engine != Engine::Embedded {
        let engine = format!("{:?}", storage.spec.engine).to_lowercase();
        let message = format!(
            "spec.engine {engine} is not supported by this version: use engine embedded; {engine} comes with storage migrations"
        );
        return Err(Standing::Stalled(Reason::EngineUnsupported, message));
    }
    let Some(fleet) = fleet else {
        let message = "no Fleet in this namespace: create one; the store registers in its etcd".to_owned();
        return Err(Standing::Reconciling(Reason::NoFleet, message));
    };
    if fleet.spec.paused {
        let message = "Fleet.spec.paused is set: nothing is changed until it is unset".to_owned();
        return Err(Standing::Stalled(Reason::Paused, message));
    }
    Ok(fleet)
}

/// It is being deleted and still used.
pub(super) fn referenced(users: &[String]) -> Standing {
    let message = format!("spec.storageCellRef of {} names it; delete those Cells first", users.join(", "));
    Standing::Stalled(Reason::StillReferenced, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{fleet, storage_cell};

    #[test]
    fn an_engine_of_a_later_version_is_stalled_with_the_reason() {
        let mut storage = storage_cell("main");
        storage.spec.engine = Engine::Scylla;
        let refused = validate(&storage, Some(&fleet()), &[]).unwrap_err();
        assert!(
            matches!(&refused, Standing::Stalled(Reason::EngineUnsupported, message) if message.contains("scylla"))
        );
    }

    #[test]
    fn without_a_fleet_it_waits_and_a_paused_fleet_stalls_it() {
        let storage = storage_cell("main");
        let waiting = validate(&storage, None, &[]).unwrap_err();
        assert_eq!(waiting.reason(), Reason::NoFleet);
        let mut paused = fleet();
        paused.spec.paused = true;
        assert_eq!(validate(&storage, Some(&paused), &[]).unwrap_err().reason(), Reason::Paused);
        assert!(validate(&storage, Some(&fleet()), &[]).is_ok());
    }
}
