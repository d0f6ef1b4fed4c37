//! Names and labels of everything the operator makes. One place, so that a selector and what it selects cannot drift apart.

use std::collections::BTreeMap;

use cell_proto::directory::Role;

/// Prefix of every field manager; one manager per controller and concern.
pub const MANAGER: &str = "cellplane-operator";
/// Value of `app.kubernetes.io/name`.
pub const APP: &str = "cellplane";
/// Which cell a Pod serves.
pub const CELL_LABEL: &str = "cellplane.dev/cell";
/// Which StorageCell a store Pod serves.
pub const STORAGE_CELL_LABEL: &str = "cellplane.dev/storage-cell";
/// `true` on gateway Pods that take new sessions.
pub const ENTRY_LABEL: &str = "cellplane.dev/entry";
/// Which guild a dedicated cell was made for.
pub const GUILD_LABEL: &str = "cellplane.dev/guild";
/// Hash of what was last applied, so that a field which is no longer wanted is noticed.
pub const HASH_ANNOTATION: &str = "cellplane.dev/applied-hash";
/// Port of gRPC services.
pub const GRPC_PORT: i32 = 9000;
/// Port of health and metrics.
pub const ADMIN_PORT: i32 = 9090;
/// Port of a gateway's client entry.
pub const HTTP_PORT: i32 = 8080;
/// Name of the leader's Lease.
pub const LEASE: &str = "cellplane-operator";

/// The StatefulSet of a cell's role, or of a StorageCell's store.
pub fn stateful_set(owner: &str, role: Role) -> String {
    format!("{owner}-{}", role.label())
}

/// The Service that clients enter by.
pub fn entry_service(fleet: &str) -> String {
    format!("{fleet}-entry")
}

/// The Secret with the token keys, where the fleet names none.
pub fn token_keys(fleet: &str) -> String {
    format!("{fleet}-token-keys")
}

/// The cell made for one guild.
pub fn dedicated_cell(guild_id: &str) -> String {
    format!("g-{guild_id}-cell")
}

/// The field manager of a controller's concern.
pub fn manager(kind: &str, concern: &str) -> String {
    format!("{MANAGER}/{kind}-{concern}")
}

/// Labels of everything made for `instance`.
pub fn labels(instance: &str, component: &str) -> BTreeMap<String, String> {
    [
        ("app.kubernetes.io/name", APP),
        ("app.kubernetes.io/instance", instance),
        ("app.kubernetes.io/component", component),
        ("app.kubernetes.io/managed-by", MANAGER),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The labels that select the Pods of `instance` and `component`: never changed once a set exists.
pub fn selector(instance: &str, component: &str) -> BTreeMap<String, String> {
    let mut labels = labels(instance, component);
    labels.remove("app.kubernetes.io/managed-by");
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_legal_names_give_legal_names_and_labels() {
        let cell = "c".repeat(40);
        assert!(stateful_set(&cell, Role::Gateway).len() <= 52);
        assert!(entry_service(&cell).len() <= 63);
        let guild = dedicated_cell("9223372036854775807");
        assert!(guild.len() <= 40, "{guild}");
        for value in labels(&cell, "gateway").values() {
            assert!(value.len() <= 63);
        }
    }
}
