//! Which ports to listen on and which Pods stand behind each. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use kube::ResourceExt;

use crate::controllers::endpoints::{selects, target_port};
use crate::controllers::pods;

/// One port to listen on.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryPort {
    /// The Service.
    pub service: Arc<Service>,
    /// Its port.
    pub port: ServicePort,
}

/// Every TCP node port. Of two Services that claim one port the older keeps it.
pub fn entry_ports(services: &[Arc<Service>]) -> BTreeMap<u16, EntryPort> {
    let mut by_age: Vec<_> = services.iter().filter(|service| service.metadata.deletion_timestamp.is_none()).collect();
    by_age
        .sort_by_key(|service| (service.metadata.creation_timestamp.clone(), service.namespace(), service.name_any()));
    let mut found = BTreeMap::new();
    for service in by_age {
        let Some(spec) = service.spec.as_ref() else { continue };
        if !matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer")) {
            continue;
        }
        for port in spec.ports.iter().flatten() {
            let tcp = port.protocol.as_deref().unwrap_or("TCP") == "TCP";
            let number = port.node_port.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0);
            if let (true, Some(number)) = (tcp, number) {
                found.entry(number).or_insert_with(|| EntryPort { service: service.clone(), port: port.clone() });
            }
        }
    }
    found
}

/// The addresses of the ready Pods behind a port, in stable order. Leaving and not-ready Pods are left out.
pub fn backends(entry: &EntryPort, all: &[Arc<Pod>]) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = all
        .iter()
        .filter(|pod| pods::is_ready(pod) && selects(&entry.service, pod))
        .filter_map(|pod| {
            let address = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
            let port = u16::try_from(target_port(&entry.port, pod)?).ok()?;
            Some(SocketAddr::new(address, port))
        })
        .collect();
    found.sort_unstable();
    found
}
