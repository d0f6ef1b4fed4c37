//! The paths of a resource: which verbs, which query parameters and bodies, for which kind.

use serde_json::{Map, Value, json};

use super::{part_of, schema_name};
use crate::kube_api::kinds::Resource;

/// Adds a resource's paths.
pub(super) fn add(paths: &mut Map<String, Value>, resource: &Resource) {
    let root = format!("/{}", part_of(resource));
    let scoped = if resource.namespaced { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
    let collection = format!("{scoped}/{}", resource.plural);
    let mut whole = json!({
        "get": operation(resource, "list", LIST),
        "post": with_body(operation(resource, "post", WRITE), &["application/json", "application/yaml"], &schema_name(resource)),
        "delete": operation(resource, "deletecollection", LIST),
        "parameters": places(resource, false),
    });
    paths.insert(collection.clone(), whole.take());
    let mut kinds = vec!["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    if resource.custom().is_none() {
        kinds.push("application/strategic-merge-patch+json");
    }
    let item = |name: &str| {
        let replace = operation(resource, "put", WRITE);
        let mut all = json!({
            "get": operation(resource, "get", &[]),
            "put": with_body(replace, &["application/json", "application/yaml"], &schema_name(resource)),
            "patch": with_body(operation(resource, "patch", PATCH), &kinds, "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"),
            "parameters": places(resource, true),
        });
        if name.is_empty() {
            all["delete"] = operation(resource, "delete", DELETE);
        }
        all
    };
    paths.insert(format!("{collection}/{{name}}"), item(""));
    if resource.has("status") {
        paths.insert(format!("{collection}/{{name}}/status"), item("status"));
    }
    if resource.namespaced {
        let everywhere = json!({"get": operation(resource, "list", LIST)});
        paths.insert(format!("{root}/{}", resource.plural), everywhere);
    }
}

const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

fn operation(resource: &Resource, action: &str, queries: &[&str]) -> Value {
    let kind = match *queries {
        [] => Vec::new(),
        _ => queries.iter().map(|name| query(name)).collect(),
    };
    let answer = json!({"$ref": format!("#/components/schemas/{}", schema_name(resource))});
    json!({
        "operationId": format!("{action}{}{}{}", resource.group.replace('.', ""), resource.version, resource.kind),
        "parameters": kind,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
    })
}

fn with_body(mut operation: Value, kinds: &[&str], schema: &str) -> Value {
    let schema = json!({"schema": {"$ref": format!("#/components/schemas/{schema}")}});
    let content: Map<String, Value> = kinds.iter().map(|kind| ((*kind).to_owned(), schema.clone())).collect();
    operation["requestBody"] = json!({"required": true, "content": content});
    operation
}

fn query(name: &str) -> Value {
    let kind = match name {
        "allowWatchBookmarks" | "force" | "orphanDependents" | "sendInitialEvents" | "watch" => "boolean",
        "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn places(resource: &Resource, named: bool) -> Vec<Value> {
    let place = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let mut out = Vec::new();
    if named {
        out.push(place("name"));
    }
    if resource.namespaced {
        out.push(place("namespace"));
    }
    out
}
