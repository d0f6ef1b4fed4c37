//! Deletion: finalizers, preconditions, propagation, namespaces, collections, and old Events.

use serde_json::{Value, json};

use super::{CONFIG_MAPS, Sandbox, config_map};

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    let mut object = config_map(name, "1");
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks}]);
    object
}

fn path(name: &str) -> String {
    format!("{CONFIG_MAPS}/{name}")
}

#[tokio::test]
async fn a_finalizer_holds_the_object_and_none_can_be_added_then() {
    let s = Sandbox::start().await;
    let mut held = config_map("a", "1");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    s.post(CONFIG_MAPS, held).await.ok();
    let marked = s.delete(&path("a"), json!({})).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let before = s.store.revision();
    s.delete(&path("a"), json!({})).await.ok();
    assert_eq!(s.store.revision(), before, "a second deletion writes nothing");
    let more = json!({"metadata": {"finalizers": ["example.dev/hold", "example.dev/more"]}});
    s.merge(&path("a"), more).await.refused(422, "Invalid");
    s.merge(&path("a"), json!({"data": {"still": "writable"}})).await.ok();
    s.merge(&path("a"), json!({"metadata": {"finalizers": []}})).await.ok();
    s.get(&path("a")).await.refused(404, "NotFound");
    s.stop().await;
}

#[tokio::test]
async fn preconditions_protect_from_deleting_another() {
    let s = Sandbox::start().await;
    let made = s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    s.delete(&path("a"), json!({"preconditions": {"uid": "other"}})).await.refused(409, "Conflict");
    s.delete(&path("a"), json!({"preconditions": {"resourceVersion": "1"}})).await.refused(409, "Conflict");
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}});
    s.delete(&path("a"), json!({"dryRun": ["All"]})).await.ok();
    s.delete(&path("a"), right).await.ok();
    s.delete(&path("a"), json!({})).await.refused(404, "NotFound");
    s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    s.delete(&path("a"), json!({"propagationPolicy": "Sideways"})).await.refused(422, "Invalid");
    s.delete(&path("a"), json!({"gracePeriodSeconds": -1})).await.refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn children_and_grandchildren_go_in_the_background() {
    let s = Sandbox::start().await;
    let top = s.post(CONFIG_MAPS, config_map("top", "1")).await.ok();
    let child = s.post(CONFIG_MAPS, owned("child", &top, true)).await.ok();
    s.post(CONFIG_MAPS, owned("grandchild", &child, true)).await.ok();
    s.post(CONFIG_MAPS, config_map("stranger", "1")).await.ok();
    s.delete(&path("top"), json!({"propagationPolicy": "Background"})).await.ok();
    s.until_gone(&path("grandchild")).await;
    s.until_gone(&path("child")).await;
    s.get(&path("stranger")).await.ok();
    s.stop().await;
}

#[tokio::test]
async fn foreground_deletion_keeps_the_owner_until_blocking_children_are_gone() {
    let s = Sandbox::start().await;
    let top = s.post(CONFIG_MAPS, config_map("top", "1")).await.ok();
    let mut child = owned("child", &top, true);
    child["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    s.post(CONFIG_MAPS, child).await.ok();
    let marked = s.delete(&path("top"), json!({"propagationPolicy": "Foreground"})).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    s.until(&path("child"), "child is being deleted", |a| a.body["metadata"]["deletionTimestamp"].is_string()).await;
    s.get(&path("top")).await.ok();
    s.merge(&path("child"), json!({"metadata": {"finalizers": null}})).await.ok();
    s.until_gone(&path("top")).await;
    s.stop().await;
}

#[tokio::test]
async fn orphans_stay_and_name_no_owner() {
    let s = Sandbox::start().await;
    let top = s.post(CONFIG_MAPS, config_map("top", "1")).await.ok();
    s.post(CONFIG_MAPS, owned("child", &top, true)).await.ok();
    s.delete(&path("top"), json!({"propagationPolicy": "Orphan"})).await.ok();
    s.until_gone(&path("top")).await;
    let child = s.get(&path("child")).await.ok();
    assert!(child["metadata"].get("ownerReferences").is_none());
    s.stop().await;
}

#[tokio::test]
async fn an_object_made_for_an_owner_that_never_was_goes_and_a_stray_reference_stays() {
    let s = Sandbox::start().await;
    s.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.ok();
    let elsewhere = s.post("/api/v1/namespaces/other/configmaps", config_map("far", "1")).await.ok();
    s.post(CONFIG_MAPS, owned("points-away", &elsewhere, false)).await.ok();
    let mut unknown = owned("unknown-kind", &elsewhere, false);
    unknown["metadata"]["ownerReferences"][0]["kind"] = json!("Martian");
    unknown["metadata"]["ownerReferences"][0]["uid"] = json!("u");
    s.post(CONFIG_MAPS, unknown).await.ok();
    let never = json!({"metadata": {"name": "never", "uid": "no-such-uid"}});
    s.post(CONFIG_MAPS, owned("lost", &never, false)).await.ok();
    s.until_gone(&path("lost")).await;
    s.get(&path("points-away")).await.ok();
    s.get(&path("unknown-kind")).await.ok();
    s.stop().await;
}

#[tokio::test]
async fn a_namespace_is_emptied_before_it_goes_and_takes_nothing_new() {
    let s = Sandbox::start().await;
    s.post("/api/v1/namespaces", json!({"metadata": {"name": "ns"}})).await.ok();
    let inside = "/api/v1/namespaces/ns/configmaps";
    let mut held = config_map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.dev/hold"]);
    s.post(inside, held).await.ok();
    s.post(inside, config_map("free", "1")).await.ok();
    let marked = s.delete("/api/v1/namespaces/ns", json!({})).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    s.until_gone(&format!("{inside}/free")).await;
    let status = s.post(inside, config_map("late", "1")).await.refused(403, "Forbidden");
    assert_eq!(status["details"]["causes"][0]["reason"], "NamespaceTerminating");
    s.get("/api/v1/namespaces/ns").await.ok();
    s.delete("/api/v1/namespaces/default", json!({})).await.refused(403, "Forbidden");
    s.merge(&format!("{inside}/held"), json!({"metadata": {"finalizers": null}})).await.ok();
    s.until_gone("/api/v1/namespaces/ns").await;
    s.stop().await;
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector_and_never_over_all_namespaces() {
    let s = Sandbox::start().await;
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut object = config_map(name, "1");
        object["metadata"]["labels"] = json!({"l": label});
        s.post(CONFIG_MAPS, object).await.ok();
    }
    let gone = s.delete(&format!("{CONFIG_MAPS}?labelSelector=l%3Dx"), json!({})).await.ok();
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(2));
    let left = s.get(CONFIG_MAPS).await.ok();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    s.delete("/api/v1/configmaps", json!({})).await.refused(405, "MethodNotAllowed");
    s.stop().await;
}

#[tokio::test]
async fn events_an_hour_old_are_swept_and_young_ones_stay() {
    let s = Sandbox::start().await;
    let events = "/api/v1/namespaces/default/events";
    let about = json!({"kind": "Pod", "name": "p"});
    s.post(events, json!({"metadata": {"name": "young"}, "involvedObject": about})).await.ok();
    crate::kube_api::collect::sweep::everything(s.kube.api()).await.unwrap();
    s.get(&format!("{events}/young")).await.ok();
    let later = crate::kube_api::object::plus_seconds(crate::kube_api::object::now(), 2 * 3600);
    crate::kube_api::collect::sweep::events(s.kube.api(), later).await.unwrap();
    s.get(&format!("{events}/young")).await.refused(404, "NotFound");
    s.stop().await;
}
