//! Faults of how a workload is rolled out: the strategies of Deployments and StatefulSets.

use serde_json::Value;

use super::small::count_or_share;
use crate::kube_api::object::{at, text};
use crate::kube_api::status::{Fault, FieldError};

/// A Deployment's strategy and deadline.
pub fn deployment(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rolling = at(new, &["spec", "strategy", "rollingUpdate"]).filter(|v| !v.is_null());
    match (text(new, &["spec", "strategy", "type"]), rolling) {
        ("Recreate", Some(_)) => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::new(Fault::Forbidden, "spec.strategy.rollingUpdate", None, detail));
        }
        ("RollingUpdate", Some(rolling)) => errors.extend(pace(rolling)),
        ("Recreate" | "RollingUpdate", _) => {}
        (other, _) => {
            let detail = "supported values: \"Recreate\", \"RollingUpdate\"";
            errors.push(FieldError::new(Fault::NotSupported, "spec.strategy.type", Some(&other.into()), detail));
        }
    }
    let number = |field: &str| at(new, &["spec", field]).and_then(Value::as_i64);
    if let Some(deadline) = number("progressDeadlineSeconds") {
        let mut wrong = |detail: &str| {
            errors.push(FieldError::invalid("spec.progressDeadlineSeconds", &deadline.into(), detail));
        };
        if deadline < 0 {
            wrong("must be greater than or equal to 0");
        }
        if deadline <= number("minReadySeconds").unwrap_or_default() {
            wrong("must be greater than minReadySeconds");
        }
    }
    errors
}

fn pace(rolling: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, most) in [("maxUnavailable", Some(100)), ("maxSurge", None)] {
        if let Some(found) = rolling.get(field) {
            errors.extend(count_or_share(&format!("spec.strategy.rollingUpdate.{field}"), found, most));
        }
    }
    let none = |field: &str| rolling.get(field).is_none_or(|v| v.as_i64() == Some(0) || v.as_str() == Some("0%"));
    if none("maxUnavailable") && none("maxSurge") {
        let found = rolling.get("maxUnavailable").unwrap_or(&Value::Null);
        let detail = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid("spec.strategy.rollingUpdate.maxUnavailable", found, detail));
    }
    errors
}

/// A StatefulSet's strategy and order.
pub fn stateful_set(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let policy = text(new, &["spec", "podManagementPolicy"]);
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'Parallel' or 'OrderedReady'";
        errors.push(FieldError::invalid("spec.podManagementPolicy", &policy.into(), detail));
    }
    let rolling = at(new, &["spec", "updateStrategy", "rollingUpdate"]).filter(|v| !v.is_null());
    match (text(new, &["spec", "updateStrategy", "type"]), rolling) {
        ("OnDelete", Some(rolling)) => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.push(FieldError::invalid("spec.updateStrategy.rollingUpdate", rolling, detail));
        }
        ("RollingUpdate", Some(rolling)) if rolling["partition"].as_i64().is_some_and(|n| n < 0) => {
            let detail = "must be greater than or equal to 0";
            let field = "spec.updateStrategy.rollingUpdate.partition";
            errors.push(FieldError::invalid(field, &rolling["partition"], detail));
        }
        ("OnDelete" | "RollingUpdate", _) => {}
        (other, _) => {
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid("spec.updateStrategy", &other.into(), detail));
        }
    }
    errors
}

/// What a controller counted must be possible.
pub fn status(new: &Value) -> Vec<FieldError> {
    const COUNTS: [&str; 6] =
        ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas", "observedGeneration"];
    const NOT_MORE: [(&str, &str); 5] = [
        ("readyReplicas", "replicas"),
        ("currentReplicas", "replicas"),
        ("updatedReplicas", "replicas"),
        ("availableReplicas", "replicas"),
        ("availableReplicas", "readyReplicas"),
    ];
    let count = |field: &str| at(new, &["status", field]).and_then(Value::as_i64).unwrap_or_default();
    let wrong =
        |field: &str, detail: String| FieldError::invalid(format!("status.{field}"), &count(field).into(), detail);
    let negative = COUNTS.iter().filter(|field| count(field) < 0);
    let below = negative.map(|field| wrong(field, "must be greater than or equal to 0".into()));
    let more = NOT_MORE.iter().filter(|(field, most)| count(field) > count(most));
    let above = more.map(|(field, most)| wrong(field, format!("cannot be greater than status.{most}")));
    below.chain(above).collect()
}
