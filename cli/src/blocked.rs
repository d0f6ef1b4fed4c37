//! What a resource waits for, in one line, read from its status. Never blank while something waits; `-` only when nothing does.

use serde_json::Value;

/// Nothing waits.
pub const NOTHING: &str = "-";

/// What a custom resource waits for.
pub fn of_resource(object: &Value) -> String {
    let status = &object["status"];
    if let Some(result) = status["result"].as_str()
        && !result.is_empty()
    {
        return NOTHING.to_owned();
    }
    let generation = object["metadata"]["generation"].as_i64();
    let observed = status["observedGeneration"].as_i64();
    if observed.is_none() || (generation.is_some() && observed < generation) {
        return "NotObserved: the operator has not looked at it yet".to_owned();
    }
    if let Some(text) = status["blockedBy"].as_str().filter(|text| !text.trim().is_empty()) {
        return text.to_owned();
    }
    for (kind, status_while_waiting) in
        [("Stalled", "True"), ("Ready", "False"), ("Reconciling", "True"), ("Ready", "Unknown")]
    {
        if let Some(found) = condition(object, kind).filter(|found| found["status"] == status_while_waiting) {
            return reason_and_message(found);
        }
    }
    if condition(object, "Ready").is_none() {
        return "NoConditions: the operator has reported nothing yet".to_owned();
    }
    NOTHING.to_owned()
}

/// What a Pod waits for.
pub fn of_pod(pod: &Value) -> String {
    let status = &pod["status"];
    if status["phase"] == "Succeeded" {
        return NOTHING.to_owned();
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating".to_owned();
    }
    if let Some(found) = condition(pod, "PodScheduled").filter(|found| found["status"] != "True") {
        return reason_and_message(found);
    }
    for container in status["containerStatuses"].as_array().into_iter().flatten() {
        for state in ["waiting", "terminated"] {
            if container["state"][state].is_object() {
                return reason_and_message(&container["state"][state]);
            }
        }
    }
    match condition(pod, "Ready") {
        Some(ready) if ready["status"] == "True" => NOTHING.to_owned(),
        Some(ready) => reason_and_message(ready),
        None => "NotStarted: no node has reported it yet".to_owned(),
    }
}

/// The status of a condition: `True`, `False` or `Unknown`.
pub fn condition_status(object: &Value, kind: &str) -> String {
    condition(object, kind).and_then(|found| found["status"].as_str()).unwrap_or("Unknown").to_owned()
}

/// The condition of a type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == kind)
}

fn reason_and_message(found: &Value) -> String {
    let text = |field: &str| found[field].as_str().unwrap_or_default().trim().to_owned();
    match (text("reason"), text("message")) {
        (reason, message) if reason.is_empty() && message.is_empty() => "Unknown".to_owned(),
        (reason, message) if message.is_empty() => reason,
        (reason, message) if reason.is_empty() => message,
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn resource(status: Value) -> Value {
        json!({"metadata": {"generation": 2}, "status": status})
    }

    #[test]
    fn nothing_waiting_is_the_only_dash() {
        let ready = json!([{"type": "Ready", "status": "True", "reason": "AsDesired"}]);
        assert_eq!(of_resource(&resource(json!({"observedGeneration": 2, "conditions": ready}))), NOTHING);
        assert_eq!(of_resource(&resource(json!({"observedGeneration": 2, "result": "Aborted"}))), NOTHING);
    }

    #[test]
    fn whatever_waits_says_for_what() {
        let waiting = [
            (json!({}), "NotObserved"),
            (json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]}), "NotObserved"),
            (json!({"observedGeneration": 2}), "NoConditions"),
            (json!({"observedGeneration": 2, "blockedBy": "cell a"}), "cell a"),
            (
                json!({"observedGeneration": 2, "blockedBy": " ", "conditions": [{"type": "Ready", "status": "False",
                "reason": "PodsNotReady", "message": "1 of 2"}]}),
                "PodsNotReady: 1 of 2",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "False", "reason": "Progressing"},
                {"type": "Stalled", "status": "True", "reason": "HoldsUnits"}]}),
                "HoldsUnits",
            ),
            (
                json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"},
                {"type": "Reconciling", "status": "True", "message": "m"}]}),
                "m",
            ),
            (json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "Unknown"}]}), "Unknown"),
        ];
        for (status, expected) in waiting {
            let blocked = of_resource(&resource(status.clone()));
            assert!(blocked.starts_with(expected), "{status}: {blocked}");
        }
    }

    #[test]
    fn a_pod_says_why_it_is_not_ready() {
        let pod = |status: Value| of_pod(&json!({"metadata": {}, "status": status}));
        assert!(pod(json!({})).starts_with("NotStarted"));
        assert!(
            pod(json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}))
                .starts_with("Unschedulable")
        );
        assert!(
            pod(json!({"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}))
                .starts_with("CrashLoopBackOff")
        );
        assert_eq!(pod(json!({"conditions": [{"type": "Ready", "status": "True"}]})), NOTHING);
        assert_eq!(pod(json!({"phase": "Succeeded"})), NOTHING);
    }
}
