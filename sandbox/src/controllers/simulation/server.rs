//! The server of the simulation: objects by path, a version for every change.

use std::collections::BTreeMap;

use http::{Method, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// One change, as a watch would tell it.
#[derive(Debug, Clone)]
pub struct Change {
    /// The kind's plural.
    pub plural: String,
    /// It is gone.
    pub deleted: bool,
    /// The object.
    pub object: Value,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    changes: Vec<Change>,
    created: Vec<String>,
    lose: u32,
}

/// The server.
#[derive(Default)]
pub struct Server(Mutex<State>);

struct Path {
    collection: String,
    plural: String,
    name: Option<String>,
    sub: Option<String>,
}

fn parse(path: &str) -> Path {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let head = if parts[0] == "api" { 2 } else { 3 };
    let from = if parts.get(head) == Some(&"namespaces") && parts.len() > head + 2 { head + 2 } else { head };
    Path {
        collection: parts[..=from].join("/"),
        plural: parts[from].to_owned(),
        name: parts.get(from + 1).map(|name| (*name).to_owned()),
        sub: parts.get(from + 2).map(|sub| (*sub).to_owned()),
    }
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason }),
    )
}

fn merge(into: &mut Value, patch: &Value) {
    match (into.as_object_mut(), patch.as_object()) {
        (Some(map), Some(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    map.remove(key);
                } else {
                    merge(map.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        _ => *into = patch.clone(),
    }
}

impl Server {
    /// Answers a request. Every so often, when told to, it acts and then loses the answer.
    pub fn answer(&self, method: &Method, uri: &Uri, body: &[u8]) -> (u16, Value) {
        let path = parse(uri.path());
        let sent: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if path.plural == "events" {
            return (200, sent);
        }
        let mut state = self.0.lock();
        let answer = match (method.as_str(), &path.name) {
            ("GET", Some(name)) => {
                let found = state.objects.get(&format!("{}/{name}", path.collection)).cloned();
                return found.map_or_else(|| status(404, "NotFound"), |object| (200, object));
            }
            ("GET", None) => return list(&state, &path.collection),
            ("POST", None) => state.create(&path, sent),
            ("PATCH", Some(name)) => state.patch(&path, name, &sent),
            ("DELETE", Some(name)) => state.delete(&path, name, &sent),
            _ => status(405, "MethodNotAllowed"),
        };
        if answer.0 < 300 && state.lose > 0 {
            state.lose -= 1;
            return status(504, "Timeout");
        }
        answer
    }

    /// The next `count` writes act but answer with a timeout.
    pub fn lose_answers(&self, count: u32) {
        self.0.lock().lose = count;
    }

    /// Puts an object from outside; a new version.
    pub fn put(&self, collection: &str, mut object: Value) {
        let mut state = self.0.lock();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
        }
        let plural = parse(collection).plural;
        state.store(&plural, format!("{collection}/{name}"), object);
    }

    /// Removes an object from outside.
    pub fn remove(&self, path: &str) {
        let parsed = parse(path);
        self.0.lock().drop_object(&parsed.plural, path);
    }

    /// Objects of a plural.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.0.lock();
        state
            .objects
            .iter()
            .filter(|(path, _)| parse(path).plural == plural)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Paths and objects of a plural.
    pub fn paths(&self, plural: &str) -> Vec<(String, Value)> {
        let state = self.0.lock();
        state
            .objects
            .iter()
            .filter(|(path, _)| parse(path).plural == plural)
            .map(|(path, object)| (path.clone(), object.clone()))
            .collect()
    }

    /// How many changes there were.
    pub fn changes(&self) -> usize {
        self.0.lock().changes.len()
    }

    /// One change.
    pub fn change(&self, index: usize) -> Option<Change> {
        self.0.lock().changes.get(index).cloned()
    }

    /// Names created through the API, in order.
    pub fn created(&self) -> Vec<String> {
        self.0.lock().created.clone()
    }
}

fn list(state: &State, collection: &str) -> (u16, Value) {
    let prefix = format!("{collection}/");
    let items: Vec<_> =
        state.objects.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(_, object)| object.clone()).collect();
    (
        200,
        json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": state.version.to_string() }, "items": items }),
    )
}

impl State {
    fn store(&mut self, plural: &str, path: String, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path, object.clone());
        self.changes.push(Change { plural: plural.to_owned(), deleted: false, object: object.clone() });
        object
    }

    fn drop_object(&mut self, plural: &str, path: &str) -> Option<Value> {
        let mut object = self.objects.remove(path)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.changes.push(Change { plural: plural.to_owned(), deleted: true, object: object.clone() });
        Some(object)
    }

    fn create(&mut self, path: &Path, mut object: Value) -> (u16, Value) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let at = format!("{}/{name}", path.collection);
        if self.objects.contains_key(&at) {
            return status(409, "AlreadyExists");
        }
        object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.created.push(name);
        (201, self.store(&path.plural, at, object))
    }

    fn patch(&mut self, path: &Path, name: &str, sent: &Value) -> (u16, Value) {
        let at = format!("{}/{name}", path.collection);
        let Some(mut object) = self.objects.get(&at).cloned() else { return status(404, "NotFound") };
        let wanted = &sent["metadata"]["resourceVersion"];
        if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
            return status(409, "Conflict");
        }
        if path.sub.as_deref() == Some("status") {
            merge(&mut object, &json!({ "status": sent["status"] }));
        } else {
            merge(&mut object, sent);
        }
        (200, self.store(&path.plural, at, object))
    }

    fn delete(&mut self, path: &Path, name: &str, sent: &Value) -> (u16, Value) {
        let at = format!("{}/{name}", path.collection);
        let Some(mut object) = self.objects.get(&at).cloned() else { return status(404, "NotFound") };
        let uid = &sent["preconditions"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return status(409, "Conflict");
        }
        let bound = !object["spec"]["nodeName"].is_null();
        if bound && sent["gracePeriodSeconds"] != json!(0) {
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                object = self.store(&path.plural, at, object);
            }
            return (200, object);
        }
        (200, self.drop_object(&path.plural, &at).unwrap())
    }
}
