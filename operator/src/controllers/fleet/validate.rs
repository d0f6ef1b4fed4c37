//! Whether a fleet can be worked on at all. Pure.

use cell_crds::{Fleet, Reason};

use super::observe::{Prefix, Seen};
use crate::report::Standing;

/// # Errors
/// The standing that says what is in the way.
pub(super) fn validate(fleet: &Fleet, seen: &Seen) -> Result<(), Standing> {
    if seen.is_second {
        let message = "an older Fleet rules this namespace; one Fleet per namespace: delete this one".to_owned();
        return Err(Standing::Stalled(Reason::SecondFleet, message));
    }
    if fleet.spec.etcd.secret_ref.is_some() {
        let message =
            "spec.etcd.secretRef is not supported yet: client certificates and passwords come later; unset it";
        return Err(Standing::Stalled(Reason::NotSupported, message.into()));
    }
    if fleet.spec.entry.tls_secret_ref.is_some() {
        let message = "spec.entry.tlsSecretRef is not supported yet: terminate TLS in front of the entry; unset it";
        return Err(Standing::Stalled(Reason::NotSupported, message.into()));
    }
    if fleet.spec.paused {
        let message = "spec.paused is set: nothing is changed until it is unset".to_owned();
        return Err(Standing::Stalled(Reason::Paused, message));
    }
    if let Some(name) = &seen.missing_keys {
        let message = format!("spec.tokenKeysRef: Secret {name} does not exist; create it or unset the field");
        return Err(Standing::Stalled(Reason::ReferenceNotFound, message));
    }
    match &seen.prefix {
        Prefix::Ours | Prefix::NotAsked => Ok(()),
        Prefix::Unknown(message) => {
            let message = format!("etcd ({}) does not answer: {message}", fleet.spec.etcd.endpoints.join(","));
            Err(Standing::Reconciling(Reason::DirectoryUnavailable, message))
        }
        Prefix::Theirs(holder) => {
            let prefix = &fleet.spec.etcd.prefix;
            let message = format!(
                "spec.etcd.prefix {prefix} belongs to the Fleet with UID {holder}; choose another prefix, or delete the key {prefix}fleet if that Fleet is gone for good"
            );
            Err(Standing::Stalled(Reason::PrefixClaimed, message))
        }
    }
}
