//! The same requests to a real API server and to ours: answers must agree where clients look, that is in code, reason, causes, spec,
//! data, status, labels, finalizers, generation and who owns which field.

use std::collections::BTreeSet;

use http::{Method, Request};
use serde_json::{Value, json};

use super::watches::Events;
use super::{Answer, DEFINITIONS, Sandbox, config_map, pod, send, widget, widgets};

/// One request of the script; `NS` in the path stands for the namespace.
struct Step {
    method: Method,
    path: String,
    kind: &'static str,
    body: Value,
}

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn step(method: Method, path: &str, kind: &'static str, body: Value) -> Step {
    Step { method, path: path.to_owned(), kind, body }
}

fn post(path: &str, body: Value) -> Step {
    step(Method::POST, path, "application/json", body)
}

fn put(path: &str, body: Value) -> Step {
    step(Method::PUT, path, "application/json", body)
}

fn get(path: &str) -> Step {
    step(Method::GET, path, "", Value::Null)
}

fn delete(path: &str, body: Value) -> Step {
    step(Method::DELETE, path, "application/json", body)
}

fn patch(path: &str, kind: &'static str, body: Value) -> Step {
    step(Method::PATCH, path, kind, body)
}

fn config_map_steps() -> Vec<Step> {
    let maps = "/api/v1/namespaces/NS/configmaps";
    let at = |rest: &str| format!("{maps}/{rest}");
    let with = |key: &str, value: Value| {
        let mut object = config_map("a", "1");
        object["metadata"][key] = value;
        object
    };
    let data = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
    let two = |finalizer: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "finalizers": [finalizer]}, "data": {finalizer: "x"}});
    vec![
        post(maps, config_map("a", "1")),
        post(maps, config_map("a", "1")),
        get(&at("a")),
        get(&at("nobody")),
        post(maps, config_map("Bad_Name", "1")),
        post(maps, json!({"metadata": {}})),
        post(maps, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "q"}})),
        post(maps, json!({"metadata": {"name": "q", "namespace": "other"}})),
        post("/api/v1/namespaces/nobody-made-this/configmaps", config_map("a", "1")),
        post(maps, json!({"metadata": {"name": "q"}, "data": {"k": 5}})),
        put(&at("a"), with("resourceVersion", json!("1"))),
        put(&at("a"), with("uid", json!("other"))),
        put(&at("b"), config_map("a", "1")),
        put(&at("zz"), config_map("zz", "1")),
        put(&at("a?fieldManager=putter"), data(json!({"k": "2", "l": "3"}))),
        patch(&at("a?fieldManager=merger"), MERGE, json!({"data": {"k": null, "m": "4"}})),
        patch(&at("a"), JSON, json!([{"op": "test", "path": "/data/m", "value": "9"}])),
        patch(&at("a"), JSON, json!([{"op": "remove", "path": "/data/zz"}])),
        patch(&at("a"), JSON, json!([{"op": "jump", "path": "/data/zz"}])),
        patch(&at("a"), MERGE, json!([1])),
        patch(&at("zz"), MERGE, json!({})),
        patch(&at("a"), "application/json", json!({})),
        patch(&at("a"), APPLY, config_map("a", "1")),
        patch(&at("a?fieldManager=one"), APPLY, data(json!({"m": "5"}))),
        patch(&at("a?fieldManager=one&force=true"), APPLY, data(json!({"m": "5"}))),
        patch(&at("a?fieldManager=two"), APPLY, data(json!({"m": "5", "z": "1"}))),
        patch(&at("a?fieldManager=two"), APPLY, data(json!({"m": "5"}))),
        patch(&at("a?fieldManager=two"), APPLY, config_map("bb", "1")),
        patch(&at("a?fieldManager=two"), APPLY, json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"z": "1"}})),
        patch(
            &at("unmade?fieldManager=two"),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"z": "1"}}),
        ),
        patch(
            &at("a?fieldManager=two"),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "foo": 1}),
        ),
        patch(&at("n?fieldManager=one"), APPLY, two("x.y/z")),
        patch(&at("n?fieldManager=two"), APPLY, two("x.y/q")),
        get(&format!("{maps}?labelSelector=a%20b")),
        get(&format!("{maps}?fieldSelector=data.k%3D1")),
        get(&format!("{maps}?resourceVersion=99999999")),
        get(&format!("{maps}?resourceVersionMatch=Exact")),
        get(&format!("{maps}?watch=true&sendInitialEvents=true")),
        delete(&at("n"), json!({})),
        patch(&at("n"), MERGE, json!({"metadata": {"finalizers": ["x.y/q", "x.y/z", "a.b/c"]}})),
        patch(&at("n"), MERGE, json!({"metadata": {"finalizers": null}})),
        get(&at("n")),
        delete(&at("a"), json!({"preconditions": {"uid": "zz"}})),
        delete(&at("a"), json!({"preconditions": {"resourceVersion": "1"}})),
        delete(&at("a"), json!({"propagationPolicy": "Sideways"})),
        delete(&at("a"), json!({})),
        delete(&at("a"), json!({})),
        post(&at("a"), config_map("a", "1")),
        delete("/api/v1/configmaps", json!({})),
        get("/api/v1/nobodies"),
    ]
}

fn pod_steps() -> Vec<Step> {
    let pods = "/api/v1/namespaces/NS/pods";
    let binding = |node: &str| json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    let running = json!({"metadata": {"labels": {"seen": "yes"}}, "status": {"phase": "Running"}});
    vec![
        post(pods, json!({"metadata": {"name": "q"}, "spec": {"containers": []}})),
        post(&format!("{pods}?dryRun=All"), pod("p")),
        post(&format!("{pods}?fieldValidation=Strict"), json!({"metadata": {"name": "q"}, "spec": {"contaners": []}})),
        post(pods, pod("p")),
        post(&format!("{pods}/p/binding"), binding("n1")),
        post(&format!("{pods}/p/binding"), binding("n2")),
        patch(&format!("{pods}/p"), MERGE, json!({"spec": {"nodeName": "n2"}})),
        patch(&format!("{pods}/p/status?fieldManager=agent"), MERGE, running),
        delete(&format!("{pods}/p"), json!({})),
        delete(&format!("{pods}/p"), json!({"gracePeriodSeconds": 5})),
        delete(&format!("{pods}/p"), json!({"gracePeriodSeconds": 0})),
        get(&format!("{pods}/p")),
    ]
}

/// Evictions under a budget that has been counted: refused while it allows none.
fn eviction_steps() -> Vec<Step> {
    let pods = "/api/v1/namespaces/NS/pods";
    let budgets = "/apis/policy/v1/namespaces/NS/poddisruptionbudgets";
    let at = |rest: &str| format!("{pods}/guarded/{rest}");
    let mut guarded = pod("guarded");
    guarded["metadata"]["labels"] = json!({"app": "guarded"});
    let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}});
    let counted = |generation: i64| json!({"status": {"observedGeneration": generation, "desiredHealthy": 1, "currentHealthy": 1, "expectedPods": 1}});
    let bound = json!({"metadata": {"name": "guarded"}, "target": {"kind": "Node", "name": "n1"}});
    let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    vec![
        post(pods, guarded),
        post(&at("binding"), bound),
        post(budgets, budget),
        patch(&at("status"), MERGE, running),
        patch(&format!("{budgets}/guard/status"), MERGE, counted(1)),
        post(&at("eviction"), eviction("guarded")),
        post(&at("eviction"), eviction("another")),
        post(&format!("{pods}/nobody/eviction"), eviction("nobody")),
        patch(&format!("{budgets}/guard"), MERGE, json!({"spec": {"minAvailable": 2}})),
        patch(&format!("{budgets}/guard/status"), MERGE, counted(2)),
        post(&at("eviction"), eviction("guarded")),
        delete(&format!("{budgets}/guard"), json!({})),
        post(&format!("{}?dryRun=All", at("eviction")), eviction("guarded")),
        get(&at("")[..at("").len() - 1]),
        post(&at("eviction"), json!({"metadata": {"name": "guarded"}, "deleteOptions": {"gracePeriodSeconds": 0}})),
        get(&at("")[..at("").len() - 1]),
    ]
}

fn widget_steps() -> Vec<Step> {
    let all = "/apis/example.dev/v1/namespaces/NS/widgets";
    let at = |rest: &str| format!("{all}/{rest}");
    let with = |name: &str, spec: Value| {
        let mut object = widget(name, 3);
        for (key, value) in spec.as_object().into_iter().flatten() {
            object["spec"][key] = value.clone();
        }
        object
    };
    let status = json!({"spec": {"size": 7}, "status": {"replicas": 2}, "metadata": {"labels": {"a": "c"}}});
    let applied_status = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w", "labels": {"z": "z"}},
        "spec": {"size": 9}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let ports = |ports: Value| with("w", json!({"size": 9, "ports": ports}));
    let mut steps = vec![post(
        &format!("{all}?fieldManager=maker"),
        with("w", json!({"tpyo": 1, "id": "a", "ports": [{"name": "x", "port": 1}]})),
    )];
    let bad = [
        json!({"size": 0}),
        json!({"size": "x"}),
        json!({"size": null}),
        json!({"color": null}),
        json!({"color": 5}),
        json!({"ports": "x"}),
        json!({"ports": [{"name": "a"}, {"name": "a"}]}),
        json!({"ports": [{"port": 1}]}),
    ];
    steps.extend(
        bad.into_iter()
            .enumerate()
            .map(|(i, spec)| post(&format!("{all}?fieldManager=maker"), with(&format!("bad{i}"), spec))),
    );
    steps.extend([
        post(all, widget("a-name-longer-than-twenty-chars", 1)),
        post(all, json!({"metadata": {"name": "bare"}, "spec": {"size": 1}})),
        post(&format!("{all}?fieldValidation=Strict"), with("strict", json!({"tpyo": 1}))),
        put(&at("w"), widget("w", 1)),
        patch(&at("w?fieldManager=m"), MERGE, json!({"spec": {"id": "b"}})),
        patch(&at("w?fieldManager=m"), MERGE, json!({"spec": {"size": 5}, "status": {"replicas": 2}, "metadata": {"labels": {"a": "b"}}})),
        patch(&at("w/status?fieldManager=m"), MERGE, status),
        patch(&at("w/status?fieldManager=reporter"), APPLY, applied_status),
        patch(&at("w?fieldManager=applier"), APPLY, ports(json!([{"name": "x", "port": 2}, {"name": "y", "port": 2}]))),
        patch(&at("w?fieldManager=applier&force=true"), APPLY, ports(json!([{"name": "x", "port": 2}, {"name": "y", "port": 2}]))),
        patch(&at("w?fieldManager=applier&force=true"), APPLY, ports(json!([{"name": "y", "port": 2}]))),
        patch(&at("w?fieldManager=applier"), APPLY, ports(json!([{"name": "y"}, {"name": "y"}]))),
        patch(&at("w?fieldManager=applier"), APPLY, with("w", json!({"bogus": 1}))),
        patch(&at("w?fieldManager=nuller"), APPLY, with("w", json!({"size": 9, "id": null}))),
        patch(&at("nobody/status?fieldManager=reporter"), APPLY, widget("nobody", 1)),
        patch(&at("w"), "application/strategic-merge-patch+json", json!({})),
        get(&at("w")),
        get(&at("w/scale")),
        put(&at("w/scale?fieldManager=scaler"), json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "w"}, "spec": {"replicas": 4}})),
        get(&format!("{all}?fieldSelector=spec.size%3D9")),
        delete(&at("w"), json!({"propagationPolicy": "Foreground"})),
    ]);
    steps
}

fn bad_definitions() -> Vec<Step> {
    let edits: [fn(&mut Value); 7] = [
        |d| {
            d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"][0]["rule"] =
                json!("self.nope == 1")
        },
        |d| d["metadata"]["name"] = json!("wrong.example.dev"),
        |d| d["spec"]["scope"] = json!("Galaxy"),
        |d| d["spec"]["versions"][0]["storage"] = json!(false),
        |d| d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["z"] = json!({}),
        |d| {
            d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["z"] =
                json!({"type": "array"})
        },
        |d| {
            d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"][0]["rule"] =
                json!("self +")
        },
    ];
    edits
        .iter()
        .map(|edit| {
            let mut definition = widgets();
            definition["metadata"]["name"] = json!("gadgets.example.dev");
            definition["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
            edit(&mut definition);
            post(DEFINITIONS, definition)
        })
        .collect()
}

fn job_steps() -> Vec<Step> {
    let jobs = "/apis/batch/v1/namespaces/NS/jobs";
    let at = |rest: &str| format!("{jobs}/{rest}");
    let with = |name: &str, spec: Value| {
        let mut whole =
            json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x:1"}]}}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole})
    };
    let policy = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]});
    let always = json!({"template": {"spec": {"containers": [{"name": "c", "image": "x:1"}]}}});
    vec![
        post(jobs, with("a", json!({}))),
        get(&at("a")),
        post(jobs, with("b", json!({"parallelism": 2}))),
        post(jobs, with("c", json!({"completions": 2, "completionMode": "Indexed", "podFailurePolicy": policy}))),
        post(jobs, with("d", json!({"completionMode": "Indexed"}))),
        post(jobs, with("d", always)),
        post(jobs, with("d", json!({"parallelism": -1}))),
        post(jobs, with("e", json!({"manualSelector": true}))),
        patch(&at("a"), MERGE, json!({"spec": {"parallelism": 3}})),
        patch(&at("a"), MERGE, json!({"spec": {"completions": 3}})),
        patch(&at("a"), MERGE, json!({"spec": {"suspend": true, "ttlSecondsAfterFinished": 5}})),
        patch(&at("a"), MERGE, json!({"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}})),
        delete(&at("a"), json!({"propagationPolicy": "Background"})),
        get(&at("a")),
        delete(&at("b"), json!({"propagationPolicy": "Background"})),
        delete(&at("c"), json!({"propagationPolicy": "Background"})),
    ]
}

fn deployment_steps() -> Vec<Step> {
    let all = "/apis/apps/v1/namespaces/NS/deployments";
    let web = format!("{all}/web");
    let of = |containers: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}}})
    };
    let a =
        json!({"name": "a", "image": "a:1", "ports": [{"containerPort": 80}], "env": [{"name": "X", "value": "1"}]});
    let b = json!({"name": "b", "image": "b:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let strategic = |spec: Value| patch(&web, STRATEGIC, json!({"spec": {"template": {"spec": spec}}}));
    vec![
        post(all, of(json!([a]))),
        strategic(json!({"containers": [{"name": "a", "image": "a:2", "ports": [{"containerPort": 81}]}]})),
        strategic(json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [b]})),
        strategic(
            json!({"containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}, {"name": "Y", "value": "2"}]}]}),
        ),
        strategic(
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b", "image": "b:2"}]}),
        ),
        strategic(
            json!({"containers": [{"name": "b", "$patch": "delete"}], "volumes": [{"name": "v", "$patch": "delete"}]}),
        ),
        strategic(json!({"tolerations": [{"key": "k", "operator": "Exists"}]})),
        strategic(json!({"tolerations": [{"key": "l", "operator": "Exists"}]})),
        strategic(json!({"nodeSelector": {"x": "1"}})),
        strategic(json!({"nodeSelector": {"$patch": "replace", "y": "1"}})),
        patch(&web, STRATEGIC, json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}})),
        patch(&web, STRATEGIC, json!({"metadata": {"finalizers": ["a.b/c", "a.b/d"]}})),
        patch(&web, STRATEGIC, json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.b/c"]}})),
        patch(&web, STRATEGIC, json!({"spec": {"replicas": null}})),
        patch(&web, STRATEGIC, json!([1])),
        patch(&format!("{web}?fieldValidation=Strict"), STRATEGIC, json!({"spec": {"nonsense": 1}})),
        patch(&format!("{web}?fieldManager=applier"), APPLY, of(json!([{"name": "c", "image": "c:1"}]))),
        patch(
            &format!("{web}?fieldManager=applier"),
            APPLY,
            of(json!([{"name": "d", "image": "d:1", "ports": [{"containerPort": 1}]}])),
        ),
        patch(&format!("{web}?fieldManager=other"), APPLY, of(json!([{"name": "d", "image": "d:2"}]))),
        patch(&format!("{web}?fieldManager=other&force=true"), APPLY, of(json!([{"name": "d", "image": "d:2"}]))),
        patch(&web, MERGE, json!({"metadata": {"finalizers": null}})),
        delete(&web, json!({})),
    ]
}

/// What clients look at.
fn view(answer: &Answer, path: &str) -> Value {
    let uid = answer.body["metadata"]["uid"].as_str().unwrap_or("no uid");
    let body = &serde_json::from_str::<Value>(&answer.body.to_string().replace(uid, "UID")).unwrap();
    let causes: BTreeSet<String> = body["details"]["causes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| format!("{} {}", c["reason"], c["field"]))
        .collect();
    if body["kind"] == "Status" {
        let again = body["details"]["retryAfterSeconds"].is_number();
        // Where the faults of a definition lie is told by other paths; that they are told is what matters.
        let causes = if path.starts_with(DEFINITIONS) { json!(null) } else { json!(causes) };
        return json!({"code": answer.code, "reason": body["reason"], "causes": causes, "says when to try again": again});
    }
    let meta = &body["metadata"];
    let owners: BTreeSet<String> = meta["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|f| format!("{} {} {} {}", f["manager"], f["operation"], f["subresource"], f["fieldsV1"]))
        .collect();
    let pod = path.contains("/pods");
    let detailed = pod || path.contains("/jobs");
    // Admission plugins of the real server add to a Pod's spec, and owners of its parts are told in more detail.
    let owners = if detailed { json!(null) } else { json!(owners) };
    let spec = if pod { body["spec"]["nodeName"].clone() } else { body["spec"].clone() };
    let status = if pod { body["status"]["phase"].clone() } else { body["status"].clone() };
    json!({"code": answer.code, "kind": body["kind"], "spec": spec, "data": body["data"], "status": status, "labels": meta["labels"],
        "finalizers": meta["finalizers"], "generation": meta["generation"], "owners": owners,
        "grace": meta["deletionGracePeriodSeconds"], "deleting": meta["deletionTimestamp"].is_string()})
}

async fn take(client: &kube::Client, step: &Step, namespace: &str) -> Answer {
    let body = if step.body.is_null() { Vec::new() } else { step.body.to_string().into_bytes() };
    let mut request = Request::builder().method(step.method.clone()).uri(step.path.replace("NS", namespace));
    if !step.kind.is_empty() {
        request = request.header("content-type", step.kind);
    }
    send(client, request.header("user-agent", "parity").body(body).unwrap()).await
}

async fn until_served(client: &kube::Client, namespace: &str) {
    let list = get("/apis/example.dev/v1/namespaces/NS/widgets");
    for _ in 0..500 {
        if take(client, &list, namespace).await.code == 200 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the definition is not served");
}

#[tokio::test]
#[ignore = "needs a real kube-apiserver, its kubeconfig named in CELL_REAL_KUBECONFIG"]
async fn a_real_server_answers_the_same() {
    let real = std::env::var_os("CELL_REAL_KUBECONFIG").expect("CELL_REAL_KUBECONFIG names a kubeconfig");
    let s = Sandbox::start().await;
    let real = super::client(real.into()).await;
    let namespace = format!("parity-{}", uuid::Uuid::new_v4().simple());
    for client in [&real, &s.client] {
        let made =
            take(client, &post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})), &namespace).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let made = take(client, &post(DEFINITIONS, widgets()), &namespace).await;
        assert_eq!(made.code, 201, "{}", made.body);
        until_served(client, &namespace).await;
    }
    let steps = [
        config_map_steps(),
        pod_steps(),
        eviction_steps(),
        job_steps(),
        deployment_steps(),
        widget_steps(),
        bad_definitions(),
    ]
    .into_iter()
    .flatten();
    let mut differing = Vec::new();
    for (i, step) in steps.enumerate() {
        let theirs = take(&real, &step, &namespace).await;
        let ours = take(&s.client, &step, &namespace).await;
        let (a, b) = (view(&theirs, &step.path), view(&ours, &step.path));
        if a != b {
            differing.push(format!(
                "{i} {} {}\n  real {a}\n  ours {b}\n  real says {}",
                step.method, step.path, theirs.body["message"]
            ));
        }
    }
    for path in ["/api/v1/namespaces/NS", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.dev"]
    {
        take(&real, &delete(path, json!({})), &namespace).await;
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    s.stop().await;
}

/// What a watch tells of an event.
fn told(event: &Value) -> String {
    let object = &event["object"];
    let meta = &object["metadata"];
    let end = &meta["annotations"]["k8s.io/initial-events-end"];
    let rows: Vec<&Value> = object["rows"].as_array().into_iter().flatten().map(|r| &r["cells"][0]).collect();
    let columns = object["columnDefinitions"].as_array().map(Vec::len);
    format!(
        "{} {} {} {} {} {end} {rows:?} {columns:?} {}",
        event["type"],
        object["kind"],
        meta["name"],
        meta["labels"],
        object["data"],
        meta["deletionTimestamp"].is_string()
    )
}

async fn told_of(client: &kube::Client, namespace: &str, query: &str, accept: &str) -> Vec<String> {
    let maps = "/api/v1/namespaces/NS/configmaps";
    let labelled = |name: &str, label: &str, value: &str| {
        let mut object = config_map(name, value);
        object["metadata"]["labels"] = json!({"l": label});
        object
    };
    let at = |name: &str| format!("{maps}/{name}");
    for (name, label) in [("a", "in"), ("b", "out")] {
        take(client, &post(maps, labelled(name, label, "1")), namespace).await;
    }
    let path = format!("{maps}?watch=true&{query}").replace("NS", namespace);
    let mut events = Events::open_as(client, &path, accept).await;
    let script = [
        patch(&at("a"), MERGE, json!({"data": {"key": "2"}})),
        patch(&at("a"), MERGE, json!({"metadata": {"labels": {"l": "out"}}})),
        patch(&at("a"), MERGE, json!({"data": {"key": "3"}})),
        patch(&at("b"), MERGE, json!({"metadata": {"labels": {"l": "in"}}})),
        patch(&at("b"), MERGE, json!({"metadata": {"finalizers": ["x.y/z"]}})),
        delete(&at("b"), json!({})),
        patch(&at("b"), MERGE, json!({"metadata": {"finalizers": null}})),
        delete(&at("a"), json!({})),
        post(maps, labelled("last", "in", "1")),
    ];
    for step in &script {
        take(client, step, namespace).await;
    }
    let mut out = Vec::new();
    while let Some(event) = events.next().await {
        let line = told(&event);
        let last = line.contains("last");
        out.push(line);
        if last {
            break;
        }
    }
    take(client, &delete(&at("last"), json!({})), namespace).await;
    out
}

#[tokio::test]
#[ignore = "needs a real kube-apiserver, its kubeconfig named in CELL_REAL_KUBECONFIG"]
async fn a_real_server_tells_the_same_events() {
    let real = std::env::var_os("CELL_REAL_KUBECONFIG").expect("CELL_REAL_KUBECONFIG names a kubeconfig");
    let s = Sandbox::start().await;
    let real = super::client(real.into()).await;
    let namespace = format!("parity-{}", uuid::Uuid::new_v4().simple());
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let initial = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    for client in [&real, &s.client] {
        take(client, &post("/api/v1/namespaces", json!({"metadata": {"name": namespace}})), &namespace).await;
    }
    for (query, accept) in [
        ("labelSelector=l%3Din", "application/json"),
        ("labelSelector=l%3Din", table),
        ("labelSelector=l%3Din", metadata),
        (&format!("{initial}&labelSelector=l%3Din"), "application/json"),
        (&format!("{initial}&fieldSelector=metadata.name!%3Da,metadata.name!%3Dkube-root-ca.crt"), "application/json"),
    ] {
        let theirs = told_of(&real, &namespace, query, accept).await;
        let ours = told_of(&s.client, &namespace, query, accept).await;
        assert_eq!(theirs, ours, "{query} {accept}");
    }
    take(&real, &delete("/api/v1/namespaces/NS", json!({})), &namespace).await;
    s.stop().await;
}
