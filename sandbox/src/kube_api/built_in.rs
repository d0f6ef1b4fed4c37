//! The table of built-in kinds: names, scope, subresources, and the typed form an object must fit. It decides which kinds exist.

use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as endpoints, events::v1 as events, policy::v1 as policy, rbac::v1 as rbac,
    scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::kinds::{Model, Resource};

/// One built-in kind.
#[derive(Debug)]
pub struct BuiltIn {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub short: &'static [&'static str],
    pub namespaced: bool,
    pub subresources: &'static [&'static str],
    pub selectable: &'static [&'static str],
    pub generation: bool,
    /// Listed under the category `all`.
    pub in_all: bool,
    /// Fits an object into the typed form: unknown fields go, wrong types are errors.
    pub typed: fn(Value) -> Result<Value, String>,
    /// Puts the schema of the typed form, and of all it is made of, into the generator.
    pub schema: fn(&mut SchemaGenerator),
}

fn typed<K: DeserializeOwned + Serialize>(object: Value) -> Result<Value, String> {
    let typed: K = serde_json::from_value(object).map_err(|e| e.to_string())?;
    serde_json::to_value(&typed).map_err(|e| e.to_string())
}

fn schema<K: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<K>();
}

const fn new<K: DeserializeOwned + Serialize + JsonSchema>(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> BuiltIn {
    BuiltIn {
        group,
        version: "v1",
        kind,
        plural,
        short: &[],
        namespaced: true,
        subresources: &[],
        selectable: &[],
        generation: false,
        in_all: false,
        typed: typed::<K>,
        schema: schema::<K>,
    }
}

const STATUS: &[&str] = &["status"];
const STATUS_SCALE: &[&str] = &["status", "scale"];
const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
];
const NEW_EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];
const RBAC: &str = "rbac.authorization.k8s.io";

/// Every built-in kind. Kinds that would promise what the sandbox does not do (quotas, admission policies, DaemonSets) are left out:
/// creating one is a clear 404 instead of a silent nothing.
pub static KINDS: &[BuiltIn] = &[
    BuiltIn {
        short: &["ns"],
        namespaced: false,
        subresources: STATUS,
        selectable: &["status.phase"],
        ..new::<core::Namespace>("", "Namespace", "namespaces")
    },
    BuiltIn {
        short: &["po"],
        subresources: &["status", "log", "binding", "eviction"],
        selectable: POD_FIELDS,
        generation: true,
        in_all: true,
        ..new::<core::Pod>("", "Pod", "pods")
    },
    BuiltIn {
        short: &["no"],
        namespaced: false,
        subresources: STATUS,
        selectable: &["spec.unschedulable"],
        ..new::<core::Node>("", "Node", "nodes")
    },
    BuiltIn {
        short: &["svc"],
        subresources: STATUS,
        selectable: &["spec.clusterIP", "spec.type"],
        in_all: true,
        ..new::<core::Service>("", "Service", "services")
    },
    BuiltIn { short: &["ep"], ..new::<core::Endpoints>("", "Endpoints", "endpoints") },
    BuiltIn { short: &["cm"], ..new::<core::ConfigMap>("", "ConfigMap", "configmaps") },
    BuiltIn { selectable: &["type"], ..new::<core::Secret>("", "Secret", "secrets") },
    BuiltIn { short: &["ev"], selectable: EVENT_FIELDS, ..new::<core::Event>("", "Event", "events") },
    BuiltIn {
        short: &["pv"],
        namespaced: false,
        subresources: STATUS,
        ..new::<core::PersistentVolume>("", "PersistentVolume", "persistentvolumes")
    },
    BuiltIn {
        short: &["pvc"],
        subresources: STATUS,
        ..new::<core::PersistentVolumeClaim>("", "PersistentVolumeClaim", "persistentvolumeclaims")
    },
    BuiltIn {
        short: &["sa"],
        subresources: &["token"],
        ..new::<core::ServiceAccount>("", "ServiceAccount", "serviceaccounts")
    },
    BuiltIn {
        short: &["sts"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        ..new::<apps::StatefulSet>("apps", "StatefulSet", "statefulsets")
    },
    BuiltIn {
        short: &["deploy"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        ..new::<apps::Deployment>("apps", "Deployment", "deployments")
    },
    BuiltIn {
        short: &["rs"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        selectable: &["status.replicas"],
        ..new::<apps::ReplicaSet>("apps", "ReplicaSet", "replicasets")
    },
    new::<apps::ControllerRevision>("apps", "ControllerRevision", "controllerrevisions"),
    BuiltIn {
        subresources: STATUS,
        generation: true,
        in_all: true,
        selectable: &["status.successful"],
        ..new::<batch::Job>("batch", "Job", "jobs")
    },
    new::<coordination::Lease>("coordination.k8s.io", "Lease", "leases"),
    BuiltIn {
        generation: true,
        ..new::<endpoints::EndpointSlice>("discovery.k8s.io", "EndpointSlice", "endpointslices")
    },
    BuiltIn {
        short: &["ev"],
        selectable: NEW_EVENT_FIELDS,
        ..new::<events::Event>("events.k8s.io", "Event", "events")
    },
    BuiltIn {
        short: &["pdb"],
        subresources: STATUS,
        generation: true,
        ..new::<policy::PodDisruptionBudget>("policy", "PodDisruptionBudget", "poddisruptionbudgets")
    },
    BuiltIn {
        short: &["sc"],
        namespaced: false,
        ..new::<storage::StorageClass>("storage.k8s.io", "StorageClass", "storageclasses")
    },
    BuiltIn {
        short: &["pc"],
        namespaced: false,
        generation: true,
        ..new::<scheduling::PriorityClass>("scheduling.k8s.io", "PriorityClass", "priorityclasses")
    },
    new::<rbac::Role>(RBAC, "Role", "roles"),
    new::<rbac::RoleBinding>(RBAC, "RoleBinding", "rolebindings"),
    BuiltIn { namespaced: false, ..new::<rbac::ClusterRole>(RBAC, "ClusterRole", "clusterroles") },
    BuiltIn { namespaced: false, ..new::<rbac::ClusterRoleBinding>(RBAC, "ClusterRoleBinding", "clusterrolebindings") },
    BuiltIn {
        short: &["crd", "crds"],
        namespaced: false,
        subresources: STATUS,
        generation: true,
        ..new::<extensions::CustomResourceDefinition>(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        )
    },
];

/// The table as resources.
pub fn resources() -> Vec<Resource> {
    KINDS.iter().map(resource).collect()
}

fn resource(kind: &'static BuiltIn) -> Resource {
    let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    // Both event kinds are one object seen through two versions of its schema.
    let stored_group = if kind.group == "events.k8s.io" { "" } else { kind.group };
    Resource {
        group: kind.group.into(),
        version: kind.version.into(),
        kind: kind.kind.into(),
        plural: kind.plural.into(),
        singular: kind.kind.to_lowercase(),
        short_names: own(kind.short),
        categories: if kind.in_all { vec!["all".into()] } else { Vec::new() },
        namespaced: kind.namespaced,
        subresources: own(kind.subresources),
        selectable: own(kind.selectable),
        stored_as: (stored_group.into(), kind.plural.into()),
        model: Model::BuiltIn(kind),
    }
}
