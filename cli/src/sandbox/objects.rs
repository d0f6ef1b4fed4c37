//! What is installed into a sandbox: the operator, one StorageCell, two shared cells and the Fleet over them. Pure. These are the same
//! objects as on any cluster: nothing in the operator or the cells knows a sandbox.

use serde_json::{Value, json};

use super::network::Network;
use super::programs::{CELL_IMAGE, OPERATOR_IMAGE};
use super::state::Settings;

/// Namespace of the fleet, and where the operator runs.
pub const NAMESPACE: &str = "cellplane";
/// Name of the Fleet.
pub const FLEET: &str = "main";
/// The cells that share the buckets.
pub const SHARED_CELLS: [&str; 2] = ["shared-1", "shared-2"];
/// Name of the operator's Deployment.
pub const OPERATOR: &str = "cellplane-operator";
/// Name of the StorageCell.
pub const STORAGE: &str = "main";

fn api_version() -> String {
    format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION)
}

/// `host:port` of the etcd API.
pub fn etcd_endpoint(network: Network, settings: &Settings) -> String {
    format!("{}:{}", network.control_address(), settings.etcd_port)
}

/// `host:port` that clients connect to: the first node forwards it to ready gateways anywhere.
pub fn entry(network: Network, settings: &Settings) -> String {
    format!("{}:{}", network.node_address(1), settings.entry_port)
}

/// The namespace.
pub fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

/// The operator and what it runs as. `written_ms` is when its program was written: a rebuilt operator is rolled out.
pub fn operator(written_ms: u64) -> Vec<Value> {
    let labels = json!({
        "app.kubernetes.io/name": "cellplane",
        "app.kubernetes.io/component": "operator",
        "app.kubernetes.io/instance": OPERATOR,
        "app.kubernetes.io/managed-by": "cellctl",
    });
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe =
        |path: &str| json!({"httpGet": {"path": path, "port": 9090}, "periodSeconds": 2, "failureThreshold": 5});
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": OPERATOR, "namespace": NAMESPACE, "labels": labels}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": OPERATOR, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {
                "app.kubernetes.io/name": "cellplane",
                "app.kubernetes.io/component": "operator",
                "app.kubernetes.io/instance": OPERATOR,
            }},
            "template": {
                "metadata": {"labels": labels, "annotations": {"cellplane.dev/program-written": written_ms.to_string()}},
                "spec": {
                    "serviceAccountName": OPERATOR,
                    "terminationGracePeriodSeconds": 10,
                    "containers": [{
                        "name": "operator",
                        "image": OPERATOR_IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "env": [
                            field("POD_NAME", "metadata.name"),
                            field("POD_NAMESPACE", "metadata.namespace"),
                            field("POD_IP", "status.podIP"),
                        ],
                        "ports": [
                            {"name": "api", "containerPort": 8443},
                            {"name": "admin", "containerPort": 9090},
                        ],
                        "readinessProbe": probe("/readyz"),
                        "livenessProbe": probe("/livez"),
                    }],
                },
            },
        }}),
    ]
}

/// The spec of a StorageCell on a volume of a node.
pub fn embedded_storage() -> Value {
    json!({"engine": "embedded", "embedded": {"size": "10Gi", "storageClassName": "cellplane-local"}, "deletionPolicy": "Retain"})
}

/// The StorageCell of this spec, the shared cells and the Fleet.
pub fn fleet(network: Network, settings: &Settings, storage: &Value) -> Vec<Value> {
    let resource = |kind: &str, name: &str, spec: Value| json!({"apiVersion": api_version(), "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec});
    let roles = |gateway: i32, guild: i32, data: i32| json!({"gateway": {"replicas": gateway}, "guild": {"replicas": guild}, "data": {"replicas": data}});
    let mut objects = vec![resource("StorageCell", STORAGE, storage.clone())];
    for cell in SHARED_CELLS {
        objects.push(resource("Cell", cell, json!({"storageCellRef": STORAGE, "roles": roles(2, 2, 1)})));
    }
    let network_spec = fleet_network(network, settings);
    objects.push(resource(
        "Fleet",
        FLEET,
        json!({
            "etcd": {"endpoints": network_spec["etcd"]["endpoints"], "prefix": format!("/cellplane/{NAMESPACE}/")},
            "entry": {"host": network_spec["entry"]["host"], "port": network_spec["entry"]["port"], "service": "NodePort"},
            "image": {"cell": CELL_IMAGE, "pullPolicy": "IfNotPresent"},
            "bootstrapCells": SHARED_CELLS,
            "dedicatedTemplate": {"roles": roles(1, 2, 1)},
        }),
    ));
    objects
}

/// The part of the Fleet's spec that follows from the network.
pub fn fleet_network(network: Network, settings: &Settings) -> Value {
    json!({
        "etcd": {"endpoints": [etcd_endpoint(network, settings)]},
        "entry": {"host": network.node_address(1).to_string(), "port": settings.entry_port},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::state::Ports;

    #[test]
    fn the_fleet_is_made_of_resources_that_exist() {
        let network = Network::of_octet(70).unwrap();
        let settings = Settings::new("default", 3, Ports::default());
        for object in fleet(network, &settings, &embedded_storage()) {
            let kind = object["kind"].as_str().unwrap().to_owned();
            let known = match kind.as_str() {
                "Fleet" => serde_json::from_value::<cell_crds::Fleet>(object.clone()).is_ok(),
                "Cell" => serde_json::from_value::<cell_crds::Cell>(object.clone()).is_ok(),
                "StorageCell" => serde_json::from_value::<cell_crds::StorageCell>(object.clone()).is_ok(),
                _ => false,
            };
            assert!(known, "{object}");
        }
        assert_eq!(etcd_endpoint(network, &settings), "127.70.0.1:2379");
        assert_eq!(entry(network, &settings), "127.70.1.1:30080");
    }
}
