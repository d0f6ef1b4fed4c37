//! The end state of a run in lines that are the same for the same end: every object and key, without UIDs, versions, times and hashes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::effect::stable;
use super::stage::{Stage, objects};
use super::truth::OURS;

const CHILDREN: [&str; 10] = [
    "statefulsets",
    "deployments",
    "poddisruptionbudgets",
    "networkpolicies",
    "jobs",
    "services",
    "secrets",
    "configmaps",
    "pods",
    "persistentvolumeclaims",
];
/// Fields that differ between two runs with the same end.
const NOISE: [&str; 30] = [
    // Known only to who heard the switch's own answer.
    "heldUs",
    // How often a run asked, and which bucket its guild fell into.
    "requests",
    "probeRound",
    "bucket",
    // Figures from the directory, brought up to date now and then.
    "units",
    "reachableNodes",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "managedFields",
    "lastTransitionTime",
    "generation",
    "observedGeneration",
    "clusterIP",
    "clusterIPs",
    "nodePort",
    "controlPlaneAddress",
    "cellplane.dev/applied-hash",
    "controller-revision-hash",
    "currentRevision",
    "updateRevision",
    "collisionCount",
    "hostIP",
    "podIP",
    "podIPs",
    "hostIPs",
    "startTime",
    "nodeName",
    "volumeName",
    "heldMicroseconds",
];

/// Lines by what they speak of.
pub type Snapshot = BTreeMap<String, String>;

fn clean(value: &Value, words: &[(String, String)]) -> Value {
    match value {
        Value::Object(fields) => {
            // A number of cells is a figure, a list of them is not.
            let is_noise = |(key, value): &(&String, &Value)| {
                NOISE.contains(&key.as_str()) || key.ends_with("Ms") || (*key == "cells" && value.is_number())
            };
            let kept = fields.iter().filter(|field| !is_noise(field));
            Value::Object(kept.map(|(key, value)| (said(key, words), clean(value, words))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| clean(item, words)).collect()),
        Value::String(text) if is_time(text) => Value::from("TIME"),
        Value::String(text) => Value::from(said(text, words)),
        other => other.clone(),
    }
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && text.ends_with('Z')
}

/// Whether two statuses differ in figures and times alone.
pub fn same_but_figures(one: &Value, other: &Value) -> bool {
    clean(one, &[]) == clean(other, &[])
}

fn said(text: &str, words: &[(String, String)]) -> String {
    // How many cells there are, or use a store, is a figure, too.
    let cut = |text: &str, at: &str| text.split(at).next().unwrap_or_default().to_owned();
    let figure = ["; used by ", "; commands were held ", "; how long commands "]
        .iter()
        .fold(text.to_owned(), |text, at| cut(&text, at));
    let figure = figure.as_str();
    let figure = without_random(figure);
    let mut text = stable(figure.split_once(" cells, ").map_or(figure.as_str(), |(_, rest)| rest));
    for (word, general) in words {
        text = text.replace(word, general);
    }
    text
}

/// A real server names the volume of a Pod's token at random.
fn without_random(text: &str) -> String {
    let named = text.strip_prefix("kube-api-access-").is_some_and(|random| random.len() == 5);
    if named { "kube-api-access-*".to_owned() } else { text.to_owned() }
}

/// Everything of a stage; `words` are replaced by their general forms.
pub async fn take(stage: &Stage, words: &[(String, String)]) -> Snapshot {
    let mut words = words.to_vec();
    words.push((stage.namespace.clone(), "NS".to_owned()));
    words.push((stage.etcd.clone(), "ETCD".to_owned()));
    let mut lines = Snapshot::new();
    for plural in OURS.iter().chain(&CHILDREN) {
        for mut one in objects(&stage.user, &stage.namespace, plural).await {
            let name = one["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if let Some(data) = one["data"].as_object_mut()
                && name.ends_with("-token-keys")
            {
                data.values_mut().for_each(|key| *key = Value::from(key.as_str().map_or(0, str::len)));
            }
            if name == "kube-root-ca.crt" {
                // Put into every namespace by a controller, sometime.
                continue;
            }
            if CHILDREN.contains(plural) {
                // What Kubernetes' own controllers say of it, and when, is theirs.
                one["status"] = one["status"]["phase"].clone();
            }
            if *plural == "pods" {
                // How a Pod came about is its set's business.
                one["metadata"].as_object_mut().map(|metadata| metadata.remove("annotations"));
            }
            lines.insert(format!("{plural}/{}", said(&name, &words)), clean(&one, &words).to_string());
        }
    }
    for (key, value) in stage.keys().await {
        let kept = !["members/", "load/", "fencing", "routes/"].iter().any(|skipped| key.starts_with(skipped));
        if kept {
            let value =
                serde_json::from_str::<Value>(&value).map_or(Value::from(value.len()), |value| clean(&value, &words));
            let text = value.to_string();
            let short = if text.len() > 4_000 { format!("{} bytes", text.len()) } else { text };
            lines.insert(format!("etcd {}", said(&key, &words)), short);
        }
    }
    lines
}

/// What two ends differ in.
pub fn differences(wanted: &Snapshot, found: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for (what, line) in wanted {
        match found.get(what) {
            None => lines.push(format!("{what} is missing")),
            Some(other) if other != line => lines.push(format!("{what} differs: {}", apart(line, other))),
            Some(_) => {}
        }
    }
    lines.extend(found.keys().filter(|what| !wanted.contains_key(*what)).map(|what| format!("{what} is too much")));
    lines
}

/// The first place where two lines part.
fn apart(one: &str, other: &str) -> String {
    let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        let from = (0..=same.saturating_sub(60)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text[from..].chars().take(200).collect::<String>()
    };
    format!("undisturbed …{}… here …{}…", around(one), around(other))
}

#[test]
fn two_ends_that_differ_in_times_and_uids_alone_are_the_same() {
    let object = |uid: &str, time: &str, replicas: i64| {
        let value = serde_json::json!({"metadata": {"uid": uid, "creationTimestamp": time}, "spec": {"replicas": replicas},
            "status": {"finishedAt": time}});
        Snapshot::from([("x".to_owned(), clean(&value, &[]).to_string())])
    };
    let one = object("a", "2026-01-01T00:00:00Z", 1);
    assert!(differences(&one, &object("b", "2026-02-01T00:00:00Z", 1)).is_empty());
    assert_eq!(differences(&one, &object("a", "2026-01-01T00:00:00Z", 2)).len(), 1);
    assert_eq!(differences(&one, &Snapshot::new()), ["x is missing"]);
}
