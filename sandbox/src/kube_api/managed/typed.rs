//! Whether an applied configuration has the types its schema names, and lists whose items can be told apart: otherwise nobody could own
//! its fields. It judges no values.

use serde_json::Value;

use crate::kube_api::schema::{ListKind, Schema, Type, join};

/// The first place that does not fit, in the words of Kubernetes.
pub fn misfit(schema: &Schema, value: &Value) -> Option<String> {
    node(schema, value, "")
}

fn node(schema: &Schema, value: &Value, path: &str) -> Option<String> {
    if value.is_null() || schema.int_or_string {
        return None;
    }
    let wanted = match schema.kind {
        Some(Type::Object) if !value.is_object() => "map",
        Some(Type::Array) if !value.is_array() => "list",
        Some(Type::String) if !value.is_string() => "string",
        Some(Type::Integer | Type::Number) if !value.is_number() => "numeric (int or float)",
        Some(Type::Boolean) if !value.is_boolean() => "boolean",
        _ => return inside(schema, value, path),
    };
    Some(format!(".{path}: expected {wanted}, got {value}"))
}

fn inside(schema: &Schema, value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(map) => map.iter().find_map(|(name, child)| node(schema.field(name)?, child, &join(path, name))),
        Value::Array(items) => items.iter().enumerate().find_map(|(i, item)| {
            let of = schema.items.as_deref();
            nameless(schema, item, path, i).or_else(|| node(of?, item, &format!("{path}[{i}]")))
        }),
        _ => None,
    }
}

/// An item that nothing tells apart from others.
fn nameless(schema: &Schema, item: &Value, path: &str, i: usize) -> Option<String> {
    match &schema.list {
        ListKind::Atomic => None,
        ListKind::Set => item
            .is_null()
            .then(|| format!(".{path}: element {i}: associative list without keys has an element that is null")),
        ListKind::Map(_) if !item.is_object() => {
            Some(format!(".{path}: element {i}: associative list with keys may not have non-map elements"))
        }
        ListKind::Map(keys) => {
            let default = |key: &String| schema.items.as_deref()?.properties.get(key)?.default.as_ref();
            let missing = keys.iter().find(|key| item.get(key.as_str()).is_none() && default(key).is_none())?;
            Some(format!(
                ".{path}: element {i}: associative list with keys has an element that omits key field {missing:?}"
            ))
        }
    }
}
