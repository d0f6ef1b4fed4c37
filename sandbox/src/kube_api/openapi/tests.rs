//! The documents as their readers look at them.

use serde_json::json;

use super::*;
use crate::kube_api::registry::Registry;

fn references(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                out.push(reference.to_owned());
            }
            map.values().for_each(|inner| references(inner, out));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, out)),
        _ => {}
    }
}

#[test]
fn every_document_is_listed_whole_and_its_references_lead_somewhere() {
    let served = Registry::default().served();
    let listed = index(&served, &[]);
    assert!(listed["paths"].as_object().unwrap().len() > 8);
    for (part, entry) in listed["paths"].as_object().unwrap() {
        assert!(entry["serverRelativeURL"].as_str().unwrap().starts_with(&format!("/openapi/v3/{part}?hash=")));
        let document = document(&served, &[], part).unwrap();
        let mut all = Vec::new();
        references(&document, &mut all);
        for reference in all {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{part}: {name}");
        }
    }
    assert_eq!(document(&served, &[], "apis/nobody/v1"), None);
    let extensions = document(&served, &[], "apis/apiextensions.k8s.io/v1").unwrap();
    let props = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    assert_eq!(extensions["components"]["schemas"][props]["properties"]["$ref"]["type"], "string");
}

#[test]
fn a_built_in_kind_says_how_its_lists_merge_and_which_checks_its_verbs_take() {
    let served = Registry::default().served();
    let document = document(&served, &[], "apis/apps/v1").unwrap();
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let kind = json!([{"group": "apps", "version": "v1", "kind": "Deployment"}]);
    assert_eq!(schemas["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"], kind);
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert!(patch["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_object());
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
}
