//! Names and labels of everything the operator makes. One place, so that a selector and what it selects cannot drift apart.

use std::collections::BTreeMap;

use cell_proto::directory::Role;
use sha2::{Digest, Sha256};

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
/// Which StorageMigration a Pod works for.
pub const MIGRATION_LABEL: &str = "cellplane.dev/storage-migration";
/// Which guild a dedicated cell was made for.
pub const GUILD_LABEL: &str = "cellplane.dev/guild";
/// Hash of what was last applied, so that a field which is no longer wanted is noticed.
pub const HASH_ANNOTATION: &str = "cellplane.dev/applied-hash";
/// The fleet's image that a store's set was given, whatever was made of it on the way.
pub const IMAGE_ANNOTATION: &str = "cellplane.dev/fleet-image";
/// The name that the Move of a run without one had.
pub const ORPHAN_ANNOTATION: &str = "cellplane.dev/orphan-of";
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

/// The Secret with the files of the StorageCells that a cell needs.
pub fn storage_secret(cell: &str) -> String {
    format!("{cell}-storage")
}

/// The Secret with the files of the StorageCells of a migration.
pub fn migration_secret(migration: &str) -> String {
    format!("{migration}-migration-storage")
}

/// The Secret with the file that a StorageCell's probe reads.
pub fn probe_secret(storage_cell: &str) -> String {
    format!("{storage_cell}-probe-storage")
}

/// How the names of the Jobs that look at a StorageCell begin, for one content of its files.
pub fn probe_jobs(storage_cell: &str, content: &str) -> String {
    format!("{storage_cell}-probe-{}-", content.get(..8).unwrap_or(content))
}

/// One of them, begun in this minute since the Unix epoch.
pub fn probe_job(storage_cell: &str, content: &str, minute: i64) -> String {
    format!("{}{:07x}", probe_jobs(storage_cell, content), minute & 0xfff_ffff)
}

/// The Job by which a migration looks at one side (`s` or `t`).
pub fn migration_probe_job(migration: &str, side: char, round: u32, content: &str) -> String {
    let digest = Sha256::digest(format!("{round}-{content}"));
    let short: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("{migration}-probe-{side}{short}")
}

/// The StatefulSet of a migration's coordinator, and its Service.
pub fn coordinator(migration: &str) -> String {
    format!("{migration}-coordinator")
}

/// The Deployment of a migration's workers.
pub fn workers(migration: &str) -> String {
    format!("{migration}-workers")
}

/// The policy that says who reaches a StorageCell's database.
pub fn database_policy(storage_cell: &str) -> String {
    format!("{storage_cell}-database")
}

/// The policy that says what a cell's gateways and guild nodes may dial.
pub fn dial_policy(cell: &str) -> String {
    format!("{cell}-dialling")
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
        assert!(coordinator(&cell).len() <= 52 && workers(&cell).len() <= 52);
        assert!(migration_secret(&cell).len() <= 63 && probe_secret(&cell).len() <= 63);
        let content = "0123456789";
        for minute in [0, 29_000_000, i64::MAX] {
            assert!(probe_job(&cell, content, minute).len() <= 63);
            assert!(probe_job(&cell, content, minute).starts_with(&probe_jobs(&cell, content)));
        }
        assert!(migration_probe_job(&cell, 's', u32::MAX, content).len() <= 63);
        assert_ne!(migration_probe_job(&cell, 's', 1, content), migration_probe_job(&cell, 's', 2, content));
        let guild = dedicated_cell("9223372036854775807");
        assert!(guild.len() <= 40, "{guild}");
        for value in labels(&cell, "gateway").values() {
            assert!(value.len() <= 63);
        }
    }
}
