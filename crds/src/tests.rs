use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::*;
use crate::condition::{Wanted, merge};

#[test]
fn no_category_equals_a_plural_singular_or_short_name() {
    let mut names = Vec::new();
    for definition in all() {
        let spec = definition.spec.names;
        assert_eq!(spec.categories.as_deref(), Some([CATEGORY.to_owned()].as_slice()));
        names.push(spec.plural);
        names.extend(spec.singular);
        names.extend(spec.short_names.unwrap_or_default());
    }
    assert!(!names.iter().any(|name| name == CATEGORY), "{names:?}");
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "two kinds share a name: {names:?}");
}

#[test]
fn numbers_are_i32_or_i64_and_every_field_is_documented() {
    for definition in all() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        check(&schema["openAPIV3Schema"]["properties"], &definition.spec.names.kind);
    }
}

fn check(properties: &Value, path: &str) {
    for (name, field) in properties.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if let Some(format) = field["format"].as_str() {
            assert!(["int32", "int64", "date-time"].contains(&format), "{path} has format {format}");
        }
        if !path.contains("conditions") {
            assert!(field["description"].as_str().is_some_and(|text| !text.is_empty()), "{path} has no description");
        }
        check(&field["properties"], &path);
        check(&field["items"]["properties"], &path);
    }
}

#[test]
fn every_value_of_a_spec_is_bounded() {
    let mut loose = Vec::new();
    for definition in all() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        bounded(
            &schema["openAPIV3Schema"]["properties"]["spec"],
            &format!("{}.spec", definition.spec.names.kind),
            &mut loose,
        );
    }
    assert!(loose.is_empty(), "{}", loose.join("\n"));
}

fn bounded(schema: &Value, path: &str, loose: &mut Vec<String>) {
    let fits = match schema["type"].as_str().unwrap_or_default() {
        "integer" => schema["minimum"].is_number() && schema["maximum"].is_number(),
        "string" => schema["maxLength"].is_number() || schema["enum"].is_array(),
        "array" => schema["maxItems"].is_number(),
        "object" if schema["additionalProperties"].is_object() => schema["maxProperties"].is_number(),
        "object" => schema["properties"].is_object(),
        "boolean" => true,
        other => panic!("{path} has type {other:?}"),
    };
    if !fits {
        loose.push(format!("{path} has no bound: {schema}"));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        bounded(field, &format!("{path}.{name}"), loose);
    }
    for (key, part) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            bounded(&schema[key], &format!("{path}{part}"), loose);
        }
    }
}

#[test]
fn the_committed_yaml_is_what_the_types_say() {
    for definition in all() {
        let path = format!("{}/yaml/{}.yaml", env!("CARGO_MANIFEST_DIR"), definition.spec.names.plural);
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let generated = serde_saphyr::to_string(&definition).unwrap();
        assert!(committed.ends_with(&generated), "{path} is stale: run cargo run -p cell-crds --bin crdgen");
    }
}

#[test]
fn a_transition_time_changes_only_when_the_status_flips() {
    let at = |second| Time(Timestamp::from_second(second).unwrap());
    let want = |status, message: &str| Wanted {
        kind: ConditionType::Ready,
        status,
        reason: Reason::Progressing,
        message: message.to_owned(),
    };
    let first = merge(&[], &[want(false, "a")], 1, at(10));
    let second = merge(&first, &[want(false, "b")], 2, at(20));
    assert_eq!(second[0].last_transition_time, at(10));
    assert_eq!((second[0].message.as_str(), second[0].observed_generation), ("b", Some(2)));
    let third = merge(&second, &[want(true, "b")], 2, at(30));
    assert_eq!(third[0].last_transition_time, at(30));
    assert_eq!(merge(&third, &[want(true, "b")], 2, at(40)), third);
}

#[test]
fn an_abnormal_condition_is_present_only_while_true() {
    let stalled =
        |status| Wanted { kind: ConditionType::Stalled, status, reason: Reason::InvalidSpec, message: String::new() };
    let time = Time(Timestamp::from_second(1).unwrap());
    let present = merge(&[], &[stalled(true)], 1, time.clone());
    assert_eq!(present.len(), 1);
    assert!(merge(&present, &[stalled(false)], 1, time).is_empty());
}

#[test]
fn a_reserve_is_read_as_bytes() {
    let bytes = |text: &str| EmbeddedSpec { reserve: Some(text.to_owned()), ..EmbeddedSpec::default() }.reserve_bytes();
    assert_eq!((bytes("64Mi"), bytes("1Gi"), bytes("2Ti")), (Some(64 << 20), Some(1 << 30), Some(2 << 40)));
    for text in ["", "Mi", "64", "64Ki", "-1Mi", "é"] {
        assert_eq!(bytes(text), None, "{text}");
    }
    assert_eq!(EmbeddedSpec::default().reserve_bytes(), None);
}

#[test]
fn reasons_are_distinct_and_camel_case() {
    let labels: std::collections::HashSet<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
    assert_eq!(labels.len(), Reason::ALL.len());
    assert!(
        labels
            .iter()
            .all(|label| label.chars().all(|c| c.is_ascii_alphanumeric()) && label.starts_with(char::is_uppercase))
    );
}
