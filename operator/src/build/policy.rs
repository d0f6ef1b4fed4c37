//! Who reaches a database: data services, migrations and probes, nobody else. A cluster without an enforcer of NetworkPolicy keeps the
//! object and does nothing by it. A database that is run elsewhere guards itself: no object here can name it.

use cell_crds::{Engine, StorageCell};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use crate::names::{ADMIN_PORT, APP, GRPC_PORT, database_policy, labels, selector};

/// Components that speak with databases.
const CLIENTS: [&str; 4] = ["coordinator", "data", "probe", "worker"];
/// Ports of CQL: plain and TLS, and the same per shard.
const CQL_PORTS: [i32; 4] = [9042, 9142, 19_042, 19_142];
const LAST_PORT: i32 = 65_535;

fn port(first: i32, last: Option<i32>) -> NetworkPolicyPort {
    NetworkPolicyPort { port: Some(IntOrString::Int(first)), end_port: last, protocol: Some("TCP".into()) }
}

fn clients() -> NetworkPolicyPeer {
    let components = LabelSelectorRequirement {
        key: "app.kubernetes.io/component".into(),
        operator: "In".into(),
        values: Some(CLIENTS.map(str::to_owned).into()),
    };
    let pods = LabelSelector {
        match_labels: Some([("app.kubernetes.io/name".to_owned(), APP.to_owned())].into()),
        match_expressions: Some(vec![components]),
    };
    NetworkPolicyPeer { pod_selector: Some(pods), ..NetworkPolicyPeer::default() }
}

fn rule(from: Option<Vec<NetworkPolicyPeer>>, ports: Option<Vec<NetworkPolicyPort>>) -> NetworkPolicyIngressRule {
    NetworkPolicyIngressRule { from, ports }
}

/// The policy of a database that runs in this cluster; none for one that is run elsewhere.
pub fn database(storage: &StorageCell) -> Option<NetworkPolicy> {
    let name = storage.name_any();
    let (pods, ingress) = match (storage.spec.engine, &storage.spec.managed) {
        (Engine::Embedded, _) => {
            let pods = selector(&name, "store");
            let ports = vec![port(GRPC_PORT, None)];
            (pods, vec![rule(Some(vec![clients()]), Some(ports)), rule(None, Some(vec![port(ADMIN_PORT, None)]))])
        }
        (_, Some(_)) => {
            let pods = [("scylla/cluster".to_owned(), name.clone())].into();
            let nodes =
                LabelSelector { match_labels: Some(std::clone::Clone::clone(&pods)), ..LabelSelector::default() };
            let nodes = NetworkPolicyPeer { pod_selector: Some(nodes), ..NetworkPolicyPeer::default() };
            let cql = CQL_PORTS.map(|number| port(number, None)).into();
            (
                pods,
                vec![rule(Some(vec![nodes]), None), rule(Some(vec![clients()]), Some(cql)), rule(None, Some(others()))],
            )
        }
        _ => return None,
    };
    Some(NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(database_policy(&name)),
            labels: Some(labels(&name, "database")),
            owner_references: storage.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(pods), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(ingress),
            ..NetworkPolicySpec::default()
        }),
    })
}

/// All ports but those of CQL: what the database's own operator and its monitoring use stays theirs.
fn others() -> Vec<NetworkPolicyPort> {
    let mut first = 1;
    let mut ports = Vec::new();
    for cql in CQL_PORTS.into_iter().chain([LAST_PORT + 1]) {
        ports.push(port(first, Some(cql - 1)));
        first = cql + 1;
    }
    ports
}
