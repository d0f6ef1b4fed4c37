//! Defaults of built-in kinds, as far as clients and controllers rely on them. It fills what is absent and judges nothing.

use serde_json::{Map, Value, json};

use super::kinds::Resource;
use super::object::{child, set_default};

/// Fills defaults in place.
pub fn fill(resource: &Resource, object: &mut Value) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            let spec = child(object, "spec");
            set_default(spec, "enableServiceLinks", true);
            pod_spec(spec);
        }
        ("", "Service") => service(child(object, "spec")),
        ("", "Secret") => secret(super::object::as_map(object)),
        ("", "PersistentVolumeClaim") => set_default(child(object, "spec"), "volumeMode", "Filesystem"),
        ("", "PersistentVolume") => {
            let spec = child(object, "spec");
            set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
            set_default(spec, "volumeMode", "Filesystem");
        }
        ("apps", "StatefulSet") => stateful_set(child(object, "spec")),
        ("apps", "Deployment") => deployment(child(object, "spec")),
        ("apps", "ReplicaSet") => {
            let spec = child(object, "spec");
            set_default(spec, "replicas", 1);
            template(spec);
        }
        ("batch", "Job") => {
            let spec = child(object, "spec");
            super::jobs::fill(spec);
            template(spec);
        }
        ("storage.k8s.io", "StorageClass") => {
            let map = super::object::as_map(object);
            set_default(map, "reclaimPolicy", "Delete");
            set_default(map, "volumeBindingMode", "Immediate");
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(child(object, "spec")),
        _ => {}
    }
}

/// What was written as text is stored encoded, as it is read.
fn secret(map: &mut Map<String, Value>) {
    use base64::Engine;
    set_default(map, "type", "Opaque");
    let Some(Value::Object(texts)) = map.remove("stringData") else { return };
    let data = super::object::as_map(map.entry("data").or_insert_with(|| json!({})));
    for (key, text) in texts {
        let encoded = match &text {
            Value::String(text) => base64::engine::general_purpose::STANDARD.encode(text).into(),
            // Not a text: left for the typed form to refuse.
            _ => text,
        };
        data.insert(key, encoded);
    }
}

fn template(spec: &mut Map<String, Value>) {
    let template = super::object::as_map(spec.entry("template").or_insert_with(|| json!({})));
    pod_spec(super::object::as_map(template.entry("spec").or_insert_with(|| json!({}))));
}

/// Defaults of a Pod's spec.
pub fn pod_spec(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "securityContext", json!({}));
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                fill_container(container);
            }
        }
    }
    for volume in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        for (source, mode) in [
            ("configMap", "defaultMode"),
            ("secret", "defaultMode"),
            ("downwardAPI", "defaultMode"),
            ("projected", "defaultMode"),
        ] {
            if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
                set_default(source, mode, 0o644);
            }
        }
    }
}

fn fill_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map_or("latest", |(_, tag)| tag);
    let pull = if tag == "latest" && !image.contains('@') { "Always" } else { "IfNotPresent" };
    set_default(container, "imagePullPolicy", pull);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            set_default(port, "protocol", "TCP");
        }
    }
    for source in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = source.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut) {
            set_default(field, "apiVersion", "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        for (key, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            set_default(probe, key, value);
        }
        if let Some(http) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
            set_default(http, "path", "/");
            set_default(http, "scheme", "HTTP");
        }
        if let Some(grpc) = probe.get_mut("grpc").and_then(Value::as_object_mut) {
            set_default(grpc, "service", "");
        }
    }
}

fn service(spec: &mut Map<String, Value>) {
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec.get("sessionAffinity").and_then(Value::as_str) == Some("ClientIP") {
        set_default(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10_800}}));
    } else {
        spec.remove("sessionAffinityConfig");
    }
    set_default(spec, "internalTrafficPolicy", "Cluster");
    if spec.get("type").and_then(Value::as_str) != Some("ClusterIP") {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if spec.get("type").and_then(Value::as_str) == Some("LoadBalancer") {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            set_default(port, "protocol", "TCP");
            let target = port.get("port").cloned().unwrap_or(Value::Null);
            // Zero and nothing are the same to Kubernetes.
            if port.get("targetPort").is_some_and(|v| v.as_i64() == Some(0) || v.as_str() == Some("")) {
                port.remove("targetPort");
            }
            set_default(port, "targetPort", target);
        }
    }
}

fn stateful_set(spec: &mut Map<String, Value>) {
    set_default(spec, "replicas", 1);
    set_default(spec, "podManagementPolicy", "OrderedReady");
    set_default(spec, "serviceName", "");
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "persistentVolumeClaimRetentionPolicy", json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
    let strategy = super::object::as_map(spec.entry("updateStrategy").or_insert_with(|| json!({})));
    // Whoever names the type and leaves out the rest has left it out.
    if strategy.get("type").is_none_or(|found| found.is_null() || found == "") {
        set_default(strategy, "type", "RollingUpdate");
        set_default(strategy, "rollingUpdate", json!({}));
    }
    let rolls = strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate");
    if let Some(rolling) = strategy.get_mut("rollingUpdate").and_then(Value::as_object_mut).filter(|_| rolls) {
        set_default(rolling, "partition", 0);
        set_default(rolling, "maxUnavailable", 1);
    }
    for claim in spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten() {
        let map = super::object::as_map(claim);
        set_default(map, "apiVersion", "v1");
        set_default(map, "kind", "PersistentVolumeClaim");
        set_default(child(claim, "spec"), "volumeMode", "Filesystem");
        set_default(child(claim, "status"), "phase", "Pending");
    }
    template(spec);
}

fn deployment(spec: &mut Map<String, Value>) {
    set_default(spec, "replicas", 1);
    set_default(spec, "revisionHistoryLimit", 10);
    set_default(spec, "progressDeadlineSeconds", 600);
    let strategy = super::object::as_map(spec.entry("strategy").or_insert_with(|| json!({})));
    set_default(strategy, "type", "RollingUpdate");
    if strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate") {
        let rolling = super::object::as_map(strategy.entry("rollingUpdate").or_insert_with(|| json!({})));
        set_default(rolling, "maxUnavailable", "25%");
        set_default(rolling, "maxSurge", "25%");
    }
    template(spec);
}

fn definition(spec: &mut Map<String, Value>) {
    set_default(spec, "conversion", json!({"strategy": "None"}));
    let names = super::object::as_map(spec.entry("names").or_insert_with(|| json!({})));
    let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !kind.is_empty() {
        set_default(names, "singular", kind.to_lowercase());
        set_default(names, "listKind", format!("{kind}List"));
    }
}
