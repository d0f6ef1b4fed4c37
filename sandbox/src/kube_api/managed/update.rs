//! Ownership after a plain write: the writer owns what it changed, everyone else loses exactly that. Pure.

use serde_json::Value;

use super::Writer;
use super::entries::{self, Entry, Operation};
use super::shape::Shape;
use super::walk::compare;
use crate::kube_api::object;

/// Sets `managedFields` of `new` after an update (or a create, without `live`). What a client sends there itself is taken for what was there.
pub fn track_update(live: Option<&Value>, new: &mut Value, writer: Writer, shape: Shape) {
    // What a client sends there through the main door counts; nothing counts as what is stored, and one empty entry as a wish to forget.
    let sent = if writer.subresource.is_empty() && live.is_some() { entries::read(new) } else { Vec::new() };
    let forget = object::list(new, &["metadata", "managedFields"]) == [serde_json::json!({})];
    let mut managers = match live {
        _ if forget => Vec::new(),
        Some(_) if !sent.is_empty() => sent,
        _ => live.map(entries::read).unwrap_or_default(),
    };
    object::remove_meta(new, "managedFields");
    if live.is_some() && managers.is_empty() {
        // Nobody is known to own anything: that begins with the next apply.
        return;
    }
    let mut before = live.cloned().unwrap_or_else(|| empty(new, shape));
    object::remove_meta(&mut before, "managedFields");
    let mut difference = compare(Some(&before), Some(new), shape);
    difference.written.drop_server_fields();
    difference.removed.drop_server_fields();
    let mine = |e: &Entry| {
        e.operation == Operation::Update
            && e.manager == writer.manager
            && e.subresource == writer.subresource
            && e.api_version == writer.api_version
    };
    for entry in managers.iter_mut().filter(|e| !mine(e)) {
        entry.fields.subtract(&difference.written);
    }
    for entry in &mut managers {
        entry.fields.subtract(&difference.removed);
    }
    if !difference.written.is_empty() {
        match managers.iter_mut().find(|e| mine(e)) {
            Some(entry) => {
                entry.fields.union(&difference.written);
                entry.time = writer.time.to_owned();
            }
            None => managers.push(Entry {
                manager: writer.manager.to_owned(),
                operation: Operation::Update,
                api_version: writer.api_version.to_owned(),
                subresource: writer.subresource.to_owned(),
                time: writer.time.to_owned(),
                fields: difference.written,
            }),
        }
    }
    entries::write(new, managers);
}

/// What an object of the kind is before anybody wrote it; a built-in kind has its parts from the start.
fn empty(new: &Value, shape: Shape) -> Value {
    let mut out = serde_json::json!({"apiVersion": new["apiVersion"], "kind": new["kind"], "metadata": {}});
    if matches!(shape, Shape::BuiltIn { .. }) {
        out["spec"] = begun(&new["spec"]);
        out["status"] = serde_json::json!({});
    }
    out
}

/// The parts of a spec that are there from the start, and therefore have no owner of their own.
fn begun(spec: &Value) -> Value {
    let mut out = serde_json::json!({});
    for part in ["strategy", "updateStrategy"] {
        if spec[part].is_object() {
            out[part] = serde_json::json!({});
        }
    }
    // It is written even when it is empty, so that nobody sets it by leaving it out.
    if spec["serviceName"].as_str() == Some("") {
        out["serviceName"] = "".into();
    }
    if spec["containers"].is_array() {
        out["containers"] = serde_json::json!([]);
    }
    if spec["template"].is_object() {
        out["template"] = serde_json::json!({"metadata": {}, "spec": begun(&spec["template"]["spec"])});
    }
    out
}
