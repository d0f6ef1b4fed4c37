//! CustomResourceDefinitions: served at once, judged by schema and rules, and gone with everything they held.

use http::Request;
use serde_json::{Value, json};

use super::{DEFINITIONS, Sandbox, WIDGETS, widget, widgets};

async fn with_widgets() -> Sandbox {
    let s = Sandbox::start().await;
    s.post(DEFINITIONS, widgets()).await.ok();
    s
}

#[tokio::test]
async fn a_definition_is_established_and_served_in_the_same_breath() {
    let s = with_widgets().await;
    let found = s.get(&format!("{DEFINITIONS}/widgets.example.dev")).await.ok();
    let conditions = found["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    assert_eq!(found["status"]["acceptedNames"]["kind"], "Widget");
    assert_eq!(found["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(s.get(WIDGETS).await.ok()["kind"], "WidgetList");
    let groups = s.get("/apis").await.ok();
    assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == "example.dev"));
    let list = s.get("/apis/example.dev/v1").await.ok();
    let names: Vec<&str> = list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    s.stop().await;
}

#[tokio::test]
async fn objects_are_defaulted_pruned_and_judged() {
    let s = with_widgets().await;
    let mut typo = widget("w", 3);
    typo["spec"]["tpyo"] = json!(1);
    let made = s.post(WIDGETS, typo).await.ok();
    assert_eq!(made["spec"], json!({"size": 3, "replicas": 2, "color": "red"}));
    let status = s.post(WIDGETS, widget("x", 0)).await.refused(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "spec.size");
    assert!(status["message"].as_str().unwrap().starts_with("Widget.example.dev \"x\" is invalid: spec.size"));
    let status = s.post(WIDGETS, widget("a-name-longer-than-twenty-characters", 1)).await.refused(422, "Invalid");
    assert!(status["message"].as_str().unwrap().contains("name is too long"));
    let mut bare = widget("y", 1);
    bare["spec"] = json!({});
    s.post(WIDGETS, bare).await.refused(422, "Invalid");
    s.post(WIDGETS, json!({"metadata": {"name": "y"}, "spec": {"size": 1}})).await.refused(400, "BadRequest");
    s.merge(&format!("{WIDGETS}/w"), json!({"spec": {"size": "big"}})).await.refused(422, "Invalid");
    s.stop().await;
}

#[tokio::test]
async fn transition_rules_hold_through_every_door() {
    let s = with_widgets().await;
    let mut named = widget("w", 1);
    named["spec"]["id"] = json!("one");
    let made = s.post(WIDGETS, named.clone()).await.ok();
    let path = format!("{WIDGETS}/w");
    let mut changed = made.clone();
    changed["spec"]["id"] = json!("two");
    let status = s.put(&path, changed).await.refused(422, "Invalid");
    assert!(status["message"].as_str().unwrap().contains("id cannot change"));
    s.merge(&path, json!({"spec": {"id": "two"}})).await.refused(422, "Invalid");
    named["spec"]["id"] = json!("two");
    s.apply(&format!("{path}?fieldManager=m&force=true"), named).await.refused(422, "Invalid");
    assert_eq!(s.get(&path).await.ok(), made);
    s.stop().await;
}

#[tokio::test]
async fn status_and_spec_have_separate_doors_and_only_spec_counts_generations() {
    let s = with_widgets().await;
    let mut with_status = widget("w", 1);
    with_status["status"] = json!({"replicas": 9});
    let made = s.post(WIDGETS, with_status).await.ok();
    assert!(made.get("status").is_none());
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{WIDGETS}/w");
    let both = json!({"spec": {"size": 5}, "status": {"replicas": 2}, "metadata": {"labels": {"a": "b"}}});
    let main = s.merge(&path, both.clone()).await.ok();
    assert_eq!((main["spec"]["size"].as_i64(), main.get("status")), (Some(5), None));
    assert_eq!(main["metadata"]["generation"], 2);
    let mut more = both;
    more["spec"]["size"] = json!(7);
    more["metadata"]["labels"]["a"] = json!("c");
    let status = s.merge(&format!("{path}/status"), more).await.ok();
    assert_eq!((status["spec"]["size"].as_i64(), status["status"]["replicas"].as_i64()), (Some(5), Some(2)));
    assert_eq!(status["metadata"]["labels"]["a"], "b");
    assert_eq!(status["metadata"]["generation"], 2);
    let label = s.merge(&path, json!({"metadata": {"labels": {"z": "z"}}})).await.ok();
    assert_eq!(label["metadata"]["generation"], 2);
    let apply = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w", "labels": {"no": "no"}},
        "spec": {"size": 9}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let applied = s.apply(&format!("{path}/status?fieldManager=m"), apply).await.ok();
    assert_eq!((applied["spec"]["size"].as_i64(), applied["metadata"]["labels"].get("no")), (Some(5), None));
    assert_eq!(applied["status"]["conditions"][0]["status"], "True");
    let fields = applied["metadata"]["managedFields"].as_array().unwrap().iter().find(|f| f["manager"] == "m").unwrap();
    assert_eq!((fields["subresource"].as_str(), fields["fieldsV1"].get("f:spec")), (Some("status"), None));
    s.stop().await;
}

#[tokio::test]
async fn scale_and_selectable_fields_and_columns_follow_the_definition() {
    let s = with_widgets().await;
    s.post(WIDGETS, widget("w", 1)).await.ok();
    let scale = s.get(&format!("{WIDGETS}/w/scale")).await.ok();
    assert_eq!((scale["kind"].as_str(), scale["spec"]["replicas"].as_i64()), (Some("Scale"), Some(2)));
    s.merge(&format!("{WIDGETS}/w/scale"), json!({"spec": {"replicas": 4}})).await.ok();
    s.merge(&format!("{WIDGETS}/w/scale"), json!({"spec": {"replicas": -4}})).await.refused(422, "Invalid");
    assert_eq!(s.get(&format!("{WIDGETS}/w")).await.ok()["spec"]["replicas"], 4);
    let red = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await.ok();
    assert_eq!(red["items"].as_array().map(Vec::len), Some(1));
    let blue = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.ok();
    assert_eq!(blue["items"].as_array().map(Vec::len), Some(0));
    s.merge(&format!("{WIDGETS}/w/status"), json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}))
        .await
        .ok();
    let request = Request::get(WIDGETS)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table = s.request(request).await.ok();
    assert_eq!(table["rows"][0]["cells"], json!(["w", "False", 1]));
    assert_eq!(table["columnDefinitions"][2]["priority"], 1);
    s.stop().await;
}

#[tokio::test]
async fn bad_definitions_are_refused_and_taken_names_not_served() {
    let s = with_widgets().await;
    let with = |edit: fn(&mut Value)| {
        let mut definition = widgets();
        definition["metadata"]["name"] = json!("gadgets.example.dev");
        definition["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
        edit(&mut definition);
        definition
    };
    let bad: [fn(&mut Value); 6] = [
        |d| d["metadata"]["name"] = json!("wrong.example.dev"),
        |d| d["spec"]["scope"] = json!("Galaxy"),
        |d| d["spec"]["versions"][0]["storage"] = json!(false),
        |d| {
            d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"][0]["rule"] =
                json!("self +")
        },
        |d| d["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"] = json!("nope"),
        |d| d["spec"]["conversion"] = json!({"strategy": "Webhook"}),
    ];
    for edit in bad {
        s.post(DEFINITIONS, with(edit)).await.refused(422, "Invalid");
    }
    let taken = s.post(DEFINITIONS, with(|d| d["spec"]["names"]["shortNames"] = json!(["wd"]))).await.ok();
    let established =
        taken["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Established").unwrap();
    assert_eq!(established["status"], "False");
    s.get("/apis/example.dev/v1/namespaces/default/gadgets").await.refused(404, "NotFound");
    s.merge(&format!("{DEFINITIONS}/gadgets.example.dev"), json!({"spec": {"names": {"shortNames": ["gd"]}}}))
        .await
        .ok();
    s.get("/apis/example.dev/v1/namespaces/default/gadgets").await.ok();
    s.stop().await;
}

#[tokio::test]
async fn a_tightened_schema_excuses_what_stays_and_refuses_what_changes() {
    let s = with_widgets().await;
    s.post(WIDGETS, widget("w", 50)).await.ok();
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum";
    let steps = json!([{"op": "replace", "path": pointer, "value": 10}]).to_string().into_bytes();
    s.send(http::Method::PATCH, &format!("{DEFINITIONS}/widgets.example.dev"), "application/json-patch+json", steps)
        .await
        .ok();
    s.merge(&format!("{WIDGETS}/w"), json!({"spec": {"color": "blue"}})).await.ok();
    s.merge(&format!("{WIDGETS}/w"), json!({"spec": {"size": 49}})).await.refused(422, "Invalid");
    s.post(WIDGETS, widget("x", 50)).await.refused(422, "Invalid");
    s.stop().await;
}

#[tokio::test]
async fn deleting_a_definition_removes_its_objects_and_stops_serving() {
    let s = with_widgets().await;
    for i in 0..5 {
        s.post(WIDGETS, widget(&format!("w{i}"), 1)).await.ok();
    }
    let mut held = widget("held", 1);
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    s.post(WIDGETS, held).await.ok();
    s.delete(&format!("{DEFINITIONS}/widgets.example.dev"), json!({})).await.ok();
    s.until(WIDGETS, "only the held object is left", |a| a.body["items"].as_array().is_some_and(|i| i.len() == 1))
        .await;
    s.post(WIDGETS, widget("late", 1)).await.refused(405, "MethodNotAllowed");
    s.merge(&format!("{WIDGETS}/held"), json!({"metadata": {"finalizers": null}})).await.ok();
    s.until_gone(&format!("{DEFINITIONS}/widgets.example.dev")).await;
    s.get(WIDGETS).await.refused(404, "NotFound");
    s.post(DEFINITIONS, widgets()).await.ok();
    assert_eq!(s.get(WIDGETS).await.ok()["items"], json!([]));
    s.stop().await;
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let s = with_widgets().await;
    let made = s.post(WIDGETS, widget("w", 1)).await.ok();
    let authority = s.kube.authority.clone();
    let token = s.kube.token().to_owned();
    let dir = s.stop().await;
    let s = Sandbox::start_in(dir, crate::store::StoreOptions::sandbox()).await;
    assert_eq!(s.get(&format!("{WIDGETS}/w")).await.ok(), made);
    assert_eq!((s.kube.authority.clone(), s.kube.token().to_owned()), (authority, token));
    s.stop().await;
}
