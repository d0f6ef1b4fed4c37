//! Judges an object by its schema: types, ranges, lists, logic. With the stored object at hand, what did not change is not judged
//! anew (ratcheting). CEL rules are judged in `rules`.

use serde_json::Value;

use super::{ListKind, MAX_DEPTH, Schema, Type, formats, item_key, join};
use crate::kube_api::status::{Fault, FieldError};

/// Most errors one answer carries.
const MAX_ERRORS: usize = 64;

/// Every fault of `new` against the schema; parts equal to `old` are excused.
pub fn validate(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new() };
    walk.node(schema, new, old, Spot { path: "", depth: 0, root: true });
    walk.errors.truncate(MAX_ERRORS);
    walk.errors
}

struct Walk {
    errors: Vec<FieldError>,
}

#[derive(Clone, Copy)]
struct Spot<'a> {
    path: &'a str,
    depth: usize,
    root: bool,
}

impl Spot<'_> {
    fn inside<'b>(&self, path: &'b str) -> Spot<'b> {
        Spot { path, depth: self.depth + 1, root: false }
    }
}

impl Walk {
    fn fault(&mut self, fault: Fault, spot: Spot, value: Option<&Value>, detail: impl Into<String>) {
        self.errors.push(FieldError::new(fault, spot.path, value, detail));
    }

    fn node(&mut self, schema: &Schema, new: &Value, old: Option<&Value>, spot: Spot) {
        if old.is_some_and(|old| old == new) {
            return;
        }
        if spot.depth > MAX_DEPTH {
            return self.fault(Fault::TooMany, spot, None, format!("nests deeper than {MAX_DEPTH}"));
        }
        if new.is_null() && (schema.nullable || (schema.preserve && schema.kind.is_none())) {
            return;
        }
        let typed = self.typed(schema, new, spot);
        self.options(schema, new, spot);
        if !typed {
            return;
        }
        match new {
            Value::Object(map) => {
                self.object(schema, map, spot);
                self.members(schema, new, old, spot);
            }
            Value::Array(items) => self.array(schema, items, old, spot),
            Value::String(text) => self.string(schema, text, new, spot),
            Value::Number(_) => self.number(schema, new, spot),
            _ => {}
        }
        self.logic(schema, new, spot);
    }

    fn typed(&mut self, schema: &Schema, new: &Value, spot: Spot) -> bool {
        let found = type_name(new);
        if schema.int_or_string {
            if matches!(found, "integer" | "string") {
                return true;
            }
            let detail = format!("{} in body must be of type integer,string: \"{found}\"", spot.path);
            self.fault(Fault::TypeInvalid, spot, Some(&Value::from(found)), detail);
            return false;
        }
        let Some(kind) = schema.kind else { return true };
        let (wanted, fits) = match kind {
            Type::Object => ("object", new.is_object()),
            Type::Array => ("array", new.is_array()),
            Type::String => ("string", new.is_string()),
            Type::Integer => ("integer", found == "integer"),
            Type::Number => ("number", new.is_number()),
            Type::Boolean => ("boolean", new.is_boolean()),
        };
        if !fits {
            let shown = Value::from(found);
            let detail = format!("{} in body must be of type {wanted}: \"{found}\"", spot.path);
            self.fault(Fault::TypeInvalid, spot, Some(&shown), detail);
        }
        fits
    }

    fn options(&mut self, schema: &Schema, new: &Value, spot: Spot) {
        if let Some(options) = &schema.limits.options
            && !options.contains(new)
        {
            let list = options.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            self.fault(Fault::NotSupported, spot, Some(new), format!("supported values: {list}"));
        }
    }

    fn object(&mut self, schema: &Schema, map: &serde_json::Map<String, Value>, spot: Spot) {
        for name in &schema.limits.required {
            if !map.contains_key(name) {
                self.errors.push(FieldError::required(join(spot.path, name), ""));
            }
        }
        if let Some(least) = schema.limits.min_properties.filter(|n| map.len() < *n) {
            self.fault(Fault::Invalid, spot, None, format!("should have at least {least} properties"));
        }
        if let Some(most) = schema.limits.max_properties.filter(|n| map.len() > *n) {
            self.fault(Fault::TooMany, spot, None, format!("must have at most {most} properties"));
        }
    }

    fn members(&mut self, schema: &Schema, new: &Value, old: Option<&Value>, spot: Spot) {
        let Some(map) = new.as_object() else { return };
        for (name, child) in map {
            if spot.root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") && !matters(schema, name) {
                continue;
            }
            if let Some(property) = schema.field(name) {
                let path = join(spot.path, name);
                self.node(property, child, old.and_then(|o| o.get(name)), spot.inside(&path));
            }
        }
    }

    fn array(&mut self, schema: &Schema, items: &[Value], old: Option<&Value>, spot: Spot) {
        if let Some(least) = schema.limits.min_items.filter(|n| items.len() < *n) {
            let detail = format!("{} in body should have at least {least} items", spot.path);
            self.fault(Fault::Invalid, spot, Some(&Value::from(items.len())), detail);
        }
        if let Some(most) = schema.limits.max_items.filter(|n| items.len() > *n) {
            self.fault(Fault::TooMany, spot, None, format!("must have at most {most} items"));
        }
        let item_schema = schema.items.as_deref();
        let unique = schema.limits.unique_items || schema.list == ListKind::Set;
        for (i, item) in items.iter().enumerate() {
            let path = format!("{}[{i}]", spot.path);
            let repeated = match &schema.list {
                ListKind::Map(keys) => {
                    let key = item_key(item, keys, item_schema);
                    // The third of a kind says nothing new.
                    items[..i].iter().filter(|other| item_key(other, keys, item_schema) == key).count() == 1
                }
                _ => unique && items[..i].iter().filter(|other| *other == item).count() == 1,
            };
            if repeated {
                self.fault(Fault::Duplicate, spot.inside(&path), Some(&named_by(item, &schema.list)), "");
            }
            if let Some(item_schema) = item_schema {
                self.node(item_schema, item, old_item(schema, item, old), spot.inside(&path));
            }
        }
    }

    /// The first thing wrong with a text; what follows may only follow from it.
    fn string(&mut self, schema: &Schema, text: &str, new: &Value, spot: Spot) {
        let limits = &schema.limits;
        let length = text.chars().count();
        if let Some(most) = limits.max_length.filter(|n| length > *n) {
            return self.fault(Fault::TooLong, spot, None, format!("may not be more than {most} bytes"));
        }
        if let Some(least) = limits.min_length.filter(|n| length < *n) {
            let detail = format!("{} in body should be at least {least} chars long", spot.path);
            return self.fault(Fault::Invalid, spot, Some(new), detail);
        }
        if let Some(pattern) = limits.pattern.as_ref().filter(|p| !p.is_match(text)) {
            let detail = format!("{} in body should match '{}'", spot.path, pattern.as_str());
            return self.fault(Fault::Invalid, spot, Some(new), detail);
        }
        let format = limits.format.as_ref().filter(|f| !schema.int_or_string && !formats::text_matches(f, text));
        if let Some(format) = format {
            let detail = format!("{} in body must be of type {format}: {text:?}", spot.path);
            self.fault(Fault::TypeInvalid, spot, Some(new), detail);
        }
    }

    fn number(&mut self, schema: &Schema, new: &Value, spot: Spot) {
        let limits = &schema.limits;
        let Some(number) = new.as_f64() else { return };
        let low = |least: f64| if limits.exclusive_minimum { number <= least } else { number < least };
        if let Some(least) = limits.minimum.filter(|n| low(*n)) {
            let word = if limits.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            self.fault(Fault::Invalid, spot, Some(new), format!("{} in body should be {word} {least}", spot.path));
        }
        let high = |most: f64| if limits.exclusive_maximum { number >= most } else { number > most };
        if let Some(most) = limits.maximum.filter(|n| high(*n)) {
            let word = if limits.exclusive_maximum { "less than" } else { "less than or equal to" };
            self.fault(Fault::Invalid, spot, Some(new), format!("{} in body should be {word} {most}", spot.path));
        }
        if let Some(step) = limits.multiple_of.filter(|m| (number / m).fract().abs() > f64::EPSILON) {
            self.fault(
                Fault::Invalid,
                spot,
                Some(new),
                format!("{} in body should be a multiple of {step}", spot.path),
            );
        }
        if let (Some(format), Some(whole)) = (&limits.format, new.as_i64())
            && !formats::integer_fits(format, whole)
        {
            self.fault(Fault::Invalid, spot, Some(new), format!("{} in body must be of type {format}", spot.path));
        }
    }

    fn logic(&mut self, schema: &Schema, new: &Value, spot: Spot) {
        for branch in &schema.all_of {
            self.node(branch, new, None, Spot { depth: spot.depth + 1, ..spot });
        }
        let holds = |branch: &&Schema| {
            let mut trial = Walk { errors: Vec::new() };
            trial.node(branch, new, None, Spot { depth: spot.depth + 1, ..spot });
            trial.errors.is_empty()
        };
        if !schema.any_of.is_empty() && !schema.any_of.iter().any(|b| holds(&b)) {
            self.fault(Fault::Invalid, spot, None, "must validate at least one schema (anyOf)");
        }
        if !schema.one_of.is_empty() && schema.one_of.iter().filter(holds).count() != 1 {
            self.fault(Fault::Invalid, spot, None, "must validate one and only one schema (oneOf)");
        }
        if schema.not.as_deref().is_some_and(|b| holds(&b)) {
            self.fault(Fault::Invalid, spot, None, "must not validate the schema (not)");
        }
    }
}

/// What a repeated item is recognized by.
fn named_by(item: &Value, list: &ListKind) -> Value {
    match list {
        ListKind::Map(keys) => keys.iter().filter_map(|k| item.get(k).map(|v| (k.clone(), v.clone()))).collect(),
        _ => item.clone(),
    }
}

/// Whether the definition itself says anything about one of the fields every object has.
fn matters(schema: &Schema, name: &str) -> bool {
    schema.properties.get(name).is_some_and(|s| !s.properties.is_empty() || s.limits.pattern.is_some())
}

/// The stored item that corresponds to an item: by key in a list map, nowhere else.
pub fn old_item<'a>(schema: &Schema, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let ListKind::Map(keys) = &schema.list else { return None };
    let item_schema = schema.items.as_deref();
    let key = item_key(item, keys, item_schema);
    old?.as_array()?.iter().find(|o| item_key(o, keys, item_schema) == key)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
