//! Defaulting and pruning by schema. Both change an object in place; neither judges it.

use serde_json::Value;

use super::{MAX_DEPTH, Schema, join};
use crate::kube_api::object::as_map;

/// Removes nulls where the schema forbids them: what a client sends as null counts as absent. What is applied does not pass here.
pub fn drop_nulls(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, child| {
            let Some(property) = schema.field(name) else { return true };
            drop_nulls(property, child);
            !child.is_null() || property.nullable || accepts_null(property)
        }),
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| drop_nulls(schema, item));
            }
        }
        _ => {}
    }
}

/// Fills defaults of absent fields.
pub fn default(schema: &Schema, value: &mut Value) {
    default_node(schema, value, 0);
}

fn default_node(schema: &Schema, value: &mut Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                // A null that may not be is as good as nothing where there is a default.
                let absent = match map.get(name) {
                    Some(found) => found.is_null() && !property.nullable && !accepts_null(property),
                    None => true,
                };
                if let Some(wanted) = property.default.as_ref().filter(|_| absent) {
                    map.insert(name.clone(), wanted.clone());
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(property) = schema.field(name) {
                    default_node(property, child, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                items.iter_mut().for_each(|item| default_node(schema, item, depth + 1));
            }
        }
        _ => {}
    }
}

fn accepts_null(schema: &Schema) -> bool {
    schema.preserve && schema.kind.is_none()
}

/// Removes fields the schema does not know; the paths removed are returned. The root keeps `apiVersion`, `kind`, `metadata`.
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut removed = Vec::new();
    prune_node(schema, object, "", true, &mut removed);
    removed
}

fn prune_node(schema: &Schema, value: &mut Value, path: &str, root: bool, removed: &mut Vec<String>) {
    match value {
        Value::Object(_) => {
            let map = as_map(value);
            let names: Vec<String> = map.keys().cloned().collect();
            for name in names {
                let own = (root || schema.embedded) && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                if own {
                    continue;
                }
                match (schema.field(&name), map.get_mut(&name)) {
                    (Some(property), Some(child)) => prune_node(property, child, &join(path, &name), false, removed),
                    (None, _) if schema.keeps_unknown() => {}
                    _ => {
                        map.remove(&name);
                        removed.push(join(path, &name));
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = &schema.items {
                for (i, item) in items.iter_mut().enumerate() {
                    prune_node(schema, item, &format!("{path}[{i}]"), false, removed);
                }
            }
        }
        _ => {}
    }
}
