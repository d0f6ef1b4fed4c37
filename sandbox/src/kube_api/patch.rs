//! JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) on JSON values. Pure; a patch that cannot be applied changes nothing.

use serde_json::Value;

use super::status::{Reason, Refusal};

/// Most operations in one JSON patch; Kubernetes' own bound.
const MAX_OPERATIONS: usize = 10_000;

/// Applies a merge patch in place: null removes, maps merge, the rest replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    let map = super::object::as_map(target);
    for (name, value) in fields {
        if value.is_null() {
            map.remove(name);
        } else {
            merge(map.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Applies a JSON patch to a copy of the target.
pub fn json(target: &Value, patch: &Value) -> Result<Value, Refusal> {
    let operations =
        patch.as_array().ok_or_else(|| Refusal::bad_request("a JSON patch must be a list of operations"))?;
    if operations.len() > MAX_OPERATIONS {
        let what = format!("a JSON patch may have at most {MAX_OPERATIONS} operations");
        return Err(Refusal::new(Reason::RequestEntityTooLarge, what));
    }
    let mut out = target.clone();
    for operation in operations {
        step(&mut out, operation)?;
    }
    Ok(out)
}

fn step(target: &mut Value, operation: &Value) -> Result<(), Refusal> {
    let word = |key: &str| operation.get(key).and_then(Value::as_str);
    let op = word("op").ok_or_else(|| Refusal::bad_request("a JSON patch operation needs \"op\""))?;
    let path = tokens(word("path").ok_or_else(|| Refusal::bad_request("a JSON patch operation needs \"path\""))?)?;
    let value = || {
        operation.get("value").cloned().ok_or_else(|| Refusal::bad_request(format!("JSON patch {op} needs \"value\"")))
    };
    let from = || tokens(word("from").ok_or_else(|| Refusal::bad_request(format!("JSON patch {op} needs \"from\"")))?);
    match op {
        "add" => add(target, &path, value()?),
        "remove" => remove(target, &path).map(|_| ()),
        "replace" => {
            let wanted = value()?;
            match find_mut(target, &path) {
                Some(place) => *place = wanted,
                // A field of a map that is not there is made, as Kubernetes does; an item of a list is not.
                None => match path.split_last() {
                    Some((_, above)) if find(target, above).is_some_and(Value::is_object) => {
                        add(target, &path, wanted)?
                    }
                    _ => return Err(missing(&path)),
                },
            }
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.len() > from.len() && path.starts_with(&from) {
                let what = "the server rejected our request due to an error in our request: a move into itself";
                return Err(Refusal::new(Reason::Invalid, what));
            }
            let taken = remove(target, &from)?;
            add(target, &path, taken)
        }
        "copy" => {
            let from = from()?;
            let copied = match (find(target, &from), from.split_last()) {
                (Some(found), _) => found.clone(),
                // A field that is not there is copied as null, as Kubernetes does.
                (None, Some((_, above))) if find(target, above).is_some_and(Value::is_object) => Value::Null,
                _ => return Err(missing(&from)),
            };
            add(target, &path, copied)
        }
        "test" => {
            let wanted = value()?;
            let holds = find(target, &path).is_some_and(|found| *found == wanted)
                || (wanted.is_null() && find(target, &path).is_none() && parent_is_there(target, &path));
            if holds {
                Ok(())
            } else {
                let what = format!("testing path /{} failed: the value differs", path.join("/"));
                Err(Refusal::new(
                    Reason::Invalid,
                    format!("the server rejected our request due to an error in our request: {what}"),
                ))
            }
        }
        other => {
            let what =
                format!("the server rejected our request due to an error in our request: unknown operation {other:?}");
            Err(Refusal::new(Reason::Invalid, what))
        }
    }
}

fn parent_is_there(target: &Value, path: &[String]) -> bool {
    path.split_last().is_none_or(|(_, above)| find(target, above).is_some())
}

fn tokens(pointer: &str) -> Result<Vec<String>, Refusal> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let rest = pointer
        .strip_prefix('/')
        .ok_or_else(|| Refusal::bad_request(format!("JSON pointer {pointer:?} must start with /")))?;
    Ok(rest.split('/').map(|t| t.replace("~1", "/").replace("~0", "~")).collect())
}

fn missing(path: &[String]) -> Refusal {
    Refusal::new(
        Reason::Invalid,
        format!(
            "the server rejected our request due to an error in our request: path /{} does not exist",
            path.join("/")
        ),
    )
}

fn index(token: &str, len: usize) -> Option<usize> {
    if token.len() > 1 && token.starts_with('0') {
        return None;
    }
    token.parse::<usize>().ok().filter(|i| *i < len)
}

fn find<'a>(target: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(target, |value, token| match value {
        Value::Object(map) => map.get(token),
        Value::Array(items) => items.get(index(token, items.len())?),
        _ => None,
    })
}

fn find_mut<'a>(target: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(target, |value, token| match value {
        Value::Object(map) => map.get_mut(token),
        Value::Array(items) => {
            let i = index(token, items.len())?;
            items.get_mut(i)
        }
        _ => None,
    })
}

fn add(target: &mut Value, path: &[String], value: Value) -> Result<(), Refusal> {
    let Some((last, above)) = path.split_last() else {
        *target = value;
        return Ok(());
    };
    match find_mut(target, above) {
        Some(Value::Object(map)) => {
            map.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(items)) if last == "-" => {
            items.push(value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let i = index(last, items.len() + 1).ok_or_else(|| missing(path))?;
            items.insert(i, value);
            Ok(())
        }
        _ => Err(missing(path)),
    }
}

fn remove(target: &mut Value, path: &[String]) -> Result<Value, Refusal> {
    let (last, above) =
        path.split_last().ok_or_else(|| Refusal::bad_request("JSON patch cannot remove the whole object"))?;
    match find_mut(target, above) {
        Some(Value::Object(map)) => map.remove(last).ok_or_else(|| missing(path)),
        Some(Value::Array(items)) => {
            let i = index(last, items.len()).ok_or_else(|| missing(path))?;
            Ok(items.remove(i))
        }
        _ => Err(missing(path)),
    }
}
