//! Kubernetes' protobuf form of built-in kinds, which typed clients (`kubectl create …`, `drain`) send, read as the JSON they mean.
//! `fields.json` is taken from the Go types of Kubernetes 1.37. Answers are JSON, which every client accepts. Bad input is refused.

mod wire;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::status::Refusal;
use super::types::short_name;
use wire::{Field, fields, text};

/// Begins every message.
const MAGIC: &[u8] = b"k8s\0";
/// Deeper messages only burn stack.
const MAX_DEPTH: usize = 64;

/// Number, JSON name (empty: its fields are the parent's own), kind. A kind is `*` for what may be absent, `[]` or `{}` for lists and
/// maps, then a word or `m:TYPE`, then `!` for what is written even when it is empty.
type Row = (u32, String, String);

static TYPES: LazyLock<BTreeMap<String, Vec<Row>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("fields.json")).unwrap_or_default());

/// Reads an object.
pub fn decode(bytes: &[u8]) -> Result<Value, Refusal> {
    let body = bytes.strip_prefix(MAGIC).ok_or_else(|| refuse("it does not begin as one"))?;
    let (mut type_meta, mut raw) = (&[][..], &[][..]);
    for (number, field) in fields(body).map_err(|why| refuse(&why))? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => type_meta = bytes,
            (2, Field::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (mut api_version, mut kind) = (String::new(), String::new());
    for (number, field) in fields(type_meta).map_err(|why| refuse(&why))? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => api_version = text(bytes),
            (2, Field::Bytes(bytes)) => kind = text(bytes),
            _ => {}
        }
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    // Options of a deletion come under whatever group is asked.
    let name = if kind == "DeleteOptions" { "meta.v1.DeleteOptions".to_owned() } else { short_name(group, &kind) };
    if version != "v1" || !TYPES.contains_key(&name) {
        let why = format!("no kind {kind:?} is known for version {api_version:?} in protobuf: send JSON");
        return Err(Refusal::bad_request(why));
    }
    let mut object = message(&name, raw, 0).map_err(|why| refuse(&why))?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

fn refuse(why: &str) -> Refusal {
    Refusal::bad_request(format!("the body is not a protobuf message of Kubernetes: {why}"))
}

/// A message as a map.
fn message(name: &str, bytes: &[u8], depth: usize) -> Result<Map<String, Value>, String> {
    if depth > MAX_DEPTH {
        return Err("it is nested too deep".to_owned());
    }
    let rows = TYPES.get(name).ok_or_else(|| format!("type {name} is not known"))?;
    let mut out = Map::new();
    for (number, field) in fields(bytes)? {
        // What a newer client knows and this server does not is left out, as protobuf does.
        let Some((_, json_name, kind)) = rows.iter().find(|(row, _, _)| *row == number) else { continue };
        let (kind, always) = kind.strip_suffix('!').map_or((kind.as_str(), false), |kind| (kind, true));
        let (kind, present) = kind.strip_prefix('*').map_or((kind, always), |kind| (kind, true));
        if let Some(inner) = kind.strip_prefix("[]") {
            let list = out.entry(json_name.clone()).or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(value(inner, &field, depth)?);
            }
        } else if let Some(inner) = kind.strip_prefix("{}") {
            let (key, found) = entry(inner, &field, depth)?;
            super::object::as_map(out.entry(json_name.clone()).or_insert_with(|| json!({}))).insert(key, found);
        } else if json_name.is_empty() {
            if let Value::Object(inner) = value(kind, &field, depth)? {
                out.extend(inner);
            }
        } else {
            let found = value(kind, &field, depth)?;
            if present || !is_zero(&found) {
                out.insert(json_name.clone(), found);
            }
        }
    }
    Ok(out)
}

/// What Go leaves out of JSON; an empty map stays, because an empty struct does.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(_) => false,
    }
}

fn entry(kind: &str, field: &Field<'_>, depth: usize) -> Result<(String, Value), String> {
    let (mut key, mut found) = (String::new(), empty(kind));
    for (number, part) in fields(field.bytes()?)? {
        match number {
            1 => key = text(part.bytes()?),
            2 => found = value(kind, &part, depth)?,
            _ => {}
        }
    }
    Ok((key, found))
}

/// A map's value that was left out because it is empty.
fn empty(kind: &str) -> Value {
    match kind {
        "string" | "bytes" | "quantity" => "".into(),
        "int" => 0.into(),
        "bool" => false.into(),
        _ if kind.starts_with("list:") => json!([]),
        _ => json!({}),
    }
}

fn value(kind: &str, field: &Field<'_>, depth: usize) -> Result<Value, String> {
    if let Some(name) = kind.strip_prefix("m:") {
        return message(name, field.bytes()?, depth + 1).map(Value::Object);
    }
    if let Some(inner) = kind.strip_prefix("list:") {
        let items = fields(field.bytes()?)?.into_iter().filter(|(number, _)| *number == 1);
        return items.map(|(_, item)| value(inner, &item, depth + 1)).collect::<Result<Vec<_>, _>>().map(Value::Array);
    }
    Ok(match kind {
        "string" => text(field.bytes()?).into(),
        "bytes" => STANDARD.encode(field.bytes()?).into(),
        "int" => field.number()?.into(),
        "bool" => (field.number()? != 0).into(),
        "double" => field.fraction()?.into(),
        "quantity" => {
            part(field, 1)?.map_or_else(|| Ok("".into()), |one| one.bytes().map(|bytes| text(bytes).into()))?
        }
        "intstr" => int_or_string(field)?,
        "time" | "microtime" => time(field, kind == "microtime")?,
        "raw" | "fields" => match part(field, 1)? {
            Some(one) if !one.bytes()?.is_empty() => {
                serde_json::from_slice(one.bytes()?).map_err(|error| format!("embedded JSON: {error}"))?
            }
            _ => Value::Null,
        },
        other => return Err(format!("fields of kind {other} are not known")),
    })
}

fn part<'a>(field: &Field<'a>, wanted: u32) -> Result<Option<Field<'a>>, String> {
    Ok(fields(field.bytes()?)?.into_iter().find(|(number, _)| *number == wanted).map(|(_, field)| field))
}

fn int_or_string(field: &Field<'_>) -> Result<Value, String> {
    let number = |wanted: u32| part(field, wanted)?.map_or(Ok(0), |one| one.number());
    if number(1)? == 1 {
        return Ok(part(field, 3)?.map_or_else(|| Ok(String::new()), |one| one.bytes().map(text))?.into());
    }
    Ok(number(2)?.into())
}

fn time(field: &Field<'_>, fine: bool) -> Result<Value, String> {
    let Some(seconds) = part(field, 1)? else { return Ok(Value::Null) };
    let nanos = part(field, 2)?.map_or(Ok(0), |one| one.number())?;
    let nanos = i32::try_from(nanos).unwrap_or_default();
    let at = Timestamp::new(seconds.number()?, nanos).map_err(|error| error.to_string())?;
    let digits = if fine { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(at.strftime(digits).to_string().into())
}

#[cfg(test)]
mod tests;
