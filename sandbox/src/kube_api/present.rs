//! How a stored object is shown under a version, and how a sent one is brought to the stored form: `apiVersion`, `kind`, and the two
//! faces of Event. It changes nothing else.

use serde_json::{Map, Value, json};

use super::kinds::Resource;
use super::object::as_map;

/// Fields named differently by the two Event versions: (core, events.k8s.io).
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// The stored object as this resource shows it.
pub fn show(resource: &Resource, mut object: Value) -> Value {
    if resource.is("events.k8s.io", "events") {
        rename(as_map(&mut object), |core, new| (core, new));
    }
    stamp(&mut object, &resource.api_version(), &resource.kind);
    object
}

/// The sent object in the stored form.
pub fn store(resource: &Resource, mut object: Value) -> Value {
    if resource.is("events.k8s.io", "events") {
        let map = as_map(&mut object);
        rename(map, |core, new| (new, core));
        map.entry("involvedObject").or_insert_with(|| json!({}));
        stamp(&mut object, "v1", "Event");
    }
    object
}

fn stamp(object: &mut Value, api_version: &str, kind: &str) {
    let map = as_map(object);
    map.insert("apiVersion".into(), api_version.into());
    map.insert("kind".into(), kind.into());
}

fn rename(map: &mut Map<String, Value>, direction: fn(&'static str, &'static str) -> (&'static str, &'static str)) {
    for (core, new) in EVENT_FIELDS {
        let (from, to) = direction(core, new);
        if let Some(value) = map.remove(from) {
            map.insert(to.into(), value);
        }
    }
}
