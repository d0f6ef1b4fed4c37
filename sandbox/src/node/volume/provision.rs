//! Local volumes of this node: makes the folder and the PersistentVolume when a claim chose this node, and removes both when the
//! volume is Released under policy Delete. A folder is removed only on that positive word, never because an object is missing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};

use crate::controllers::act::{self, ActError};
use crate::controllers::pods;
use crate::controllers::scheduler::HOST_LABEL;
use crate::controllers::scheduler::claims::{LOCAL_CLASS, LOCAL_PROVISIONER, SELECTED_NODE, claim_names, home};
use crate::controllers::world::Changes;
use crate::node::shared::Node;

/// What to do about local volumes.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Make the folder and the volume of this claim.
    Make(Arc<PersistentVolumeClaim>),
    /// Remove the folder and the volume.
    Remove(Arc<PersistentVolume>),
}

/// The name of a claim's volume: fixed by the claim's UID, so that it is made once.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid().unwrap_or_default())
}

/// What is to be done on node `node`.
pub fn plan(node: &str, claims: &[Arc<PersistentVolumeClaim>], volumes: &[Arc<PersistentVolume>]) -> Vec<Step> {
    let make = claims.iter().filter(|claim| {
        let spec = claim.spec.clone().unwrap_or_default();
        let name = volume_name(claim);
        spec.storage_class_name.as_deref().unwrap_or(LOCAL_CLASS) == LOCAL_CLASS
            && spec.volume_name.is_none_or(|bound| bound.is_empty())
            && claim.metadata.deletion_timestamp.is_none()
            && claim.annotations().get(SELECTED_NODE).is_some_and(|chosen| chosen == node)
            && !volumes.iter().any(|volume| volume.metadata.name.as_deref() == Some(name.as_str()))
    });
    let remove = volumes.iter().filter(|volume| {
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        spec.storage_class_name.as_deref() == Some(LOCAL_CLASS)
            && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete")
            && phase == Some("Released")
            && home(volume).as_deref() == Some(node)
    });
    make.cloned().map(Step::Make).chain(remove.cloned().map(Step::Remove)).collect()
}

/// The folder of a volume; None when the name could leave the folder of volumes.
pub fn folder(state: &Path, name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    plain.then(|| state.join("volumes").join(name))
}

/// The volume of a claim on a node.
pub fn build(claim: &PersistentVolumeClaim, node: &str, path: &Path) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let size =
        spec.resources.and_then(|resources| resources.requests).and_then(|requests| requests.get("storage").cloned());
    let body = serde_json::json!({
        "metadata": {
            "name": volume_name(claim),
            "annotations": { "pv.kubernetes.io/provisioned-by": LOCAL_PROVISIONER },
        },
        "spec": {
            "accessModes": spec.access_modes.unwrap_or_else(|| vec!["ReadWriteOnce".into()]),
            "capacity": { "storage": size.map_or_else(|| "1Gi".to_owned(), |size| size.0) },
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": claim.name_any(),
                "namespace": claim.namespace(),
                "uid": claim.uid(),
            },
            "local": { "path": path },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": HOST_LABEL, "operator": "In", "values": [node] },
            ] }] } },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": LOCAL_CLASS,
            "volumeMode": "Filesystem",
        },
    });
    serde_json::from_value(body).unwrap_or_default()
}

/// Does what [`plan`] says, for ever.
pub async fn run(node: Node) {
    let mut changes = Changes::new(vec![node.claims.changes(), node.volumes.changes(), node.pods.changes()]);
    loop {
        let mut wait = Duration::from_secs(10);
        if node.claims.synced() && node.volumes.synced() && node.pods.synced() {
            for step in plan(&node.settings.node, &node.claims.all(), &node.volumes.all()) {
                if let Err(error) = take(&node, &step).await {
                    tracing::warn!(error = %error, "local volume step failed, will be tried again");
                    wait = Duration::from_secs(1);
                }
            }
        }
        changes.next(wait).await;
    }
}

async fn take(node: &Node, step: &Step) -> Result<(), ActError> {
    let api: Api<PersistentVolume> = Api::all(node.client.clone());
    match step {
        Step::Make(claim) => {
            let Some(path) = folder(&node.settings.state, &volume_name(claim)) else { return Ok(()) };
            if let Err(error) = std::fs::create_dir_all(&path) {
                tracing::warn!(path = %path.display(), error = %error, "volume folder not made");
                return Ok(());
            }
            let made = act::create(&api, &build(claim, &node.settings.node, &path), &node.writes).await?;
            tracing::info!(volume = volume_name(claim), new = made.is_some(), "local volume made");
        }
        Step::Remove(volume) => {
            let name = volume.name_any();
            if in_use(node, volume) {
                return Ok(());
            }
            let live = act::call("read", api.get_opt(&name)).await?;
            let still = live.and_then(|live| live.status?.phase).as_deref() == Some("Released");
            if let (true, Some(path)) = (still, folder(&node.settings.state, &name)) {
                if let Err(error) = std::fs::remove_dir_all(&path)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    tracing::warn!(path = %path.display(), error = %error, "volume folder not removed");
                }
                act::delete(&api, volume.as_ref(), None, &node.writes).await?;
                tracing::info!(volume = name, "local volume removed");
            }
        }
    }
    Ok(())
}

/// True while a Pod of this node may still use the volume: it names the volume's claim, and no newer claim of that name has another.
fn in_use(node: &Node, volume: &PersistentVolume) -> bool {
    let Some(was) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()) else { return false };
    let (namespace, claim) = (was.namespace.unwrap_or_default(), was.name.unwrap_or_default());
    let newer = node.claims.get(&namespace, &claim).and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
    if newer.is_some_and(|name| !name.is_empty() && name != volume.name_any()) {
        return false;
    }
    node.pods.all().iter().any(|pod| {
        pods::node(pod) == Some(node.settings.node.as_str())
            && pod.metadata.namespace.as_deref() == Some(namespace.as_str())
            && claim_names(pod).contains(&claim)
    })
}
