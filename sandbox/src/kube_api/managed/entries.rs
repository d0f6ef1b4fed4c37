//! `metadata.managedFields` as a list of entries, read and written. It decides nothing about ownership.

use serde_json::{Value, json};

use super::fieldset::{FieldSet, Step};
use crate::kube_api::object;

/// How a manager wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

/// What one manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: String,
    pub fields: FieldSet,
}

impl Entry {
    /// Whether the other entry is of the same manager through the same door.
    pub fn same_writer(&self, other: &Self) -> bool {
        self.manager == other.manager && self.operation == other.operation && self.subresource == other.subresource
    }
}

/// Most entries of `Update` managers kept; beyond it the oldest are merged, as Kubernetes does.
const MAX_UPDATE_ENTRIES: usize = 10;

/// Reads the entries of an object.
pub fn read(object: &Value) -> Vec<Entry> {
    object::list(object, &["metadata", "managedFields"])
        .iter()
        .map(|raw| Entry {
            manager: object::text(raw, &["manager"]).to_owned(),
            operation: if object::text(raw, &["operation"]) == "Apply" { Operation::Apply } else { Operation::Update },
            api_version: object::text(raw, &["apiVersion"]).to_owned(),
            subresource: object::text(raw, &["subresource"]).to_owned(),
            time: object::text(raw, &["time"]).to_owned(),
            fields: raw.get("fieldsV1").map(FieldSet::decode).unwrap_or_default(),
        })
        .collect()
}

/// Writes the entries into an object, dropping empty ones.
pub fn write(object: &mut Value, mut entries: Vec<Entry>) {
    entries.retain(|e| !e.fields.is_empty());
    cap_updates(&mut entries);
    if entries.is_empty() {
        return object::remove_meta(object, "managedFields");
    }
    entries.sort_by(|a, b| (a.operation, &a.time, &a.manager).cmp(&(b.operation, &b.time, &b.manager)));
    let list: Vec<Value> = entries.iter().map(encode).collect();
    object::set_meta(object, "managedFields", list);
}

/// Whether anybody owns a field.
pub fn owned(object: &Value, path: &[String]) -> bool {
    let owns = |entry: &Entry| {
        let find = |set, name: &String| FieldSet::child(set, &Step::Field(name.clone()));
        path.iter().try_fold(&entry.fields, find).is_some_and(|set| set.member)
    };
    read(object).iter().any(owns)
}

/// Takes a field from everybody who owns it.
pub fn disown(object: &mut Value, path: &[String]) {
    let steps: Vec<Step> = path.iter().cloned().map(Step::Field).collect();
    let mut field = FieldSet::default();
    field.insert(&steps);
    let mut all = read(object);
    all.iter_mut().for_each(|entry| entry.fields.subtract(&field));
    write(object, all);
}

fn encode(entry: &Entry) -> Value {
    let operation = match entry.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut raw = json!({"manager": entry.manager, "operation": operation, "apiVersion": entry.api_version,
        "time": entry.time, "fieldsType": "FieldsV1", "fieldsV1": entry.fields.encode()});
    if !entry.subresource.is_empty() {
        raw["subresource"] = entry.subresource.as_str().into();
    }
    raw
}

fn cap_updates(entries: &mut Vec<Entry>) {
    while entries.iter().filter(|e| e.operation == Operation::Update).count() > MAX_UPDATE_ENTRIES {
        let mut oldest: Vec<usize> =
            (0..entries.len()).filter(|i| entries[*i].operation == Operation::Update).collect();
        oldest.sort_by(|a, b| entries[*a].time.cmp(&entries[*b].time));
        let [first, second, ..] = oldest.as_slice() else { return };
        let merged = entries[*first].fields.clone();
        entries[*second].fields.union(&merged);
        entries[*second].manager = "ancient-changes".into();
        entries.remove(*first);
    }
}
