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
    let spec = &storage.spec;
    if spec.engine != Engine::Embedded {
        let missing = match (&spec.external, &spec.managed) {
            (None, None) => Some("spec: engines scylla and cassandra take one of external and managed; set one"),
            (Some(_), Some(_)) => Some("spec: external and managed exclude each other; unset one"),
            (None, Some(_)) if spec.engine != Engine::Scylla => Some("spec.managed is only for engine scylla"),
            _ if spec.keyspace.is_none() => Some("spec.keyspace is not set; name the keyspace of the tables"),
            _ => None,
        };
        if let Some(missing) = missing {
            return Err(Standing::Stalled(Reason::InvalidSpec, missing.into()));
        }
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
    let message = format!(
        "{} refers to it: it serves on until those are deleted or finished, and then goes; a deletion cannot be taken back",
        users.join(", ")
    );
    Standing::Stalled(Reason::StillReferenced, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{fleet, storage_cell};

    #[test]
    fn a_database_that_is_not_described_is_stalled_with_the_reason() {
        let mut storage = storage_cell("main");
        (storage.spec.engine, storage.spec.embedded) = (Engine::Cassandra, None);
        let refused = |storage: &StorageCell| validate(storage, Some(&fleet()), &[]).unwrap_err().message().to_owned();
        assert!(refused(&storage).contains("external"));
        let external = serde_json::json!({"contactPoints": ["db:9042"]});
        storage.spec.external = Some(serde_json::from_value(external).unwrap());
        assert!(refused(&storage).contains("keyspace"));
        storage.spec.keyspace = Some("cellplane".into());
        assert!(validate(&storage, Some(&fleet()), &[]).is_ok());
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
