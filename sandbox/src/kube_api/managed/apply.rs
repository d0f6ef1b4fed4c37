//! Server-side apply: merges a manager's configuration into the live object, removes what it applied before and no longer does, and
//! finds conflicts with other managers. Pure: it neither reads nor writes the store.

use serde_json::Value;

use super::Writer;
use super::entries::{self, Entry, Operation};
use super::fieldset::{FieldSet, shown};
use super::shape::Shape;
use super::walk::{self, compare};
use crate::kube_api::object;
use crate::kube_api::status::{Cause, Reason, Refusal};

/// Why a configuration cannot be merged: an item that a list names twice.
pub fn duplicate(config: &Value, shape: Shape) -> Option<String> {
    walk::duplicate_item(config, shape).map(|path| format!("duplicate entries for {}", shown(&path)))
}

/// The outcome of an apply.
#[derive(Debug)]
pub struct Applied {
    /// The new object, with its new `managedFields`.
    pub object: Value,
}

/// Applies `config` (without status when status has its own door) over `live`; `owned` filters the paths the door may own.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    writer: Writer,
    shape: Shape,
    force: bool,
) -> Result<Applied, Refusal> {
    let empty = serde_json::json!({"apiVersion": config["apiVersion"], "kind": config["kind"]});
    let live = live.unwrap_or(&empty);
    if let Some(why) = duplicate(config, shape) {
        return Err(Refusal::new(Reason::Untyped, format!("failed to create typed patch object: {why}")));
    }
    let mut managers = entries::read(live);
    if managers.is_empty() && !object::uid(live).is_empty() {
        managers.extend(before_first_apply(live, writer, shape));
    }
    let mut applied_set = walk::fields_of(config, shape);
    applied_set.drop_server_fields();

    let mut merged = live.clone();
    object::remove_meta(&mut merged, "managedFields");
    walk::merge(&mut merged, config, shape);
    let mine = |e: &Entry| {
        e.operation == Operation::Apply && e.manager == writer.manager && e.subresource == writer.subresource
    };
    if let Some(last) = managers.iter().find(|e| mine(e)) {
        // What held nothing but what is not applied any more goes with all that is in it, be it a default that nobody owns.
        let mut gone = walk::with_named_parents(&last.fields, shape);
        gone.subtract(&walk::with_named_parents(&applied_set, shape));
        gone.keep_metadata();
        let mut kept = applied_set.clone();
        managers.iter().filter(|e| !mine(e)).for_each(|e| kept.union(&e.fields));
        walk::remove(&mut merged, &gone, &kept, shape);
    }

    let mut before = live.clone();
    object::remove_meta(&mut before, "managedFields");
    let difference = compare(Some(&before), Some(&merged), shape);
    let conflicts: Vec<(usize, FieldSet)> = managers
        .iter()
        .enumerate()
        .filter(|(_, e)| !mine(e))
        .map(|(i, e)| (i, e.fields.intersection(&difference.written)))
        .filter(|(_, both)| !both.is_empty())
        .collect();
    if !conflicts.is_empty() && !force {
        return Err(conflict(&managers, &conflicts));
    }
    for (i, both) in &conflicts {
        managers[*i].fields.subtract(both);
    }
    for entry in managers.iter_mut().filter(|e| !mine(e)) {
        entry.fields.subtract(&difference.removed);
    }
    let time = managers
        .iter()
        .find(|e| mine(e) && e.fields == applied_set && difference.written.is_empty() && difference.removed.is_empty())
        .map_or(writer.time, |e| e.time.as_str())
        .to_owned();
    managers.retain(|e| !mine(e));
    managers.push(Entry {
        manager: writer.manager.to_owned(),
        operation: Operation::Apply,
        api_version: writer.api_version.to_owned(),
        subresource: writer.subresource.to_owned(),
        time,
        fields: applied_set,
    });
    entries::write(&mut merged, managers);
    Ok(Applied { object: merged })
}

/// Who owns what is there already when nobody was known to: a name that Kubernetes gives to all who came before.
fn before_first_apply(live: &Value, writer: Writer, shape: Shape) -> Vec<Entry> {
    let mut made = live.clone();
    object::remove_meta(&mut made, "managedFields");
    let first = Writer { manager: "before-first-apply", subresource: "", ..writer };
    super::track_update(None, &mut made, first, shape);
    entries::read(&made)
}

fn conflict(managers: &[Entry], conflicts: &[(usize, FieldSet)]) -> Refusal {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (i, fields) in conflicts {
        let entry = &managers[*i];
        let mut who = format!("\"{}\"", entry.manager);
        if !entry.subresource.is_empty() {
            who.push_str(&format!(" with subresource \"{}\"", entry.subresource));
        }
        if entry.operation == Operation::Update {
            who.push_str(&format!(" using {}", entry.api_version));
        }
        lines.push(format!("conflicts with {who}:"));
        for path in fields.paths() {
            let field = shown(&path);
            lines.push(format!("- {field}"));
            causes.push(Cause { reason: "FieldManagerConflict", message: format!("conflict with {who}"), field });
        }
    }
    let message = match causes.as_slice() {
        [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
        many => format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n")),
    };
    Refusal::new(Reason::Conflict, message).because(causes)
}
