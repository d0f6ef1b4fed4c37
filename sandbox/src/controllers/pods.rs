//! What controllers read off a Pod: ready, failed, leaving, whose it is. Pure; it decides nothing about what should happen.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// One condition of a Pod by type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// True when the Pod's Ready condition is True and it is not leaving.
pub fn is_ready(pod: &Pod) -> bool {
    !is_leaving(pod) && has_ready_condition(pod)
}

/// True when the Pod's Ready condition is True, leaving or not.
pub fn has_ready_condition(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// True when the Pod has a deletion timestamp.
pub fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The Pod's phase, empty when none is reported.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

/// True when the Pod has ended (Succeeded or Failed).
pub fn is_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The node the Pod is bound to, if any.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// True when the object's controlling owner has this UID.
pub fn controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller(meta).is_some_and(|owner| owner.uid == uid)
}

/// The controlling owner reference, if any.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// One label's value, empty when absent.
pub fn label<'a>(meta: &'a ObjectMeta, key: &str) -> &'a str {
    meta.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

/// A short, stable hash of anything serialisable: ten lowercase letters and digits, safe in names and labels.
pub fn short_hash<T: Serialize>(value: &T) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let alphabet = b"bcdfghjklmnpqrstvwxz2456789";
    Sha256::digest(&bytes)
        .iter()
        .take(10)
        .map(|byte| char::from(alphabet[usize::from(*byte) % alphabet.len()]))
        .collect()
}

/// The hash of a Pod template.
pub fn template_hash(template: &PodTemplateSpec) -> String {
    short_hash(template)
}
