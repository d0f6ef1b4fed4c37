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

/// Every path the object sets.
pub fn fields_of(value: &Value, shape: Shape) -> FieldSet {
    let mut set = FieldSet::default();
    match value {
        Value::Object(map) if !map.is_empty() && !shape.atomic_map() => {
            for (name, child) in map {
                set.children.insert(Step::Field(name.clone()), fields_of(child, shape.field(name)));
            }
        }
        Value::Array(items) if !items.is_empty() && shape.list_kind() != ListKind::Atomic => {
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
    let mut set = fields_of(value, shape);
    own_all(&mut set);
    set
}

fn own_all(set: &mut FieldSet) {
    set.member = true;
    set.children.values_mut().for_each(own_all);
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
        _ => *live = applied.clone(),
    }
}

fn merge_lists(live: &mut Vec<Value>, applied: &[Value], shape: Shape) {
    let list = shape.list_kind();
    for item in applied {
        let step = item_step(item, shape, &list);
        match live.iter_mut().find(|l| item_step(l, shape, &list) == step) {
            Some(found) if matches!(list, ListKind::Map(_)) => merge(found, item, shape.item()),
            Some(_) => {}
            None => live.push(item.clone()),
        }
    }
}

/// Removes a path from the value; parents left empty by it go too, unless `kept` still names them. True if the value itself is now
/// to be removed by its parent.
pub fn remove(value: &mut Value, gone: &FieldSet, kept: &FieldSet, shape: Shape) -> bool {
    if gone.member && kept.is_empty() {
        return true;
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
