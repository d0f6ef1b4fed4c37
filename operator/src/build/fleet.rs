//! The objects of a fleet: the entry Service, the Secret with its token keys, and the cell made for one guild.

use std::collections::BTreeMap;

use cell_crds::fleet::EntryService;
use cell_crds::{Cell, CellSpec, Fleet, Roles};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};

use crate::names::{APP, ENTRY_LABEL, GUILD_LABEL, HTTP_PORT, dedicated_cell, entry_service, labels, token_keys};

/// Ports that a NodePort Service may ask for.
const NODE_PORTS: std::ops::RangeInclusive<i32> = 30_000..=32_767;

/// The Service that clients enter by: every gateway that takes new sessions.
pub fn entry(fleet: &Fleet) -> Service {
    let name = fleet.name_any();
    let entry = &fleet.spec.entry;
    let kind = match entry.service {
        EntryService::NodePort => "NodePort",
        EntryService::ClusterIP => "ClusterIP",
        EntryService::LoadBalancer => "LoadBalancer",
    };
    let node_port = (entry.service == EntryService::NodePort && NODE_PORTS.contains(&entry.port)).then_some(entry.port);
    let selector = [("app.kubernetes.io/name", APP), ("app.kubernetes.io/component", "gateway"), (ENTRY_LABEL, "true")];
    Service {
        metadata: ObjectMeta {
            name: Some(entry_service(&name)),
            labels: Some(labels(&name, "entry")),
            owner_references: fleet.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(kind.to_owned()),
            selector: Some(selector.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ports: Some(vec![ServicePort {
                name: Some("http".into()),
                port: HTTP_PORT,
                target_port: Some(IntOrString::Int(HTTP_PORT)),
                node_port,
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The Secret with a new token key. It has no owner: tokens outlive a fleet that is deleted and made anew.
pub fn keys(fleet: &Fleet, key: &[u8]) -> Secret {
    let name = fleet.name_any();
    Secret {
        metadata: ObjectMeta {
            name: Some(token_keys(&name)),
            labels: Some(labels(&name, "token-keys")),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(BTreeMap::from([("current".to_owned(), ByteString(key.to_vec()))])),
        ..Secret::default()
    }
}

/// The cell made for one guild. It has no owner: deleting the guild's rules never deletes the cell that serves it.
pub fn dedicated(guild_id: &str, storage_cell: &str, roles: &Roles) -> Cell {
    let name = dedicated_cell(guild_id);
    let spec = CellSpec {
        roles: roles.clone(),
        storage_cell_ref: storage_cell.to_owned(),
        voice_regions: Vec::new(),
        weight: 100,
        availability: cell_crds::Availability::Active,
        evacuation_policy: None,
    };
    let mut cell = Cell::new(&name, spec);
    let mut labels = labels(&name, "cell");
    labels.insert(GUILD_LABEL.into(), guild_id.to_owned());
    cell.metadata.labels = Some(labels);
    cell
}
