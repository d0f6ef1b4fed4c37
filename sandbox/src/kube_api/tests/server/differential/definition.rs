//! The definition of Gizmo, a kind with every trait of schemas that scenarios are to meet, in schemas that grow stricter and laxer.

use serde_json::{Value, json};

pub const NAME: &str = "gizmos.differential.example.dev";
/// How many schemas there are.
pub const SCHEMAS: usize = 3;

/// The definition with one of its schemas. `spec.epoch` accepts only the number of the schema or less: it tells which is in force.
pub fn gizmos(schema: usize) -> Value {
    let subresources = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector"}});
    let columns = json!([
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}]);
    let whole = json!({"type": "object", "required": ["spec"], "properties": {"spec": spec(schema), "status": status()},
        "x-kubernetes-validations": [{"rule": "self.metadata.name != 'c' || self.spec.size < 50", "message": "c stays small"}]});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": subresources,
        "selectableFields": [{"jsonPath": ".spec.color"}], "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": whole}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME},
        "spec": {"group": "differential.example.dev", "scope": "Namespaced", "names": {"plural": "gizmos", "kind": "Gizmo"},
            "versions": [version]}})
}

fn spec(schema: usize) -> Value {
    // The stricter a schema, the more of what was stored under another no longer fits.
    let (most, colors) = match schema {
        0 => (100, json!(["red", "green", "blue"])),
        1 => (10, json!(["red", "green"])),
        _ => (100, json!(["red", "blue"])),
    };
    let port = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 8},
        "port": {"type": "integer", "default": 80, "minimum": 1}, "protocol": {"type": "string", "enum": ["TCP", "UDP"], "default": "TCP"}}});
    let epochs: Vec<usize> = (0..=schema).collect();
    json!({"type": "object", "required": ["size"], "properties": {
        "epoch": {"type": "integer", "enum": epochs},
        "size": {"type": "integer", "minimum": 1, "maximum": most},
        "replicas": {"type": "integer", "default": 2, "minimum": 0},
        "color": {"type": "string", "default": "red", "enum": colors},
        "id": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "id cannot change"}]},
        "ports": {"type": "array", "maxItems": 3, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "protocol"],
            "items": port},
        "tags": {"type": "array", "maxItems": 3, "x-kubernetes-list-type": "set", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        "words": {"type": "array", "items": {"type": "string"}},
        "limits": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}},
        "place": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 7}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "boolean", "default": true}}},
        "maybe": {"type": "string", "nullable": true},
        "ratio": {"type": "number"},
        "when": {"type": "string", "format": "date-time"},
        "nested": {"type": "object", "default": {}, "properties": {"mode": {"type": "string", "default": "auto"},
            "deep": {"type": "object", "properties": {"on": {"type": "boolean", "default": false}}}}}},
        "x-kubernetes-validations": [
            {"rule": "self.replicas <= self.size", "message": "more replicas than size"},
            {"rule": "!has(oldSelf.when) || has(self.when)", "message": "when cannot be taken away", "reason": "FieldValueForbidden"},
            {"rule": "!has(self.ports) || self.ports.all(p, p.port != 13)", "message": "no port 13", "fieldPath": ".ports"}]})
}

fn status() -> Value {
    let condition = json!({"type": "object", "required": ["type", "status"], "properties": {"type": {"type": "string"},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]}, "reason": {"type": "string"}}});
    json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"},
        "phase": {"type": "string", "default": "New"},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": condition}}})
}
