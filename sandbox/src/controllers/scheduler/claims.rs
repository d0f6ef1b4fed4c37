//! What a Pod's claims allow, and which claims to bind to which volumes. Pure. A claim of the local class waits for its Pod's node;
//! once bound, its volume's node is the only one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use super::{HOST_LABEL, VolumeHome, VolumeRule};

/// The storage class of folders on a node.
pub const LOCAL_CLASS: &str = "cellplane-local";
/// The provisioner the class names.
pub const LOCAL_PROVISIONER: &str = "cellplane.dev/local";
/// The annotation that tells the node's agent to make the volume.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Why a Pod's claims keep it waiting, whatever the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimTrouble {
    /// The claim does not exist.
    Missing(String),
    /// The claim is leaving.
    Leaving(String),
    /// The claim is of another class and not bound.
    Unbound(String),
    /// The claim names a volume that does not exist.
    Lost(String),
}

impl ClaimTrouble {
    /// The reason in words.
    pub fn text(&self) -> String {
        match self {
            Self::Missing(name) => format!("persistentvolumeclaim \"{name}\" not found"),
            Self::Leaving(name) => format!("persistentvolumeclaim \"{name}\" is being deleted"),
            Self::Unbound(name) => {
                format!(
                    "persistentvolumeclaim \"{name}\" is unbound and not of class {LOCAL_CLASS}: bind it or change its class"
                )
            }
            Self::Lost(name) => format!("persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume"),
        }
    }
}

/// A Pod's claims: the rule for nodes, and the claims that still wait for one.
#[derive(Debug, Default)]
pub struct ClaimView {
    /// What the volumes allow.
    pub rule: VolumeRule,
    /// Claims not yet bound.
    pub unbound: Vec<Arc<PersistentVolumeClaim>>,
}

/// Names of the claims a Pod uses.
pub fn claim_names(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or(&[]);
    volumes
        .iter()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|source| source.claim_name.clone())
        .collect()
}

/// Looks at a Pod's claims.
///
/// # Errors
/// [`ClaimTrouble`] when a claim keeps the Pod from every node.
pub fn look(
    pod: &Pod,
    claim: &dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    volume: &dyn Fn(&str) -> Option<Arc<PersistentVolume>>,
) -> Result<ClaimView, ClaimTrouble> {
    let mut view = ClaimView::default();
    for name in claim_names(pod) {
        let Some(found) = claim(&name) else { return Err(ClaimTrouble::Missing(name)) };
        if found.metadata.deletion_timestamp.is_some() {
            return Err(ClaimTrouble::Leaving(name));
        }
        let spec = found.spec.clone().unwrap_or_default();
        if let Some(bound) = spec.volume_name.filter(|bound| !bound.is_empty()) {
            let Some(volume) = volume(&bound) else { return Err(ClaimTrouble::Lost(name)) };
            view.rule.only.extend(home(&volume).map(|host| VolumeHome { volume: bound, host }));
        } else if spec.storage_class_name.as_deref().unwrap_or(LOCAL_CLASS) == LOCAL_CLASS {
            view.rule.prefer = found.annotations().get(SELECTED_NODE).cloned().or(view.rule.prefer);
            view.unbound.push(found);
        } else {
            return Err(ClaimTrouble::Unbound(name));
        }
    }
    Ok(view)
}

/// The host a volume's node affinity asks for.
pub fn home(volume: &PersistentVolume) -> Option<String> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten())
        .find(|requirement| requirement.key == HOST_LABEL && requirement.operator == "In")
        .and_then(|requirement| requirement.values.as_ref())
        .and_then(|values| values.first().cloned())
}

/// One thing the binder has to write.
#[derive(Debug, Clone)]
pub enum Binding {
    /// Name the volume in the claim's spec.
    Claim(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// Report the claim as bound.
    ClaimStatus(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// Report a volume's phase.
    VolumePhase(Arc<PersistentVolume>, &'static str),
    /// Report the claim as waiting.
    Waiting(Arc<PersistentVolumeClaim>),
}

/// What the binder has to write now: claims meet the volume that names them (by UID); a volume whose claim is gone is Released.
pub fn bindings(claims: &[Arc<PersistentVolumeClaim>], volumes: &[Arc<PersistentVolume>]) -> Vec<Binding> {
    let mut found = Vec::new();
    for volume in volumes {
        let Some(wanted) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { continue };
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("");
        let claim = claims.iter().find(|claim| {
            claim.metadata.uid == wanted.uid
                && claim.metadata.name == wanted.name
                && claim.metadata.namespace == wanted.namespace
        });
        match claim {
            Some(claim) => found.extend(meet(claim, volume, phase)),
            None if wanted.uid.is_some() && phase != "Released" && phase != "Failed" => {
                found.push(Binding::VolumePhase(volume.clone(), "Released"));
            }
            None => {}
        }
    }
    let waits = |claim: &&Arc<PersistentVolumeClaim>| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("");
        phase.is_empty()
    };
    let told: Vec<_> = found
        .iter()
        .filter_map(|binding| match binding {
            Binding::Claim(claim, _) | Binding::ClaimStatus(claim, _) => claim.metadata.uid.clone(),
            _ => None,
        })
        .collect();
    let waiting =
        claims.iter().filter(waits).filter(|claim| !claim.metadata.uid.as_ref().is_some_and(|uid| told.contains(uid)));
    found.extend(waiting.cloned().map(Binding::Waiting));
    found
}

fn meet(claim: &Arc<PersistentVolumeClaim>, volume: &Arc<PersistentVolume>, phase: &str) -> Vec<Binding> {
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
    let claim_phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("");
    let mut found = Vec::new();
    if named.is_empty() {
        found.push(Binding::Claim(claim.clone(), volume.clone()));
    } else if named == volume.name_any() {
        if claim_phase != "Bound" {
            found.push(Binding::ClaimStatus(claim.clone(), volume.clone()));
        }
        if phase != "Bound" {
            found.push(Binding::VolumePhase(volume.clone(), "Bound"));
        }
    }
    found
}
