//! What the API itself does for Jobs: defaults, the selector and labels that tie Pods to one Job, and refusals. It never makes a Pod.

use serde_json::{Map, Value, json};

use super::object::{self, as_map, at, list, set_default, text};
use super::status::{Fault, FieldError};

/// Labels of a Job's Pods, beside their older spellings.
const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";

/// Defaults of a Job's spec, without its template's.
pub fn fill(spec: &mut Map<String, Value>) {
    if spec.get("completions").is_none_or(Value::is_null) && spec.get("parallelism").is_none_or(Value::is_null) {
        set_default(spec, "completions", 1);
    }
    set_default(spec, "parallelism", 1);
    set_default(spec, "backoffLimit", 6);
    set_default(spec, "suspend", false);
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "manualSelector", false);
    let replacement = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    set_default(spec, "podReplacementPolicy", replacement);
    for rule in spec.get_mut("podFailurePolicy").and_then(|p| p.get_mut("rules")?.as_array_mut()).into_iter().flatten()
    {
        for pattern in rule.get_mut("onPodConditions").and_then(Value::as_array_mut).into_iter().flatten() {
            set_default(as_map(pattern), "status", "True");
        }
    }
}

/// Ties the Pods to come to this Job: a selector and labels made of its UID, unless the client chose them.
pub fn begin(job: &mut Value) {
    let (uid, name) = (object::uid(job).to_owned(), object::name(job).to_owned());
    if at(job, &["spec", "manualSelector"]).and_then(Value::as_bool) != Some(true) {
        let spec = object::child(job, "spec");
        let template = as_map(spec.entry("template").or_insert_with(|| json!({})));
        let metadata = as_map(template.entry("metadata").or_insert_with(|| json!({})));
        let labels = as_map(metadata.entry("labels").or_insert_with(|| json!({})));
        for (key, value) in [("controller-uid", &uid), (UID_LABEL, &uid), ("job-name", &name), (NAME_LABEL, &name)] {
            labels.insert(key.into(), value.as_str().into());
        }
        let selector = as_map(spec.entry("selector").or_insert_with(|| json!({})));
        let wanted = as_map(selector.entry("matchLabels").or_insert_with(|| json!({})));
        wanted.insert(UID_LABEL.into(), uid.into());
    }
    let template = at(job, &["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels) = template.filter(|_| at(job, &["metadata", "labels"]).is_none()) {
        object::set_meta(job, "labels", labels);
    }
}

/// Faults of a Job, beside those of its Pod template.
pub fn judge(job: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let policy = text(job, &["spec", "template", "spec", "restartPolicy"]);
    if !matches!(policy, "OnFailure" | "Never") {
        let (field, detail) = ("spec.template.spec.restartPolicy", "supported values: \"OnFailure\", \"Never\"");
        let value = Value::from(policy);
        errors.push(if policy == "Always" || policy.is_empty() {
            FieldError::new(Fault::Required, field, None, "valid values: \"OnFailure\", \"Never\"")
        } else {
            FieldError::new(Fault::NotSupported, field, Some(&value), detail)
        });
    }
    for field in ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"] {
        if let Some(found) = at(job, &["spec", field]).filter(|v| v.as_i64().is_some_and(|n| n < 0)) {
            errors.push(FieldError::invalid(format!("spec.{field}"), found, "must be greater than or equal to 0"));
        }
    }
    let mode = text(job, &["spec", "completionMode"]);
    if mode == "Indexed" && at(job, &["spec", "completions"]).is_none() {
        errors.push(FieldError::required("spec.completions", "when completion mode is Indexed"));
    }
    if !matches!(mode, "Indexed" | "NonIndexed") {
        let detail = "supported values: \"Indexed\", \"NonIndexed\"";
        errors.push(FieldError::new(Fault::NotSupported, "spec.completionMode", Some(&Value::from(mode)), detail));
    }
    for field in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
        if at(job, &["spec", field]).is_some() {
            let detail = "the sandbox does not offer it: use backoffLimit, completions or podFailurePolicy";
            errors.push(FieldError::new(Fault::Forbidden, format!("spec.{field}"), None, detail));
        }
    }
    errors.extend(failure_policy(job, policy));
    errors
}

fn failure_policy(job: &Value, policy: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if at(job, &["spec", "podFailurePolicy"]).is_some() && policy != "Never" {
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        let field = "spec.template.spec.restartPolicy";
        errors.push(FieldError::invalid(field, &Value::from(policy), detail));
    }
    for (i, rule) in list(job, &["spec", "podFailurePolicy", "rules"]).iter().enumerate() {
        let action = text(rule, &["action"]);
        if !matches!(action, "Count" | "FailJob" | "Ignore") {
            let field = format!("spec.podFailurePolicy.rules[{i}].action");
            let detail = "supported values: \"Count\", \"FailJob\", \"Ignore\"";
            errors.push(FieldError::new(Fault::NotSupported, field, Some(&Value::from(action)), detail));
        }
    }
    errors
}
