//! Random scenarios from a seed. Words are few, so that clients get into each other's way; some of what is asked is wrong on purpose.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::bodies::fragment;
use super::definition::SCHEMAS;
use super::known;
use super::scenario::{Act, Kind, Op, Scenario, Verb};

pub const NAMES: [&str; 3] = ["a", "b", "c"];
const MANAGERS: [&str; 3] = ["one", "two", "three"];

/// The scenario of a seed.
pub fn scenario(seed: u64, length: usize) -> Scenario {
    let mut random = StdRng::seed_from_u64(seed);
    // A scenario is about one or two kinds, so that its steps meet.
    let kinds: Vec<Kind> = (0..random.random_range(1..=2)).map(|_| a_kind(&mut random)).collect();
    let mut ops = Vec::new();
    for _ in 0..length {
        let kind = pick(&mut random, &kinds);
        let client = random.random_range(0..3);
        ops.push(Op { client, act: an_act(&mut random, kind) });
    }
    Scenario(ops)
}

fn a_kind(random: &mut StdRng) -> Kind {
    // Half of all is about our own kind, whose schema has the most to differ in.
    if random.random_bool(0.4) { Kind::Gizmo } else { pick(random, &Kind::ALL) }
}

fn an_act(random: &mut StdRng, kind: Kind) -> Act {
    let name = pick(random, &NAMES).to_owned();
    match random.random_range(0..100) {
        0..16 => send(Verb::Post, kind, "", options(random, false), whole(random, kind, &name)),
        16..24 => send(Verb::Get, kind, &name, String::new(), Value::Null),
        24..36 => edit(random, kind, name),
        36..48 => {
            let body = fragment(random, kind, 0.5);
            with_sub(send(Verb::Merge, kind, &name, options(random, false), body), random)
        }
        48..55 => {
            let steps: Vec<Value> = (0..random.random_range(1..4)).map(|_| json_step(random, kind)).collect();
            with_sub(send(Verb::Json, kind, &name, options(random, false), steps.into()), random)
        }
        55..60 => {
            let body = fragment(random, kind, 0.5);
            with_sub(send(Verb::Strategic, kind, &name, options(random, false), body), random)
        }
        60..80 => {
            let mut body =
                if random.random_bool(0.5) { whole(random, kind, &name) } else { fragment(random, kind, 0.4) };
            for field in ["labels", "annotations"] {
                if let Some(texts) = body.pointer_mut(&format!("/metadata/{field}")) {
                    known::avoid_nulls(texts);
                }
            }
            // A null list or map takes away what others have in it, and is then stored as null by a real server, which refuses that.
            if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut) {
                spec.retain(|name, value| !value.is_null() || name == "maybe");
            }
            body["apiVersion"] = kind.api_version().into();
            body["kind"] = kind.name().into();
            body["metadata"]["name"] = name.clone().into();
            with_sub(send(Verb::Apply, kind, &name, options(random, true), body), random)
        }
        80..88 => send(Verb::Delete, kind, &name, dry(random), deletion(random, kind, &name)),
        88..91 => scale(random, kind, &name),
        91..95 => listing(random, kind),
        95..97 => Act::Mark { kind, query: selector(random) },
        97..98 => send(Verb::Delete, kind, "", selector(random), json!({})),
        _ if kind == Kind::Gizmo => Act::Define { schema: random.random_range(0..SCHEMAS) },
        _ => send(Verb::Get, kind, &name, String::new(), Value::Null),
    }
}

fn send(verb: Verb, kind: Kind, name: &str, query: String, body: Value) -> Act {
    Act::Send { verb, kind, name: name.to_owned(), sub: String::new(), query, body }
}

/// A write goes to the status now and then.
fn with_sub(act: Act, random: &mut StdRng) -> Act {
    match act {
        Act::Send { verb, kind, name, query, body, .. } if has_status(kind) && random.random_bool(0.2) => {
            Act::Send { verb, kind, name, sub: "status".into(), query, body }
        }
        other => other,
    }
}

fn has_status(kind: Kind) -> bool {
    !matches!(kind, Kind::ConfigMap | Kind::Secret | Kind::Lease | Kind::Service)
}

fn edit(random: &mut StdRng, kind: Kind, name: String) -> Act {
    let mut change = fragment(random, kind, 0.4);
    match random.random_range(0..6) {
        0 => change["metadata"]["resourceVersion"] = Value::Null,
        1 => change["metadata"]["resourceVersion"] = "1".into(),
        2 => change["metadata"]["managedFields"] = Value::Null,
        3 if random.random_bool(0.3) => change["metadata"]["uid"] = "other".into(),
        _ => {}
    }
    let sub = if has_status(kind) && random.random_bool(0.25) { "status" } else { "" };
    Act::Edit { kind, name, sub: sub.into(), query: options(random, false), change }
}

fn whole(random: &mut StdRng, kind: Kind, name: &str) -> Value {
    let mut body = super::bodies::whole(random, kind);
    let mut metadata = body["metadata"].as_object().cloned().unwrap_or_else(Map::new);
    metadata.insert("name".into(), name.into());
    body["metadata"] = metadata.into();
    body["apiVersion"] = kind.api_version().into();
    body["kind"] = kind.name().into();
    body
}

fn options(random: &mut StdRng, apply: bool) -> String {
    let mut query = Vec::new();
    if apply || random.random_bool(0.4) {
        query.push(format!("fieldManager={}", pick(random, &MANAGERS)));
    }
    if apply && random.random_bool(0.4) {
        query.push("force=true".to_owned());
    }
    match random.random_range(0..10) {
        0 => query.push("fieldValidation=Strict".to_owned()),
        1 => query.push("fieldValidation=Ignore".to_owned()),
        2 => query.push("dryRun=All".to_owned()),
        _ => {}
    }
    query.join("&")
}

fn dry(random: &mut StdRng) -> String {
    if random.random_bool(0.1) { "dryRun=All".into() } else { String::new() }
}

fn deletion(random: &mut StdRng, kind: Kind, name: &str) -> Value {
    let mut body = json!({});
    match random.random_range(0..8) {
        0 => body["preconditions"] = json!({"uid": format!("$uid({name})")}),
        1 => body["preconditions"] = json!({"resourceVersion": format!("$version({name})")}),
        2 => body["preconditions"] = json!({"uid": "nobody"}),
        _ => {}
    }
    // The real garbage collector learns of a new definition within half a minute, which is too long for a step.
    let policies: &[&str] = if kind == Kind::Gizmo { &["Background"] } else { &["Background", "Foreground", "Orphan"] };
    if random.random_bool(0.5) {
        body["propagationPolicy"] = pick(random, policies).into();
    }
    if random.random_bool(0.1) {
        body["gracePeriodSeconds"] = random.random_range(0..3).into();
    }
    body
}

fn scale(random: &mut StdRng, kind: Kind, name: &str) -> Act {
    let replicas = pick(random, &[json!(0), json!(1), json!(3), json!(40), json!(-1), json!("x"), Value::Null]);
    let (verb, body) = match random.random_range(0..3) {
        0 => (Verb::Get, Value::Null),
        1 => {
            let mut metadata = json!({"name": name});
            if random.random_bool(0.3) {
                metadata["resourceVersion"] = format!("$version({name})").into();
            }
            let whole = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": replicas}});
            (Verb::Put, whole)
        }
        _ => (Verb::Merge, json!({"spec": {"replicas": replicas}})),
    };
    let query = if verb == Verb::Get { String::new() } else { options(random, false) };
    Act::Send { verb, kind, name: name.to_owned(), sub: "scale".into(), query, body }
}

fn listing(random: &mut StdRng, kind: Kind) -> Act {
    match random.random_range(0..6) {
        0 => send(Verb::Table, kind, "", selector(random), Value::Null),
        1 => send(Verb::Get, kind, "", "resourceVersion=$mark&resourceVersionMatch=Exact".into(), Value::Null),
        2 => send(Verb::Get, kind, "", selector(random), Value::Null),
        _ => Act::Pages { kind, limit: random.random_range(1..3), query: selector(random) },
    }
}

fn selector(random: &mut StdRng) -> String {
    let all = [
        "",
        "labelSelector=l%3Dx",
        "labelSelector=l!%3Dx",
        "labelSelector=l%20in%20(x,y)",
        "labelSelector=!l",
        "fieldSelector=metadata.name%3Da",
        "fieldSelector=metadata.name!%3Db",
    ];
    pick(random, &all).to_owned()
}

fn json_step(random: &mut StdRng, kind: Kind) -> Value {
    let change = fragment(random, kind, 0.5);
    let mut paths = Vec::new();
    leaves(&change, String::new(), &mut paths);
    // Without a name, a spec or a cluster IP it is another object: fixed scripts ask for that.
    paths.retain(|(path, _)| !matches!(path.as_str(), "/metadata" | "/spec" | "/spec/clusterIP"));
    let (path, value) = if paths.is_empty() { ("/nothing".to_owned(), json!(1)) } else { pick(random, &paths) };
    match random.random_range(0..8) {
        0..3 => json!({"op": "add", "path": path, "value": value}),
        3 | 4 => json!({"op": "replace", "path": path, "value": value}),
        5 => json!({"op": "remove", "path": path}),
        6 => json!({"op": "test", "path": path, "value": value}),
        _ => {
            json!({"op": if random.random_bool(0.5) { "copy" } else { "move" }, "from": path, "path": "/metadata/annotations/moved"})
        }
    }
}

/// Every path of a value, with what is there.
fn leaves(value: &Value, path: String, out: &mut Vec<(String, Value)>) {
    if !path.is_empty() {
        out.push((path.clone(), value.clone()));
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                leaves(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| leaves(value, format!("{path}/{i}"), out)),
        _ => {}
    }
}

pub fn pick<T: Clone>(random: &mut StdRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())].clone()
}
