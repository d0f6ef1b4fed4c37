//! How Kubernetes itself reads and writes the fields of an object: a null among texts is an empty text, and what is empty, or zero without
//! being a pointer, is not written. It knows fields by name only, and judges nothing.

use serde_json::{Map, Value};

use super::kinds::Resource;

/// Maps from text to text, or to something that reads like it: their keys are people's, not fields.
pub(super) const TEXT_MAPS: [&str; 7] =
    ["labels", "annotations", "matchLabels", "nodeSelector", "data", "stringData", "parameters"];
/// Further maps that are not written when empty.
const MAPS: [&str; 6] = ["binaryData", "limits", "requests", "capacity", "allocatable", "overhead"];
/// Lists that are written even when empty.
const LISTS: [&str; 4] = ["containers", "rules", "endpoints", "nodeSelectorTerms"];
/// Truths that are written only when they hold.
const TRUTHS: [&str; 10] = [
    "paused",
    "publishNotReadyAddresses",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
    "unschedulable",
];
/// Numbers that are written only when they are not zero.
const NUMBERS: [&str; 12] = [
    "minReadySeconds",
    "initialDelaySeconds",
    "observedGeneration",
    "readyReplicas",
    "updatedReplicas",
    "currentReplicas",
    "unavailableReplicas",
    "fullyLabeledReplicas",
    "active",
    "succeeded",
    "failed",
    "hostPort",
];
/// Texts that are written only when there is something in them.
const TEXTS: [&str; 12] = [
    "message",
    "reason",
    "nodeName",
    "hostname",
    "subdomain",
    "serviceAccountName",
    "priorityClassName",
    "subPath",
    "currentRevision",
    "updateRevision",
    "sessionAffinity",
    "clusterIP",
];

/// Nulls among texts become empty texts, as they are read.
pub fn read(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                match inner {
                    Value::Object(texts) if TEXT_MAPS.contains(&name.as_str()) => {
                        texts.values_mut().filter(|text| text.is_null()).for_each(|text| *text = "".into());
                    }
                    _ => read(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(read),
        _ => {}
    }
}

/// Takes out of a built-in object what is not written.
pub fn write(resource: &Resource, object: &mut Value) {
    leave_out(object, resource.is("discovery.k8s.io", "endpointslices"));
    let Some(map) = object.as_object_mut() else { return };
    if resource.is("", "services")
        && let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.retain(|name, inner| name != "selector" || inner.as_object().is_none_or(|texts| !texts.is_empty()));
    }
    let counts: &[&str] = match resource.kind.as_str() {
        "Deployment" => &["replicas", "availableReplicas"],
        "ReplicaSet" => &["availableReplicas"],
        _ => &[],
    };
    if let Some(status) = map.get_mut("status").and_then(Value::as_object_mut) {
        status.retain(|name, inner| !counts.contains(&name.as_str()) || inner.as_i64() != Some(0));
    }
}

/// The same for the metadata of any object.
pub fn write_metadata(metadata: &mut Value) {
    leave_out(metadata, false);
}

fn leave_out(value: &mut Value, keeps_ports: bool) {
    match value {
        Value::Object(map) => {
            map.retain(|name, inner| is_written(name, inner, keeps_ports));
            for (name, inner) in map.iter_mut() {
                if !is_text_map(name, inner) {
                    leave_out(inner, keeps_ports);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| leave_out(item, keeps_ports)),
        _ => {}
    }
}

/// What is in a map of texts has names of its own.
fn is_text_map(name: &str, value: &Value) -> bool {
    value.is_object() && (TEXT_MAPS.contains(&name) || MAPS.contains(&name) || name == "fieldsV1")
}

fn is_written(name: &str, value: &Value, keeps_ports: bool) -> bool {
    let has = |names: &[&str]| names.contains(&name);
    match value {
        Value::Array(items) => !items.is_empty() || has(&LISTS) || (keeps_ports && name == "ports"),
        Value::Object(map) => !map.is_empty() || !(has(&TEXT_MAPS) || has(&MAPS)),
        Value::Bool(holds) => *holds || !has(&TRUTHS),
        Value::Number(number) => number.as_i64() != Some(0) || !has(&NUMBERS),
        Value::String(text) => !text.is_empty() || !has(&TEXTS),
        Value::Null => true,
    }
}

/// Writes whole numbers as such, however they were sent: `1.0` is stored as `1`.
pub fn whole_numbers(value: &mut Value) {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Object(map) => map.values_mut().for_each(whole_numbers),
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Number(n) if n.is_f64() => {
            if let Some(whole) = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < EXACT) {
                *value = Value::from(whole as i64);
            }
        }
        _ => {}
    }
}

/// What is required of a precise time (a Lease's, an Event's): six digits after the second.
pub fn precise_times(object: &Map<String, Value>) -> Result<(), String> {
    const PATHS: [&[&str]; 3] = [&["spec", "renewTime"], &["spec", "acquireTime"], &["eventTime"]];
    for path in PATHS {
        let found = path.iter().try_fold(None, |at: Option<&Value>, key| match at {
            None => object.get(*key).map(Some),
            Some(inner) => inner.get(key).map(Some),
        });
        let Some(Some(Value::String(time))) = found else { continue };
        let digits = time.split_once('.').map_or("", |(_, rest)| rest).bytes().take_while(u8::is_ascii_digit).count();
        if digits != 6 {
            return Err(format!(
                "parsing time {time:?} as \"2006-01-02T15:04:05.000000Z07:00\": six digits are needed after the second"
            ));
        }
    }
    Ok(())
}
