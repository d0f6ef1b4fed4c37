//! Tests of the ownership graph: who is deleted, freed or left alone.

use serde_json::{Value, json};

use super::graph::{Action, Graph, Key};
use crate::kube_api::object::Owner;

fn key(namespace: &str, name: &str) -> Key {
    Key { group: "g".into(), plural: "things".into(), namespace: namespace.into(), name: name.into() }
}

fn thing(name: &str, owners: &[(&str, bool)]) -> Value {
    let owners: Vec<Value> = owners
        .iter()
        .map(|(o, blocks)| json!({"apiVersion": "g/v1", "kind": "Thing", "name": o, "uid": format!("uid-{o}"), "blockOwnerDeletion": blocks}))
        .collect();
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "ownerReferences": owners}})
}

fn deleting(mut object: Value, finalizer: &str) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["finalizers"] = json!([finalizer]);
    object
}

fn any(_: &Key, _: &Owner) -> bool {
    true
}

fn put(graph: &mut Graph, name: &str, object: &Value) {
    graph.put(key("ns", name), object, any);
}

fn actions(graph: &mut Graph) -> Vec<Action> {
    std::iter::from_fn(|| graph.next_action()).take(100).collect()
}

#[test]
fn nothing_is_judged_before_everything_is_known() {
    let mut graph = Graph::default();
    put(&mut graph, "child", &thing("child", &[("owner", false)]));
    assert!(actions(&mut graph).is_empty());
    put(&mut graph, "owner", &thing("owner", &[]));
    graph.settle_all();
    assert!(actions(&mut graph).is_empty());
}

#[test]
fn a_child_goes_when_its_last_owner_is_gone() {
    let mut graph = Graph::default();
    graph.settle_all();
    put(&mut graph, "a", &thing("a", &[]));
    put(&mut graph, "b", &thing("b", &[]));
    put(&mut graph, "child", &thing("child", &[("a", false), ("b", false)]));
    assert!(actions(&mut graph).is_empty());
    graph.gone(&key("ns", "a"));
    assert_eq!(
        actions(&mut graph),
        [Action::DropOwners { key: key("ns", "child"), uid: "uid-child".into(), owners: vec!["uid-a".into()] }]
    );
    put(&mut graph, "child", &thing("child", &[("b", false)]));
    graph.gone(&key("ns", "b"));
    assert_eq!(
        actions(&mut graph),
        [Action::Delete { key: key("ns", "child"), uid: "uid-child".into(), foreground: false }]
    );
}

#[test]
fn an_owner_made_anew_under_the_same_name_is_not_the_owner() {
    let mut graph = Graph::default();
    graph.settle_all();
    put(&mut graph, "a", &thing("a", &[]));
    put(&mut graph, "child", &thing("child", &[("a", false)]));
    let mut anew = thing("a", &[]);
    anew["metadata"]["uid"] = json!("uid-other");
    put(&mut graph, "a", &anew);
    assert_eq!(actions(&mut graph).len(), 1);
}

#[test]
fn references_across_namespaces_and_to_unknown_kinds_say_nothing() {
    let mut graph = Graph::default();
    graph.settle_all();
    graph.put(key("other", "a"), &thing("a", &[]), any);
    put(&mut graph, "child", &thing("child", &[("a", false)]));
    graph.put(key("ns", "stray"), &thing("stray", &[("nobody", false)]), |_, _| false);
    assert!(actions(&mut graph).is_empty());
}

#[test]
fn foreground_deletion_waits_for_blocking_children_only() {
    let mut graph = Graph::default();
    graph.settle_all();
    put(&mut graph, "owner", &thing("owner", &[]));
    put(&mut graph, "blocks", &thing("blocks", &[("owner", true)]));
    put(&mut graph, "loose", &thing("loose", &[("owner", false)]));
    actions(&mut graph);
    put(&mut graph, "owner", &deleting(thing("owner", &[]), "foregroundDeletion"));
    let todo = actions(&mut graph);
    assert_eq!(todo.iter().filter(|a| matches!(a, Action::Delete { .. })).count(), 2, "{todo:?}");
    assert!(!todo.iter().any(|a| matches!(a, Action::DropFinalizer { .. })));
    graph.gone(&key("ns", "blocks"));
    assert!(actions(&mut graph).contains(&Action::DropFinalizer {
        key: key("ns", "owner"),
        uid: "uid-owner".into(),
        finalizer: "foregroundDeletion"
    }));
}

#[test]
fn orphaning_frees_the_children_before_the_owner_goes() {
    let mut graph = Graph::default();
    graph.settle_all();
    put(&mut graph, "child", &thing("child", &[("owner", true)]));
    put(&mut graph, "owner", &deleting(thing("owner", &[]), "orphan"));
    let todo = actions(&mut graph);
    assert!(todo.iter().all(|a| matches!(a, Action::DropOwners { .. })) && !todo.is_empty(), "{todo:?}");
    put(&mut graph, "child", &thing("child", &[]));
    assert_eq!(
        actions(&mut graph),
        [Action::DropFinalizer { key: key("ns", "owner"), uid: "uid-owner".into(), finalizer: "orphan" }]
    );
}

#[test]
fn keys_are_taken_apart_and_put_together() {
    assert_eq!(
        Key::parse(b"k/core/pods/ns/p"),
        Key { group: String::new(), plural: "pods".into(), namespace: "ns".into(), name: "p".into() }
    );
    assert_eq!(
        Key::parse(b"k/core/nodes/n"),
        Key { group: String::new(), plural: "nodes".into(), namespace: String::new(), name: "n".into() }
    );
    assert_eq!(Key::parse(b"k/a.b/cs/ns/p").group, "a.b");
}
