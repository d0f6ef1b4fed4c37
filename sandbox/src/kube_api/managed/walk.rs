//! Reading and editing objects by field path: the paths an object sets, what differs between two, merging and removing.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fieldset::{FieldSet, Step};
use super::shape::Shape;
use crate::kube_api::schema::ListKind;

/// The step that names an item of a list, or none for lists replaced as a whole.
pub fn item_step(item: &Value, shape: Shape, list: &ListKind) -> Option<Step> {
    match list {
        ListKind::Atomic => None,
        ListKind::Set => Some(Step::Value(item.to_string())),
        ListKind::Map(keys) => {
            let named: BTreeMap<String, Value> = keys
                .iter()
                .filter_map(|k| Some((k.clone(), item.get(k).cloned().or_else(|| shape.key_default(k))?)))
                .collect();
            Some(Step::key(&named))
        }
    }
}

/// Every path the object sets: values, lists and maps that are replaced as a whole, items of lists and of free maps, and what is there but
/// empty.
pub fn fields_of(value: &Value, shape: Shape) -> FieldSet {
    let mut set = FieldSet::default();
    match value {
        Value::Object(map) if !shape.atomic_map() => {
            for (name, child) in map {
                let mut inner = fields_of(child, shape.field(name));
                let empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
                inner.member |= empty || !shape.declares(name);
                if !inner.is_empty() {
                    set.children.insert(Step::Field(name.clone()), inner);
                }
            }
        }
        Value::Array(items) if shape.list_kind() != ListKind::Atomic => {
            let list = shape.list_kind();
            for item in items {
                if let Some(step) = item_step(item, shape, &list) {
                    let mut inner = if matches!(list, ListKind::Map(_)) {
                        fields_of(item, shape.item())
                    } else {
                        FieldSet::default()
                    };
                    inner.member = true;
                    set.children.insert(step, inner);
                }
            }
        }
        _ => set.member = true,
    }
    set
}

/// The set, with every field that the kind itself names and that holds one of its paths.
pub fn with_named_parents(set: &FieldSet, shape: Shape) -> FieldSet {
    let mut out = FieldSet { member: set.member, ..FieldSet::default() };
    for (step, child) in &set.children {
        let mut inner = match step {
            Step::Field(name) => with_named_parents(child, shape.field(name)),
            _ => with_named_parents(child, shape.item()),
        };
        if let Step::Field(name) = step {
            inner.member |= shape.declares(name);
        }
        out.children.insert(step.clone(), inner);
    }
    out
}

/// The first item that a list names twice, as its path; such a configuration cannot be merged.
pub fn duplicate_item(value: &Value, shape: Shape) -> Option<Vec<Step>> {
    let below = |step: Step, found: Option<Vec<Step>>| {
        found.map(|mut path| {
            path.insert(0, step);
            path
        })
    };
    match value {
        Value::Object(map) if !shape.atomic_map() => map
            .iter()
            .find_map(|(name, child)| below(Step::Field(name.clone()), duplicate_item(child, shape.field(name)))),
        Value::Array(items) => {
            let list = shape.list_kind();
            let mut seen = std::collections::BTreeSet::new();
            items.iter().find_map(|item| {
                let step = item_step(item, shape, &list)?;
                if !seen.insert(step.clone()) {
                    return Some(vec![step]);
                }
                below(step, duplicate_item(item, shape.item()))
            })
        }
        _ => None,
    }
}

/// Every path that comes into being or goes with a value: what it sets, and every map and list on the way.
fn every_path(value: &Value, shape: Shape) -> FieldSet {
    let mut set = FieldSet::leaf();
    match value {
        Value::Object(map) if !shape.atomic_map() => {
            for (name, child) in map {
                set.children.insert(Step::Field(name.clone()), every_path(child, shape.field(name)));
            }
        }
        Value::Array(items) => {
            let list = shape.list_kind();
            for item in items {
                if let Some(step) = item_step(item, shape, &list) {
                    let inner = if matches!(list, ListKind::Map(_)) {
                        every_path(item, shape.item())
                    } else {
                        FieldSet::leaf()
                    };
                    set.children.insert(step, inner);
                }
            }
        }
        _ => {}
    }
    set
}

/// What differs between two objects.
#[derive(Debug, Default)]
pub struct Difference {
    /// Paths added or changed.
    pub written: FieldSet,
    /// Paths gone.
    pub removed: FieldSet,
}

/// Compares two values path by path.
pub fn compare(old: Option<&Value>, new: Option<&Value>, shape: Shape) -> Difference {
    let mut difference = Difference::default();
    match (old, new) {
        (None, None) => {}
        (Some(old), Some(new)) if old == new => {}
        (Some(Value::Object(old)), Some(Value::Object(new))) if !shape.atomic_map() => {
            let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for name in names {
                let inner = compare(old.get(name), new.get(name), shape.field(name));
                attach(&mut difference, Step::Field(name.clone()), inner);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if shape.list_kind() != ListKind::Atomic => {
            compare_lists(old, new, shape, &mut difference);
        }
        (None, Some(new)) => {
            difference.written = every_path(new, shape);
        }
        (Some(old), None) => {
            difference.removed = every_path(old, shape);
        }
        (Some(_), Some(_)) => difference.written.member = true,
    }
    difference
}

fn compare_lists(old: &[Value], new: &[Value], shape: Shape, difference: &mut Difference) {
    let list = shape.list_kind();
    let index = |items: &[Value]| -> BTreeMap<Step, Value> {
        items.iter().filter_map(|i| Some((item_step(i, shape, &list)?, i.clone()))).collect()
    };
    let (old, new) = (index(old), index(new));
    let steps: std::collections::BTreeSet<&Step> = old.keys().chain(new.keys()).collect();
    for step in steps {
        let mut inner = match &list {
            ListKind::Map(_) => compare(old.get(step), new.get(step), shape.item()),
            _ => Difference::default(),
        };
        match (old.contains_key(step), new.contains_key(step)) {
            (false, true) => inner.written.member = true,
            (true, false) => inner.removed.member = true,
            _ => {}
        }
        attach(difference, step.clone(), inner);
    }
}

fn attach(difference: &mut Difference, step: Step, inner: Difference) {
    if !inner.written.is_empty() {
        difference.written.children.insert(step.clone(), inner.written);
    }
    if !inner.removed.is_empty() {
        difference.removed.children.insert(step, inner.removed);
    }
}

/// Lays the applied configuration over the live object.
pub fn merge(live: &mut Value, applied: &Value, shape: Shape) {
    match (&mut *live, applied) {
        (Value::Object(live), Value::Object(applied)) if !shape.atomic_map() => {
            for (name, child) in applied {
                match live.get_mut(name) {
                    Some(found) => merge(found, child, shape.field(name)),
                    None => {
                        live.insert(name.clone(), child.clone());
                    }
                }
            }
        }
        (Value::Array(live), Value::Array(applied)) if shape.list_kind() != ListKind::Atomic => {
            merge_lists(live, applied, shape);
        }
        // A null says that nothing is applied here, not that nothing may be here.
        (Value::Object(_), Value::Null) if !shape.atomic_map() => {}
        (Value::Array(_), Value::Null) if shape.list_kind() != ListKind::Atomic => {}
        _ => *live = applied.clone(),
    }
}

/// Merges by item. The order is that of what is applied; items that only the live list has stay where they stand among the rest.
fn merge_lists(live: &mut Vec<Value>, applied: &[Value], shape: Shape) {
    let list = shape.list_kind();
    let steps = |items: &[Value]| -> Vec<Option<Step>> { items.iter().map(|i| item_step(i, shape, &list)).collect() };
    let (left, right) = (steps(live), steps(applied));
    let mut shared = right.iter().filter(|step| left.contains(step));
    let mut next = shared.next();
    let mut merged: Vec<&Option<Step>> = Vec::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() && left[l] != right[r] {
            let another = next.is_some_and(|step| *step != left[l]);
            if right.contains(&left[l]) && another {
                // Its turn comes with the applied items.
                l += 1;
                continue;
            }
        }
        let both = l < left.len() && r < right.len() && left[l] == right[r];
        if l < left.len() && !both {
            if !right.contains(&left[l]) {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            if merged.contains(&&left[l]) {
                l += 1;
            }
        }
        if r < right.len() {
            let found = left.iter().position(|step| *step == right[r]).map(|at| live[at].clone());
            out.push(merged_item(found, &applied[r], &list, shape));
            merged.push(&right[r]);
            if both || next == Some(&right[r]) {
                next = shared.next();
            }
            l += usize::from(both);
            r += 1;
        }
    }
    *live = out;
}

fn merged_item(live: Option<Value>, applied: &Value, list: &ListKind, shape: Shape) -> Value {
    match live {
        Some(mut found) if matches!(list, ListKind::Map(_)) => {
            merge(&mut found, applied, shape.item());
            found
        }
        Some(found) => found,
        None => applied.clone(),
    }
}

/// Removes a path from the value; parents left empty by it go too, unless `kept` still names them. True if the value itself is now
/// to be removed by its parent.
pub fn remove(value: &mut Value, gone: &FieldSet, kept: &FieldSet, shape: Shape) -> bool {
    if gone.member && kept.is_empty() {
        return true;
    }
    if gone.member {
        keep_only(value, kept, shape);
        return false;
    }
    match value {
        Value::Object(map) => {
            let before = map.len();
            remove_fields(map, gone, kept, shape);
            map.is_empty() && before > 0 && kept.is_empty()
        }
        Value::Array(items) => {
            let before = items.len();
            let list = shape.list_kind();
            let none = FieldSet::default();
            items.retain_mut(|item| {
                let Some(step) = item_step(item, shape, &list) else { return true };
                let Some(inner) = gone.children.get(&step) else { return true };
                !remove(item, inner, kept.children.get(&step).unwrap_or(&none), shape.item())
            });
            items.is_empty() && before > 0 && kept.is_empty()
        }
        _ => false,
    }
}

/// Leaves of a value only what is in a set.
fn keep_only(value: &mut Value, kept: &FieldSet, shape: Shape) {
    if kept.children.is_empty() {
        return;
    }
    match value {
        Value::Object(map) => map.retain(|name, child| {
            let found = kept.children.get(&Step::Field(name.clone())).filter(|set| !set.is_empty());
            found.is_some_and(|set| {
                keep_only(child, set, shape.field(name));
                true
            })
        }),
        Value::Array(items) => {
            let list = shape.list_kind();
            items.retain_mut(|item| {
                let found = item_step(item, shape, &list).and_then(|step| kept.children.get(&step));
                found.is_some_and(|set| {
                    keep_only(item, set, shape.item());
                    true
                })
            });
        }
        _ => {}
    }
}

fn remove_fields(map: &mut Map<String, Value>, gone: &FieldSet, kept: &FieldSet, shape: Shape) {
    let none = FieldSet::default();
    for (step, inner) in &gone.children {
        let Step::Field(name) = step else { continue };
        if let Some(child) = map.get_mut(name)
            && remove(child, inner, kept.children.get(step).unwrap_or(&none), shape.field(name))
        {
            map.remove(name);
        }
    }
}
