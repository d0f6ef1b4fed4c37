//! The Secret that tells processes where databases are and how to log in: one file for each StorageCell that is not embedded.

use std::collections::BTreeMap;

use cell_crds::{Consistency, Engine, StorageCell};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, SecretVolumeSource, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::names::labels;

/// Where the files are, relative to `/`.
pub const STORAGE_DIR: &str = "etc/cellplane/storage";
/// Port that CQL is spoken on.
const CQL_PORT: u16 = 9042;

/// What a referenced Secret says.
#[derive(Clone, Default)]
pub struct Login {
    /// Empty for none.
    pub username: String,
    /// Empty for none.
    pub password: String,
    /// Who signed the nodes' certificates.
    pub ca_pem: Option<String>,
}

/// The name and content of a StorageCell's file; none for an embedded one, which the directory finds.
pub fn file(storage: &StorageCell, login: &Login) -> Option<(String, String)> {
    let name = storage.name_any();
    let spec = &storage.spec;
    let engine = match spec.engine {
        Engine::Embedded => return None,
        Engine::Scylla => "scylla",
        Engine::Cassandra => "cassandra",
    };
    let (points, datacenter) = match (&spec.external, &spec.managed) {
        (Some(external), _) => (external.contact_points.clone(), external.datacenter.clone()),
        (None, Some(managed)) => (vec![format!("{name}-client:{CQL_PORT}")], Some(managed.datacenter.clone())),
        (None, None) => return None,
    };
    let consistency = match spec.consistency {
        None | Some(Consistency::LocalQuorum) => "LocalQuorum",
        Some(Consistency::Quorum) => "Quorum",
        Some(Consistency::EachQuorum) => "EachQuorum",
    };
    let mut content = json!({
        "name": name,
        "engine": engine,
        "contactPoints": points,
        "keyspace": spec.keyspace,
        "consistency": consistency,
    });
    let mut set = |field: &str, value: Value| content[field] = value;
    if let Some(datacenter) = datacenter {
        set("datacenter", json!(datacenter));
    }
    if !login.username.is_empty() {
        set("username", json!(login.username));
        set("password", json!(login.password));
    }
    if let Some(ca_pem) = &login.ca_pem {
        set("caPem", json!(ca_pem));
    }
    if !spec.replication.is_empty() {
        set("replication", json!(spec.replication));
    }
    Some((format!("{name}.json"), content.to_string()))
}

/// The Secret with the files.
pub fn secret(name: &str, instance: &str, owner: Option<OwnerReference>, files: BTreeMap<String, String>) -> Secret {
    let data = files.into_iter().map(|(name, content)| (name, ByteString(content.into_bytes()))).collect();
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels(instance, "storage")),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(data),
        ..Secret::default()
    }
}

/// The volume with the files.
pub(super) fn volume(secret: &str) -> Volume {
    let source = SecretVolumeSource {
        secret_name: Some(secret.to_owned()),
        default_mode: Some(0o440),
        ..SecretVolumeSource::default()
    };
    Volume { name: "storage".into(), secret: Some(source), ..Volume::default() }
}
