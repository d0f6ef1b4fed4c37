//! Compiles `openAPIV3Schema` into a `Schema`. What the schema language of CustomResourceDefinitions does not allow is an error here,
//! so a definition that was accepted can always be served.

use std::collections::BTreeMap;

use kube_cel::cel::Program;
use regex::Regex;
use serde_json::{Map, Value};

use super::{Additional, Limits, ListKind, MAX_DEPTH, Rule, Schema, Type, join};
use crate::kube_api::status::{Fault, FieldError};

const MAX_RULES: usize = 1000;

/// Compiles the root schema of a version. Errors carry paths below `field`.
pub fn compile(field: &str, root: &Value) -> Result<Schema, Vec<FieldError>> {
    let mut compiler = Compiler { errors: Vec::new(), rules: 0 };
    let schema = compiler.node(field, root, 0, Place::Structure);
    if schema.kind != Some(Type::Object) {
        compiler.errors.push(FieldError::invalid(join(field, "type"), &root["type"], "must be object at the root"));
    }
    if compiler.errors.is_empty() { Ok(schema) } else { Err(compiler.errors) }
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Structure,
    /// Below allOf, anyOf, oneOf, not: value checks only.
    Logic,
}

struct Compiler {
    errors: Vec<FieldError>,
    rules: usize,
}

impl Compiler {
    fn node(&mut self, path: &str, raw: &Value, depth: usize, place: Place) -> Schema {
        let Some(map) = raw.as_object() else {
            self.errors.push(FieldError::invalid(path, raw, "must be a schema object"));
            return Schema::default();
        };
        if depth > MAX_DEPTH {
            self.errors.push(FieldError::new(Fault::TooMany, path, None, format!("nests deeper than {MAX_DEPTH}")));
            return Schema::default();
        }
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or_default();
        let mut schema = Schema {
            nullable: flag("nullable"),
            default: map.get("default").cloned(),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            embedded: flag("x-kubernetes-embedded-resource"),
            atomic_map: map.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
            limits: self.limits(path, map),
            ..Schema::default()
        };
        schema.kind = self.kind(path, map, place, schema.int_or_string || schema.preserve);
        self.children(path, map, depth, place, &mut schema);
        schema.list = self.list_kind(path, map, schema.items.as_deref());
        schema.rules = self.compile_rules(path, map);
        for (key, branches) in [("allOf", 0), ("anyOf", 1), ("oneOf", 2)] {
            let compiled: Vec<Schema> = map
                .get(key)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .enumerate()
                .map(|(i, s)| self.node(&format!("{}[{i}]", join(path, key)), s, depth + 1, Place::Logic))
                .collect();
            match branches {
                0 => schema.all_of = compiled,
                1 => schema.any_of = compiled,
                _ => schema.one_of = compiled,
            }
        }
        schema.not = map.get("not").map(|s| Box::new(self.node(&join(path, "not"), s, depth + 1, Place::Logic)));
        self.check_scope(path, &schema, depth == 0);
        if let Some(default) = &schema.default {
            let field = join(path, "default");
            let faults = super::validate::validate(&schema, default, None);
            self.errors.extend(faults.into_iter().map(|e| FieldError { field: join(&field, &e.field), ..e }));
        }
        for refused in ["$ref", "patternProperties", "additionalItems", "definitions", "dependencies"] {
            if map.contains_key(refused) {
                self.errors.push(FieldError::new(
                    Fault::Forbidden,
                    join(path, refused),
                    None,
                    format!("{refused} is not supported"),
                ));
            }
        }
        schema
    }

    fn kind(&mut self, path: &str, map: &Map<String, Value>, place: Place, free: bool) -> Option<Type> {
        let found = match map.get("type").and_then(Value::as_str) {
            Some("object") => Some(Type::Object),
            Some("array") => Some(Type::Array),
            Some("string") => Some(Type::String),
            Some("integer") => Some(Type::Integer),
            Some("number") => Some(Type::Number),
            Some("boolean") => Some(Type::Boolean),
            Some(other) => {
                let value = Value::from(other);
                let options =
                    "supported values: \"object\", \"array\", \"string\", \"integer\", \"number\", \"boolean\"";
                self.errors.push(FieldError::new(Fault::NotSupported, join(path, "type"), Some(&value), options));
                None
            }
            None => None,
        };
        if found.is_none() && !map.contains_key("type") && place == Place::Structure && !free {
            self.errors.push(FieldError::required(join(path, "type"), "must not be empty for specified fields"));
        }
        found
    }

    fn children(&mut self, path: &str, map: &Map<String, Value>, depth: usize, place: Place, schema: &mut Schema) {
        if let Some(properties) = map.get("properties").and_then(Value::as_object) {
            let inside = join(path, "properties");
            let mut compiled = BTreeMap::new();
            for (name, raw) in properties {
                compiled.insert(name.clone(), self.node(&format!("{inside}[{name}]"), raw, depth + 1, place));
            }
            schema.properties = compiled;
        }
        match map.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => schema.additional = Additional::Any,
            Some(raw) => {
                if !schema.properties.is_empty() {
                    let what = "additionalProperties and properties are mutual exclusive";
                    self.errors.push(FieldError::new(Fault::Forbidden, join(path, "additionalProperties"), None, what));
                }
                let node = self.node(&join(path, "additionalProperties"), raw, depth + 1, place);
                schema.additional = Additional::Schema(Box::new(node));
            }
        }
        match map.get("items") {
            Some(raw) => schema.items = Some(Box::new(self.node(&join(path, "items"), raw, depth + 1, place))),
            None if schema.kind == Some(Type::Array) && place == Place::Structure => {
                self.errors.push(FieldError::required(join(path, "items"), "must be specified for an array"));
            }
            None => {}
        }
    }

    fn list_kind(&mut self, path: &str, map: &Map<String, Value>, items: Option<&Schema>) -> ListKind {
        match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
            None | Some("atomic") => ListKind::Atomic,
            Some("set") => ListKind::Set,
            Some("map") => {
                let keys: Vec<String> = map
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(|k| k.as_str().map(str::to_owned))
                    .collect();
                let field = join(path, "x-kubernetes-list-map-keys");
                if keys.is_empty() {
                    self.errors.push(FieldError::required(field, "must not be empty if x-kubernetes-list-type is map"));
                    return ListKind::Atomic;
                }
                for key in &keys {
                    let known = items.is_some_and(|s| s.properties.contains_key(key));
                    let kept = items.is_some_and(|s| {
                        s.limits.required.contains(key) || s.properties.get(key).is_some_and(|p| p.default.is_some())
                    });
                    if !known || !kept {
                        let value = Value::from(key.as_str());
                        let detail = "entries must be names of item properties that are required or have a default";
                        self.errors.push(FieldError::invalid(field.clone(), &value, detail));
                    }
                }
                ListKind::Map(keys)
            }
            Some(other) => {
                let value = Value::from(other);
                let detail = "supported values: \"atomic\", \"map\", \"set\"";
                self.errors.push(FieldError::new(
                    Fault::NotSupported,
                    join(path, "x-kubernetes-list-type"),
                    Some(&value),
                    detail,
                ));
                ListKind::Atomic
            }
        }
    }

    fn limits(&mut self, path: &str, map: &Map<String, Value>) -> Limits {
        let number = |key: &str| map.get(key).and_then(Value::as_f64);
        let count = |key: &str| map.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or_default();
        let pattern = map.get("pattern").and_then(Value::as_str).and_then(|p| match Regex::new(p) {
            Ok(regex) => Some(regex),
            Err(error) => {
                let detail = format!("must be a valid regular expression: {error}");
                self.errors.push(FieldError::invalid(join(path, "pattern"), &Value::from(p), detail));
                None
            }
        });
        Limits {
            required: map
                .get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect(),
            options: map.get("enum").and_then(Value::as_array).cloned(),
            pattern,
            format: map.get("format").and_then(Value::as_str).map(str::to_owned),
            minimum: number("minimum"),
            maximum: number("maximum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf").filter(|m| *m > 0.0),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
        }
    }

    fn compile_rules(&mut self, path: &str, map: &Map<String, Value>) -> Vec<Rule> {
        let field = join(path, "x-kubernetes-validations");
        let raw = map.get("x-kubernetes-validations").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        self.rules += raw.len();
        if self.rules > MAX_RULES {
            self.errors.push(FieldError::new(Fault::TooMany, field, None, format!("more than {MAX_RULES} rules")));
            return Vec::new();
        }
        raw.iter().enumerate().filter_map(|(i, rule)| self.rule(&format!("{field}[{i}]"), rule)).collect()
    }

    fn rule(&mut self, field: &str, raw: &Value) -> Option<Rule> {
        let words = |key: &str| raw.get(key).and_then(Value::as_str).map(str::to_owned);
        let Some(source) = words("rule").filter(|s| !s.trim().is_empty()) else {
            self.errors.push(FieldError::required(join(field, "rule"), "rule is not specified"));
            return None;
        };
        let program = self.program(&join(field, "rule"), &source)?;
        let message_program = match words("messageExpression") {
            Some(expression) => Some(self.program(&join(field, "messageExpression"), &expression)?),
            None => None,
        };
        Some(Rule {
            transition: program.references().has_variable("oldSelf"),
            optional_old: raw.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default(),
            message: words("message"),
            message_program,
            reason: words("reason"),
            field_path: words("fieldPath"),
            program,
            source,
        })
    }

    fn check_scope(&mut self, path: &str, schema: &Schema, root: bool) {
        for (i, rule) in schema.rules.iter().enumerate() {
            let field = format!("{}[{i}]", join(path, "x-kubernetes-validations"));
            let programs = [("rule", Some(&rule.program)), ("messageExpression", rule.message_program.as_ref())];
            for (key, program) in programs {
                let undefined = program.and_then(|p| super::scope::undefined_field(p, schema, root, rule.optional_old));
                if let Some(name) = undefined {
                    let detail = format!("compilation failed: undefined field '{name}'");
                    let source = Value::from(rule.source.as_str());
                    self.errors.push(FieldError::invalid(join(&field, key), &source, detail));
                }
            }
        }
    }

    fn program(&mut self, field: &str, source: &str) -> Option<Program> {
        match Program::compile(source) {
            Ok(program) => Some(program),
            Err(error) => {
                let detail = format!("compilation failed: {error}");
                self.errors.push(FieldError::invalid(field, &Value::from(source), detail));
                None
            }
        }
    }
}
