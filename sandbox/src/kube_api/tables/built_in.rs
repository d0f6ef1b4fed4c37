//! The columns and cells of built-in kinds, as plain kubectl users know them. Pure; the clock is an argument.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::Heading;
use super::cells::age;
use crate::kube_api::kinds::Resource;
use crate::kube_api::object::{at, deleting, list, name, text};

/// Column names of a kind; one that starts with `+` is shown only by `-o wide`.
fn columns(resource: &Resource) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Pod") => {
            &["Name", "Ready", "Status", "Restarts", "Age", "+IP", "+Node", "+Nominated Node", "+Readiness Gates"]
        }
        ("", "Node") => &["Name", "Status", "Roles", "Age", "Version", "+Internal-IP", "+Zone"],
        ("", "Namespace") => &["Name", "Status", "Age"],
        ("", "Service") => &["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"],
        ("", "Endpoints") => &["Name", "Endpoints", "Age"],
        ("", "ConfigMap") => &["Name", "Data", "Age"],
        ("", "Secret") => &["Name", "Type", "Data", "Age"],
        ("" | "events.k8s.io", "Event") => &["Last Seen", "Type", "Reason", "Object", "Message", "+Count", "+Name"],
        ("", "PersistentVolume") => {
            &["Name", "Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass", "Age"]
        }
        ("", "PersistentVolumeClaim") => {
            &["Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age"]
        }
        ("apps", "StatefulSet") => &["Name", "Ready", "Age", "+Containers", "+Images"],
        ("apps", "Deployment") => {
            &["Name", "Ready", "Up-to-date", "Available", "Age", "+Containers", "+Images", "+Selector"]
        }
        ("apps", "ReplicaSet") => {
            &["Name", "Desired", "Current", "Ready", "Age", "+Containers", "+Images", "+Selector"]
        }
        ("apps", "ControllerRevision") => &["Name", "Controller", "Revision", "Age"],
        ("batch", "Job") => {
            &["Name", "Status", "Completions", "Duration", "Age", "+Containers", "+Images", "+Selector"]
        }
        ("coordination.k8s.io", "Lease") => &["Name", "Holder", "Age"],
        ("discovery.k8s.io", "EndpointSlice") => &["Name", "AddressType", "Ports", "Endpoints", "Age"],
        ("policy", "PodDisruptionBudget") => {
            &["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"]
        }
        ("storage.k8s.io", "StorageClass") => &["Name", "Provisioner", "ReclaimPolicy", "VolumeBindingMode", "Age"],
        ("apiextensions.k8s.io", _) => &["Name", "Created At"],
        _ => &["Name", "Age"],
    }
}

/// The headings of a kind.
pub fn headings(resource: &Resource) -> Vec<Heading> {
    columns(resource)
        .iter()
        .map(|column| {
            let shown = column.trim_start_matches('+');
            let kind = match shown {
                "Allowed Disruptions" => "integer",
                "Restarts" | "Desired" | "Current" | "Count" | "Revision" => "integer",
                _ => "string",
            };
            Heading {
                name: shown.into(),
                // Restarts and the like are texts for some rows, so kubectl must not expect numbers.
                kind: if shown == "Restarts" { "string".into() } else { kind.into() },
                format: if shown == "Name" { "name".into() } else { String::new() },
                description: String::new(),
                priority: i64::from(column.starts_with('+')),
            }
        })
        .collect()
}

/// The cells of an object.
pub fn row(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    columns(resource).iter().map(|column| cell(resource, object, column.trim_start_matches('+'), now)).collect()
}

fn cell(resource: &Resource, object: &Value, column: &str, now: Timestamp) -> Value {
    let created = text(object, &["metadata", "creationTimestamp"]);
    match column {
        "Name" => name(object).into(),
        "Age" => age(created, now).into(),
        "Created At" => created.into(),
        _ => match (resource.group.as_str(), resource.kind.as_str()) {
            ("", "Pod") => pod(object, column),
            ("", "Node") => node(object, column),
            ("", "Service") => service(object, column),
            ("" | "events.k8s.io", "Event") => event(object, column, now),
            ("", "PersistentVolume" | "PersistentVolumeClaim") => volume(object, column),
            ("apps", "StatefulSet" | "Deployment" | "ReplicaSet") => workload(object, column),
            ("batch", "Job") => super::jobs::cell(object, column, now).unwrap_or_else(|| workload(object, column)),
            _ => other(object, column),
        },
    }
}

fn number(object: &Value, path: &[&str]) -> i64 {
    at(object, path).and_then(Value::as_i64).unwrap_or_default()
}

fn or_none(value: &str) -> Value {
    if value.is_empty() { "<none>".into() } else { value.into() }
}

fn joined(values: impl Iterator<Item = String>) -> Value {
    or_none(&values.collect::<Vec<_>>().join(","))
}

fn selector(map: Option<&Value>) -> Value {
    let pairs = map.and_then(Value::as_object).into_iter().flatten();
    joined(pairs.map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())))
}

fn pod(object: &Value, column: &str) -> Value {
    let statuses = list(object, &["status", "containerStatuses"]);
    match column {
        "Ready" => {
            let ready = statuses.iter().filter(|c| c.get("ready") == Some(&Value::Bool(true))).count();
            format!("{ready}/{}", list(object, &["spec", "containers"]).len()).into()
        }
        "Status" => pod_status(object, statuses).into(),
        "Restarts" => statuses.iter().map(|c| number(c, &["restartCount"])).sum::<i64>().to_string().into(),
        "IP" => or_none(text(object, &["status", "podIP"])),
        "Node" => or_none(text(object, &["spec", "nodeName"])),
        "Nominated Node" => or_none(text(object, &["status", "nominatedNodeName"])),
        "Readiness Gates" => "<none>".into(),
        _ => Value::Null,
    }
}

fn pod_status(object: &Value, statuses: &[Value]) -> String {
    if deleting(object) {
        return if text(object, &["status", "reason"]) == "NodeLost" { "Unknown".into() } else { "Terminating".into() };
    }
    let reason = text(object, &["status", "reason"]);
    let mut shown = if reason.is_empty() { text(object, &["status", "phase"]) } else { reason };
    let mut running = false;
    for status in statuses.iter().rev() {
        let waiting = text(status, &["state", "waiting", "reason"]);
        let ended = text(status, &["state", "terminated", "reason"]);
        if !waiting.is_empty() {
            shown = waiting;
        } else if !ended.is_empty() {
            shown = ended;
        } else if status.get("ready") == Some(&Value::Bool(true)) && at(status, &["state", "running"]).is_some() {
            running = true;
        }
    }
    if shown == "Completed" && running { "Running".into() } else { shown.into() }
}

fn node(object: &Value, column: &str) -> Value {
    match column {
        "Status" => {
            let ready = list(object, &["status", "conditions"]).iter().find(|c| text(c, &["type"]) == "Ready");
            let mut shown = match ready.map(|c| text(c, &["status"])) {
                Some("True") => "Ready".to_owned(),
                Some(_) => "NotReady".to_owned(),
                None => "Unknown".to_owned(),
            };
            if at(object, &["spec", "unschedulable"]) == Some(&Value::Bool(true)) {
                shown.push_str(",SchedulingDisabled");
            }
            shown.into()
        }
        "Roles" => {
            let labels = at(object, &["metadata", "labels"]).and_then(Value::as_object);
            joined(
                labels
                    .into_iter()
                    .flatten()
                    .filter_map(|(k, _)| k.strip_prefix("node-role.kubernetes.io/").map(str::to_owned)),
            )
        }
        "Version" => text(object, &["status", "nodeInfo", "kubeletVersion"]).into(),
        "Internal-IP" => {
            let address = list(object, &["status", "addresses"]).iter().find(|a| text(a, &["type"]) == "InternalIP");
            or_none(address.map(|a| text(a, &["address"])).unwrap_or_default())
        }
        "Zone" => or_none(text(object, &["metadata", "labels", "topology.kubernetes.io/zone"])),
        _ => Value::Null,
    }
}

fn service(object: &Value, column: &str) -> Value {
    match column {
        "Type" => text(object, &["spec", "type"]).into(),
        "Cluster-IP" => or_none(text(object, &["spec", "clusterIP"])),
        "External-IP" => "<none>".into(),
        "Port(s)" => joined(list(object, &["spec", "ports"]).iter().map(|p| {
            let node = number(p, &["nodePort"]);
            let node = if node == 0 { String::new() } else { format!(":{node}") };
            format!("{}{node}/{}", number(p, &["port"]), text(p, &["protocol"]))
        })),
        "Selector" => selector(at(object, &["spec", "selector"])),
        _ => Value::Null,
    }
}

fn event(object: &Value, column: &str, now: Timestamp) -> Value {
    let first = |paths: &[&[&str]]| {
        paths.iter().map(|p| text(object, p)).find(|t| !t.is_empty()).unwrap_or_default().to_owned()
    };
    match column {
        "Last Seen" => {
            let seen = first(&[
                &["series", "lastObservedTime"],
                &["lastTimestamp"],
                &["deprecatedLastTimestamp"],
                &["eventTime"],
                &["metadata", "creationTimestamp"],
            ]);
            age(&seen, now).into()
        }
        "Type" => text(object, &["type"]).into(),
        "Reason" => text(object, &["reason"]).into(),
        "Object" => {
            let about = at(object, &["involvedObject"]).or_else(|| at(object, &["regarding"])).unwrap_or(&Value::Null);
            format!("{}/{}", text(about, &["kind"]).to_lowercase(), text(about, &["name"])).into()
        }
        "Message" => first(&[&["message"], &["note"]]).trim().into(),
        "Count" => {
            let series = number(object, &["series", "count"]);
            let plain = number(object, &["count"]).max(number(object, &["deprecatedCount"])).max(1);
            series.max(plain).into()
        }
        _ => Value::Null,
    }
}

fn volume(object: &Value, column: &str) -> Value {
    match column {
        "Status" if deleting(object) => "Terminating".into(),
        "Status" => text(object, &["status", "phase"]).into(),
        "Volume" => text(object, &["spec", "volumeName"]).into(),
        "Capacity" => {
            let own = text(object, &["spec", "capacity", "storage"]);
            if own.is_empty() { text(object, &["status", "capacity", "storage"]).into() } else { own.into() }
        }
        "Access Modes" => {
            let short = list(object, &["spec", "accessModes"]).iter().filter_map(Value::as_str).map(|m| match m {
                "ReadWriteOnce" => "RWO",
                "ReadOnlyMany" => "ROX",
                "ReadWriteMany" => "RWX",
                "ReadWriteOncePod" => "RWOP",
                other => other,
            });
            short.collect::<Vec<_>>().join(",").into()
        }
        "Reclaim Policy" => text(object, &["spec", "persistentVolumeReclaimPolicy"]).into(),
        "Claim" => {
            match (text(object, &["spec", "claimRef", "namespace"]), text(object, &["spec", "claimRef", "name"])) {
                ("", "") => "".into(),
                (namespace, name) => format!("{namespace}/{name}").into(),
            }
        }
        "StorageClass" => text(object, &["spec", "storageClassName"]).into(),
        _ => Value::Null,
    }
}

fn workload(object: &Value, column: &str) -> Value {
    let containers = list(object, &["spec", "template", "spec", "containers"]);
    let plain = |path: &[&str]| Value::from(number(object, path));
    let replica_set = text(object, &["kind"]) == "ReplicaSet";
    match column {
        "Ready" if replica_set => plain(&["status", "readyReplicas"]),
        "Ready" => {
            format!("{}/{}", number(object, &["status", "readyReplicas"]), number(object, &["spec", "replicas"])).into()
        }
        "Desired" => plain(&["spec", "replicas"]),
        "Current" => plain(&["status", "replicas"]),
        "Up-to-date" => plain(&["status", "updatedReplicas"]),
        "Available" => plain(&["status", "availableReplicas"]),
        "Containers" => joined(containers.iter().map(|c| text(c, &["name"]).to_owned())),
        "Images" => joined(containers.iter().map(|c| text(c, &["image"]).to_owned())),
        "Selector" => selector(at(object, &["spec", "selector", "matchLabels"])),
        _ => Value::Null,
    }
}

fn other(object: &Value, column: &str) -> Value {
    let shown = |path: &[&str]| match at(object, path) {
        None | Some(Value::Null) => "N/A".into(),
        Some(Value::String(text)) => Value::from(text.as_str()),
        Some(value) => Value::from(value.to_string()),
    };
    match column {
        "Status" if at(object, &["status", "phase"]).is_some() => text(object, &["status", "phase"]).into(),
        "Type" => text(object, &["type"]).into(),
        "Data" => {
            let count =
                |key: &str| at(object, &[key]).and_then(Value::as_object).map(serde_json::Map::len).unwrap_or_default();
            (count("data") + count("binaryData")).into()
        }
        "Holder" => text(object, &["spec", "holderIdentity"]).into(),
        "Endpoints" => {
            let slices =
                list(object, &["endpoints"]).iter().flat_map(|e| list(e, &["addresses"])).filter_map(Value::as_str);
            let plain =
                list(object, &["subsets"]).iter().flat_map(|s| list(s, &["addresses"])).map(|a| text(a, &["ip"]));
            joined(slices.chain(plain).map(str::to_owned))
        }
        "AddressType" => text(object, &["addressType"]).into(),
        "Ports" => joined(list(object, &["ports"]).iter().map(|p| number(p, &["port"]).to_string())),
        "Controller" => {
            let owner = list(object, &["metadata", "ownerReferences"]).first();
            or_none(
                &owner
                    .map(|o| format!("{}/{}", text(o, &["kind"]).to_lowercase(), text(o, &["name"])))
                    .unwrap_or_default(),
            )
        }
        "Revision" => number(object, &["revision"]).into(),
        "Min Available" => shown(&["spec", "minAvailable"]),
        "Max Unavailable" => shown(&["spec", "maxUnavailable"]),
        "Allowed Disruptions" => number(object, &["status", "disruptionsAllowed"]).into(),
        "Provisioner" => text(object, &["provisioner"]).into(),
        "ReclaimPolicy" => text(object, &["reclaimPolicy"]).into(),
        "VolumeBindingMode" => text(object, &["volumeBindingMode"]).into(),
        _ => Value::Null,
    }
}
