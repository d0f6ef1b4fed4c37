//! The `ScyllaCluster` of a managed StorageCell, as the Scylla operator's `scylla.scylladb.com/v1` defines it, and what its status
//! means.

use cell_crds::StorageCell;
use kube::ResourceExt;
use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::names::{STORAGE_CELL_LABEL, labels};

/// Group and version of the kind.
pub const GROUP_VERSION: &str = "scylla.scylladb.com/v1";
/// Its plural.
pub const PLURAL: &str = "scyllaclusters";

/// Where its API is.
pub fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("scylla.scylladb.com", "v1", "ScyllaCluster"), PLURAL)
}

/// The object; none if the StorageCell is not managed.
pub fn cluster(storage: &StorageCell) -> Option<Value> {
    let managed = storage.spec.managed.as_ref()?;
    let name = storage.name_any();
    let mut labels = labels(&name, "database");
    labels.insert(STORAGE_CELL_LABEL.into(), name.clone());
    let racks: Vec<Value> = managed
        .racks
        .iter()
        .map(|rack| {
            let mut capacity = json!({"capacity": rack.storage});
            if let Some(class) = &rack.storage_class_name {
                capacity["storageClassName"] = json!(class);
            }
            // Requests equal limits: the Scylla operator pins CPUs only for Pods of the class Guaranteed.
            let resources = json!({"cpu": rack.cpu, "memory": rack.memory});
            json!({
                "name": rack.name,
                "members": rack.members,
                "storage": capacity,
                "resources": {"requests": resources, "limits": resources},
            })
        })
        .collect();
    Some(json!({
        "apiVersion": GROUP_VERSION,
        "kind": "ScyllaCluster",
        // No owner: with deletionPolicy Retain it outlives its StorageCell.
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "version": managed.version,
            "developerMode": false,
            "datacenter": {"name": managed.datacenter, "racks": racks},
        },
    }))
}

/// Whether a cluster is up, with the number of ready nodes, or what is awaited.
pub fn readiness(live: &Value, storage: &StorageCell) -> Result<i32, String> {
    let wanted: i32 = storage.spec.managed.iter().flat_map(|managed| &managed.racks).map(|rack| rack.members).sum();
    let status = &live["status"];
    let observed = status["observedGeneration"].as_i64().unwrap_or_default();
    if observed < live["metadata"]["generation"].as_i64().unwrap_or_default() {
        return Err("the Scylla operator has not looked at the ScyllaCluster yet".into());
    }
    let racks = status["racks"].as_object().into_iter().flatten();
    let ready: i64 = racks.filter_map(|(_, rack)| rack["readyMembers"].as_i64()).sum();
    let condition = |kind: &str| {
        let found = status["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == kind);
        found.map(|one| (one["status"] == "True", one["message"].as_str().unwrap_or_default().to_owned()))
    };
    if let Some((true, message)) = condition("Degraded") {
        return Err(format!("the ScyllaCluster is degraded: {message}"));
    }
    let ready = i32::try_from(ready).unwrap_or(i32::MAX);
    match condition("Available") {
        Some((true, _)) if ready >= wanted => Ok(ready),
        _ => Err(format!("{ready} of {wanted} nodes of the ScyllaCluster are ready")),
    }
}
