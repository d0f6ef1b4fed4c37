//! Random bodies of each kind: whole objects that would mostly be accepted, and fragments of them for patches.

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::generate::pick;
use super::scenario::Kind;

/// A value for a field that is wrong in type or form now and then, or null.
fn or_wrong(random: &mut StdRng, good: Value) -> Value {
    match random.random_range(0..40) {
        0 => Value::Null,
        1 => pick(random, &[json!("wrong!"), json!(-5), json!(true), json!([]), json!({}), json!("")]),
        _ => good,
    }
}

/// Puts fields into an object, each with a probability.
fn some(fields: Vec<(&str, Value)>, share: f64, random: &mut StdRng) -> Value {
    let mut object = json!({});
    for (name, value) in fields {
        if random.random_bool(share) {
            object[name] = or_wrong(random, value);
        }
    }
    object
}

/// An object without its name.
pub fn whole(random: &mut StdRng, kind: Kind) -> Value {
    let mut object = fragment(random, kind, 0.5);
    if random.random_bool(0.05) && kind != Kind::Service {
        return object;
    }
    let labels = json!({"app": "x"});
    let needed = match kind {
        Kind::ConfigMap | Kind::Secret | Kind::Lease => json!({}),
        Kind::Service => json!({"spec": {"clusterIP": "None", "selector": {"app": "x"}}}),
        Kind::StatefulSet | Kind::Deployment => {
            json!({"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [container(random, "main")]}}}})
        }
        Kind::PodDisruptionBudget => json!({"spec": {"selector": {"matchLabels": labels}}}),
        Kind::Gizmo => json!({"spec": {"size": random.random_range(2..9)}}),
    };
    complete(&mut object, needed);
    object
}

/// Adds what is not there.
fn complete(object: &mut Value, needed: Value) {
    match (object, needed) {
        (Value::Object(object), Value::Object(needed)) => {
            for (key, value) in needed {
                match object.get_mut(&key) {
                    Some(found) => complete(found, value),
                    None => {
                        object.insert(key, value);
                    }
                }
            }
        }
        (object @ Value::Null, needed) => *object = needed,
        _ => {}
    }
}

/// Part of an object: each field with a probability.
pub fn fragment(random: &mut StdRng, kind: Kind, share: f64) -> Value {
    let mut object = match kind {
        Kind::ConfigMap => config_map(random, share),
        Kind::Secret => secret(random, share),
        Kind::Lease => lease(random, share),
        Kind::Service => service(random, share),
        Kind::StatefulSet => stateful_set(random, share),
        Kind::Deployment => deployment(random, share),
        Kind::PodDisruptionBudget => budget(random, share),
        Kind::Gizmo => gizmo(random, share),
    };
    let metadata = metadata(random);
    if metadata.as_object().is_some_and(|m| !m.is_empty()) {
        object["metadata"] = metadata;
    }
    if random.random_bool(0.04) {
        object["nonsense"] = json!({"a": 1});
    }
    object
}

fn metadata(random: &mut StdRng) -> Value {
    let label = pick(random, &[json!("x"), json!("y"), json!("z"), Value::Null]);
    let finalizers =
        pick(random, &[json!(["x.y/z"]), json!(["x.y/z", "a.b/c"]), json!(["a.b/c"]), json!([]), Value::Null]);
    let note = pick(random, &[json!("1"), json!("2"), Value::Null]);
    let mut fields = vec![("labels", json!({"l": label})), ("annotations", json!({"n": note}))];
    if random.random_bool(0.35) {
        fields.push(("finalizers", finalizers));
    }
    if random.random_bool(0.03) {
        fields.push(("labels", pick(random, &[json!({"bad key!": "x"}), json!({"l": "not valid!"}), json!({"l": 5})])));
    }
    let mut metadata = json!({});
    for (name, value) in fields {
        if random.random_bool(0.3) {
            metadata[name] = value;
        }
    }
    metadata
}

fn config_map(random: &mut StdRng, share: f64) -> Value {
    let words = [json!("a"), json!("b"), json!("c"), json!(""), Value::Null];
    let data = some(["k1", "k2", "k3"].map(|key| (key, pick(random, &words))).to_vec(), 0.5, random);
    let mut fields = vec![("data", data)];
    if random.random_bool(0.15) {
        fields.push(("binaryData", json!({"b": pick(random, &["AAE=", "not base64", ""])})));
    }
    if random.random_bool(0.05) {
        fields.push(("immutable", json!(random.random_bool(0.7))));
    }
    some(fields, share.max(0.8), random)
}

fn secret(random: &mut StdRng, share: f64) -> Value {
    // Always texts: a null is bytes that are not there to a real server, and a list is bytes as well.
    let mut data = json!({});
    for key in ["k1", "k2"] {
        if random.random_bool(0.5) {
            data[key] = pick(random, &["YQ==", "Yg==", ""]).into();
        }
    }
    let texts = some(["k1", "k3"].map(|key| (key, pick(random, &[json!("a"), json!("b")]))).to_vec(), 0.6, random);
    let mut fields = vec![("data", data)];
    if random.random_bool(0.4) {
        fields.push(("stringData", texts));
    }
    if random.random_bool(0.15) {
        fields.push(("type", pick(random, &[json!("Opaque"), json!("example.dev/own"), json!("kubernetes.io/tls")])));
    }
    if random.random_bool(0.05) {
        fields.push(("immutable", json!(random.random_bool(0.7))));
    }
    some(fields, share.max(0.8), random)
}

fn lease(random: &mut StdRng, share: f64) -> Value {
    let fields = vec![
        ("holderIdentity", pick(random, &[json!("me"), json!("you"), json!(""), Value::Null])),
        ("leaseDurationSeconds", pick(random, &[json!(15), json!(1), json!(0)])),
        ("leaseTransitions", pick(random, &[json!(0), json!(3), json!(-1)])),
        (
            "renewTime",
            pick(
                random,
                &[json!("2026-01-02T03:04:05.678901Z"), json!("2026-01-02T03:04:05Z"), json!("2026-01-02T03:04:05.5Z")],
            ),
        ),
        ("acquireTime", json!("2026-01-02T03:04:05.000000Z")),
    ];
    json!({"spec": some(fields, share, random)})
}

fn service(random: &mut StdRng, share: f64) -> Value {
    let port = |random: &mut StdRng| {
        let mut port = json!({"port": pick(random, &[80, 81])});
        for (key, values) in [
            ("name", [json!("a"), json!("b"), json!("Bad")]),
            ("protocol", [json!("TCP"), json!("UDP"), json!("TCP")]),
            ("targetPort", [json!(8080), json!("web"), json!(8081)]),
        ] {
            if random.random_bool(0.5) {
                port[key] = values[[0, 0, 0, 0, 1, 1, 1, 2][random.random_range(0..8)]].clone();
            }
        }
        port
    };
    let ports: Vec<Value> = (0..random.random_range(0..3)).map(|_| port(random)).collect();
    let fields = vec![
        ("ports", ports.into()),
        ("selector", json!({"app": pick(random, &["x", "y"])})),
        ("publishNotReadyAddresses", json!(true)),
        ("sessionAffinity", pick(random, &[json!("None"), json!("ClientIP"), json!("Odd")])),
    ];
    // Without a cluster network there is nothing to assign: headless is what both can do.
    let mut object = json!({"spec": some(fields, share, random)});
    object["spec"]["clusterIP"] = "None".into();
    if !object["spec"]["selector"].is_object() {
        object["spec"]["selector"] = json!({"app": "x"});
    }
    object
}

fn container(random: &mut StdRng, name: &str) -> Value {
    let mut ports = vec![json!({"containerPort": pick(random, &[80, 81])})];
    if random.random_bool(0.3) {
        ports.push(json!({"containerPort": 82, "name": pick(random, &["web", "admin"]), "protocol": pick(random, &["TCP", "UDP"])}));
    }
    let probe =
        json!({"httpGet": {"port": pick(random, &[json!(80), json!("web")])}, "periodSeconds": pick(random, &[1, 10])});
    let fields = vec![
        ("ports", ports.into()),
        (
            "env",
            json!([{"name": "X", "value": pick(random, &["1", "2"])}, {"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        ),
        ("args", json!(["--a", pick(random, &["1", "2"])])),
        ("readinessProbe", probe),
        ("volumeMounts", json!([{"name": "data", "mountPath": "/data"}])),
        ("resources", json!({"requests": {"cpu": pick(random, &["100m", "0.1", "1"]), "memory": "64Mi"}})),
        ("imagePullPolicy", pick(random, &[json!("Never"), json!("Always"), json!("Odd")])),
    ];
    let mut container = some(fields, 0.15, random);
    container["name"] = name.into();
    container["image"] = pick(random, &["x:1", "x", "x:latest"]).into();
    container
}

fn template(random: &mut StdRng) -> Value {
    let names: &[&str] = if random.random_bool(0.3) { &["main", "side"] } else { &["main"] };
    let containers: Vec<Value> = names.iter().map(|name| container(random, name)).collect();
    let fields = vec![
        ("containers", containers.into()),
        ("terminationGracePeriodSeconds", json!(pick(random, &[0, 5]))),
        ("nodeSelector", json!({"n": pick(random, &["1", "2"])})),
        ("tolerations", json!([{"key": "k", "operator": pick(random, &["Exists", "Equal"])}])),
        ("volumes", json!([{"name": "data", "emptyDir": {}}])),
        ("restartPolicy", pick(random, &[json!("Always"), json!("Never")])),
    ];
    let mut template = json!({"spec": some(fields, 0.25, random)});
    if random.random_bool(0.3) {
        template["metadata"] = json!({"labels": {"app": pick(random, &["x", "x", "x", "y"])}, "annotations": {"t": pick(random, &["1", "2"])}});
    }
    template
}

fn workload(random: &mut StdRng, share: f64, more: Vec<(&str, Value)>) -> Value {
    let mut fields = vec![
        ("replicas", pick(random, &[json!(0), json!(2), json!(3)])),
        ("template", template(random)),
        ("minReadySeconds", json!(pick(random, &[0, 5]))),
        ("revisionHistoryLimit", json!(pick(random, &[2, 10]))),
    ];
    if random.random_bool(0.05) {
        fields.push(("selector", json!({"matchLabels": {"app": pick(random, &["x", "y"])}})));
    }
    fields.extend(more);
    let mut object = json!({"spec": some(fields, share, random)});
    if random.random_bool(0.3) {
        let condition = json!({"type": "Available", "status": pick(random, &["True", "False"]), "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let status = vec![
            ("replicas", json!(pick(random, &[0, 2]))),
            ("readyReplicas", json!(pick(random, &[0, 1]))),
            ("observedGeneration", json!(1)),
            ("conditions", json!([condition])),
        ];
        object["status"] = some(status, 0.6, random);
    }
    object
}

fn stateful_set(random: &mut StdRng, share: f64) -> Value {
    let claim = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": pick(random, &["1Gi", "2Gi"])}}}}]);
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": pick(random, &[0, 1])}});
    let more = vec![
        ("serviceName", json!(pick(random, &["s", "s", "t"]))),
        ("podManagementPolicy", pick(random, &[json!("Parallel"), json!("OrderedReady"), json!("Odd")])),
        ("updateStrategy", pick(random, &[json!({"type": "OnDelete"}), rolling])),
        ("volumeClaimTemplates", claim),
    ];
    let share = share * 0.6;
    workload(random, share, more)
}

fn deployment(random: &mut StdRng, share: f64) -> Value {
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": pick(random, &[json!(1), json!("50%"), json!(0)])}});
    let more = vec![
        ("strategy", pick(random, &[json!({"type": "Recreate"}), rolling])),
        ("paused", json!(random.random_bool(0.5))),
        ("progressDeadlineSeconds", json!(pick(random, &[10, 600]))),
    ];
    let mut object = workload(random, share * 0.7, more);
    for condition in object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        condition["lastUpdateTime"] = "2026-01-02T03:04:05Z".into();
    }
    object
}

fn budget(random: &mut StdRng, share: f64) -> Value {
    let counts = [json!(1), json!("50%"), json!(0), json!("x"), json!(-1)];
    let mut fields = vec![("selector", json!({"matchLabels": {"app": pick(random, &["x", "y"])}}))];
    fields.push((pick(random, &["minAvailable", "maxUnavailable"]), pick(random, &counts)));
    if random.random_bool(0.2) {
        fields.push((
            "unhealthyPodEvictionPolicy",
            pick(random, &[json!("AlwaysAllow"), json!("IfHealthyBudget"), json!("Odd")]),
        ));
    }
    json!({"spec": some(fields, share, random)})
}

fn gizmo(random: &mut StdRng, share: f64) -> Value {
    let port = |random: &mut StdRng| {
        let fields =
            vec![("port", json!(pick(random, &[80, 81, 13, 0]))), ("protocol", json!(pick(random, &["TCP", "UDP"])))];
        let mut port = some(fields, 0.4, random);
        port["name"] = pick(random, &["web", "web", "web", "db", "db", "db", "far-too-long"]).into();
        port
    };
    let ports: Vec<Value> = (0..random.random_range(0..4)).map(|_| port(random)).collect();
    let tags: Vec<&str> = (0..random.random_range(0..4)).map(|_| pick(random, &["p", "q", "r", "s"])).collect();
    let words: Vec<&str> = (0..random.random_range(0..3)).map(|_| pick(random, &["u", "v"])).collect();
    // Never empty: an apply of a free map without items is stored as null by a real server if others had some in it.
    let mut limits = json!({"mem": "1Gi"});
    if random.random_bool(0.5) {
        limits["cpu"] = pick(random, &[json!(1), json!("100m")]);
    }
    let place = some(vec![("x", json!(1)), ("y", json!(pick(random, &[1, 2])))], 0.5, random);
    let free = some(
        vec![("any", json!({"deep": [1, "two"]})), ("known", json!(false)), ("more", json!(pick(random, &[1, 2])))],
        0.5,
        random,
    );
    let nested = some(
        vec![("mode", json!("hand")), ("deep", pick(random, &[json!({}), json!({"on": true}), json!({"off": 1})]))],
        0.5,
        random,
    );
    let fields = vec![
        ("size", json!(pick(random, &[3, 5, 9, 60, 0]))),
        ("replicas", json!(pick(random, &[0, 2, 4]))),
        ("color", json!(pick(random, &["red", "green", "blue", "pink"]))),
        ("id", json!(pick(random, &["i", "j"]))),
        ("ports", ports.into()),
        ("tags", json!(tags)),
        ("words", json!(words)),
        ("limits", limits),
        ("place", place),
        ("free", free),
        ("maybe", pick(random, &[json!("m"), Value::Null])),
        ("ratio", pick(random, &[json!(0.5), json!(2), json!(1.0)])),
        ("nested", nested),
    ];
    let mut object = json!({"spec": some(fields, share * 0.5, random)});
    // A field with a format is always a text: a real server takes a list there for granted.
    if random.random_bool(share * 0.3) {
        object["spec"]["when"] = pick(random, &["2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", "yesterday"]).into();
    }
    if random.random_bool(0.05) {
        object["spec"]["typo"] = json!({"x": 1});
    }
    if random.random_bool(0.3) {
        let condition = |kind: &str, random: &mut StdRng| json!({"type": kind, "status": pick(random, &["True", "False", "True", "Odd"])});
        let (ready, idle) = (condition("Ready", random), condition("Idle", random));
        let conditions = if random.random_bool(0.5) { json!([ready]) } else { json!([ready, idle]) };
        let status = vec![
            ("replicas", json!(pick(random, &[0, 2]))),
            ("selector", json!("app=x")),
            ("phase", json!(pick(random, &["Up", "Down"]))),
            ("conditions", conditions),
        ];
        object["status"] = some(status, 0.6, random);
    }
    object
}

/// A valid object that every selector of scenarios lets through.
pub fn last(kind: Kind, name: &str) -> Value {
    let labels = json!({"app": "x"});
    let spec = match kind {
        Kind::ConfigMap | Kind::Secret | Kind::Lease => json!({}),
        Kind::Service => json!({"clusterIP": "None"}),
        Kind::StatefulSet | Kind::Deployment => json!({"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}}),
        Kind::PodDisruptionBudget => json!({"selector": {"matchLabels": labels}}),
        Kind::Gizmo => json!({"size": 3}),
    };
    let mut object = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name}});
    if spec.as_object().is_some_and(|map| !map.is_empty()) {
        object["spec"] = spec;
    }
    object
}
