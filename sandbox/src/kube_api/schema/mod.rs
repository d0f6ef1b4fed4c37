//! A structural schema compiled from a CustomResourceDefinition: what an object of that kind may look like. It decides nothing by
//! itself; `validate`, `fill` and `rules` read it.

pub mod cel_value;
pub mod compile;
pub mod fill;
pub mod formats;
pub mod rules;
pub mod scope;
pub mod validate;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kube_cel::cel::Program;
use regex::Regex;
use serde_json::Value;

/// Nesting allowed in a schema and in an object that is walked with one.
pub const MAX_DEPTH: usize = 64;

/// JSON types of a structural schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

/// How a list's items are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListKind {
    /// Replaced as a whole.
    #[default]
    Atomic,
    /// Unique scalars.
    Set,
    /// Unique by these keys.
    Map(Vec<String>),
}

/// What is allowed beyond named properties.
#[derive(Debug, Default)]
pub enum Additional {
    /// Nothing: pruned.
    #[default]
    None,
    /// Anything.
    Any,
    /// Values of this schema.
    Schema(Box<Schema>),
}

/// One node of a structural schema.
#[derive(Debug, Default)]
pub struct Schema {
    pub kind: Option<Type>,
    pub nullable: bool,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Additional,
    pub items: Option<Box<Schema>>,
    pub default: Option<Value>,
    pub limits: Limits,
    pub list: ListKind,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    pub preserve: bool,
    pub int_or_string: bool,
    pub embedded: bool,
    pub rules: Vec<Rule>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
}

/// The value checks of one node.
#[derive(Debug, Default)]
pub struct Limits {
    pub required: Vec<String>,
    pub options: Option<Vec<Value>>,
    pub pattern: Option<Regex>,
    pub format: Option<String>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub exclusive_minimum: bool,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<f64>,
    pub min_length: Option<usize>,
    pub max_length: Option<usize>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    pub unique_items: bool,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
}

/// One `x-kubernetes-validations` rule.
#[derive(Debug)]
pub struct Rule {
    pub source: String,
    pub program: Program,
    /// Reads `oldSelf`.
    pub transition: bool,
    pub optional_old: bool,
    pub message: Option<String>,
    pub message_program: Option<Program>,
    pub reason: Option<String>,
    pub field_path: Option<String>,
}

impl Schema {
    /// The schema of a named field: a property, or what is allowed beyond them.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(match &self.additional {
            Additional::Schema(schema) => Some(schema),
            _ => None,
        })
    }

    /// Whether unknown fields stay.
    pub fn keeps_unknown(&self) -> bool {
        self.preserve || matches!(self.additional, Additional::Any)
    }
}

/// Joins a path and a field name.
pub fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// The identity of an item of a list map: its key values, defaults filled from the item's schema.
pub fn item_key(item: &Value, keys: &[String], schema: Option<&Schema>) -> Vec<Value> {
    let default = |key: &str| schema.and_then(|s| s.properties.get(key)).and_then(|s| s.default.clone());
    keys.iter().map(|k| item.get(k).cloned().or_else(|| default(k)).unwrap_or(Value::Null)).collect()
}
