//! The EndpointSlice controller: one slice per Service with a selector, naming its Pods' addresses. Pure decision and thin driver.
//! An API server that refuses loopback addresses refuses these slices; nothing in the sandbox depends on them.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Api, Resource, ResourceExt};

use super::act::{self, ActError};
use super::mirror::Seen;
use super::pods;
use super::scheduler::ZONE_LABEL;
use super::selector::contains_all;
use super::world::World;

const MANAGED_BY: &str = "cellplane-sandbox";

/// The numeric port a Service port reaches on a Pod: a number as it stands, a name looked up among the Pod's container ports.
pub fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match port.target_port.as_ref() {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            if let Ok(number) = name.parse() {
                return Some(number);
            }
            let containers = &pod.spec.as_ref()?.containers;
            let mut ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
            ports.find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port)
        }
    }
}

/// True when the Service selects the Pod.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    pod.metadata.namespace == service.metadata.namespace
        && selector.is_some_and(|selector| !selector.is_empty() && contains_all(selector, pod.metadata.labels.as_ref()))
}

/// The slice a Service should have; None for a Service without a selector.
pub fn slice(service: &Service, all: &[Arc<Pod>], nodes: &[Arc<Node>]) -> Option<EndpointSlice> {
    let spec = service.spec.as_ref()?;
    spec.selector.as_ref().filter(|selector| !selector.is_empty())?;
    let mut chosen: Vec<_> = all
        .iter()
        .filter(|pod| selects(service, pod) && !pods::is_ended(pod) && address(pod).is_some())
        .cloned()
        .collect();
    chosen.sort_by_key(|pod| pod.name_any());
    let ports = spec.ports.as_deref().unwrap_or(&[]).iter().map(|port| EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: Some(port.name.clone().unwrap_or_default()),
        port: chosen.first().map_or(Some(port.port), |pod| target_port(port, pod)),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
    });
    let name = service.name_any();
    let hash = pods::short_hash(&service.metadata.uid);
    Some(EndpointSlice {
        address_type: "IPv4".into(),
        endpoints: chosen.iter().map(|pod| endpoint(pod, nodes)).collect(),
        metadata: ObjectMeta {
            name: Some(format!("{}-{}", name.chars().take(200).collect::<String>(), &hash[..5])),
            namespace: service.namespace(),
            labels: Some(
                [
                    ("kubernetes.io/service-name".to_owned(), name),
                    ("endpointslice.kubernetes.io/managed-by".to_owned(), MANAGED_BY.to_owned()),
                ]
                .into(),
            ),
            owner_references: service.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        ports: Some(ports.collect()),
    })
}

fn address(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref().filter(|ip| !ip.is_empty())
}

fn endpoint(pod: &Pod, nodes: &[Arc<Node>]) -> Endpoint {
    let node = pods::node(pod);
    let zone = nodes
        .iter()
        .find(|other| other.metadata.name.as_deref() == node)
        .and_then(|node| node.labels().get(ZONE_LABEL).cloned());
    let serving = pods::has_ready_condition(pod);
    Endpoint {
        addresses: address(pod).map(str::to_owned).into_iter().collect(),
        conditions: Some(EndpointConditions {
            ready: Some(serving && !pods::is_leaving(pod)),
            serving: Some(serving),
            terminating: Some(pods::is_leaving(pod)),
        }),
        node_name: node.map(str::to_owned),
        zone,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// The EndpointSlice controller.
#[derive(Default)]
pub struct Endpoints {
    writes: HashMap<String, Seen>,
    refused: HashMap<String, EndpointSlice>,
}

impl Endpoints {
    /// One look at every Service; false when something failed and should be tried again soon.
    pub async fn round(&mut self, world: &World) -> bool {
        let services = world.services.all();
        let known = |uid: &String| services.iter().any(|service| service.metadata.uid.as_ref() == Some(uid));
        self.writes.retain(|uid, _| known(uid));
        self.refused.retain(|uid, _| known(uid));
        let (all, nodes) = (world.pods.all(), world.nodes.all());
        let mut fine = true;
        for service in &services {
            if service.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let Some(wanted) = slice(service, &all, &nodes) else { continue };
            if let Err(error) = self.one(world, &service.uid().unwrap_or_default(), wanted).await {
                if !error.is_conflict() {
                    tracing::warn!(service = %service.name_any(), error = %error, "endpointslice not written");
                }
                fine = false;
            }
        }
        fine
    }

    async fn one(&mut self, world: &World, uid: &str, wanted: EndpointSlice) -> Result<(), ActError> {
        if self.writes.get(uid).is_some_and(|mark| !world.slices.has_seen(*mark))
            || self.refused.get(uid) == Some(&wanted)
        {
            return Ok(());
        }
        let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
        let api: Api<EndpointSlice> = Api::namespaced(world.client.clone(), &namespace);
        let written = match world.slices.get(&namespace, &name) {
            None => act::create(&api, &wanted, &world.writes).await,
            Some(have) if have.endpoints == wanted.endpoints && have.ports == wanted.ports => return Ok(()),
            Some(have) => {
                let body = serde_json::json!({ "endpoints": wanted.endpoints, "ports": wanted.ports });
                act::patch(&api, have.as_ref(), body, &world.writes).await.map(Some)
            }
        };
        match written {
            Ok(version) => {
                let version = version.unwrap_or(0);
                self.writes.insert(uid.to_owned(), world.slices.mark(version));
                Ok(())
            }
            Err(error) if error.code() == 422 => {
                tracing::warn!(slice = name, error = %error, "the API server refuses this endpointslice");
                self.refused.insert(uid.to_owned(), wanted);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, PodStatus, ServiceSpec};

    fn pod(name: &str, ip: &str) -> Arc<Pod> {
        let port = ContainerPort { name: Some("http".into()), container_port: 8080, ..ContainerPort::default() };
        let container = Container { ports: Some(vec![port]), ..Container::default() };
        let mut pod = Pod {
            spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            status: Some(PodStatus { pod_ip: Some(ip.into()), ..PodStatus::default() }),
            ..Pod::default()
        };
        pod.metadata.name = Some(name.into());
        pod.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
        Arc::new(pod)
    }

    #[test]
    fn a_named_target_port_is_found_on_the_pod_and_the_order_is_stable() {
        let port =
            ServicePort { port: 80, target_port: Some(IntOrString::String("http".into())), ..ServicePort::default() };
        let service = Service {
            spec: Some(ServiceSpec {
                selector: Some([("app".to_owned(), "web".to_owned())].into()),
                ports: Some(vec![port]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        };
        let (a, b) = (pod("a", "127.0.0.2"), pod("b", "127.0.0.3"));
        let one = slice(&service, &[a.clone(), b.clone()], &[]).unwrap();
        assert_eq!(one.ports.as_ref().unwrap()[0].port, Some(8080));
        assert_eq!(Some(one), slice(&service, &[b, a], &[]));
        assert_eq!(slice(&Service::default(), &[], &[]), None, "without a selector nothing is made");
    }
}
