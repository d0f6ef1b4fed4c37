//! Strategic merge patches as kubectl sends them.

use serde_json::json;

use super::*;
use crate::kube_api::types;

fn patched(object: Value, patch: Value) -> Value {
    apply(&object, &patch, types::of_kind("apps", "Deployment")).unwrap()
}

fn pod_spec(spec: Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

#[test]
fn containers_merge_by_name_and_their_ports_by_number() {
    let before = pod_spec(json!({"containers": [
        {"name": "a", "image": "a:1", "ports": [{"containerPort": 1, "name": "one"}], "args": ["x"]},
        {"name": "b", "image": "b:1"}]}));
    let patch = pod_spec(json!({"containers": [
        {"name": "a", "image": "a:2", "args": ["y", "z"], "ports": [{"containerPort": 2}]}, {"name": "c", "image": "c:1"}]}));
    let wanted = pod_spec(json!({"containers": [
        {"name": "a", "image": "a:2", "ports": [{"containerPort": 2}, {"containerPort": 1, "name": "one"}], "args": ["y", "z"]},
        {"name": "c", "image": "c:1"}, {"name": "b", "image": "b:1"}]}));
    assert_eq!(patched(before, patch), wanted);
}

#[test]
fn directives_delete_and_replace_items_maps_and_plain_values() {
    let before =
        || pod_spec(json!({"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "1", "y": "2"}}));
    let without_a = patched(before(), pod_spec(json!({"containers": [{"name": "a", "$patch": "delete"}]})));
    assert_eq!(without_a["spec"]["template"]["spec"]["containers"], json!([{"name": "b"}]));
    let only_c = patched(before(), pod_spec(json!({"containers": [{"$patch": "replace"}, {"name": "c"}]})));
    assert_eq!(only_c["spec"]["template"]["spec"]["containers"], json!([{"name": "c"}]));
    let selector = patched(before(), pod_spec(json!({"nodeSelector": {"x": null, "z": "3"}})));
    assert_eq!(selector["spec"]["template"]["spec"]["nodeSelector"], json!({"y": "2", "z": "3"}));
    let replaced = patched(before(), pod_spec(json!({"nodeSelector": {"$patch": "replace", "z": "3"}})));
    assert_eq!(replaced["spec"]["template"]["spec"]["nodeSelector"], json!({"z": "3"}));
    let gone = patched(before(), pod_spec(json!({"nodeSelector": {"$patch": "delete"}})));
    assert_eq!(gone["spec"]["template"]["spec"].get("nodeSelector"), None);
    let meta = json!({"metadata": {"finalizers": ["a/a", "b/b"]}});
    let patch = json!({"metadata": {"finalizers": ["c/c"], "$deleteFromPrimitiveList/finalizers": ["a/a"]}});
    assert_eq!(patched(meta, patch)["metadata"]["finalizers"], json!(["c/c", "b/b"]));
}

#[test]
fn the_order_asked_for_is_kept_and_others_keep_their_place() {
    let before = pod_spec(json!({"containers": [{"name": "a"}, {"name": "mine"}, {"name": "b"}]}));
    let patch = pod_spec(json!({"containers": [{"name": "new"}, {"name": "b", "image": "x"}],
        "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}]}));
    let names: Vec<String> = patched(before, patch)["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["mine", "b", "new", "a"]);
}

#[test]
fn retained_keys_end_what_excludes_each_other() {
    let before = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(patched(before, patch), json!({"spec": {"strategy": {"type": "Recreate"}}}));
}

#[test]
fn what_names_nothing_or_is_no_map_is_refused_and_a_field_nobody_knows_is_replaced() {
    let of = types::of_kind("apps", "Deployment");
    for patch in [json!([1]), pod_spec(json!({"containers": [{"image": "x"}]})), json!({"spec": {"$patch": "explode"}})]
    {
        assert!(apply(&json!({}), &patch, of).is_err(), "{patch}");
    }
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"spec": deep});
    }
    assert!(apply(&json!({}), &deep, of).is_err());
    assert_eq!(patched(json!({"odd": [1]}), json!({"odd": [2]})), json!({"odd": [2]}));
}

proptest::proptest! {
    #[test]
    fn any_patch_gives_an_object_or_a_refusal(text in "[\\{\\}\\[\\]\",:a-c$0-9]{0,80}", merge in proptest::bool::ANY) {
        let key = if merge { "containers" } else { "tolerations" };
        if let Ok(value) = serde_json::from_str::<Value>(&text) {
            let patch = pod_spec(json!({key: value}));
            let _ = apply(&pod_spec(json!({key: [{"name": "a"}]})), &patch, types::of_kind("apps", "Deployment"));
        }
    }
}
