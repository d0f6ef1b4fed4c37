//! Creating, reading, changing and listing objects.

use http::{Method, Request};
use serde_json::json;

use super::{CONFIG_MAPS, PODS, Sandbox, config_map, pod};

#[tokio::test]
async fn an_object_is_made_read_changed_and_deleted() {
    let s = Sandbox::start().await;
    let made = s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    let meta = &made["metadata"];
    assert!(
        !meta["uid"].as_str().unwrap().is_empty()
            && meta["creationTimestamp"].is_string()
            && meta["resourceVersion"].is_string()
    );
    s.post(CONFIG_MAPS, config_map("a", "1")).await.refused(409, "AlreadyExists");
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(s.get(&path).await.ok(), made);
    let mut new = made.clone();
    new["data"]["key"] = json!("2");
    let changed = s.put(&path, new.clone()).await.ok();
    assert_ne!(changed["metadata"]["resourceVersion"], meta["resourceVersion"]);
    s.put(&path, new).await.refused(409, "Conflict");
    let gone = s.delete(&path, json!({})).await.ok();
    assert_eq!((gone["kind"].as_str(), gone["status"].as_str()), (Some("Status"), Some("Success")));
    let status = s.get(&path).await.refused(404, "NotFound");
    assert_eq!(status["details"]["name"], "a");
    assert_eq!(status["message"], "configmaps \"a\" not found");
    s.stop().await;
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_not_a_write() {
    let s = Sandbox::start().await;
    let made = s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let before = s.store.revision();
    assert_eq!(s.put(&path, made.clone()).await.ok(), made);
    assert_eq!(s.merge(&path, json!({"data": {"key": "1"}})).await.ok(), made);
    let without_fields = config_map("a", "1");
    assert_eq!(s.put(&path, without_fields).await.ok(), made);
    let applied = s.apply(&format!("{path}?fieldManager=m"), config_map("a", "1")).await.ok();
    let again = s.apply(&format!("{path}?fieldManager=m"), config_map("a", "1")).await.ok();
    assert_eq!(applied, again);
    assert_eq!(s.store.revision(), before + 1, "only the first apply wrote: it made an owner");
    s.stop().await;
}

#[tokio::test]
async fn applying_nulls_again_and_again_writes_once() {
    let s = Sandbox::start().await;
    s.post(super::DEFINITIONS, super::widgets()).await.ok();
    let config = json!({"apiVersion": "example.dev/v1", "kind": "Widget",
        "metadata": {"name": "w", "labels": null, "creationTimestamp": null}, "spec": {"size": 1, "ports": []}});
    let path = format!("{}/w?fieldManager=m", super::WIDGETS);
    let first = s.apply(&path, config.clone()).await.ok();
    assert!(first["metadata"].get("labels").is_none());
    let later = s.store.revision();
    // The second apply carries another time than the first.
    let second = crate::kube_api::object::now().as_second();
    while crate::kube_api::object::now().as_second() == second {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(s.apply(&path, config.clone()).await.ok(), first);
    assert_eq!(s.store.revision(), later);
    let mut nothing = config.clone();
    nothing["spec"]["id"] = json!(null);
    s.apply(&path, nothing).await.refused(422, "Invalid");
    let mut unknown = config;
    unknown["spec"]["tpyo"] = json!(1);
    let status = s.apply(&path, unknown).await.refused(500, "");
    assert!(status["message"].as_str().unwrap().ends_with(".spec.tpyo: field not declared in schema"), "{status}");
    s.stop().await;
}

#[tokio::test]
async fn secrets_written_as_text_are_read_encoded() {
    let s = Sandbox::start().await;
    let path = "/api/v1/namespaces/default/secrets";
    let made = s.post(path, json!({"metadata": {"name": "a"}, "stringData": {"k": "hello"}})).await.ok();
    assert_eq!(
        (made["data"]["k"].as_str(), made["type"].as_str(), made.get("stringData")),
        (Some("aGVsbG8="), Some("Opaque"), None)
    );
    s.post(path, json!({"metadata": {"name": "b"}, "stringData": {"k": 5}})).await.refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn generated_names_differ_and_dry_runs_store_nothing() {
    let s = Sandbox::start().await;
    let named = json!({"metadata": {"generateName": "job-"}});
    let one = s.post(CONFIG_MAPS, named.clone()).await.ok();
    let two = s.post(CONFIG_MAPS, named).await.ok();
    assert!(one["metadata"]["name"].as_str().unwrap().starts_with("job-"));
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    s.post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("dry", "1")).await.ok();
    s.get(&format!("{CONFIG_MAPS}/dry")).await.refused(404, "NotFound");
    s.post(&format!("{CONFIG_MAPS}?dryRun=Some"), config_map("dry", "1")).await.refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn bad_objects_are_refused_with_the_field_at_fault() {
    let s = Sandbox::start().await;
    let mut bad = config_map("Not_A_Name", "1");
    bad["metadata"]["labels"] = json!({"k": "bad value!"});
    let status = s.post(CONFIG_MAPS, bad).await.refused(422, "Invalid");
    let fields: Vec<&str> =
        status["details"]["causes"].as_array().unwrap().iter().map(|c| c["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["metadata.name", "metadata.labels"]);
    s.post(CONFIG_MAPS, json!({"metadata": {}})).await.refused(422, "Invalid");
    s.post(CONFIG_MAPS, json!({"kind": "Secret", "metadata": {"name": "a"}})).await.refused(400, "BadRequest");
    s.post(CONFIG_MAPS, json!({"metadata": {"name": "a", "namespace": "other"}})).await.refused(400, "BadRequest");
    s.post(CONFIG_MAPS, json!({"metadata": {"name": "a"}, "data": {"k": 5}})).await.refused(400, "BadRequest");
    s.post("/api/v1/namespaces/nope/configmaps", config_map("a", "1")).await.refused(404, "NotFound");
    s.send(Method::POST, CONFIG_MAPS, "application/json", b"{".to_vec()).await.refused(400, "BadRequest");
    s.send(Method::POST, CONFIG_MAPS, "application/json", b"\xff\xfe".to_vec()).await.refused(400, "BadRequest");
    s.send(Method::POST, CONFIG_MAPS, "application/cbor", vec![1]).await.refused(415, "UnsupportedMediaType");
    s.post(PODS, json!({"metadata": {"name": "p"}, "spec": {"containers": []}})).await.refused(422, "Invalid");
    s.get("/apis/nobody.dev/v1/things").await.refused(404, "NotFound");
    s.send(Method::POST, &format!("{CONFIG_MAPS}/a"), "application/json", b"{}".to_vec())
        .await
        .refused(405, "MethodNotAllowed");
    s.send(Method::OPTIONS, CONFIG_MAPS, "", Vec::new()).await.refused(405, "MethodNotAllowed");
    s.stop().await;
}

#[tokio::test]
async fn too_large_is_refused_and_nothing_lost() {
    let s = Sandbox::start().await;
    let over_object = config_map("big", &"x".repeat(1_700_000));
    s.post(CONFIG_MAPS, over_object).await.refused(413, "RequestEntityTooLarge");
    let over_body = config_map("big", &"x".repeat(4_000_000));
    s.post(CONFIG_MAPS, over_body).await.refused(413, "RequestEntityTooLarge");
    s.post(CONFIG_MAPS, config_map("fits", &"x".repeat(900_000))).await.ok();
    s.stop().await;
}

#[tokio::test]
async fn unknown_fields_warn_or_refuse_as_asked() {
    let s = Sandbox::start().await;
    let mut typo = pod("p");
    typo["spec"]["contaners"] = json!([]);
    s.post(&format!("{PODS}?fieldValidation=Strict"), typo.clone()).await.refused(400, "BadRequest");
    let warned = s.post(PODS, typo).await;
    let warning = warned.headers["warning"].to_str().unwrap().to_owned();
    assert_eq!(warning, "299 - \"unknown field \\\"spec.contaners\\\"\"");
    assert!(warned.ok()["spec"].get("contaners").is_none());
    s.stop().await;
}

#[tokio::test]
async fn patches_of_each_kind_work() {
    let s = Sandbox::start().await;
    s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(s.merge(&path, json!({"data": {"key": null, "b": "2"}})).await.ok()["data"], json!({"b": "2"}));
    let steps =
        json!([{"op": "test", "path": "/data/b", "value": "2"}, {"op": "add", "path": "/data/c", "value": "3"}]);
    let kind = "application/json-patch+json";
    assert_eq!(
        s.send(Method::PATCH, &path, kind, steps.to_string().into()).await.ok()["data"],
        json!({"b": "2", "c": "3"})
    );
    let fails = json!([{"op": "test", "path": "/data/b", "value": "9"}]);
    s.send(Method::PATCH, &path, kind, fails.to_string().into()).await.refused(422, "Invalid");
    let strategic = json!({"data": {"key": null, "$retain": "x", "new": "n"}}).to_string().into_bytes();
    let patched = s.send(Method::PATCH, &path, "application/strategic-merge-patch+json", strategic).await.ok();
    assert_eq!((&patched["data"]["new"], &patched["data"]["key"]), (&json!("n"), &json!(null)));
    s.merge(&path, json!({"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}})).await.refused(409, "Conflict");
    s.merge(&path, json!({"metadata": {"name": "b"}})).await.refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn apply_conflicts_name_the_other_manager_and_force_wins() {
    let s = Sandbox::start().await;
    let path = format!("{CONFIG_MAPS}/a");
    s.apply(&format!("{path}?fieldManager=one"), config_map("a", "1")).await.ok();
    s.apply(&path, config_map("a", "1")).await.refused(422, "Invalid");
    let status = s.apply(&format!("{path}?fieldManager=two"), config_map("a", "2")).await.refused(409, "Conflict");
    let cause = &status["details"]["causes"][0];
    assert_eq!((cause["reason"].as_str(), cause["field"].as_str()), (Some("FieldManagerConflict"), Some(".data.key")));
    assert!(cause["message"].as_str().unwrap().contains("\"one\""));
    let forced = s.apply(&format!("{path}?fieldManager=two&force=true"), config_map("a", "2")).await.ok();
    assert_eq!(forced["data"]["key"], "2");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {other: \"1\"}\n";
    let merged = s
        .send(Method::PATCH, &format!("{path}?fieldManager=one"), "application/apply-patch+yaml", yaml.into())
        .await
        .ok();
    assert_eq!(merged["data"], json!({"key": "2", "other": "1"}));
    s.stop().await;
}

#[tokio::test]
async fn two_clients_racing_lose_no_update() {
    let s = Sandbox::start().await;
    s.post(CONFIG_MAPS, json!({"metadata": {"name": "race"}, "data": {}})).await.ok();
    let path = format!("{CONFIG_MAPS}/race");
    let racer = |client: kube::Client, who: &'static str| {
        let path = path.clone();
        async move {
            for i in 0..20 {
                let body = json!({"data": {format!("{who}-{i}"): "x"}}).to_string().into_bytes();
                let request =
                    Request::patch(&path).header("content-type", "application/merge-patch+json").body(body).unwrap();
                client.request::<serde_json::Value>(request).await.unwrap();
            }
        }
    };
    let other = s.another_client().await;
    tokio::join!(racer(s.client.clone(), "a"), racer(other, "b"));
    let end = s.get(&path).await.ok();
    assert_eq!(end["data"].as_object().map(serde_json::Map::len), Some(40));
    s.stop().await;
}

#[tokio::test]
async fn of_two_writers_with_the_same_version_one_wins() {
    let s = Sandbox::start().await;
    let made = s.post(CONFIG_MAPS, config_map("a", "0")).await.ok();
    let path = format!("{CONFIG_MAPS}/a");
    let with = |v: &str| {
        let mut new = made.clone();
        new["data"]["key"] = json!(v);
        new
    };
    let (one, two) = tokio::join!(s.put(&path, with("1")), s.put(&path, with("2")));
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
    s.stop().await;
}

#[tokio::test]
async fn pages_of_a_list_show_one_moment() {
    let s = Sandbox::start().await;
    for i in 0..7 {
        s.post(CONFIG_MAPS, config_map(&format!("c{i}"), "1")).await.ok();
    }
    let first = s.get(&format!("{CONFIG_MAPS}?limit=3")).await.ok();
    assert_eq!(first["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    s.delete(&format!("{CONFIG_MAPS}/c5"), json!({})).await.ok();
    s.post(CONFIG_MAPS, config_map("c8", "1")).await.ok();
    let mut token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let mut names = Vec::new();
    while !token.is_empty() {
        let page = s.get(&format!("{CONFIG_MAPS}?limit=3&continue={token}")).await.ok();
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
        names.extend(
            page["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    }
    assert_eq!(names, ["c3", "c4", "c5", "c6"]);
    s.get(&format!("{CONFIG_MAPS}?continue=garbage")).await.refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn lists_honour_selectors_and_resource_versions() {
    let s = Sandbox::start().await;
    let made = s.post(PODS, pod("a")).await.ok();
    s.post(
        PODS,
        json!({"metadata": {"name": "b"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}}),
    )
    .await
    .ok();
    let names = |list: serde_json::Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(s.get(&format!("{PODS}?labelSelector=app%3Dweb")).await.ok()), ["a"]);
    assert_eq!(names(s.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1")).await.ok()), ["b"]);
    assert_eq!(
        names(s.get("/api/v1/pods?fieldSelector=metadata.namespace%3Ddefault,status.phase%3DPending").await.ok()),
        ["a", "b"]
    );
    s.get(&format!("{PODS}?fieldSelector=spec.color%3Dred")).await.refused(400, "BadRequest");
    let then = made["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(names(s.get(&format!("{PODS}?resourceVersion={then}&resourceVersionMatch=Exact")).await.ok()), ["a"]);
    assert_eq!(names(s.get(&format!("{PODS}?resourceVersion=0")).await.ok()), ["a", "b"]);
    let status = s.get(&format!("{PODS}?resourceVersion=99999999")).await.refused(504, "Timeout");
    assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    s.get(&format!("{PODS}?resourceVersionMatch=Exact")).await.refused(422, "Invalid");
    s.store.compact(s.store.revision()).await.unwrap();
    s.get(&format!("{PODS}?resourceVersion={then}&resourceVersionMatch=Exact")).await.refused(410, "Expired");
    s.stop().await;
}

#[tokio::test]
async fn tables_and_partial_metadata_are_served() {
    let s = Sandbox::start().await;
    s.post(PODS, pod("a")).await.ok();
    let ask = |accept: &str| Request::get(PODS).header("accept", accept).body(Vec::new()).unwrap();
    let table = s.request(ask("application/json;as=Table;v=v1;g=meta.k8s.io,application/json")).await.ok();
    assert_eq!(table["kind"], "Table");
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    );
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..4], [json!("a"), json!("0/1"), json!("Pending"), json!("0")]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let partial = s.request(ask("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")).await.ok();
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert!(partial["items"][0].get("spec").is_none());
    s.request(ask("application/cbor")).await.refused(406, "NotAcceptable");
    s.stop().await;
}

#[tokio::test]
async fn services_get_node_ports_of_their_own() {
    let s = Sandbox::start().await;
    let path = "/api/v1/namespaces/default/services";
    let service = |name: &str, port: serde_json::Value| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
    let one = s.post(path, service("one", json!(null))).await.ok();
    let port = one["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30_000..=32_767).contains(&port));
    assert_eq!(one["spec"]["ports"][0]["targetPort"], 80);
    s.post(path, service("two", json!(port))).await.refused(422, "Invalid");
    s.post(path, service("two", json!(99))).await.refused(422, "Invalid");
    let kept = s.merge(&format!("{path}/one"), json!({"spec": {"ports": [{"port": 80}]}})).await.ok();
    assert_eq!(kept["spec"]["ports"][0]["nodePort"], port);
    let plain = s.merge(&format!("{path}/one"), json!({"spec": {"type": "ClusterIP", "clusterIP": "None"}})).await.ok();
    assert!(plain["spec"]["ports"][0].get("nodePort").is_none());
    assert!(plain["spec"].get("externalTrafficPolicy").is_none(), "it went with the type that has it");
    let balanced = s.merge(&format!("{path}/one"), json!({"spec": {"type": "LoadBalancer"}})).await;
    balanced.refused(422, "Invalid");
    let two =
        s.post(path, json!({"metadata": {"name": "two"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}));
    assert_eq!(two.await.ok()["spec"]["allocateLoadBalancerNodePorts"], true);
    let plain = s.merge(&format!("{path}/two"), json!({"spec": {"type": "ClusterIP"}})).await.ok();
    assert!(
        ["externalTrafficPolicy", "allocateLoadBalancerNodePorts"]
            .iter()
            .all(|field| plain["spec"].get(field).is_none())
    );
    s.stop().await;
}

#[tokio::test]
async fn both_faces_of_event_are_one_object() {
    let s = Sandbox::start().await;
    let event = json!({"metadata": {"name": "e1"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
        "action": "a", "reason": "Because", "type": "Normal", "note": "hello", "regarding": {"kind": "Pod", "name": "p"}});
    s.post("/apis/events.k8s.io/v1/namespaces/default/events", event).await.ok();
    let core = s.get("/api/v1/namespaces/default/events/e1").await.ok();
    assert_eq!((core["apiVersion"].as_str(), core["message"].as_str()), (Some("v1"), Some("hello")));
    assert_eq!((core["involvedObject"]["name"].as_str(), core["reportingComponent"].as_str()), (Some("p"), Some("c")));
    let new = s.get("/apis/events.k8s.io/v1/namespaces/default/events/e1").await.ok();
    assert_eq!((new["note"].as_str(), new["regarding"]["kind"].as_str()), (Some("hello"), Some("Pod")));
    assert_eq!(new["metadata"]["resourceVersion"], core["metadata"]["resourceVersion"]);
    let found = s.get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dp").await.ok();
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    s.stop().await;
}
