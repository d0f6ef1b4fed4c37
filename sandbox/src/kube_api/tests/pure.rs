//! Patches, selectors, paths, names, JSONPath and tables, without a server.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::kube_api::access::{Access, Claims};
use crate::kube_api::jsonpath::JsonPath;
use crate::kube_api::request::{Query, Route, Target, route};
use crate::kube_api::selectors::{Selector, label_selector_matches};
use crate::kube_api::status::Reason;
use crate::kube_api::tables::{Format, Include, cells, format};
use crate::kube_api::{names, object, patch};

fn target(group: &str, version: &str, namespace: &str, plural: &str, name: &str) -> Target {
    let own = |s: &str| s.to_owned();
    Target {
        group: own(group),
        version: own(version),
        namespace: own(namespace),
        plural: own(plural),
        name: own(name),
        subresource: String::new(),
    }
}

#[test]
fn paths_are_taken_apart_as_kubernetes_does() {
    assert_eq!(route("/api/v1/namespaces/ns/pods/p"), Route::Resource(target("", "v1", "ns", "pods", "p")));
    assert_eq!(route("/api/v1/namespaces/ns"), Route::Resource(target("", "v1", "", "namespaces", "ns")));
    assert_eq!(route("/apis/a.b/v1/things"), Route::Resource(target("a.b", "v1", "", "things", "")));
    let status = Target { subresource: "status".into(), ..target("", "v1", "", "namespaces", "ns") };
    assert_eq!(route("/api/v1/namespaces/ns/status"), Route::Resource(status));
    let log = Target { subresource: "log".into(), ..target("", "v1", "ns", "pods", "p") };
    assert_eq!(route("/api/v1/namespaces/ns/pods/p/log"), Route::Resource(log));
    assert_eq!(route("/apis/a.b"), Route::Group("a.b".into()));
    assert_eq!(route("/nothing"), Route::Unknown);
    assert_eq!(route("/api/v1/namespaces/ns/pods/a%2Fb"), Route::Resource(target("", "v1", "ns", "pods", "a/b")));
}

#[test]
fn queries_are_decoded_and_bad_values_refused() {
    let query = Query::parse("labelSelector=a%3Db%2Cc&limit=5&watch=true&x=%zz&limit=9");
    assert_eq!(query.get("labelSelector"), "a=b,c");
    assert_eq!(query.number("limit").unwrap(), Some(5));
    assert!(query.flag("watch").unwrap());
    assert_eq!(query.get("x"), "%zz");
    assert_eq!(Query::parse("limit=x").number("limit").unwrap_err().reason, Reason::BadRequest);
    assert_eq!(Query::parse("watch=maybe").flag("watch").unwrap_err().reason, Reason::BadRequest);
}

#[test]
fn merge_patch_removes_with_null_and_merges_maps() {
    let mut target = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
    patch::merge(&mut target, &json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [3]}));
    assert_eq!(target, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [3]}));
}

#[test]
fn json_patch_does_every_operation_or_nothing() {
    let target = json!({"a": [1, 2], "m": {"x/y": 1}});
    let steps = json!([{"op": "test", "path": "/a/0", "value": 1}, {"op": "add", "path": "/a/-", "value": 3},
        {"op": "remove", "path": "/a/0"}, {"op": "replace", "path": "/m/x~1y", "value": 2}, {"op": "copy", "from": "/m", "path": "/n"},
        {"op": "move", "from": "/m/x~1y", "path": "/z"}]);
    assert_eq!(patch::json(&target, &steps).unwrap(), json!({"a": [2, 3], "m": {}, "n": {"x/y": 2}, "z": 2}));
    for bad in [
        json!([{"op": "test", "path": "/a/0", "value": 9}]),
        json!([{"op": "remove", "path": "/nope"}]),
        json!([{"op": "add", "path": "/a/9", "value": 1}]),
        json!([{"op": "replace", "path": "/a/01", "value": 1}]),
        json!([{"op": "jump", "path": "/a"}]),
        json!([{"op": "move", "from": "/m", "path": "/m/x"}]),
        json!({"not": "a list"}),
    ] {
        assert!(patch::json(&target, &bad).is_err(), "{bad}");
    }
}

#[test]
fn label_selectors_select() {
    let object = json!({"metadata": {"name": "n", "labels": {"app": "web", "tier": "2"}}});
    let holds = |labels: &str| Selector::parse(labels, "", &[]).unwrap().matches(&object);
    for yes in [
        "app=web",
        "app==web,tier",
        "app!=x",
        "!gone",
        "app in (web, db)",
        "app notin (db)",
        "gone notin (x)",
        "tier>1",
        "tier<3",
        "",
    ] {
        assert!(holds(yes), "{yes}");
    }
    for no in ["app=db", "gone", "!app", "app in (db)", "app notin (web)", "tier>2", "gone=x"] {
        assert!(!holds(no), "{no}");
    }
    for bad in ["a b", "app in web", "=x", "app=a=b", "-a", "app like (x)"] {
        assert!(Selector::parse(bad, "", &[]).is_err(), "{bad}");
    }
}

#[test]
fn field_selectors_know_only_selectable_fields() {
    let object = json!({"metadata": {"name": "n", "namespace": "s"}, "spec": {"nodeName": "a"}});
    let allowed = vec!["spec.nodeName".to_owned(), "spec.unschedulable".to_owned()];
    let holds = |fields: &str| Selector::parse("", fields, &allowed).unwrap().matches(&object);
    assert!(holds("metadata.name=n,metadata.namespace=s,spec.nodeName!=b"));
    assert!(holds("spec.unschedulable=false"));
    assert!(!holds("spec.nodeName="));
    assert!(Selector::parse("", "spec.other=1", &allowed).is_err());
    assert!(Selector::parse("", "spec.nodeName", &allowed).is_err());
}

#[test]
fn an_empty_label_selector_selects_all_and_none_selects_nothing() {
    let object = json!({"metadata": {"labels": {"a": "b"}}});
    assert!(label_selector_matches(&json!({}), &object));
    assert!(!label_selector_matches(&Value::Null, &object));
    assert!(label_selector_matches(
        &json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]}),
        &object
    ));
    assert!(!label_selector_matches(&json!({"matchExpressions": [{"key": "a", "operator": "Odd"}]}), &object));
}

#[test]
fn json_paths_find_what_printer_columns_ask_for() {
    let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "False"}], "a.b": 1},
        "spec": {"ports": [{"p": 1}, {"p": 2}]}});
    let find = |path: &str| JsonPath::parse(path).unwrap().find(&object).into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(find(".status.conditions[?(@.type==\"Ready\")].status"), [json!("True")]);
    assert_eq!(find(".status.conditions[?(@.type!='Ready')].type"), [json!("X")]);
    assert_eq!(find(".spec.ports[*].p"), [json!(1), json!(2)]);
    assert_eq!(find(".spec.ports[-1].p"), [json!(2)]);
    assert_eq!(find(".status['a.b']"), [json!(1)]);
    assert_eq!(find(".status.a\\.b"), [json!(1)]);
    assert!(find(".nothing.here").is_empty());
    for bad in ["", "status", "..x", ".a[", ".a[?(x)]", ".a[b]"] {
        assert!(JsonPath::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn accept_headers_choose_the_form_or_are_refused() {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    assert_eq!(format(table, "").unwrap(), Format::Table(Include::Metadata));
    assert_eq!(format(table, "Object").unwrap(), Format::Table(Include::Object));
    assert_eq!(format("application/vnd.kubernetes.protobuf,application/json", "").unwrap(), Format::Plain);
    assert_eq!(format("application/json;as=Unknown;v=v9;g=x, application/json", "").unwrap(), Format::Plain);
    assert_eq!(
        format("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "").unwrap(),
        Format::Metadata
    );
    assert_eq!(format("application/yaml", "").unwrap_err().reason, Reason::NotAcceptable);
}

#[test]
fn ages_read_as_kubectl_prints_them() {
    for (seconds, text) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (660, "11m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 61, "3h1m"),
        (50 * 3600, "2d2h"),
        (9 * 86_400, "9d"),
        (800 * 86_400, "2y70d"),
        (-5, "<invalid>"),
    ] {
        assert_eq!(cells::duration(seconds), text);
    }
    assert_eq!(cells::age("garbage", Timestamp::UNIX_EPOCH), "<unknown>");
}

#[test]
fn names_follow_dns_rules() {
    assert!(names::dns_subdomain("a.b-c.d") && names::dns_label("a-1") && names::qualified("a.b/C_d.e"));
    for bad in ["", "A", "-a", "a-", "a..b", "a_b"] {
        assert!(!names::dns_subdomain(bad), "{bad}");
    }
    assert!(
        !names::dns_label(&"a".repeat(64))
            && names::dns_subdomain(&"a".repeat(253))
            && !names::dns_subdomain(&"a".repeat(254))
    );
    assert!(!names::path_segment("..") && names::path_segment("system:x"));
}

#[test]
fn issued_tokens_hold_until_they_expire_and_cannot_be_forged() {
    let access = Access::with_token("t".repeat(40));
    let now = Timestamp::UNIX_EPOCH;
    let claims = Claims {
        namespace: "ns".into(),
        account: "bot".into(),
        uid: "u".into(),
        audiences: vec!["x".into()],
        expires: 100,
    };
    let token = access.issue(&claims);
    let (user, audiences) = access.identify(&token, now).unwrap();
    assert_eq!(user.name, "system:serviceaccount:ns:bot");
    assert_eq!(audiences, ["x"]);
    assert!(access.identify(&token, object::plus_seconds(now, 100)).is_none());
    let mut forged = token.clone();
    forged.replace_range(8..9, if token.as_bytes()[8] == b'A' { "B" } else { "A" });
    assert!(access.identify(&forged, now).is_none());
    assert!(Access::with_token("s".repeat(40)).identify(&token, now).is_none());
    assert!(access.identify("", now).is_none());
    assert_eq!(access.identify(&"t".repeat(40), now).unwrap().0.name, "cellplane-admin");
}
