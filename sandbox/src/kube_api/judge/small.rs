//! Faults of the small kinds: Lease, PodDisruptionBudget, Secret.

use serde_json::Value;

use crate::kube_api::object::{at, text};
use crate::kube_api::status::{Fault, FieldError};

/// A Lease's numbers.
pub fn lease(new: &Value) -> Vec<FieldError> {
    let below = |field: &str, least: i64, detail: &str| {
        let found = at(new, &["spec", field])?;
        let wrong = found.as_i64().is_some_and(|n| n < least);
        wrong.then(|| FieldError::invalid(format!("spec.{field}"), found, detail))
    };
    [
        below("leaseDurationSeconds", 1, "must be greater than 0"),
        below("leaseTransitions", 0, "must be greater than or equal to 0"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A budget says how many, once.
pub fn budget(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = |field: &str| at(new, &["spec", field]).filter(|v| !v.is_null());
    if spec("minAvailable").is_some() && spec("maxUnavailable").is_some() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(FieldError::invalid("spec", &new["spec"], detail));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        if let Some(found) = spec(field) {
            errors.extend(count_or_share(&format!("spec.{field}"), found, Some(100)));
        }
    }
    let policy = text(new, &["spec", "unhealthyPodEvictionPolicy"]);
    if !matches!(policy, "AlwaysAllow" | "IfHealthyBudget") && spec("unhealthyPodEvictionPolicy").is_some() {
        let detail = "supported values: \"AlwaysAllow\", \"IfHealthyBudget\"";
        let field = "spec.unhealthyPodEvictionPolicy";
        errors.push(FieldError::new(Fault::NotSupported, field, Some(&policy.into()), detail));
    }
    errors
}

/// A number that is not negative, or a share like `50%`, of at most `most` percent where that is said.
pub fn count_or_share(field: &str, found: &Value, most: Option<u64>) -> Option<FieldError> {
    let detail = match found {
        Value::Number(number) if number.as_i64().is_some_and(|n| n < 0) => "must be greater than or equal to 0",
        Value::String(share) => match share.strip_suffix('%').map(str::parse::<u64>) {
            Some(Ok(percent)) if most.is_none_or(|most| percent <= most) => return None,
            Some(Ok(_)) => "must not be greater than 100%",
            _ => "a valid percent string must be a numeric string followed by an ending '%'",
        },
        _ => return None,
    };
    Some(FieldError::invalid(field, found, detail))
}

/// What a Secret's type promises is in it.
pub fn secret(new: &Value) -> Vec<FieldError> {
    let needed: &[&str] = match text(new, &["type"]) {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    needed
        .iter()
        .filter(|key| at(new, &["data", key]).is_none())
        .map(|key| FieldError::required(format!("data[{key}]"), ""))
        .collect()
}
