//! Judges `x-kubernetes-validations`: `self`, `oldSelf` (only where the schema says which old value is meant), ratcheting. A rule
//! that cannot be evaluated refuses the object; it never passes silently.

use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, Value as Cel};
use serde_json::Value;

use super::validate::old_item;
use super::{MAX_DEPTH, Rule, Schema, cel_value, join};
use crate::kube_api::status::{Fault, FieldError};

/// Every rule broken by `new`, given the stored object if there is one.
pub fn check(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if !has_rules(schema) {
        return Vec::new();
    }
    let base = Context::default().with_all();
    let mut errors = Vec::new();
    walk(&base, schema, Pair { new, old }, "", &mut errors);
    errors
}

#[derive(Clone, Copy)]
struct Pair<'a> {
    new: &'a Value,
    old: Option<&'a Value>,
}

/// Whether any node has a rule.
pub fn has_rules(schema: &Schema) -> bool {
    !schema.rules.is_empty()
        || schema.properties.values().any(has_rules)
        || schema.items.as_deref().is_some_and(has_rules)
        || matches!(&schema.additional, super::Additional::Schema(s) if has_rules(s))
}

fn walk(base: &Context<'_>, schema: &Schema, pair: Pair, path: &str, errors: &mut Vec<FieldError>) {
    if path.matches(['.', '[']).count() > MAX_DEPTH || (pair.new.is_null() && schema.nullable) {
        return;
    }
    if !schema.rules.is_empty() {
        node(base, schema, pair, path, errors);
    }
    match pair.new {
        Value::Object(map) => {
            for (name, child) in map {
                if let Some(property) = schema.field(name) {
                    let inside = Pair { new: child, old: pair.old.and_then(|o| o.get(name)) };
                    walk(base, property, inside, &join(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.items.as_deref() {
                for (i, item) in items.iter().enumerate() {
                    let inside = Pair { new: item, old: old_item(schema, item, pair.old) };
                    walk(base, item_schema, inside, &format!("{path}[{i}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn node(base: &Context<'_>, schema: &Schema, pair: Pair, path: &str, errors: &mut Vec<FieldError>) {
    let root = path.is_empty();
    let unchanged = pair.old.is_some_and(|old| old == pair.new);
    let mut scope = base.new_inner_scope();
    scope.add_variable_from_value("self", cel_value::convert(pair.new, Some(schema), root));
    let old = pair.old.map(|o| cel_value::convert(o, Some(schema), root));
    for rule in &schema.rules {
        if unchanged && !rule.transition {
            continue;
        }
        let mut inner = scope.new_inner_scope();
        match (&old, rule.transition, rule.optional_old) {
            (_, false, _) => {}
            (None, true, false) => continue,
            (Some(old), true, false) => inner.add_variable_from_value("oldSelf", old.clone()),
            (old, true, true) => {
                let optional = old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                inner.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
            }
        }
        if let Some(error) = judge(rule, &inner, pair.new, path) {
            errors.push(error);
        }
    }
}

fn judge(rule: &Rule, scope: &Context<'_>, value: &Value, path: &str) -> Option<FieldError> {
    let fault = match rule.reason.as_deref() {
        Some("FieldValueRequired") => Fault::Required,
        Some("FieldValueForbidden") => Fault::Forbidden,
        Some("FieldValueDuplicate") => Fault::Duplicate,
        _ => Fault::Invalid,
    };
    let field = match rule.field_path.as_deref() {
        Some(below) => join(path, below.trim_start_matches('.')),
        None => path.to_owned(),
    };
    // Whole objects are not repeated in messages.
    let shown = Some(value).filter(|v| !v.is_object() && !v.is_array());
    match rule.program.execute(scope) {
        Ok(Cel::Bool(true)) => None,
        Ok(Cel::Bool(false)) => Some(FieldError::new(fault, field, shown, message(rule, scope))),
        Ok(_) => {
            let detail = format!("rule \"{}\" did not evaluate to a boolean", rule.source);
            Some(FieldError::new(Fault::Invalid, field, shown, detail))
        }
        Err(error) => {
            let detail = format!("rule evaluation error: \"{}\": {error}", rule.source);
            Some(FieldError::new(Fault::Invalid, field, shown, detail))
        }
    }
}

fn message(rule: &Rule, scope: &Context<'_>) -> String {
    if let Some(program) = &rule.message_program
        && let Ok(Cel::String(text)) = program.execute(scope)
        && !text.trim().is_empty()
    {
        return text.to_string();
    }
    rule.message.clone().unwrap_or_else(|| format!("failed rule: {}", rule.source))
}
