//! Tests of `schema`: what is accepted, filled, pruned and refused, and how rules see old values.

use serde_json::{Value, json};

use super::{compile::compile, fill, formats, rules, validate::validate};
use crate::kube_api::status::Fault;

fn schema(raw: Value) -> super::Schema {
    compile("schema", &raw).unwrap_or_else(|e| panic!("schema does not compile: {e:?}"))
}

fn spec(raw: Value) -> super::Schema {
    schema(json!({"type": "object", "properties": {"spec": raw}}))
}

fn faults(schema: &super::Schema, new: Value, old: Option<Value>) -> Vec<String> {
    validate(schema, &new, old.as_ref()).iter().map(|e| format!("{}:{:?}", e.field, e.fault)).collect()
}

fn broken(schema: &super::Schema, new: Value, old: Option<Value>) -> Vec<String> {
    rules::check(schema, &new, old.as_ref()).iter().map(|e| e.to_string()).collect()
}

#[test]
fn wrong_types_ranges_and_missing_fields_are_named_by_path() {
    let s = spec(json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 5},
        "name": {"type": "string", "pattern": "^a+$", "maxLength": 3},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "mode": {"type": "string", "enum": ["On", "Off"]}}}));
    assert_eq!(faults(&s, json!({"spec": {}}), None), ["spec.size:Required"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 9}}), None), ["spec.size:Invalid"]);
    assert_eq!(faults(&s, json!({"spec": {"size": "9"}}), None), ["spec.size:TypeInvalid"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 1.5}}), None), ["spec.size:TypeInvalid"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 1, "name": "b"}}), None), ["spec.name:Invalid"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 1, "name": "aaaa"}}), None), ["spec.name:TooLong"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 1, "mode": "x"}}), None), ["spec.mode:NotSupported"]);
    assert_eq!(faults(&s, json!({"spec": {"size": 1, "tags": ["a", "b", "a"]}}), None), ["spec.tags[2]:Duplicate"]);
    assert!(faults(&s, json!({"spec": {"size": 2.0, "name": "aa", "tags": ["a"], "mode": "On"}}), None).is_empty());
}

#[test]
fn list_map_items_are_unique_by_their_keys_with_defaults_counted() {
    let s = spec(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
        "items": {"type": "object", "required": ["port"], "properties": {
            "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}}),
    );
    assert_eq!(faults(&s, json!({"spec": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}), None), ["spec[1]:Duplicate"]);
    assert!(faults(&s, json!({"spec": [{"port": 1}, {"port": 1, "protocol": "UDP"}]}), None).is_empty());
}

#[test]
fn what_did_not_change_is_excused_and_what_did_is_not() {
    let s = spec(
        json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}, "b": {"type": "integer", "maximum": 3}}}),
    );
    let old = json!({"spec": {"a": 9, "b": 1}});
    assert!(faults(&s, json!({"spec": {"a": 9, "b": 2}}), Some(old.clone())).is_empty());
    assert_eq!(faults(&s, json!({"spec": {"a": 8, "b": 2}}), Some(old)), ["spec.a:Invalid"]);
}

#[test]
fn int_or_string_takes_both_and_nothing_else() {
    let s = spec(json!({"x-kubernetes-int-or-string": true}));
    assert!(faults(&s, json!({"spec": 1}), None).is_empty());
    assert!(faults(&s, json!({"spec": "50%"}), None).is_empty());
    assert_eq!(faults(&s, json!({"spec": true}), None), ["spec:TypeInvalid"]);
}

#[test]
fn logic_branches_are_judged() {
    let s = spec(json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["a", "b"]}}));
    assert!(faults(&s, json!({"spec": {"a": 1}}), None).is_empty());
    assert_eq!(faults(&s, json!({"spec": {}}), None).len(), 1);
    assert_eq!(faults(&s, json!({"spec": {"a": 1, "b": 1}}), None).len(), 2);
}

#[test]
fn defaults_fill_absent_fields_at_every_depth_but_make_no_parents() {
    let s = spec(json!({"type": "object", "properties": {
        "n": {"type": "integer", "default": 3},
        "inner": {"type": "object", "properties": {"m": {"type": "string", "default": "x"}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "boolean", "default": true}}}}}}));
    let mut object = json!({"spec": {"n": null, "list": [{}]}});
    fill::drop_nulls(&s, &mut object);
    fill::default(&s, &mut object);
    assert_eq!(object, json!({"spec": {"n": 3, "list": [{"k": true}]}}));
    let mut object = json!({"spec": {"inner": {}}});
    fill::default(&s, &mut object);
    assert_eq!(object, json!({"spec": {"n": 3, "inner": {"m": "x"}}}));
}

#[test]
fn pruning_keeps_metadata_known_fields_maps_and_preserved_parts() {
    let s = spec(json!({"type": "object", "properties": {
        "a": {"type": "integer"},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}));
    let mut object = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "labels": {"x": "y"}},
        "spec": {"a": 1, "typo": 2, "map": {"k": "v"}, "free": {"any": {"thing": 1}}}, "other": 1});
    let removed = fill::prune(&s, &mut object);
    assert_eq!(
        removed.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
        ["other", "spec.typo"].into()
    );
    assert_eq!(object["spec"], json!({"a": 1, "map": {"k": "v"}, "free": {"any": {"thing": 1}}}));
    assert_eq!(object["metadata"]["labels"]["x"], "y");
}

#[test]
fn rules_see_self_and_transition_rules_only_an_old_value() {
    let s = spec(json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"},
            "id": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "id is fixed"}]}},
        "x-kubernetes-validations": [{"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' is above max'"}]}));
    assert_eq!(broken(&s, json!({"spec": {"min": 2, "max": 1}}), None), ["spec: Invalid value: min 2 is above max"]);
    assert!(broken(&s, json!({"spec": {"min": 1, "max": 1, "id": "a"}}), None).is_empty());
    let old = json!({"spec": {"min": 1, "max": 1, "id": "a"}});
    assert_eq!(
        broken(&s, json!({"spec": {"min": 1, "max": 1, "id": "b"}}), Some(old.clone())),
        ["spec.id: Invalid value: \"b\": id is fixed"]
    );
    assert!(broken(&s, old.clone(), Some(old)).is_empty());
}

#[test]
fn optional_old_self_is_asked_on_create_too() {
    let s = spec(json!({"type": "string", "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() || self == 'new'", "optionalOldSelf": true, "message": "must start as new"},
        {"rule": "!oldSelf.hasValue() || oldSelf.value() != 'end'", "optionalOldSelf": true, "message": "ended"}]}));
    assert!(broken(&s, json!({"spec": "new"}), None).is_empty());
    assert_eq!(broken(&s, json!({"spec": "x"}), None), ["spec: Invalid value: \"x\": must start as new"]);
    assert!(broken(&s, json!({"spec": "x"}), Some(json!({"spec": "new"}))).is_empty());
    assert_eq!(broken(&s, json!({"spec": "x"}), Some(json!({"spec": "end"}))), ["spec: Invalid value: \"x\": ended"]);
}

#[test]
fn old_items_are_found_by_key_never_by_place() {
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "v": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "message": "may only grow"}]});
    let keyed = spec(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item}),
    );
    let old = json!({"spec": [{"name": "a", "v": 5}, {"name": "b", "v": 1}]});
    let swapped = json!({"spec": [{"name": "b", "v": 1}, {"name": "a", "v": 5}]});
    assert!(broken(&keyed, swapped, Some(old.clone())).is_empty());
    assert_eq!(broken(&keyed, json!({"spec": [{"name": "a", "v": 4}]}), Some(old.clone())).len(), 1);
    let plain = spec(json!({"type": "array", "items": item}));
    assert!(broken(&plain, json!({"spec": [{"name": "a", "v": 4}]}), Some(old)).is_empty());
}

#[test]
fn a_rule_broken_before_is_excused_while_its_value_stays() {
    let s = spec(
        json!({"type": "object", "properties": {"a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 3"}]},
        "b": {"type": "integer"}}}),
    );
    let old = json!({"spec": {"a": 9, "b": 1}});
    assert!(broken(&s, json!({"spec": {"a": 9, "b": 2}}), Some(old.clone())).is_empty());
    assert_eq!(broken(&s, json!({"spec": {"a": 8, "b": 1}}), Some(old)).len(), 1);
}

#[test]
fn a_rule_that_cannot_be_evaluated_refuses() {
    let s = spec(json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.a > 1"}, {"rule": "self.a + 1"}]}));
    let errors = broken(&s, json!({"spec": {}}), None);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(broken(&s, json!({"spec": {"a": 2}}), None)[0].contains("did not evaluate to a boolean"));
}

#[test]
fn rules_see_escaped_names_times_and_the_name_of_metadata() {
    let s = schema(json!({"type": "object", "x-kubernetes-validations": [
            {"rule": "self.metadata.name == 'n'"}],
        "properties": {"metadata": {"type": "object"}, "spec": {"type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.__namespace__ == 'x' && self.a__dash__b == 1 && self.snake_case == 2"},
                {"rule": "self.end > self.begin"}, {"rule": "self.wait < duration('2m')"}],
            "properties": {"namespace": {"type": "string"}, "a-b": {"type": "integer"}, "snake_case": {"type": "integer"},
                "begin": {"type": "string", "format": "date-time"}, "end": {"type": "string", "format": "date-time"},
                "wait": {"type": "string", "format": "duration"}}}}}));
    let object = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"namespace": "x", "a-b": 1, "snake_case": 2,
        "begin": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00+00:30", "wait": "90s"}});
    assert_eq!(broken(&s, object, None), Vec::<String>::new());
}

#[test]
fn a_definition_that_could_not_be_served_is_refused() {
    let bad = [
        json!({"properties": {}}),
        json!({"type": "object", "properties": {"a": {}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
        json!({"type": "object", "properties": {"a": {"type": "array"}}}),
        json!({"type": "object", "properties": {"a": {"type": "strng"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self +"}]}),
        json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/x", "type": "object"}}}),
    ];
    for raw in bad {
        assert!(compile("s", &raw).is_err(), "{raw}");
    }
}

#[test]
fn rules_may_name_only_fields_the_schema_has() {
    let with = |rule: &str| {
        compile("s", &json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}], "properties": {
            "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": {
                "a-b": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"y": {"type": "integer"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}))
        .err()
        .map(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    };
    for good in [
        "self.metadata.name != self.kind + self.apiVersion",
        "self.spec.a__dash__b == 1 && has(self.spec.free.any.thing)",
        "self.spec.list.all(i, i.x > 0) && self.spec.list[0].x == 1 && self.spec.list.exists(i, self.spec.list.all(j, j.x <= i.x))",
        "self.spec.map.all(k, self.spec.map[k].y > 0) && self.spec.map.k.y > 1",
        "self.spec == oldSelf.spec && size(self.spec.list) > 0",
        "self.spec.list.map(i, i.x).exists(n, n == 3)",
    ] {
        assert_eq!(with(good), None, "{good}");
    }
    for bad in [
        "self.nope == 1",
        "has(self.spec.nope)",
        "self.metadata.labels.size() > 0",
        "self.spec.list.all(i, i.z > 0)",
        "self.spec.list[0].z == 1",
        "self.spec.map['k'].z == 1",
        "oldSelf.spec.nope == 1",
        "self.spec.list.exists(i, i.x == self.spec.q)",
    ] {
        assert!(with(bad).is_some_and(|e| e.contains("undefined field")), "{bad}");
    }
}

#[test]
fn deep_nesting_is_refused_not_followed() {
    let mut raw = json!({"type": "string"});
    for _ in 0..100 {
        raw = json!({"type": "object", "properties": {"a": raw}});
    }
    let errors = compile("s", &raw).err().unwrap_or_default();
    assert!(errors.iter().any(|e| e.fault == Fault::TooMany));
}

#[test]
fn formats_hold_what_they_promise() {
    for (format, good, bad) in [
        ("date-time", "2026-01-01T00:00:00Z", "2026-01-01"),
        ("date", "2026-01-01", "01.01.2026"),
        ("duration", "1h30m", "1x"),
        ("byte", "aGk=", "!"),
        ("ipv4", "127.0.0.1", "::1"),
        ("ipv6", "::1", "127.0.0.1"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("uuid", "6f1c6f8e-9f0a-4a51-8d6c-0c1f7a8f9b10", "x"),
    ] {
        assert!(formats::text_matches(format, good), "{format} {good}");
        assert!(!formats::text_matches(format, bad), "{format} {bad}");
    }
    assert!(formats::text_matches("nobody-knows", "x"));
    assert!(formats::integer_fits("int32", 1) && !formats::integer_fits("int32", i64::MAX));
}
