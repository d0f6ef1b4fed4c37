//! A set of field paths as `fieldsV1` writes it: `f:name`, `k:{keys}`, `v:value`, `i:index`, and "." for the path itself.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// A field of a map.
    Field(String),
    /// An item of a list map: its keys and their values as canonical JSON.
    Key(String),
    /// An item of a set: the value as JSON.
    Value(String),
}

impl Step {
    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => format!("k:{keys}"),
            Self::Value(value) => format!("v:{value}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_at_checked(2)?;
        match kind {
            "f:" => Some(Self::Field(rest.to_owned())),
            // Parsed and written again, so that key order and spacing never make two names of one item.
            "k:" => serde_json::from_str::<BTreeMap<String, Value>>(rest).ok().map(|keys| Self::Key(canonical(&keys))),
            "v:" => serde_json::from_str::<Value>(rest).ok().map(|v| Self::Value(v.to_string())),
            _ => None,
        }
    }

    /// The step to a list map's item.
    pub fn key(keys: &BTreeMap<String, Value>) -> Self {
        Self::Key(canonical(keys))
    }

    /// How the step looks in a field path shown to people.
    pub fn shown(&self) -> String {
        match self {
            Self::Field(name) => format!(".{name}"),
            Self::Key(keys) => {
                let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                let inner = keys.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
                format!("[{inner}]")
            }
            Self::Value(value) => format!("[={value}]"),
        }
    }
}

fn canonical(keys: &BTreeMap<String, Value>) -> String {
    serde_json::to_string(keys).unwrap_or_default()
}

/// A set of paths, as a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// The path to this node is in the set.
    pub member: bool,
    /// Longer paths.
    pub children: BTreeMap<Step, FieldSet>,
}

impl FieldSet {
    /// The set of just the path to the node.
    pub fn leaf() -> Self {
        Self { member: true, children: BTreeMap::new() }
    }

    /// What is below a step.
    pub fn child(&self, step: &Step) -> Option<&Self> {
        self.children.get(step)
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    /// Reads `fieldsV1`; unknown notation is skipped.
    pub fn decode(fields: &Value) -> Self {
        let mut set = Self::decode_node(fields);
        set.member = false;
        set
    }

    fn decode_node(fields: &Value) -> Self {
        let Some(map) = fields.as_object() else { return Self::leaf() };
        let mut set = Self { member: map.is_empty() || map.contains_key("."), children: BTreeMap::new() };
        for (name, child) in map {
            if let Some(step) = Step::decode(name) {
                set.children.insert(step, Self::decode_node(child));
            }
        }
        set
    }

    /// Writes `fieldsV1`.
    pub fn encode(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".into(), Value::Object(Map::new()));
        }
        for (step, child) in &self.children {
            map.insert(step.encode(), child.encode());
        }
        Value::Object(map)
    }

    /// Adds every path of the other set.
    pub fn union(&mut self, other: &Self) {
        self.member |= other.member;
        for (step, child) in &other.children {
            self.children.entry(step.clone()).or_default().union(child);
        }
    }

    /// Removes the other's paths, exactly those.
    pub fn subtract(&mut self, other: &Self) {
        if other.member {
            self.member = false;
        }
        for (step, child) in &other.children {
            if let Some(mine) = self.children.get_mut(step) {
                mine.subtract(child);
                if mine.is_empty() {
                    self.children.remove(step);
                }
            }
        }
    }

    /// Removes the other's paths and everything below them: what is gone from the object is gone for its owners.
    pub fn subtract_below(&mut self, other: &Self) {
        if other.member {
            *self = Self::default();
            return;
        }
        for (step, child) in &other.children {
            if let Some(mine) = self.children.get_mut(step) {
                mine.subtract_below(child);
                if mine.is_empty() {
                    self.children.remove(step);
                }
            }
        }
    }

    /// The paths in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = Self { member: self.member && other.member, children: BTreeMap::new() };
        for (step, child) in &self.children {
            if let Some(theirs) = other.children.get(step) {
                let both = child.intersection(theirs);
                if !both.is_empty() {
                    out.children.insert(step.clone(), both);
                }
            }
        }
        out
    }

    /// Every path, each as its steps.
    pub fn paths(&self) -> Vec<Vec<Step>> {
        let mut out = Vec::new();
        self.collect(&mut Vec::new(), &mut out);
        out
    }

    fn collect(&self, prefix: &mut Vec<Step>, out: &mut Vec<Vec<Step>>) {
        if self.member {
            out.push(prefix.clone());
        }
        for (step, child) in &self.children {
            prefix.push(step.clone());
            child.collect(prefix, out);
            prefix.pop();
        }
    }

    /// Adds one path.
    pub fn insert(&mut self, path: &[Step]) {
        match path.split_first() {
            None => self.member = true,
            Some((first, rest)) => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Metadata is always applied: it names the object.
    pub fn keep_metadata(&mut self) {
        if let Some(metadata) = self.children.get_mut(&Step::Field("metadata".into())) {
            metadata.member = false;
        }
    }

    /// Removes a top-level field and all below it.
    pub fn drop_field(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        let step = Step::Field((*first).to_owned());
        if rest.is_empty() {
            self.children.remove(&step);
        } else if let Some(child) = self.children.get_mut(&step) {
            child.drop_field(rest);
            if child.is_empty() {
                self.children.remove(&step);
            }
        }
    }

    /// Removes what nobody can own: identity and what the server itself keeps.
    pub fn drop_server_fields(&mut self) {
        for path in [&["apiVersion"][..], &["kind"]] {
            self.drop_field(path);
        }
        let metadata = Step::Field("metadata".into());
        if let Some(child) = self.children.get_mut(&metadata) {
            child.member = false;
        }
        for field in [
            "name",
            "namespace",
            "generateName",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "uid",
            "resourceVersion",
            "generation",
            "managedFields",
        ] {
            self.drop_field(&["metadata", field]);
        }
        self.children.retain(|_, child| !child.is_empty());
    }
}

/// A path as it is shown to people: `.spec.replicas`.
pub fn shown(path: &[Step]) -> String {
    path.iter().map(Step::shown).collect()
}
