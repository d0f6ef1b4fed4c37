//! The OpenAPI v3 documents kubectl and others ask for: one for each group and version, with the fields of every kind, how its lists
//! merge, and which query parameters its verbs take. Pure; built-in kinds are described by their typed forms.

mod paths;
mod schemas;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::discovery::VERSION;
use super::kinds::Resource;
use super::object;
use super::registry::Served;

/// `api/v1` or `apis/GROUP/VERSION`.
fn part_of(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

/// `/openapi/v3`: where each document is, with a hash that changes with it.
pub fn index(served: &Served, definitions: &[Value]) -> Value {
    let mut seeds: BTreeMap<String, String> = BTreeMap::new();
    for resource in served.all() {
        let seed = seeds.entry(part_of(resource)).or_insert_with(|| VERSION.2.to_owned());
        let custom =
            resource.custom().and_then(|custom| definitions.iter().find(|d| object::name(d) == custom.definition));
        let state = custom.map_or_else(String::new, |d| format!("{} {}", object::uid(d), object::generation(d)));
        seed.push_str(&format!("\n{} {state}", resource.kind));
    }
    let entry = |part: &str, seed: &str| {
        let hash = xxh3_64(seed.as_bytes());
        json!({"serverRelativeURL": format!("/openapi/v3/{part}?hash={hash:016X}")})
    };
    let paths: Map<String, Value> = seeds.iter().map(|(part, seed)| (part.clone(), entry(part, seed))).collect();
    json!({"paths": paths})
}

/// The document of a group and version, if it is served.
pub fn document(served: &Served, definitions: &[Value], part: &str) -> Option<Value> {
    let resources: Vec<_> = served.all().iter().filter(|resource| part_of(resource) == part).cloned().collect();
    if resources.is_empty() {
        return None;
    }
    let mut all = Map::new();
    for resource in &resources {
        paths::add(&mut all, resource);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION.2},
        "paths": all,
        "components": {"schemas": schemas::of(&resources, definitions)},
    }))
}

/// The name of a resource's schema: `io.k8s.api.apps.v1.Deployment`, or the group reversed for custom resources.
fn schema_name(resource: &Resource) -> String {
    if resource.custom().is_some() {
        let group: Vec<&str> = resource.group.split('.').rev().collect();
        return format!("{}.{}.{}", group.join("."), resource.version, resource.kind);
    }
    schemas::long_name(&super::types::short_name(&resource.group, &resource.kind))
}

#[cfg(test)]
mod tests;
