//! JSON as CEL sees it in a CustomResourceDefinition's rules: field names escaped, times and durations typed by the schema.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use super::Schema;

const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Converts a value; `root` limits `metadata` to `name` and `generateName`, as Kubernetes does.
pub fn convert(value: &Value, schema: Option<&Schema>, root: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => number(n, schema),
        Value::String(text) => string(text, schema),
        Value::Array(items) => {
            let item_schema = schema.and_then(|s| s.items.as_deref());
            Cel::List(Arc::new(items.iter().map(|i| convert(i, item_schema, false)).collect()))
        }
        Value::Object(map) => {
            let declared = schema.is_some_and(|s| !s.properties.is_empty());
            let mut out = HashMap::with_capacity(map.len());
            for (name, child) in map {
                let property = schema.and_then(|s| s.field(name));
                let restricted = (root || schema.is_some_and(|s| s.embedded)) && name == "metadata";
                let child =
                    if restricted { convert(&names_only(child), None, false) } else { convert(child, property, false) };
                let key = if declared || root { escape(name) } else { name.clone() };
                out.insert(Key::String(Arc::new(key)), child);
            }
            Cel::Map(Map { map: Arc::new(out) })
        }
    }
}

fn names_only(metadata: &Value) -> Value {
    let keep = |key: &str| metadata.get(key).map(|v| (key.to_owned(), v.clone()));
    Value::Object(["name", "generateName"].into_iter().filter_map(keep).collect())
}

fn number(n: &serde_json::Number, schema: Option<&Schema>) -> Cel {
    let float = schema.is_some_and(|s| s.kind == Some(super::Type::Number));
    match (n.as_i64(), n.as_f64()) {
        (Some(whole), _) if !float => Cel::Int(whole),
        (_, Some(f)) => Cel::Float(f),
        _ => Cel::Null,
    }
}

fn string(text: &str, schema: Option<&Schema>) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    let Some(schema) = schema.filter(|s| !s.int_or_string) else { return plain() };
    match schema.limits.format.as_deref() {
        Some("date-time") => typed("timestamp(text)", text).unwrap_or_else(plain),
        Some("duration") => typed("duration(text)", text).unwrap_or_else(plain),
        Some("byte") => match base64::engine::general_purpose::STANDARD.decode(text) {
            Ok(bytes) => Cel::Bytes(Arc::new(bytes)),
            Err(_) => plain(),
        },
        _ => plain(),
    }
}

/// Lets CEL's own functions make the typed value, so that both agree on what a time is.
fn typed(expression: &str, text: &str) -> Option<Cel> {
    let mut context = Context::default();
    context.add_variable_from_value("text", Cel::String(Arc::new(text.to_owned())));
    Program::compile(expression).ok()?.execute(&context).ok()
}

/// A field name as rules must write it.
pub fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '_' if chars.peek() == Some(&'_') => {
                chars.next();
                out.push_str("__underscores__");
            }
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            other => out.push(other),
        }
    }
    out
}
