//! Who reaches a database: data services, migrations and probes, nobody else. A cluster without an enforcer of NetworkPolicy keeps the
//! objects and does nothing by them. A database that is run elsewhere guards itself, as no object here can name it; but a cell's other
//! roles may not dial the ports of CQL, nor those of the contact points of their cell's databases.

use std::collections::BTreeSet;

use cell_crds::{Cell, Engine, Fleet, StorageCell};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use crate::names::{ADMIN_PORT, APP, CELL_LABEL, GRPC_PORT, database_policy, dial_policy, labels, selector};

/// Components that speak with databases.
const CLIENTS: [&str; 4] = ["coordinator", "data", "probe", "worker"];
/// Components that have no business with them.
const OTHERS: [&str; 2] = ["gateway", "guild"];
/// Ports of CQL: plain and TLS, and the same per shard.
const CQL_PORTS: [i32; 4] = [9042, 9142, 19_042, 19_142];
const LAST_PORT: i32 = 65_535;
const DNS_PORT: i32 = 53;

fn port(first: i32, last: Option<i32>) -> NetworkPolicyPort {
    NetworkPolicyPort { port: Some(IntOrString::Int(first)), end_port: last, protocol: Some("TCP".into()) }
}

fn components(names: &[&str]) -> LabelSelector {
    let components = LabelSelectorRequirement {
        key: "app.kubernetes.io/component".into(),
        operator: "In".into(),
        values: Some(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    LabelSelector {
        match_labels: Some([("app.kubernetes.io/name".to_owned(), APP.to_owned())].into()),
        match_expressions: Some(vec![components]),
    }
}

fn clients() -> NetworkPolicyPeer {
    let pods = components(&CLIENTS);
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
                vec![
                    rule(Some(vec![nodes]), None),
                    rule(Some(vec![clients()]), Some(cql)),
                    rule(None, Some(all_but(&CQL_PORTS.into()))),
                ],
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

/// The policy of a cell's roles that have no business with its databases: wherever these run, they may not dial their ports. What the
/// roles need stays open whatever a contact point says: names, each other, and etcd.
pub fn dialling(cell: &Cell, fleet: &Fleet, storage_cells: &[StorageCell]) -> NetworkPolicy {
    let name = cell.name_any();
    let external = storage_cells.iter().filter_map(|storage| storage.spec.external.as_ref());
    let contact_points = external.flat_map(|external| &external.contact_points);
    let etcd = fleet.spec.etcd.endpoints.iter().filter_map(|endpoint| port_of(endpoint));
    let needed: BTreeSet<i32> = [DNS_PORT, GRPC_PORT, ADMIN_PORT].into_iter().chain(etcd).collect();
    let named = contact_points.filter_map(|point| port_of(point));
    let closed = CQL_PORTS.into_iter().chain(named).filter(|port| !needed.contains(port)).collect();
    let mut ports = all_but(&closed);
    let udp =
        NetworkPolicyPort { port: Some(IntOrString::Int(1)), end_port: Some(LAST_PORT), protocol: Some("UDP".into()) };
    ports.push(udp);
    let mut pods = components(&OTHERS);
    pods.match_labels.get_or_insert_default().insert(CELL_LABEL.into(), name.clone());
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(dial_policy(&name)),
            labels: Some(labels(&name, "cell")),
            owner_references: cell.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(vec!["Egress".into()]),
            egress: Some(vec![NetworkPolicyEgressRule { to: None, ports: Some(ports) }]),
            ..NetworkPolicySpec::default()
        }),
    }
}

/// The port of `host:port`, with or without a scheme; none where there is no host before it.
fn port_of(address: &str) -> Option<i32> {
    let (host, port) = address.trim_end_matches('/').rsplit_once(':')?;
    let bare_ipv6 = host.contains(':') && !host.ends_with(']') && !host.contains("://");
    port.parse::<u16>().ok().filter(|port| *port > 0 && !host.is_empty() && !bare_ipv6).map(i32::from)
}

/// All ports but some: what is not closed stays as it is.
fn all_but(closed: &BTreeSet<i32>) -> Vec<NetworkPolicyPort> {
    let mut first = 1;
    let mut ports = Vec::new();
    for closed in closed.iter().copied().chain([LAST_PORT + 1]) {
        if first < closed {
            ports.push(port(first, Some(closed - 1)));
        }
        first = closed + 1;
    }
    ports
}
