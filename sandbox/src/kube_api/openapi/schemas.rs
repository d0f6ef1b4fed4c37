//! The schemas of a document: typed forms of built-in kinds with what is known of their lists, definitions' own schemas for the rest.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Patch};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::schema_name;
use crate::kube_api::kinds::{Model, Resource};
use crate::kube_api::object::{self, at, list, text};
use crate::kube_api::types::{self, Field};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// `core.v1.Pod` as the documents spell it.
pub(super) fn long_name(short: &str) -> String {
    for (package, long) in [
        ("meta.", "io.k8s.apimachinery.pkg.apis.meta."),
        ("ext.", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions."),
    ] {
        if let Some(rest) = short.strip_prefix(package) {
            return format!("{long}{rest}");
        }
    }
    format!("io.k8s.api.{short}")
}

fn short_of(long: &str) -> Option<String> {
    for (prefix, package) in [
        ("io.k8s.apimachinery.pkg.apis.meta.", "meta."),
        ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.", "ext."),
        ("io.k8s.api.", ""),
    ] {
        if let Some(rest) = long.strip_prefix(prefix) {
            return Some(format!("{package}{rest}"));
        }
    }
    None
}

/// The schemas of these resources and of all they are made of.
pub(super) fn of(resources: &[Arc<Resource>], definitions: &[Value]) -> Map<String, Value> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    generator.subschema_for::<ObjectMeta>();
    generator.subschema_for::<Patch>();
    for resource in resources {
        if let Model::BuiltIn(kind) = &resource.model {
            (kind.schema)(&mut generator);
        }
    }
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        if let Some(known) = short_of(name).and_then(|short| types::named(&short)) {
            for (field, described) in known.fields() {
                if let Some(property) = schema.pointer_mut(&format!("/properties/{field}")) {
                    describe(property, described);
                }
            }
            if known.is_atomic() {
                schema["x-kubernetes-map-type"] = "atomic".into();
            }
        }
        wrap_references(schema);
    }
    for resource in resources {
        let name = schema_name(resource);
        if let Some(custom) = resource.custom()
            && let Some(definition) = definitions.iter().find(|d| object::name(d) == custom.definition)
        {
            schemas.insert(name.clone(), custom_schema(definition, &resource.version));
        }
        if let Some(schema) = schemas.get_mut(&name) {
            let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
            schema["x-kubernetes-group-version-kind"] = json!([kind]);
        }
    }
    schemas
}

fn describe(property: &mut Value, field: &Field) {
    if let Some(kind) = &field.list {
        property["x-kubernetes-list-type"] = kind.as_str().into();
    }
    if !field.keys.is_empty() {
        property["x-kubernetes-list-map-keys"] = json!(field.keys);
    }
    if field.is_atomic_map() {
        property["x-kubernetes-map-type"] = "atomic".into();
    }
    if let Some(strategy) = &field.patch {
        property["x-kubernetes-patch-strategy"] = strategy.as_str().into();
    }
    if let Some(key) = &field.patch_key {
        property["x-kubernetes-patch-merge-key"] = key.as_str().into();
    }
    if let Some(default) = &field.default {
        property["default"] = default.clone();
    }
}

/// A reference with words beside it is written as the only part of a whole: words beside a plain reference are not read.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(wrap_references);
            // A schema of schemas has a field of that name, which is no reference.
            if map.len() > 1 && map.get("$ref").is_some_and(Value::is_string) {
                let reference = map.remove("$ref");
                map.insert("allOf".into(), json!([{"$ref": reference}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}

fn custom_schema(definition: &Value, version: &str) -> Value {
    let versions = list(definition, &["spec", "versions"]);
    let found = versions.iter().find(|v| text(v, &["name"]) == version);
    let mut schema = found.and_then(|v| at(v, &["schema", "openAPIV3Schema"])).cloned().unwrap_or_else(|| json!({}));
    let words = |what: &str| json!({"type": "string", "description": what});
    let properties = object::child(&mut schema, "properties");
    properties.insert("apiVersion".into(), words("The versioned schema of this representation of an object."));
    properties.insert("kind".into(), words("The REST resource this object represents."));
    properties.insert("metadata".into(), json!({"description": "Standard object's metadata.", "allOf": [{"$ref": format!("#/components/schemas/{META}")}]}));
    schema["type"] = "object".into();
    schema
}
