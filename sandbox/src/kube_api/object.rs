//! Reading and changing the metadata of an object held as JSON. It decides nothing about kinds and never touches the store.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

/// Text at a path, or "".
pub fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// Value at a path.
pub fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, key| value.get(key))
}

/// A list at a path, empty when absent.
pub fn list<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// `metadata.name`, or "".
pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// `metadata.namespace`, or "".
pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// `metadata.uid`, or "".
pub fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

/// `metadata.generation`, 0 when absent.
pub fn generation(object: &Value) -> i64 {
    at(object, &["metadata", "generation"]).and_then(Value::as_i64).unwrap_or_default()
}

/// `metadata.resourceVersion`, or "".
pub fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

/// Whether deletion has begun.
pub fn deleting(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some_and(|v| !v.is_null())
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    list(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect()
}

/// The object's metadata as a map, made when absent.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    child(object, "metadata")
}

/// A child map, made (in place of anything else) when absent.
pub fn child<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let map = as_map(object);
    as_map(map.entry(key).or_insert_with(|| Value::Object(Map::new())))
}

/// The value as a map; anything else is replaced by an empty one.
pub fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made a map above"),
    }
}

/// Sets one metadata field.
pub fn set_meta(object: &mut Value, key: &str, value: impl Into<Value>) {
    metadata(object).insert(key.into(), value.into());
}

/// Removes one metadata field.
pub fn remove_meta(object: &mut Value, key: &str) {
    metadata(object).remove(key);
}

/// Replaces `metadata.finalizers`, or removes the field when empty.
pub fn set_finalizers(object: &mut Value, finalizers: Vec<String>) {
    if finalizers.is_empty() {
        remove_meta(object, "finalizers");
    } else {
        set_meta(object, "finalizers", finalizers);
    }
}

/// Sets a field only when it is absent or null, or an empty text.
pub fn set_default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(|found| found.is_null() || found == "") {
        map.insert(key.into(), value.into());
    }
}

/// A time as Kubernetes writes it: RFC 3339, whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The wall clock, read by drivers only.
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// `time` plus whole seconds, saturating.
pub fn plus_seconds(time: Timestamp, seconds: i64) -> Timestamp {
    time.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(time)
}

/// An owner reference, as far as deletion needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// `group/version` or `version`.
    pub api_version: String,
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
    /// Whether the owner's foreground deletion waits for this object.
    pub blocks: bool,
}

/// The object's owner references.
pub fn owners(object: &Value) -> Vec<Owner> {
    list(object, &["metadata", "ownerReferences"])
        .iter()
        .map(|r| Owner {
            api_version: text(r, &["apiVersion"]).to_owned(),
            kind: text(r, &["kind"]).to_owned(),
            name: text(r, &["name"]).to_owned(),
            uid: text(r, &["uid"]).to_owned(),
            blocks: r.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or_default(),
        })
        .collect()
}

/// Whether two objects are the same but for the times in `managedFields`: such a write would say nothing new.
pub fn same_but_for_times(a: &Value, b: &Value) -> bool {
    a == b || without_times(a) == without_times(b)
}

fn without_times(object: &Value) -> Value {
    let mut copy = object.clone();
    let entries = copy.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
    for entry in entries.into_iter().flatten() {
        as_map(entry).remove("time");
    }
    copy
}
