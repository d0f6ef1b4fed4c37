//! Faults of a Service.

use serde_json::Value;

use crate::kube_api::names;
use crate::kube_api::object::{list, text};
use crate::kube_api::status::{Fault, FieldError};

/// Every fault.
pub fn service(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let ports = list(new, &["spec", "ports"]);
    let headless = text(new, &["spec", "clusterIP"]) == "None";
    let kind = text(new, &["spec", "type"]);
    if headless && matches!(kind, "NodePort" | "LoadBalancer") {
        let detail = format!("may not be set to 'None' for {kind} services");
        errors.push(FieldError::invalid("spec.clusterIPs[0]", &Value::from("None"), detail));
    }
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let affinity = text(new, &["spec", "sessionAffinity"]);
    if !matches!(affinity, "" | "None" | "ClientIP") {
        let detail = "supported values: \"ClientIP\", \"None\"";
        errors.push(FieldError::new(Fault::NotSupported, "spec.sessionAffinity", Some(&affinity.into()), detail));
    }
    for (i, port) in ports.iter().enumerate() {
        errors.extend(faults_of_port(i, port, ports));
    }
    errors
}

fn faults_of_port(i: usize, port: &Value, ports: &[Value]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let at = |field: &str| format!("spec.ports[{i}].{field}");
    let range = "must be between 1 and 65535, inclusive";
    let number = |field: &str| port.get(field).and_then(Value::as_i64);
    let fits = |n: i64| (1..=65_535).contains(&n);
    if !number("port").is_some_and(fits) {
        errors.push(FieldError::invalid(at("port"), &number("port").unwrap_or_default().into(), range));
    }
    let name = text(port, &["name"]);
    if name.is_empty() && ports.len() > 1 {
        errors.push(FieldError::required(at("name"), ""));
    }
    if !name.is_empty() && !names::dns_label(name) {
        errors.push(FieldError::invalid(at("name"), &name.into(), "must be a lowercase RFC 1123 label"));
    }
    if !name.is_empty() && ports[..i].iter().any(|p| text(p, &["name"]) == name) {
        errors.push(FieldError::new(Fault::Duplicate, at("name"), Some(&name.into()), ""));
    }
    let same = |other: &Value| {
        other.get("port") == port.get("port") && text(other, &["protocol"]) == text(port, &["protocol"])
    };
    if ports[..i].iter().any(same) {
        errors.push(FieldError::new(Fault::Duplicate, format!("spec.ports[{i}]"), Some(port), ""));
    }
    let target = port.get("targetPort").unwrap_or(&Value::Null);
    if target.as_i64().is_some_and(|n| !fits(n)) {
        errors.push(FieldError::invalid(at("targetPort"), target, range));
    }
    errors
}
