//! Every field of every resource with a value out of its range, of another type, or left out where it is needed: the API refuses it and
//! names the field. What to try is read from the schemas that are installed, so that a new field is tried without anybody thinking of it.

use std::collections::BTreeSet;

use cellctl::kinds::Kind;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::Sandbox;

const KINDS: [Kind; 6] =
    [Kind::Fleets, Kind::Cells, Kind::Guilds, Kind::Moves, Kind::StorageCells, Kind::StorageMigrations];

/// Specs that are allowed; together those of a kind set every field it has.
fn whole() -> Vec<(Kind, &'static str, Value)> {
    let template = json!({"cpu": "100m", "memory": "1Gi", "nodeSelector": {"zone": "a"}, "extraArgs": ["--x=1"]});
    let role = json!({"replicas": 1, "template": template});
    let roles = json!({"gateway": role, "guild": role, "data": role});
    vec![
        (
            Kind::Fleets,
            "other",
            json!({"etcd": {"endpoints": ["a:1"], "prefix": "/p/", "secretRef": "s"}, "image": {"cell": "i", "pullPolicy": "Always"},
                "entry": {"host": "h", "port": 1, "tlsSecretRef": "s", "service": "NodePort"}, "tokenKeysRef": "s",
                "bootstrapCells": ["a"], "dedicatedTemplate": {"roles": roles}, "paused": false}),
        ),
        (
            Kind::Cells,
            "c",
            json!({"roles": roles, "storageCellRef": "main", "voiceRegions": ["v"], "weight": 1, "availability": "Active",
                "evacuationPolicy": {"deadlineSeconds": 1, "reconnectsPerSecond": 1, "maxUnavailable": 1}}),
        ),
        (
            Kind::Guilds,
            "g-5",
            json!({"guildId": "5", "placement": {"cell": "a"}, "voiceRegion": "v", "limits": {"members": 1, "messagesPerSecond": 1},
                "promotion": {"auto": true, "sessionsAbove": 1, "messagesPerSecondAbove": 1, "holdForSeconds": 0}}),
        ),
        (Kind::Guilds, "g-5", json!({"guildId": "5", "placement": {"dedicated": {"template": roles}}})),
        (
            Kind::Moves,
            "m",
            json!({"guild": "5", "from": "a", "to": "b", "cause": "Requested", "deadlineSeconds": 1, "rollbackWindowSeconds": 0,
                "ttlAfterFinishedSeconds": 0, "mergeIntoBucket": false, "abort": false, "rollback": false}),
        ),
        (Kind::Moves, "m", json!({"units": ["b0001"], "from": "a", "to": "b"})),
        (
            Kind::StorageCells,
            "s",
            json!({"engine": "embedded", "deletionPolicy": "Retain",
                "embedded": {"size": "1Gi", "storageClassName": "c", "reserve": "64Mi"}}),
        ),
        (
            Kind::StorageCells,
            "s",
            json!({"engine": "cassandra", "keyspace": "k", "consistency": "Quorum", "replication": {"d": 1},
                "external": {"contactPoints": ["a:1"], "datacenter": "d", "secretRef": "s", "tls": {"caSecretRef": "s"}}}),
        ),
        (
            Kind::StorageCells,
            "s",
            json!({"engine": "scylla", "keyspace": "k", "managed": {"datacenter": "d", "version": "6.2", "secretRef": "s",
                "racks": [{"name": "r", "members": 1, "cpu": "1", "memory": "1Gi", "storage": "1Gi", "storageClassName": "c"}]}}),
        ),
        (
            Kind::StorageMigrations,
            "m",
            json!({"source": "a", "target": "b", "scope": {"units": ["b0001"]}, "targetStage": "Prepare", "verifyRequests": 0,
                "throttle": {"paused": false, "rowsPerSecond": 1}, "rollbackWindowSeconds": 0, "receiptMaxAgeSeconds": 60,
                "shadowRead": {"perTenThousand": 0, "minSamples": 0, "maxMismatch": 0}, "abort": false, "rollback": false,
                "acceptLoss": false, "ignoreUnreachable": false,
                "workers": {"replicas": 1, "storageClassName": "c", "volumeSize": "1Gi"}}),
        ),
    ]
}

/// One wrong value.
struct Wrong {
    /// JSON pointer to where it goes.
    at: String,
    /// None takes the field away.
    value: Option<Value>,
    /// The field that the refusal must name.
    field: String,
}

/// What there is to try below one place of a schema, and which places were seen.
#[derive(Default)]
struct Trials {
    wrong: Vec<Wrong>,
    seen: BTreeSet<String>,
    unseen: BTreeSet<String>,
}

impl Trials {
    fn add(&mut self, at: &str, field: &str, value: impl Into<Option<Value>>) {
        self.wrong.push(Wrong { at: at.to_owned(), value: value.into(), field: field.to_owned() });
    }

    fn walk(&mut self, schema: &Value, value: &Value, at: &str, field: &str) {
        self.seen.insert(field.to_owned());
        let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
        let size = |name: &str| bound(name).and_then(|bound| usize::try_from(bound).ok());
        match schema["type"].as_str().unwrap_or_default() {
            "integer" => {
                self.add(at, field, json!("x"));
                self.add(at, field, json!(1.5));
                self.add(at, field, json!(i64::MAX));
                bound("minimum").into_iter().for_each(|least| self.add(at, field, json!(least - 1)));
                bound("maximum").into_iter().for_each(|most| self.add(at, field, json!(most + 1)));
            }
            "boolean" => self.add(at, field, json!("yes")),
            "string" => {
                self.add(at, field, json!(5));
                if schema["enum"].is_array() || schema["pattern"].is_string() {
                    self.add(at, field, json!("Wrong value!"));
                }
                if size("minLength").is_some_and(|least| least > 0) {
                    self.add(at, field, json!(""));
                }
                size("maxLength").into_iter().for_each(|most| self.add(at, field, json!("a".repeat(most + 1))));
            }
            "array" => {
                self.add(at, field, json!({"a": 1}));
                if size("minItems").is_some_and(|least| least > 0) {
                    self.add(at, field, json!([]));
                }
                size("maxItems").into_iter().for_each(|most| self.add(at, field, json!(vec![&value[0]; most + 1])));
                self.walk(&schema["items"], &value[0], &format!("{at}/0"), field);
            }
            _ => self.walk_object(schema, value, at, field),
        }
    }

    fn walk_object(&mut self, schema: &Value, value: &Value, at: &str, field: &str) {
        self.add(at, field, json!("x"));
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.add(&format!("{at}/{name}"), &format!("{field}.{name}"), None);
        }
        for (name, part) in schema["properties"].as_object().into_iter().flatten() {
            let inner = format!("{field}.{name}");
            match value.get(name) {
                Some(value) => self.walk(part, value, &format!("{at}/{name}"), &inner),
                None => drop(self.unseen.insert(inner)),
            }
        }
        if let Some((key, entry)) =
            value.as_object().filter(|_| schema["additionalProperties"].is_object()).and_then(|map| map.iter().next())
        {
            let most = schema["maxProperties"].as_u64().unwrap_or(0);
            let many: serde_json::Map<_, _> = (0..=most).map(|number| (format!("k{number}"), entry.clone())).collect();
            self.add(at, field, Value::Object(many));
            self.walk(&schema["additionalProperties"], entry, &format!("{at}/{key}"), field);
        }
    }
}

/// A spec with one value replaced or taken away.
fn with(spec: &Value, wrong: &Wrong) -> Value {
    let mut whole = json!({"spec": spec});
    match &wrong.value {
        Some(value) => *whole.pointer_mut(&wrong.at).unwrap() = value.clone(),
        None => {
            let (parent, name) = wrong.at.rsplit_once('/').unwrap();
            whole.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        }
    }
    whole["spec"].take()
}

/// Whether the API would take it; nothing is stored.
async fn would_take(sandbox: &Sandbox, kind: Kind, name: &str, spec: &Value) -> Result<(), String> {
    let object = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": kind.singular(), "metadata": {"name": name}, "spec": spec});
    let parameters = PatchParams::apply("e2e-fields").dry_run();
    match sandbox.api(kind).patch(name, &parameters, &Patch::Apply(&object)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message.clone()),
        Err(error) => panic!("{name}: {error}"),
    }
}

async fn schema(sandbox: &Sandbox, kind: Kind) -> Value {
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}.cellplane.dev", kind.plural());
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let definition: Value = sandbox.client.request(request).await.unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Tries all of it; nothing is stored.
pub async fn each_out_of_range_is_refused_by_name(sandbox: &Sandbox) {
    let (mut faults, mut tried) = (Vec::new(), 0);
    for kind in KINDS {
        let schema = schema(sandbox, kind).await;
        let (mut seen, mut unseen) = (BTreeSet::new(), BTreeSet::new());
        for (_, name, spec) in whole().into_iter().filter(|(one, _, _)| *one == kind) {
            would_take(sandbox, kind, name, &spec).await.unwrap_or_else(|why| panic!("{kind:?} {spec}: {why}"));
            let mut trials = Trials::default();
            trials.walk(&schema, &spec, "/spec", "spec");
            for wrong in &trials.wrong {
                tried += 1;
                let what = format!(
                    "{kind:?} {}: {}",
                    wrong.at,
                    wrong.value.as_ref().map_or("left out".to_owned(), Value::to_string)
                );
                match would_take(sandbox, kind, name, &with(&spec, wrong)).await {
                    Ok(()) => faults.push(format!("taken: {}", &what[..what.len().min(200)])),
                    Err(message) if !message.replace("[0]", "").contains(&wrong.field) => {
                        faults
                            .push(format!("{}: the refusal does not name it: {message}", &what[..what.len().min(200)]));
                    }
                    Err(_) => {}
                }
            }
            seen.append(&mut trials.seen);
            unseen.append(&mut trials.unseen);
        }
        let missed: Vec<_> = unseen.iter().filter(|field| !seen.contains(*field)).collect();
        assert!(missed.is_empty(), "{kind:?}: no spec of this test sets {missed:?}");
    }
    println!("{tried} wrong values");
    assert!(tried > 500, "only {tried} values were tried");
    assert!(faults.is_empty(), "{} of {tried}:\n{}", faults.len(), faults.join("\n"));
}

/// Names as long as they may be are taken, longer ones and those that no Service can have are not.
pub async fn names_are_taken_up_to_their_limit(sandbox: &Sandbox) {
    for (kind, _, spec) in whole() {
        let most = match kind {
            Kind::Guilds => continue,
            Kind::Moves => 63,
            _ => 40,
        };
        would_take(sandbox, kind, &"a".repeat(most), &spec).await.unwrap_or_else(|why| panic!("{kind:?}: {why}"));
        let mut bad = vec!["a".repeat(most + 1)];
        if kind != Kind::Moves {
            bad.extend(["1a", "a.b"].map(str::to_owned));
        }
        for name in bad {
            let why = would_take(sandbox, kind, &name, &spec).await.expect_err(&name);
            assert!(why.contains("metadata.name"), "{kind:?} {name}: {why}");
        }
    }
    let (largest, spec) = ("g-9223372036854775807", json!({"guildId": "9223372036854775807"}));
    would_take(sandbox, Kind::Guilds, largest, &spec).await.unwrap();
}
