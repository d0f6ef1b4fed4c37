//! Strategic merge patch: a merge patch that knows which lists are merged by a key. Pure; a patch that cannot be applied changes
//! nothing. Only built-in kinds have one: what a definition says is not enough for it, as in Kubernetes.

use serde_json::{Map, Value};

use super::status::Refusal;
use super::types::{Field, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";
/// Deeper patches only burn stack.
const MAX_DEPTH: usize = 64;

/// Applies a patch to an object of this type.
pub fn apply(object: &Value, patch: &Value, of: Option<&Type>) -> Result<Value, Refusal> {
    let Some(patch) = patch.as_object() else {
        return Err(Refusal::bad_request("a strategic merge patch must be a map"));
    };
    let mut out = object.as_object().cloned().unwrap_or_default();
    map(&mut out, patch, of, false, 0)?;
    Ok(Value::Object(out))
}

fn map(
    into: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    of: Option<&Type>,
    retain: bool,
    depth: usize,
) -> Result<(), Refusal> {
    if depth > MAX_DEPTH {
        return Err(Refusal::bad_request("the patch is nested too deep"));
    }
    match patch.get(DIRECTIVE).map(|word| word.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            *into = patch.iter().filter(|(key, _)| *key != DIRECTIVE).map(|(k, v)| (k.clone(), v.clone())).collect();
            return Ok(());
        }
        Some("delete") => {
            into.clear();
            return Ok(());
        }
        Some(other) => return Err(Refusal::bad_request(format!("unknown patch type {other:?} in a map"))),
    }
    if let Some(kept) = patch.get(RETAIN) {
        if !retain {
            return Err(Refusal::bad_request(format!("{RETAIN} is not for this field")));
        }
        let kept: Vec<&str> = kept.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        into.retain(|key, _| kept.contains(&key.as_str()));
    }
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let field = of.and_then(|of| of.field(key));
        one(into, key, value, (field, patch), depth)?;
    }
    for (key, value) in patch {
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            remove_all(into, name, value)?;
        } else if let Some(name) = key.strip_prefix(ORDER)
            && !patch.contains_key(name)
        {
            reorder(into, name, value, of.and_then(|of| of.field(name)));
        }
    }
    Ok(())
}

fn one(
    into: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    (field, patch): (Option<&Field>, &Map<String, Value>),
    depth: usize,
) -> Result<(), Refusal> {
    let of = field.and_then(Field::of).or_else(|| field.and_then(Field::values));
    let merges = field.is_some_and(|field| field.strategy("merge"));
    match value {
        Value::Null => {
            into.remove(key);
        }
        Value::Object(changes) => {
            let replaces = field.is_some_and(|field| field.strategy("replace"));
            let found = into.entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()));
            if replaces || !found.is_object() {
                *found = Value::Object(Map::new());
            }
            let gone = changes.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
            if let Value::Object(found) = found {
                map(found, changes, of, field.is_some_and(|field| field.strategy("retainKeys")), depth + 1)?;
            }
            if gone {
                into.remove(key);
            }
        }
        Value::Array(changes) if merges => {
            let order = patch.get(&format!("{ORDER}{key}")).and_then(Value::as_array);
            let before = into.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
            let key_name = field.and_then(|field| field.patch_key.as_deref());
            let retain = field.is_some_and(|field| field.strategy("retainKeys"));
            let merged = list(&before, changes, key_name, (of, retain), order, depth)?;
            into.insert(key.to_owned(), Value::Array(merged));
        }
        plain => {
            into.insert(key.to_owned(), plain.clone());
        }
    }
    Ok(())
}

/// Merges a list by its key, or, of plain values, by the values themselves.
fn list(
    before: &[Value],
    changes: &[Value],
    key: Option<&str>,
    (of, retain): (Option<&Type>, bool),
    order: Option<&Vec<Value>>,
    depth: usize,
) -> Result<Vec<Value>, Refusal> {
    let name = |item: &Value| key.map_or_else(|| Some(item.clone()), |key| item.get(key).cloned());
    let directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    let mut out = before.to_vec();
    if changes.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        out.clear();
    }
    let mut named = Vec::new();
    for change in changes {
        let word = directive(change);
        if word.as_deref() == Some("replace") && change.as_object().is_some_and(|change| change.len() == 1) {
            continue;
        }
        let Some(wanted) = name(change).filter(|_| key.is_none() || change.is_object()) else {
            let key = key.unwrap_or_default();
            return Err(Refusal::bad_request(format!("map: {change} does not contain declared merge key: {key}")));
        };
        let at = out.iter().position(|item| name(item).as_ref() == Some(&wanted));
        match (word.as_deref(), at) {
            (Some("delete"), _) => out.retain(|item| name(item).as_ref() != Some(&wanted)),
            (None | Some("merge" | "replace"), found) => {
                named.push(wanted);
                match (found.and_then(|at| out.get_mut(at)), change) {
                    (Some(Value::Object(item)), Value::Object(change)) => map(item, change, of, retain, depth + 1)?,
                    (Some(_), _) => {}
                    (None, Value::Object(change)) => {
                        let mut item = Map::new();
                        map(&mut item, change, of, retain, depth + 1)?;
                        item.remove(DIRECTIVE);
                        out.push(Value::Object(item));
                    }
                    (None, plain) => out.push(plain.clone()),
                }
            }
            (Some(other), _) => {
                return Err(Refusal::bad_request(format!("unknown patch type {other:?} in a list")));
            }
        }
    }
    // Without an order asked for, the patch's own is it.
    let own: Vec<Value> = changes.iter().filter(|item| directive(item).is_none()).cloned().collect();
    Ok(arranged(before, out, order.unwrap_or(&own), key))
}

/// Puts a merged list into the order the patch asks for; items it does not name keep their place among those that were there before.
fn arranged(before: &[Value], merged: Vec<Value>, order: &[Value], key: Option<&str>) -> Vec<Value> {
    let name = |item: &Value| key.map_or_else(|| Some(item.clone()), |key| item.get(key).cloned());
    let place = |item: &Value| order.iter().position(|wanted| name(wanted) == name(item));
    let was = |item: &Value| before.iter().position(|old| name(old) == name(item));
    let (mut asked, others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|item| place(item).is_some());
    asked.sort_by_key(|item| place(item));
    let mut out = Vec::with_capacity(asked.len() + others.len());
    let (mut asked, mut others) = (asked.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (asked.peek(), others.peek()) {
            (None, None) => return out,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(left), Some(right)) => was(left).zip(was(right)).is_some_and(|(left, right)| right < left),
        };
        out.extend(if other_first { others.next() } else { asked.next() });
    }
}

/// Takes plain values out of a list.
fn remove_all(into: &mut Map<String, Value>, name: &str, values: &Value) -> Result<(), Refusal> {
    let Some(gone) = values.as_array() else {
        return Err(Refusal::bad_request(format!("{DELETE_FROM}{name} must be a list")));
    };
    if let Some(list) = into.get_mut(name).and_then(Value::as_array_mut) {
        list.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// An order without changes.
fn reorder(into: &mut Map<String, Value>, name: &str, order: &Value, field: Option<&Field>) {
    let (Some(order), Some(list)) = (order.as_array(), into.get_mut(name).and_then(Value::as_array_mut)) else {
        return;
    };
    let before = list.clone();
    *list = arranged(&before, std::mem::take(list), order, field.and_then(|field| field.patch_key.as_deref()));
}

#[cfg(test)]
mod tests;
