//! When a ready Pod counts as available (ready for minReadySeconds). Pure.

use k8s_openapi::api::core::v1::Pod;

use super::pods;

/// True when the Pod has been Ready for `minimum` seconds at Unix second `now`.
pub fn is_available(pod: &Pod, minimum: i32, now: i64) -> bool {
    if !pods::is_ready(pod) {
        return false;
    }
    minimum <= 0
        || pods::condition(pod, "Ready")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .is_some_and(|time| now - time.0.as_second() >= i64::from(minimum))
}
