//! Light validation of built-in kinds: what would break clients, controllers or the node agent. It refuses; it never repairs.

mod rollout;
mod service;
mod small;

use serde_json::Value;

use super::kinds::Resource;
use super::names;
use super::object::{at, list, text};
use super::selectors::label_selector_matches;
use super::status::{Fault, FieldError};

/// Faults of the metadata every object has.
pub fn metadata(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = super::object::name(object);
    let (fits, rule) = match (resource.group.as_str(), resource.plural.as_str()) {
        ("rbac.authorization.k8s.io", _) => {
            (names::path_segment(name), "may not be '.' or '..' nor contain '/' or '%'")
        }
        ("", "namespaces" | "services") => (
            names::dns_label(name),
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
        ),
        _ => (
            names::dns_subdomain(name),
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
        ),
    };
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if !fits {
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), rule));
    }
    for (key, value) in at(object, &["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten() {
        if !names::qualified(key) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                &Value::from(key.as_str()),
                "name part must consist of alphanumeric characters, '-', '_' or '.'",
            ));
        }
        if !value.as_str().is_some_and(names::label_value) {
            errors.push(FieldError::invalid(
                "metadata.labels",
                value,
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'",
            ));
        }
    }
    let mut size = 0;
    for (key, value) in at(object, &["metadata", "annotations"]).and_then(Value::as_object).into_iter().flatten() {
        size += key.len() + value.as_str().map(str::len).unwrap_or_default();
        if !names::qualified(&key.to_lowercase()) || !value.is_string() {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                &Value::from(key.as_str()),
                "must be a qualified name with a string value",
            ));
        }
    }
    if size > 256 * 1024 {
        errors.push(FieldError::new(Fault::TooLong, "metadata.annotations", None, "may not be more than 262144 bytes"));
    }
    errors.extend(owner_references(object));
    for finalizer in list(object, &["metadata", "finalizers"]) {
        if !finalizer.as_str().is_some_and(names::qualified) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, "must be a qualified name"));
        }
    }
    errors
}

fn owner_references(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controllers = 0;
    for (i, owner) in list(object, &["metadata", "ownerReferences"]).iter().enumerate() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[key]).is_empty() {
                errors.push(FieldError::required(format!("metadata.ownerReferences[{i}].{key}"), "must not be empty"));
            }
        }
        controllers += usize::from(owner.get("controller").and_then(Value::as_bool).unwrap_or_default());
    }
    if controllers > 1 {
        let detail = "Only one reference can have Controller set to true";
        errors.push(FieldError::invalid("metadata.ownerReferences", &Value::from(controllers), detail));
    }
    errors
}

/// Faults of a built-in object.
pub fn object(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => pod_spec("spec", new.get("spec"), &[]),
        ("", "Service") => service::service(new),
        ("coordination.k8s.io", "Lease") => small::lease(new),
        ("policy", "PodDisruptionBudget") => small::budget(new),
        ("apps", "StatefulSet") => workload(new).into_iter().chain(rollout::stateful_set(new)).collect(),
        ("apps", "Deployment") => workload(new).into_iter().chain(rollout::deployment(new)).collect(),
        ("apps", "ReplicaSet") => workload(new),
        ("batch", "Job") => {
            let mut errors = pod_spec("spec.template.spec", at(new, &["spec", "template", "spec"]), &[]);
            errors.extend(super::jobs::judge(new));
            errors.extend(selects_template(new));
            errors
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => super::custom::judge_definition(new),
        ("", "ConfigMap") => keys("data", new).into_iter().chain(keys("binaryData", new)).collect(),
        ("", "Secret") => keys("data", new).into_iter().chain(small::secret(new)).collect(),
        _ => Vec::new(),
    };
    if let Some(old) = old {
        errors.extend(changes(resource, new, old));
    }
    errors
}

fn keys(field: &str, object: &Value) -> Vec<FieldError> {
    let fits = |k: &str| {
        (1..=253).contains(&k.len())
            && k != "."
            && k != ".."
            && k.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    object
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(k, _)| !fits(k))
        .map(|(k, _)| {
            FieldError::invalid(
                format!("{field}[{k}]"),
                &Value::from(k.as_str()),
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            )
        })
        .collect()
}

/// Faults of a Pod's spec; `claims` become volumes of the Pods when these are made.
fn pod_spec(path: &str, spec: Option<&Value>, claims: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(spec) = spec else { return vec![FieldError::required(path, "")] };
    if list(spec, &["containers"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut seen = Vec::new();
    let volumes: Vec<&str> = list(spec, &["volumes"]).iter().map(|v| text(v, &["name"])).collect();
    for group in ["initContainers", "containers"] {
        for (i, container) in list(spec, &[group]).iter().enumerate() {
            let at = format!("{path}.{group}[{i}]");
            let name = text(container, &["name"]);
            if !names::dns_label(name) {
                errors.push(FieldError::invalid(format!("{at}.name"), &Value::from(name), "must be a DNS-1123 label"));
            }
            if seen.contains(&name) {
                errors.push(FieldError::new(Fault::Duplicate, format!("{at}.name"), Some(&Value::from(name)), ""));
            }
            seen.push(name);
            if text(container, &["image"]).is_empty() {
                errors.push(FieldError::required(format!("{at}.image"), ""));
            }
            let pull = text(container, &["imagePullPolicy"]);
            if !matches!(pull, "Always" | "IfNotPresent" | "Never") {
                let detail = "supported values: \"Always\", \"IfNotPresent\", \"Never\"";
                let field = format!("{at}.imagePullPolicy");
                errors.push(FieldError::new(Fault::NotSupported, field, Some(&pull.into()), detail));
            }
            for (m, mount) in list(container, &["volumeMounts"]).iter().enumerate() {
                let volume = text(mount, &["name"]);
                if !volumes.contains(&volume) && !claims.contains(&volume) {
                    let field = format!("{at}.volumeMounts[{m}].name");
                    errors.push(FieldError::new(Fault::NotFound, field, Some(&volume.into()), ""));
                }
            }
        }
    }
    let policy = text(spec, &["restartPolicy"]);
    if !matches!(policy, "Always" | "OnFailure" | "Never") {
        let detail = "supported values: \"Always\", \"OnFailure\", \"Never\"";
        errors.push(FieldError::new(
            Fault::NotSupported,
            format!("{path}.restartPolicy"),
            Some(&Value::from(policy)),
            detail,
        ));
    }
    errors
}

fn workload(new: &Value) -> Vec<FieldError> {
    let claims: Vec<&str> =
        list(new, &["spec", "volumeClaimTemplates"]).iter().map(|claim| text(claim, &["metadata", "name"])).collect();
    let mut errors = pod_spec("spec.template.spec", at(new, &["spec", "template", "spec"]), &claims);
    match at(new, &["spec", "selector"]) {
        // A selector that is there and selects everything fits every template.
        Some(selector) if selects_everything(selector) => {
            errors.push(FieldError::invalid("spec.selector", selector, "empty selector is invalid"));
        }
        _ => errors.extend(selects_template(new)),
    }
    let policy = text(new, &["spec", "template", "spec", "restartPolicy"]);
    if policy != "Always" {
        let field = "spec.template.spec.restartPolicy";
        errors.push(FieldError::new(Fault::NotSupported, field, Some(&policy.into()), "supported values: \"Always\""));
    }
    errors.extend(rollout::status(new));
    errors.extend(negatives(new, &["replicas", "minReadySeconds", "revisionHistoryLimit"]));
    errors
}

fn selects_everything(selector: &Value) -> bool {
    let none = |field: &str| match selector.get(field) {
        Some(Value::Object(labels)) => labels.is_empty(),
        Some(Value::Array(terms)) => terms.is_empty(),
        _ => true,
    };
    none("matchLabels") && none("matchExpressions")
}

/// Numbers of a spec that may not be below zero.
fn negatives(new: &Value, fields: &[&str]) -> Vec<FieldError> {
    let negative = |field: &&&str| at(new, &["spec", field]).and_then(Value::as_i64).is_some_and(|n| n < 0);
    let fault = |field: &&str| {
        FieldError::invalid(format!("spec.{field}"), &new["spec"][*field], "must be greater than or equal to 0")
    };
    fields.iter().filter(negative).map(fault).collect()
}

/// A selector must fit the labels of the Pods to come.
fn selects_template(new: &Value) -> Vec<FieldError> {
    let selector = at(new, &["spec", "selector"]).cloned().unwrap_or(Value::Null);
    let template = at(new, &["spec", "template"]).cloned().unwrap_or(Value::Null);
    let mut errors = Vec::new();
    if selector.is_null() {
        errors.push(FieldError::required("spec.selector", ""));
    }
    if selector.is_null() || !label_selector_matches(&selector, &template) {
        let labels = at(&template, &["metadata", "labels"]).cloned().unwrap_or(Value::Null);
        let detail = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", &labels, detail));
    }
    errors
}

/// Fields that may not change once set.
fn changes(resource: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let frozen: &[&[&str]] = match (resource.group.as_str(), resource.kind.as_str()) {
        ("apps", "StatefulSet") => &[
            &["spec", "selector"],
            &["spec", "serviceName"],
            &["spec", "podManagementPolicy"],
            &["spec", "volumeClaimTemplates"],
        ],
        ("apps", "Deployment" | "ReplicaSet") => &[&["spec", "selector"]],
        ("batch", "Job") => &[
            &["spec", "selector"],
            &["spec", "template", "metadata"],
            &["spec", "template", "spec"],
            &["spec", "completions"],
            &["spec", "completionMode"],
            &["spec", "podFailurePolicy"],
        ],
        ("", "Secret") => &[&["type"]],
        ("apiextensions.k8s.io", _) => {
            &[&["spec", "group"], &["spec", "scope"], &["spec", "names", "plural"], &["spec", "names", "kind"]]
        }
        ("", "PersistentVolumeClaim") => &[&["spec", "accessModes"], &["spec", "storageClassName"]],
        ("storage.k8s.io", "StorageClass") => {
            &[&["provisioner"], &["parameters"], &["reclaimPolicy"], &["volumeBindingMode"]]
        }
        _ => &[],
    };
    let mut errors: Vec<FieldError> = frozen
        .iter()
        .filter(|path| {
            at(old, path) != at(new, path) && (at(old, path).is_some() || resource.is("apps", "statefulsets"))
        })
        .map(|path| {
            let found = at(new, path).cloned().unwrap_or(Value::Null);
            FieldError::invalid(path.join("."), &found, "field is immutable")
        })
        .collect();
    if resource.is("", "pods") {
        errors.extend(pod_changes(new, old));
    }
    if matches!(resource.plural.as_str(), "configmaps" | "secrets")
        && old.get("immutable").and_then(Value::as_bool) == Some(true)
    {
        for field in ["immutable", "data", "binaryData"].into_iter().filter(|field| new.get(field) != old.get(field)) {
            errors.push(FieldError::new(Fault::Forbidden, field, None, "field is immutable when `immutable` is set"));
        }
    }
    errors
}

fn pod_changes(new: &Value, old: &Value) -> Vec<FieldError> {
    let frozen = |object: &Value| {
        let mut spec = object.get("spec").cloned().unwrap_or(Value::Null);
        if let Some(map) = spec.as_object_mut() {
            for key in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"] {
                map.remove(key);
            }
            for group in ["containers", "initContainers"] {
                for container in map.get_mut(group).and_then(Value::as_array_mut).into_iter().flatten() {
                    if let Some(container) = container.as_object_mut() {
                        container.remove("image");
                    }
                }
            }
        }
        spec
    };
    if frozen(new) == frozen(old) {
        return Vec::new();
    }
    let detail = "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`, `spec.terminationGracePeriodSeconds`";
    vec![FieldError::new(Fault::Forbidden, "spec", None, detail)]
}
