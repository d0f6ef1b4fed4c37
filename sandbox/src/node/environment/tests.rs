//! Environments as sentences.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};

use super::{EnvironmentError, Sources, expand, resolve};

fn container(json: serde_json::Value) -> Container {
    let mut whole = serde_json::json!({ "name": "c" });
    whole.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
    serde_json::from_value(whole).unwrap()
}

fn resolved(container: &Container) -> Result<super::Resolved, EnvironmentError> {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "web-0", "namespace": "fleet", "uid": "u1", "labels": { "app.kubernetes.io/part": "gate" } },
        "spec": { "nodeName": "n1", "containers": [] },
    }))
    .unwrap();
    let map = ConfigMap { data: Some([("colour".to_owned(), "red".to_owned())].into()), ..ConfigMap::default() };
    let secret = Secret { data: Some([("token".to_owned(), ByteString(b"s3".to_vec()))].into()), ..Secret::default() };
    let (map, secret) = (Arc::new(map), Arc::new(secret));
    let sources = Sources {
        pod: &pod,
        pod_ip: "127.1.1.9",
        host_ip: "127.1.1.1",
        node_size: (2000, 4096),
        config_map: &|name| (name == "settings").then(|| map.clone()),
        secret: &|name| (name == "keys").then(|| secret.clone()),
    };
    resolve(container, &sources, BTreeMap::from([("HOME".to_owned(), "/pod".to_owned())]))
}

#[test]
fn a_variable_may_name_an_earlier_one_and_a_dollar_is_kept_when_doubled() {
    let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
    assert_eq!(expand("$(A)-$(B)-$$(A)-$5", &env), "1-$(B)-$(A)-$5");
}

#[test]
fn every_kind_of_reference_is_resolved() {
    let found = resolved(&container(serde_json::json!({
        "args": ["--ip", "$(IP)", "--name=$(NAME)"],
        "envFrom": [{ "prefix": "C_", "configMapRef": { "name": "settings" } }],
        "env": [
            { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
            { "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "PART", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app.kubernetes.io/part']" } } },
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "token" } } },
            { "name": "NONE", "valueFrom": { "configMapKeyRef": { "name": "other", "key": "k", "optional": true } } },
            { "name": "CPU", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } },
            { "name": "URL", "value": "http://$(IP)/$(C_colour)" },
        ],
    })))
    .unwrap();
    assert_eq!(found.args, ["--ip", "127.1.1.9", "--name=web-0"]);
    let get = |name: &str| found.env.get(name).map(String::as_str);
    assert_eq!(get("PART"), Some("gate"));
    assert_eq!(get("TOKEN"), Some("s3"));
    assert_eq!(get("NONE"), None, "an optional reference to nothing leaves the variable unset");
    assert_eq!(get("CPU"), Some("2"), "without a limit the node's size counts");
    assert_eq!(get("URL"), Some("http://127.1.1.9/red"));
    assert_eq!(get("HOME"), Some("/pod"));
}

#[test]
fn a_missing_secret_is_named() {
    let missing = container(serde_json::json!({ "envFrom": [{ "secretRef": { "name": "gone" } }] }));
    let error = resolved(&missing).unwrap_err();
    assert_eq!(error.to_string(), "secret \"gone\" not found");
}

#[test]
fn an_unknown_field_is_refused() {
    let odd = container(serde_json::json!({
        "env": [{ "name": "A", "valueFrom": { "fieldRef": { "fieldPath": "status.mood" } } }],
    }));
    assert_eq!(resolved(&odd).unwrap_err(), EnvironmentError::Field("status.mood".into()));
}
