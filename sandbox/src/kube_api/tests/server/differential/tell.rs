//! What an answer says once that is taken away in which two servers may differ: versions and UIDs become their numbers in order of
//! appearance, times go, entries of `managedFields` are in one order, continue tokens are only there or not. It never hides a field.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::super::Answer;

/// Where a refusal's words are told: for people, not compared.
pub const MESSAGE: &str = "MESSAGE";

/// The names one server gave, numbered.
#[derive(Default)]
pub struct Names {
    uids: HashMap<String, usize>,
    versions: HashMap<(String, String), usize>,
    counts: HashMap<String, usize>,
}

impl Names {
    fn uid(&mut self, uid: &str) -> String {
        let next = self.uids.len();
        format!("uid {}", self.uids.entry(uid.to_owned()).or_insert(next))
    }

    /// Versions are counted for each object: a write that changes nothing must not make a new one.
    fn version(&mut self, uid: &str, version: &str) -> String {
        let count = self.counts.entry(uid.to_owned()).or_default();
        let number = self.versions.entry((uid.to_owned(), version.to_owned())).or_insert_with(|| {
            *count += 1;
            *count
        });
        format!("version {number}")
    }

    /// An answer to one request.
    pub fn answer(&mut self, answer: &Answer) -> Value {
        let body = &answer.body;
        let mut told = match body["kind"].as_str() {
            Some("Status") => self.status(body),
            Some("Table") => self.table(body),
            _ if body["items"].is_array() => self.list(body),
            _ => self.object(body),
        };
        let mut warnings: Vec<&str> =
            answer.headers.get_all("warning").iter().filter_map(|w| w.to_str().ok()).collect();
        warnings.sort_unstable();
        if !warnings.is_empty() {
            told["WARNINGS"] = json!(warnings);
        }
        told["CODE"] = answer.code.into();
        if body["kind"] == "Status" {
            told[MESSAGE] = body["message"].clone();
        }
        told
    }

    fn status(&mut self, body: &Value) -> Value {
        let details = &body["details"];
        let mut causes: Vec<String> = details["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|cause| {
                format!("{} {}", cause["reason"].as_str().unwrap_or("-"), cause["field"].as_str().unwrap_or("-"))
            })
            .collect();
        causes.sort();
        causes.dedup();
        let uid = details["uid"].as_str().map(|uid| self.uid(uid));
        json!({"kind": "Status", "reason": body["reason"], "status": body["status"], "name": details["name"], "of": details["kind"],
            "group": details["group"], "uid": uid, "causes": causes, "retry": details["retryAfterSeconds"]})
    }

    fn list(&mut self, body: &Value) -> Value {
        let items: Vec<Value> = body["items"].as_array().into_iter().flatten().map(|item| self.object(item)).collect();
        let more = body["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty());
        json!({"kind": body["kind"], "apiVersion": body["apiVersion"], "more": more,
            "remaining": body["metadata"]["remainingItemCount"], "items": items})
    }

    fn table(&mut self, body: &Value) -> Value {
        let columns = body["columnDefinitions"].as_array().cloned().unwrap_or_default();
        let rows: Vec<Value> = body["rows"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| {
                let mut cells = row["cells"].as_array().cloned().unwrap_or_default();
                for (cell, column) in cells.iter_mut().zip(&columns) {
                    if column["name"] == "Age" {
                        *cell = "AGE".into();
                    }
                }
                json!({"cells": cells, "object": self.object(&row["object"])})
            })
            .collect();
        let columns: Vec<Value> =
            columns.iter().map(|c| json!([c["name"], c["type"], c["format"], c["priority"]])).collect();
        json!({"kind": "Table", "columns": columns, "rows": rows})
    }

    pub fn object(&mut self, object: &Value) -> Value {
        let mut told = object.clone();
        let Some(uid) = object["metadata"]["uid"].as_str().map(str::to_owned) else {
            strip_times(&mut told);
            return told;
        };
        let metadata = &mut told["metadata"];
        metadata["uid"] = self.uid(&uid).into();
        if let Some(version) = metadata["resourceVersion"].as_str().map(str::to_owned) {
            metadata["resourceVersion"] = self.version(&uid, &version).into();
        }
        if let Some(entries) = metadata["managedFields"].as_array_mut() {
            entries.iter_mut().for_each(|entry| entry["time"] = "TIME".into());
            entries.sort_by_key(|entry| {
                format!("{} {} {} {}", entry["manager"], entry["operation"], entry["subresource"], entry["apiVersion"])
            });
        }
        strip_times(&mut told);
        told
    }
}

/// Times that the server sets; what scenarios set themselves stays.
fn strip_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            // A time that is not known is null in some structures of a real server: that is the same as not there.
            map.retain(|key, value| {
                !(value.is_null() && matches!(key.as_str(), "lastTransitionTime" | "lastUpdateTime"))
            });
            for (key, value) in map {
                let time = matches!(
                    key.as_str(),
                    "creationTimestamp" | "deletionTimestamp" | "lastTransitionTime" | "lastUpdateTime"
                );
                if time && value.is_string() {
                    *value = "TIME".into();
                } else if key != "spec" {
                    strip_times(value);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(strip_times),
        _ => {}
    }
}

/// Watch events by object: the server promises an order for each object, and for nothing else.
pub fn by_object(events: Vec<(String, Value)>) -> Value {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (kind, object) in events {
        let name = format!("{} {}", object["metadata"]["name"], object["metadata"]["uid"]);
        all.entry(name).or_default().push(json!([kind, object]));
    }
    json!(all)
}

/// Where two values differ, with what is there.
pub fn differences(path: &str, real: &Value, ours: &Value, out: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let none = &Value::Null;
                differences(&format!("{path}.{key}"), a.get(key).unwrap_or(none), b.get(key).unwrap_or(none), out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(i, (a, b))| differences(&format!("{path}[{i}]"), a, b, out));
        }
        (Value::Array(a), Value::Array(b)) if a.iter().chain(b).all(Value::is_string) => {
            let only = |x: &[Value], y: &[Value]| json!(x.iter().filter(|v| !y.contains(v)).collect::<Vec<_>>());
            out.push(format!("{path}: only real {}, only ours {}", only(a, b), only(b, a)));
        }
        (a, b) if a == b => {}
        (a, b) => out.push(format!("{path}: real {a}, ours {b}")),
    }
}
