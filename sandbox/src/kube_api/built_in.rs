//! The table of built-in kinds: names, scope, subresources, and the typed form an object must fit. It decides which kinds exist.

use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
    discovery::v1 as endpoints, events::v1 as events, policy::v1 as policy, rbac::v1 as rbac,
    scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
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
}

fn typed<K: DeserializeOwned + Serialize>(object: Value) -> Result<Value, String> {
    let typed: K = serde_json::from_value(object).map_err(|e| e.to_string())?;
    serde_json::to_value(&typed).map_err(|e| e.to_string())
}

const fn new(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    typed: fn(Value) -> Result<Value, String>,
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
        typed,
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
        ..new("", "Namespace", "namespaces", typed::<core::Namespace>)
    },
    BuiltIn {
        short: &["po"],
        subresources: &["status", "log", "binding", "eviction"],
        selectable: POD_FIELDS,
        generation: true,
        in_all: true,
        ..new("", "Pod", "pods", typed::<core::Pod>)
    },
    BuiltIn {
        short: &["no"],
        namespaced: false,
        subresources: STATUS,
        selectable: &["spec.unschedulable"],
        ..new("", "Node", "nodes", typed::<core::Node>)
    },
    BuiltIn {
        short: &["svc"],
        subresources: STATUS,
        selectable: &["spec.clusterIP", "spec.type"],
        in_all: true,
        ..new("", "Service", "services", typed::<core::Service>)
    },
    BuiltIn { short: &["ep"], ..new("", "Endpoints", "endpoints", typed::<core::Endpoints>) },
    BuiltIn { short: &["cm"], ..new("", "ConfigMap", "configmaps", typed::<core::ConfigMap>) },
    BuiltIn { selectable: &["type"], ..new("", "Secret", "secrets", typed::<core::Secret>) },
    BuiltIn { short: &["ev"], selectable: EVENT_FIELDS, ..new("", "Event", "events", typed::<core::Event>) },
    BuiltIn {
        short: &["pv"],
        namespaced: false,
        subresources: STATUS,
        ..new("", "PersistentVolume", "persistentvolumes", typed::<core::PersistentVolume>)
    },
    BuiltIn {
        short: &["pvc"],
        subresources: STATUS,
        ..new("", "PersistentVolumeClaim", "persistentvolumeclaims", typed::<core::PersistentVolumeClaim>)
    },
    BuiltIn {
        short: &["sa"],
        subresources: &["token"],
        ..new("", "ServiceAccount", "serviceaccounts", typed::<core::ServiceAccount>)
    },
    BuiltIn {
        short: &["sts"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        ..new("apps", "StatefulSet", "statefulsets", typed::<apps::StatefulSet>)
    },
    BuiltIn {
        short: &["deploy"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        ..new("apps", "Deployment", "deployments", typed::<apps::Deployment>)
    },
    BuiltIn {
        short: &["rs"],
        subresources: STATUS_SCALE,
        generation: true,
        in_all: true,
        selectable: &["status.replicas"],
        ..new("apps", "ReplicaSet", "replicasets", typed::<apps::ReplicaSet>)
    },
    new("apps", "ControllerRevision", "controllerrevisions", typed::<apps::ControllerRevision>),
    BuiltIn {
        subresources: STATUS,
        generation: true,
        in_all: true,
        selectable: &["status.successful"],
        ..new("batch", "Job", "jobs", typed::<batch::Job>)
    },
    new("coordination.k8s.io", "Lease", "leases", typed::<coordination::Lease>),
    BuiltIn {
        generation: true,
        ..new("discovery.k8s.io", "EndpointSlice", "endpointslices", typed::<endpoints::EndpointSlice>)
    },
    BuiltIn {
        short: &["ev"],
        selectable: NEW_EVENT_FIELDS,
        ..new("events.k8s.io", "Event", "events", typed::<events::Event>)
    },
    BuiltIn {
        short: &["pdb"],
        subresources: STATUS,
        generation: true,
        ..new("policy", "PodDisruptionBudget", "poddisruptionbudgets", typed::<policy::PodDisruptionBudget>)
    },
    BuiltIn {
        short: &["sc"],
        namespaced: false,
        ..new("storage.k8s.io", "StorageClass", "storageclasses", typed::<storage::StorageClass>)
    },
    BuiltIn {
        short: &["pc"],
        namespaced: false,
        generation: true,
        ..new("scheduling.k8s.io", "PriorityClass", "priorityclasses", typed::<scheduling::PriorityClass>)
    },
    new(RBAC, "Role", "roles", typed::<rbac::Role>),
    new(RBAC, "RoleBinding", "rolebindings", typed::<rbac::RoleBinding>),
    BuiltIn { namespaced: false, ..new(RBAC, "ClusterRole", "clusterroles", typed::<rbac::ClusterRole>) },
    BuiltIn {
        namespaced: false,
        ..new(RBAC, "ClusterRoleBinding", "clusterrolebindings", typed::<rbac::ClusterRoleBinding>)
    },
    BuiltIn {
        short: &["crd", "crds"],
        namespaced: false,
        subresources: STATUS,
        generation: true,
        ..new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            typed::<extensions::CustomResourceDefinition>,
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
