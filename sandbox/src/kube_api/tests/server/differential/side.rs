//! One server being asked: it plays the steps of a scenario in a namespace of its own, and tells what was answered.

use std::collections::HashMap;
use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::watches::Events;
use super::super::{Answer, DEFINITIONS, send};
use super::definition;
use super::scenario::{Act, Kind, Op, Verb};
use super::tell::{Names, by_object};

/// How long a server may take to bring a definition into force, or to finish a deletion.
const DEADLINE: Duration = Duration::from_secs(40);
/// Its name ends a watch; no scenario uses it.
const LAST: &str = "zz-last";

/// A difference planted into what one side tells, to see that it is found.
pub type Plant = fn(&Op, &mut Value);

/// A server.
pub struct Server {
    pub client: kube::Client,
    pub schema: Option<usize>,
    pub plant: Option<Plant>,
}

/// A scenario being played on a server.
pub struct Side<'a> {
    server: &'a mut Server,
    namespace: String,
    names: Names,
    /// What each client last saw of each object.
    seen: HashMap<(u8, Kind, String), Value>,
    marks: Vec<(Kind, String, String)>,
}

impl<'a> Side<'a> {
    pub async fn begin(server: &'a mut Server, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        let mut side = Self { server, namespace, names: Names::default(), seen: HashMap::new(), marks: Vec::new() };
        let body = json!({"metadata": {"name": side.namespace}});
        let made = side.ask(0, Method::POST, "/api/v1/namespaces", "application/json", &body).await;
        assert_eq!(made.code, 201, "{}", made.body);
        if side.server.schema != Some(0) {
            side.define(0).await;
        }
        side
    }

    /// Every kind's history is compared from the beginning.
    pub async fn mark_all(&mut self, kinds: &[Kind]) {
        for kind in kinds {
            self.mark(*kind, "").await;
        }
    }

    async fn ask(&self, client: u8, method: Method, path: &str, kind: &str, body: &Value) -> Answer {
        let mut request =
            Request::builder().method(method).uri(path).header("user-agent", format!("client-{client}/1"));
        if kind == "table" {
            request = request.header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        } else if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        send(&self.server.client, request.body(bytes).unwrap()).await
    }

    /// Plays one step; none if there was nothing to do.
    pub async fn take(&mut self, op: &Op) -> Value {
        let mut told = match &op.act {
            Act::Send { verb, kind, name, sub, query, body } => {
                let (query, body) = (self.fill_text(op.client, *kind, query), self.fill(op.client, *kind, body));
                let (method, media) = how(*verb);
                let path = self.path(*kind, name, sub, &query);
                let answer = self.ask(op.client, method, &path, media, &body).await;
                if sub.is_empty() || sub == "status" {
                    self.remember(op.client, *kind, &answer);
                }
                let told = self.names.answer(&answer);
                if *verb == Verb::Delete {
                    self.settle(*kind).await;
                }
                told
            }
            Act::Edit { kind, name, sub, query, change } => {
                let Some(mut object) = self.seen.get(&(op.client, *kind, name.clone())).cloned() else {
                    return json!("never seen");
                };
                crate::kube_api::patch::merge(&mut object, change);
                let path = self.path(*kind, name, sub, query);
                let answer = self.ask(op.client, Method::PUT, &path, "application/json", &object).await;
                self.remember(op.client, *kind, &answer);
                self.names.answer(&answer)
            }
            Act::Pages { kind, limit, query } => self.pages(op.client, *kind, *limit, query).await,
            Act::Mark { kind, query } => {
                self.mark(*kind, query).await;
                json!("marked")
            }
            Act::Define { schema } => {
                self.define(*schema).await;
                json!("defined")
            }
        };
        if let Some(plant) = self.server.plant {
            plant(op, &mut told);
        }
        told
    }

    fn path(&self, kind: Kind, name: &str, sub: &str, query: &str) -> String {
        let whole = kind.path(&self.namespace);
        let parts = [&whole, name, sub].into_iter().filter(|part| !part.is_empty());
        let path = parts.collect::<Vec<_>>().join("/");
        if query.is_empty() { path } else { format!("{path}?{query}") }
    }

    fn remember(&mut self, client: u8, kind: Kind, answer: &Answer) {
        let body = &answer.body;
        let dry = body["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty();
        if answer.code < 300 && body["kind"] == kind.name() && !dry {
            let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            self.seen.insert((client, kind, name), body.clone());
        }
    }

    fn fill(&self, client: u8, kind: Kind, body: &Value) -> Value {
        match body {
            Value::String(text) => self.fill_text(client, kind, text).into(),
            Value::Array(list) => list.iter().map(|v| self.fill(client, kind, v)).collect::<Vec<_>>().into(),
            Value::Object(map) => map
                .iter()
                .map(|(k, v)| (k.clone(), self.fill(client, kind, v)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            other => other.clone(),
        }
    }

    fn fill_text(&self, client: u8, kind: Kind, text: &str) -> String {
        let mut text = text.to_owned();
        if text.contains("$mark") {
            let mark = self.marks.iter().rev().find(|(k, ..)| *k == kind).map_or("1", |(_, version, _)| version);
            text = text.replace("$mark", mark);
        }
        for (word, field) in [("$uid(", "uid"), ("$version(", "resourceVersion")] {
            if let Some(name) = text.strip_prefix(word).and_then(|rest| rest.strip_suffix(')')) {
                let seen = self.seen.get(&(client, kind, name.to_owned()));
                let found = seen.and_then(|object| object["metadata"][field].as_str()).unwrap_or("1");
                text = found.to_owned();
            }
        }
        text
    }

    async fn pages(&mut self, client: u8, kind: Kind, limit: usize, query: &str) -> Value {
        let mut told = Vec::new();
        let mut token = String::new();
        for _ in 0..20 {
            let next = if token.is_empty() { String::new() } else { format!("&continue={token}") };
            let path = self.path(kind, "", "", &format!("limit={limit}&{query}{next}"));
            let answer = self.ask(client, Method::GET, &path, "", &Value::Null).await;
            told.push(self.names.answer(&answer));
            token = answer.body["metadata"]["continue"].as_str().unwrap_or_default().replace('=', "%3D");
            if token.is_empty() {
                break;
            }
        }
        json!(told)
    }

    async fn mark(&mut self, kind: Kind, query: &str) {
        let list = self.ask(0, Method::GET, &self.path(kind, "", "", ""), "", &Value::Null).await;
        let version = list.body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        self.marks.push((kind, version, query.to_owned()));
    }

    /// Waits until a collector has done its part of a deletion: when it does is nobody's promise.
    async fn settle(&self, kind: Kind) {
        let ends = Instant::now() + DEADLINE;
        loop {
            let list = self.ask(0, Method::GET, &self.path(kind, "", "", ""), "", &Value::Null).await;
            let waits = |item: &Value| {
                let finalizers = item["metadata"]["finalizers"].as_array();
                let collected = |f: &Value| f == "foregroundDeletion" || f == "orphan";
                item["metadata"]["deletionTimestamp"].is_string()
                    && finalizers.is_some_and(|all| all.iter().any(collected))
            };
            if !list.body["items"].as_array().into_iter().flatten().any(waits) {
                return;
            }
            assert!(Instant::now() < ends, "no collector finishes a deletion: {}", list.body);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Writes a schema of Gizmo and waits until it judges.
    async fn define(&mut self, schema: usize) {
        let ends = Instant::now() + DEADLINE;
        let at = format!("{DEFINITIONS}/{}", definition::NAME);
        let mut wanted = definition::gizmos(schema);
        let found = self.ask(0, Method::GET, &at, "", &Value::Null).await;
        let written = if found.code == 404 {
            self.ask(0, Method::POST, DEFINITIONS, "application/json", &wanted).await
        } else {
            wanted["metadata"]["resourceVersion"] = found.body["metadata"]["resourceVersion"].clone();
            self.ask(0, Method::PUT, &at, "application/json", &wanted).await
        };
        assert!(written.code < 300, "{}", written.body);
        loop {
            let mut in_force = true;
            for epoch in 0..=schema + 1 {
                let probe = json!({"apiVersion": Kind::Gizmo.api_version(), "kind": "Gizmo", "metadata": {"name": "zz-probe"},
                    "spec": {"size": 3, "epoch": epoch}});
                let path = self.path(Kind::Gizmo, "", "", "dryRun=All");
                let answer = self.ask(0, Method::POST, &path, "application/json", &probe).await;
                in_force &= answer.code == if epoch <= schema { 201 } else { 422 };
            }
            if in_force {
                break;
            }
            assert!(Instant::now() < ends, "the definition does not come into force");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.server.schema = Some(schema);
    }

    /// Every marked history, by object.
    pub async fn histories(&mut self) -> Vec<Value> {
        let marks = std::mem::take(&mut self.marks);
        let mut kinds: Vec<Kind> = marks.iter().map(|(kind, ..)| *kind).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            let last = super::bodies::last(kind, LAST);
            let made = self.ask(0, Method::POST, &self.path(kind, "", "", ""), "application/json", &last).await;
            assert_eq!(made.code, 201, "{}", made.body);
        }
        let mut all = Vec::new();
        for (kind, version, query) in marks {
            // What a selector does not let through cannot end a watch; time does.
            let seconds = if ["labelSelector=l%3Dx", "labelSelector=l%20in%20(x,y)", "fieldSelector=metadata.name%3Da"]
                .contains(&query.as_str())
            {
                1
            } else {
                20
            };
            let path = self.path(
                kind,
                "",
                "",
                &format!("watch=true&timeoutSeconds={seconds}&resourceVersion={version}&{query}"),
            );
            let mut events = Events::open_as(&self.server.client, &path, "application/json").await;
            let mut told = Vec::new();
            while let Some(event) = events.next().await {
                if event["object"]["metadata"]["name"] == LAST {
                    break;
                }
                told.push((event["type"].as_str().unwrap_or_default().to_owned(), self.names.object(&event["object"])));
            }
            all.push(json!({"watch": format!("{kind:?} {query}"), "events": by_object(told)}));
        }
        all
    }

    /// Leaves nothing behind that would keep the namespace.
    pub async fn end(self, kinds: &[Kind]) {
        for kind in kinds {
            let list = self.ask(0, Method::GET, &self.path(*kind, "", "", ""), "", &Value::Null).await;
            for item in list.body["items"].as_array().into_iter().flatten() {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                if item["metadata"]["finalizers"].is_array() {
                    let free = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
                    self.ask(0, Method::PATCH, &self.path(*kind, name, "", ""), "application/json-patch+json", &free)
                        .await;
                }
                self.ask(0, Method::DELETE, &self.path(*kind, name, "", ""), "application/json", &json!({})).await;
            }
        }
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.ask(0, Method::DELETE, &path, "application/json", &json!({})).await;
    }
}

fn how(verb: Verb) -> (Method, &'static str) {
    match verb {
        Verb::Get => (Method::GET, ""),
        Verb::Table => (Method::GET, "table"),
        Verb::Post => (Method::POST, "application/json"),
        Verb::Put => (Method::PUT, "application/json"),
        Verb::Merge => (Method::PATCH, "application/merge-patch+json"),
        Verb::Json => (Method::PATCH, "application/json-patch+json"),
        Verb::Strategic => (Method::PATCH, "application/strategic-merge-patch+json"),
        Verb::Apply => (Method::PATCH, "application/apply-patch+yaml"),
        Verb::Delete => (Method::DELETE, "application/json"),
    }
}
