//! Tests of field ownership: apply, conflicts, force, removal, and plain updates.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Applied, FieldSet, Shape, Writer, apply, entries, track_update};
use crate::kube_api::schema::{Schema, compile::compile};
use crate::kube_api::status::{Reason, Refusal};

const TIME: &str = "2026-01-01T00:00:00Z";

fn custom() -> Schema {
    compile(
        "s",
        &json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "integer"}, "b": {"type": "integer"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"type": "integer"}, "extra": {"type": "integer"}}}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "atomic": {"type": "array", "items": {"type": "integer"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}}}}}}),
    )
    .unwrap_or_else(|e| panic!("{e:?}"))
}

fn writer(manager: &str) -> Writer<'_> {
    Writer { manager, api_version: "example.dev/v1", subresource: "", time: TIME }
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

fn applied(schema: &Schema, live: Option<&Value>, manager: &str, spec: Value) -> Result<Value, Refusal> {
    apply(live, &object(spec), writer(manager), Shape::Custom(schema), false).map(|Applied { object }| object)
}

fn owned(object: &Value, manager: &str) -> Value {
    entries::read(object).into_iter().find(|e| e.manager == manager).map_or(Value::Null, |e| e.fields.encode())
}

#[test]
fn apply_owns_exactly_what_it_says() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1, "ports": [{"name": "x", "port": 1}], "tags": ["t"], "atomic": [1]}))
        .unwrap();
    assert_eq!(
        owned(&o, "m"),
        json!({"f:spec": {"f:a": {}, "f:atomic": {}, "f:ports": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}, "f:port": {}}},
            "f:tags": {"v:\"t\"": {}}}})
    );
    assert_eq!(o["spec"]["a"], 1);
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let s = custom();
    let first = applied(&s, None, "m", json!({"a": 1, "labels": {"x": "y"}})).unwrap();
    let mut later = writer("m");
    later.time = "2026-02-02T00:00:00Z";
    let again =
        apply(Some(&first), &object(json!({"a": 1, "labels": {"x": "y"}})), later, Shape::Custom(&s), false).unwrap();
    assert_eq!(again.object, first);
}

#[test]
fn a_field_no_longer_applied_is_removed_unless_another_owns_it() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1, "b": 2, "labels": {"x": "1"}})).unwrap();
    let o = applied(&s, Some(&o), "n", json!({"b": 2})).unwrap();
    let o = applied(&s, Some(&o), "m", json!({"a": 1})).unwrap();
    assert_eq!(o["spec"], json!({"a": 1, "b": 2}), "b is kept for n, labels went with their last entry");
    let o = applied(&s, Some(&o), "n", json!({"labels": {}})).unwrap();
    assert_eq!(o["spec"], json!({"a": 1, "labels": {}}));
}

#[test]
fn list_items_are_merged_and_removed_by_key() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"ports": [{"name": "x", "port": 1}, {"name": "y", "port": 2}]})).unwrap();
    let o =
        applied(&s, Some(&o), "n", json!({"ports": [{"name": "y", "extra": 7}, {"name": "z", "port": 3}]})).unwrap();
    assert_eq!(o["spec"]["ports"].as_array().map(Vec::len), Some(3));
    let o = applied(&s, Some(&o), "m", json!({"ports": [{"name": "x", "port": 1}]})).unwrap();
    assert_eq!(
        o["spec"]["ports"],
        json!([{"name": "x", "port": 1}, {"name": "y", "extra": 7}, {"name": "z", "port": 3}])
    );
}

#[test]
fn a_list_that_names_an_item_twice_cannot_be_applied() {
    let s = custom();
    let twice = json!({"ports": [{"name": "x", "port": 1}, {"name": "x", "port": 2}]});
    let refusal = applied(&s, None, "m", twice).unwrap_err();
    assert_eq!(refusal.reason, Reason::Untyped);
    assert!(refusal.message.ends_with(".spec.ports[name=\"x\"]"), "{refusal}");
    assert!(applied(&s, None, "m", json!({"tags": ["a", "a"]})).is_err());
    assert!(applied(&s, None, "m", json!({"atomic": [1, 1]})).is_ok());
}

#[test]
fn another_managers_field_is_a_conflict_and_force_takes_it() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1, "b": 1})).unwrap();
    let refusal = applied(&s, Some(&o), "n", json!({"a": 2})).unwrap_err();
    assert_eq!(refusal.reason, Reason::Conflict);
    assert_eq!(refusal.details.causes.len(), 1);
    assert_eq!(refusal.details.causes[0].reason, "FieldManagerConflict");
    assert_eq!(refusal.details.causes[0].field, ".spec.a");
    let forced = apply(Some(&o), &object(json!({"a": 2})), writer("n"), Shape::Custom(&s), true).unwrap().object;
    assert_eq!(forced["spec"]["a"], 2);
    assert_eq!(owned(&forced, "m"), json!({"f:spec": {"f:b": {}}}));
    assert_eq!(owned(&forced, "n"), json!({"f:spec": {"f:a": {}}}));
}

#[test]
fn equal_values_are_shared_without_conflict() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1})).unwrap();
    let o = applied(&s, Some(&o), "n", json!({"a": 1})).unwrap();
    assert_eq!(owned(&o, "m"), owned(&o, "n"));
    assert_eq!(applied(&s, Some(&o), "n", json!({"a": 2})).unwrap_err().reason, Reason::Conflict);
}

#[test]
fn an_update_takes_what_it_changed_and_only_that() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1, "b": 1, "tags": ["x"]})).unwrap();
    let mut new = o.clone();
    new["spec"]["a"] = json!(5);
    new["spec"]["tags"] = json!(["x", "y"]);
    track_update(Some(&o), &mut new, writer("kubectl-edit"), Shape::Custom(&s));
    assert_eq!(owned(&new, "kubectl-edit"), json!({"f:spec": {"f:a": {}, "f:tags": {"v:\"y\"": {}}}}));
    assert_eq!(owned(&new, "m"), json!({"f:spec": {"f:b": {}, "f:tags": {"v:\"x\"": {}}}}));
    assert_eq!(applied(&s, Some(&new), "m", json!({"a": 1, "b": 1})).unwrap_err().reason, Reason::Conflict);
}

#[test]
fn an_update_that_changes_nothing_touches_no_owner() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1})).unwrap();
    let mut new = o.clone();
    let mut later = writer("other");
    later.time = "2030-01-01T00:00:00Z";
    track_update(Some(&o), &mut new, later, Shape::Custom(&s));
    assert_eq!(new, o);
}

#[test]
fn removal_by_an_update_frees_the_field_for_everyone() {
    let s = custom();
    let o = applied(&s, None, "m", json!({"a": 1, "b": 1})).unwrap();
    let mut new = o.clone();
    new["spec"].as_object_mut().unwrap().remove("a");
    track_update(Some(&o), &mut new, writer("e"), Shape::Custom(&s));
    assert_eq!(owned(&new, "m"), json!({"f:spec": {"f:b": {}}}));
    assert!(applied(&s, Some(&new), "n", json!({"a": 3})).is_ok());
}

#[test]
fn built_in_lists_merge_by_their_known_keys() {
    let shape = Shape::built_in("apps", "StatefulSet");
    let pod = |containers: Value| {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "w"},
        "spec": {"template": {"spec": {"containers": containers}}}})
    };
    let one = apply(
        None,
        &pod(json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}])),
        writer("m"),
        shape,
        false,
    )
    .unwrap()
    .object;
    let two = apply(
        Some(&one),
        &pod(json!([{"name": "c", "env": [{"name": "A", "value": "1"}]}])),
        writer("n"),
        shape,
        false,
    )
    .unwrap()
    .object;
    let containers = &two["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], "i");
    assert_eq!(containers[0]["env"][0]["value"], "1");
    let back = apply(Some(&two), &pod(json!([])), writer("n"), shape, false).unwrap().object;
    assert_eq!(
        back["spec"]["template"]["spec"]["containers"],
        json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}])
    );
}

#[test]
fn owner_references_and_finalizers_merge_in_custom_resources_too() {
    let s = custom();
    let with = |meta: Value| json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": meta});
    let one = apply(
        None,
        &with(json!({"name": "w", "finalizers": ["a/a"], "ownerReferences": [{"uid": "1", "name": "x"}]})),
        writer("m"),
        Shape::Custom(&s),
        false,
    )
    .unwrap()
    .object;
    let two =
        apply(Some(&one), &with(json!({"name": "w", "finalizers": ["b/b"]})), writer("n"), Shape::Custom(&s), false)
            .unwrap()
            .object;
    assert_eq!(two["metadata"]["finalizers"], json!(["a/a", "b/b"]));
    let three = apply(Some(&two), &with(json!({"name": "w"})), writer("m"), Shape::Custom(&s), false).unwrap().object;
    assert_eq!(three["metadata"]["finalizers"], json!(["b/b"]));
    assert_eq!(three["metadata"].get("ownerReferences"), None);
}

#[test]
fn status_and_main_are_separate_writers() {
    let s = compile("s", &json!({"type": "object", "properties": {"status": {"type": "object", "properties": {"a": {"type": "integer"}}}}})).unwrap();
    let config =
        json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "status": {"a": 1}});
    let door = Writer { subresource: "status", ..writer("m") };
    let one = apply(None, &config, door, Shape::Custom(&s), false).unwrap().object;
    let main = json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let two = apply(Some(&one), &main, writer("m"), Shape::Custom(&s), false).unwrap().object;
    assert_eq!(two["status"]["a"], 1, "the main door does not take back what the status door applied");
}

proptest! {
    /// Whatever is applied is there afterwards, and decoding what was encoded gives the same set.
    #[test]
    fn what_is_applied_is_there(a in 0..5_i64, tags in proptest::collection::btree_set("[a-c]", 0..3), ports in proptest::collection::btree_map("[a-c]", 0..9_i64, 0..3)) {
        let s = custom();
        let base = applied(&s, None, "base", json!({"b": 1, "ports": [{"name": "a", "extra": 1}], "tags": ["z"]})).unwrap();
        let ports: Vec<Value> = ports.iter().map(|(n, p)| json!({"name": n, "port": p})).collect();
        let spec = json!({"a": a, "tags": tags, "ports": ports});
        let o = applied(&s, Some(&base), "m", spec).unwrap();
        prop_assert_eq!(&o["spec"]["a"], &json!(a));
        prop_assert_eq!(&o["spec"]["b"], &json!(1));
        for tag in &tags {
            prop_assert!(o["spec"]["tags"].as_array().unwrap().contains(&json!(tag)));
        }
        for port in &ports {
            let found = o["spec"]["ports"].as_array().unwrap().iter().find(|p| p["name"] == port["name"]).unwrap();
            prop_assert_eq!(&found["port"], &port["port"]);
        }
        for entry in entries::read(&o) {
            let decoded = FieldSet::decode(&entry.fields.encode());
            prop_assert_eq!(decoded, entry.fields);
        }
        let back = applied(&s, Some(&o), "m", json!({})).unwrap();
        prop_assert_eq!(&back["spec"], &base["spec"], "applying nothing takes everything back");
    }
}
