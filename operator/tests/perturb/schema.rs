//! Changes of a spec, one for each field, made from the kind's own schema: another legal value, or a first one. Pure.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use regex::Regex;
use serde_json::{Map, Value, json};

/// Values that are tried where a pattern or a length decides: the first that is legal and another than now.
const WORDS: [&str; 14] = [
    "other",
    "70m",
    "96Mi",
    "2Gi",
    "--tuning=7",
    "host-7:2379",
    "b0007",
    "7",
    "/cellplane/elsewhere/",
    "dc7",
    "kept_7",
    "0.7.1",
    "another-word",
    "x",
];

/// One change: merge patches of the spec, there and back.
#[derive(Clone, Debug)]
pub struct Change {
    pub path: String,
    pub there: Value,
    pub back: Value,
}

/// Every field of a kind's spec changed alone.
pub fn changes(kind: &str, spec: &Value) -> Vec<Change> {
    let definition = cell_crds::all().into_iter().find(|one| one.spec.names.kind == kind).unwrap();
    let schema = definition.spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    let mut found = Vec::new();
    walk(&schema.properties.unwrap()["spec"], spec, &mut Vec::new(), &mut found);
    found
}

fn walk(schema: &JSONSchemaProps, now: &Value, path: &mut Vec<String>, found: &mut Vec<Change>) {
    for (name, field) in schema.properties.iter().flatten() {
        path.push(name.clone());
        let live = now.get(name).unwrap_or(&Value::Null);
        if field.properties.is_some() && live.is_object() {
            walk(field, live, path, found);
        } else {
            for value in others(field, live) {
                let nest = |value: Value| path.iter().rev().fold(value, |inner, name| json!({name: inner}));
                found.push(Change { path: path.join("."), there: nest(value), back: nest(live.clone()) });
            }
        }
        path.pop();
    }
}

/// Legal values other than `live`; for what is an object and absent, one with each of its fields.
fn others(field: &JSONSchemaProps, live: &Value) -> Vec<Value> {
    if let Some(words) = &field.enum_ {
        return words.iter().map(|word| word.0.clone()).filter(|word| word != live && !word.is_null()).collect();
    }
    match field.type_.as_deref() {
        Some("object") if field.properties.is_some() => {
            let least = least(field);
            let mut found = vec![least.clone()];
            for (name, inner) in field.properties.iter().flatten() {
                let known = least.get(name).unwrap_or(&Value::Null);
                if let Some(value) = others(inner, known).into_iter().next() {
                    let mut with = least.clone();
                    with[name] = value;
                    found.push(with);
                }
            }
            // An empty object that says nothing changes nothing.
            found.retain(|value| value.as_object().is_some_and(|fields| !fields.is_empty()));
            found
        }
        _ => one(field, live).into_iter().collect(),
    }
}

/// The fewest fields that are legal.
fn least(field: &JSONSchemaProps) -> Value {
    let needed = field.required.iter().flatten();
    let value = |name: &String| one(&field.properties.as_ref()?[name], &Value::Null).map(|value| (name.clone(), value));
    Value::Object(needed.filter_map(value).collect::<Map<_, _>>())
}

/// One legal value other than `live`.
fn one(field: &JSONSchemaProps, live: &Value) -> Option<Value> {
    if let Some(words) = &field.enum_ {
        return words.iter().map(|word| word.0.clone()).find(|word| word != live);
    }
    match field.type_.as_deref()? {
        "boolean" => Some(json!(!live.as_bool().unwrap_or_default())),
        "integer" => {
            let bound = |bound: Option<f64>, default: i64| bound.map_or(default, |bound| bound as i64);
            let (least, most) = (bound(field.minimum, 0), bound(field.maximum, i64::from(i32::MAX)));
            let now = live.as_i64().unwrap_or(least);
            Some(json!(if now < most { now + 1 } else { now - 1 })).filter(|value| value.as_i64() >= Some(least))
        }
        "string" => {
            let pattern = field.pattern.as_ref().map(|pattern| Regex::new(pattern).unwrap());
            let length = |word: &str| i64::try_from(word.len()).unwrap();
            let legal = |word: &&&str| {
                pattern.as_ref().is_none_or(|pattern| pattern.is_match(word))
                    && field.min_length.is_none_or(|least| length(word) >= least)
                    && field.max_length.is_none_or(|most| length(word) <= most)
                    && live.as_str() != Some(word)
            };
            WORDS.iter().find(legal).map(|word| json!(word))
        }
        "array" => {
            let items = match &field.items {
                Some(
                    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrArray::Schema(
                        items,
                    ),
                ) => items,
                _ => return None,
            };
            let item = if items.properties.is_some() { Some(least(items)) } else { one(items, &Value::Null) }?;
            let mut list = live.as_array().cloned().unwrap_or_default();
            list.push(item);
            Some(Value::Array(list))
        }
        "object" => {
            let mut map = live.as_object().cloned().unwrap_or_default();
            let value = match &field.additional_properties {
                Some(
                    k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrBool::Schema(
                        inner,
                    ),
                ) => one(inner, &Value::Null)?,
                _ => return None,
            };
            map.insert("added".to_owned(), value);
            Some(Value::Object(map))
        }
        _ => None,
    }
}

#[test]
fn every_field_of_every_kind_has_a_change() {
    let spec = json!({"storageCellRef": "main", "roles": {"gateway": {"replicas": 1}, "guild": {"replicas": 1}, "data": {"replicas": 1}},
        "weight": 100, "availability": "Active"});
    let found = changes("Cell", &spec);
    let has = |path: &str| found.iter().filter(|change| change.path == path).count();
    assert_eq!((has("weight"), has("availability"), has("roles.data.replicas"), has("voiceRegions")), (1, 2, 1, 1));
    assert!(has("roles.gateway.template") >= 4, "one for each field of what is absent");
    let weight = found.iter().find(|change| change.path == "weight").unwrap();
    assert_eq!((&weight.there, &weight.back), (&json!({"weight": 101}), &json!({"weight": 100})));
    for kind in ["Fleet", "StorageCell", "Guild", "Move", "StorageMigration"] {
        assert!(changes(kind, &json!({})).len() > 3, "{kind}");
    }
}
