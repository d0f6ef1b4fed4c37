//! The agent's Node and its heartbeat: registers the Node, keeps its Lease fresh, keeps Ready true. It taints a Node
//! only when it creates it, never cordons or deletes one, and writes the Node only when something of it is not as it should be.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Namespace, Node as ApiNode, NodeCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::shared::Node;
use crate::controllers::act::{self, ActError};
use crate::controllers::quantity;
use crate::controllers::scheduler::{HOST_LABEL, ZONE_LABEL};
use crate::controllers::world::LEASE_NAMESPACE;

/// What the Node says of itself.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Labels, host and zone among them.
    pub labels: BTreeMap<String, String>,
    /// The range of Pod addresses.
    pub pod_cidr: String,
    /// CPU, as a quantity.
    pub cpu: String,
    /// Memory, as a quantity.
    pub memory: String,
    /// Number of Pods.
    pub pods: u32,
    /// The log server's port.
    pub port: u16,
    /// Between heartbeats.
    pub heartbeat: Duration,
}

impl Identity {
    /// The labels of a node of this name and zone, with further ones.
    pub fn labels(name: &str, zone: &str, more: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut labels = more;
        let arch = if std::env::consts::ARCH == "x86_64" { "amd64" } else { "arm64" };
        for (key, value) in [
            (HOST_LABEL, name),
            (ZONE_LABEL, zone),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", arch),
            ("cellplane.dev/node-agent", "cell-node"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        labels
    }
}

const FULL_REPORT: Duration = Duration::from_secs(300);

/// The Node to create.
pub fn build(node: &Node, identity: &Identity) -> Value {
    json!({
        "metadata": { "name": node.settings.node, "labels": identity.labels },
        "spec": { "podCIDR": identity.pod_cidr, "podCIDRs": [identity.pod_cidr], "taints": node.settings.taints },
        "status": status(node, identity, &[]),
    })
}

/// The status it should have; conditions of other writers are kept.
fn status(node: &Node, identity: &Identity, before: &[NodeCondition]) -> Value {
    let size = json!({ "cpu": identity.cpu, "memory": identity.memory, "pods": identity.pods.to_string() });
    let images: Vec<_> = node.images.all().map(|(name, _)| json!({ "names": [name] })).collect();
    json!({
        "addresses": [
            { "type": "InternalIP", "address": node.settings.address },
            { "type": "Hostname", "address": node.settings.node },
        ],
        "capacity": size,
        "allocatable": size,
        "conditions": conditions(before, Timestamp::now()),
        "daemonEndpoints": { "kubeletEndpoint": { "Port": identity.port } },
        "images": images,
        "nodeInfo": {
            "architecture": identity.labels.get("kubernetes.io/arch"),
            "bootID": super::process::proc_fs::boot_id(),
            "containerRuntimeVersion": "cellplane://1",
            "kernelVersion": kernel(),
            "kubeProxyVersion": "",
            "kubeletVersion": format!("v{}-cell-node", env!("CARGO_PKG_VERSION")),
            "machineID": node.settings.node,
            "operatingSystem": "linux",
            "osImage": "cell-node (processes, no containers)",
            "systemUUID": node.settings.node,
        },
    })
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The conditions with ours as they should be; a transition time moves only with its status.
pub fn conditions(before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let ours = [
        ("MemoryPressure", "False", "AgentHasSufficientMemory"),
        ("DiskPressure", "False", "AgentHasNoDiskPressure"),
        ("PIDPressure", "False", "AgentHasSufficientPID"),
        ("Ready", "True", "AgentReady"),
    ];
    let mut all: Vec<NodeCondition> =
        before.iter().filter(|old| !ours.iter().any(|(kind, ..)| *kind == old.type_)).cloned().collect();
    for (kind, status, reason) in ours {
        let same = before.iter().find(|old| old.type_ == kind && old.status == status);
        all.push(NodeCondition {
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: same.and_then(|old| old.last_transition_time.clone()).or(Some(Time(now))),
            message: Some("cell-node runs Pods as processes of this machine".into()),
            reason: Some(reason.to_owned()),
            status: status.to_owned(),
            type_: kind.to_owned(),
        });
    }
    all
}

/// True when the registered Node says what this agent says of itself, Ready included.
fn agrees(have: &ApiNode, wanted: &Value) -> bool {
    let labels = wanted.pointer("/metadata/labels").and_then(Value::as_object);
    let labels_match = labels.is_none_or(|labels| {
        labels.iter().all(|(key, value)| have.labels().get(key).map(String::as_str) == value.as_str())
    });
    let Ok(status) = serde_json::to_value(have.status.clone().unwrap_or_default()) else { return false };
    let same = |pointer: &str| {
        let wanted = wanted.pointer(&format!("/status{pointer}"));
        wanted.is_none_or(|wanted| status.pointer(pointer).is_some_and(|have| have == wanted))
    };
    let ready = have
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let sizes = ["/capacity", "/allocatable"]
        .into_iter()
        .all(|pointer| same_sizes(status.pointer(pointer), wanted.pointer(&format!("/status{pointer}"))));
    labels_match && ready && sizes && ["/addresses", "/daemonEndpoints", "/nodeInfo/bootID"].into_iter().all(same)
}

/// Sizes compared by amount: an API server writes `2000m` as `2`.
fn same_sizes(have: Option<&Value>, wanted: Option<&Value>) -> bool {
    let amount = |value: &Value| value.as_str().and_then(|text| quantity::milli(&Quantity(text.to_owned())));
    let Some(wanted) = wanted.and_then(Value::as_object) else { return true };
    wanted
        .iter()
        .all(|(key, wanted)| have.and_then(|have| have.get(key)).is_some_and(|have| amount(have) == amount(wanted)))
}

/// Registers the Node and keeps it fresh, for ever; an absent API server is tried again at every heartbeat.
pub async fn run(node: Node, identity: Identity) {
    let mut reported: Option<std::time::Instant> = None;
    let mut namespace_tried = false;
    loop {
        let full = reported.is_none_or(|at| at.elapsed() >= FULL_REPORT);
        match beat(&node, &identity, full, &mut namespace_tried).await {
            Ok(true) => reported = Some(std::time::Instant::now()),
            Ok(false) => {}
            Err(error) => tracing::info!(node = node.settings.node, error = %error, "heartbeat not accepted"),
        }
        let first_tries = reported.is_none();
        let pause = if first_tries { identity.heartbeat.min(Duration::from_secs(1)) } else { identity.heartbeat };
        tokio::time::sleep(pause).await;
    }
}

/// One heartbeat; true when the Node itself was written.
async fn beat(node: &Node, identity: &Identity, full: bool, namespace_tried: &mut bool) -> Result<bool, ActError> {
    let api: Api<ApiNode> = Api::all(node.client.clone());
    let name = &node.settings.node;
    let live = act::call("read node", api.get_opt(name)).await?;
    let wanted = build(node, identity);
    let uid = live.as_ref().and_then(|live| live.uid());
    let written = match live {
        None => {
            let made: ApiNode = serde_json::from_value(wanted.clone()).unwrap_or_default();
            act::create(&api, &made, &node.writes).await?;
            let made = act::call("read node", api.get(name)).await?;
            write_status(&api, node, identity, &made).await?;
            tracing::info!(node = name, "node registered");
            true
        }
        Some(live) if full || !agrees(&live, &wanted) => {
            if !identity.labels.iter().all(|(key, value)| live.labels().get(key) == Some(value)) {
                let body = json!({ "metadata": { "labels": identity.labels } });
                node.writes.add();
                act::call("label node", api.patch(name, &PatchParams::default(), &Patch::Merge(&body))).await?;
            }
            write_status(&api, node, identity, &live).await?;
            true
        }
        Some(_) => false,
    };
    renew(node, identity, uid, namespace_tried).await?;
    Ok(written)
}

async fn write_status(api: &Api<ApiNode>, node: &Node, identity: &Identity, live: &ApiNode) -> Result<(), ActError> {
    let before = live.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let body = json!({ "status": status(node, identity, &before) });
    node.writes.add();
    let name = &node.settings.node;
    act::call("report node", api.patch_status(name, &PatchParams::default(), &Patch::Merge(&body))).await.map(|_| ())
}

async fn renew(
    node: &Node,
    identity: &Identity,
    uid: Option<String>,
    namespace_tried: &mut bool,
) -> Result<(), ActError> {
    let api: Api<Lease> = Api::namespaced(node.client.clone(), LEASE_NAMESPACE);
    let name = &node.settings.node;
    let now = MicroTime(Timestamp::now());
    let seconds = i32::try_from(identity.heartbeat.as_secs().max(1) * 4).unwrap_or(40);
    let body = json!({ "spec": { "renewTime": now, "holderIdentity": name, "leaseDurationSeconds": seconds } });
    match act::call("renew lease", api.patch(name, &PatchParams::default(), &Patch::Merge(&body))).await {
        Ok(_) => return Ok(()),
        Err(error) if error.code() != 404 => return Err(error),
        Err(_) => {}
    }
    if !*namespace_tried {
        *namespace_tried = true;
        let namespaces: Api<Namespace> = Api::all(node.client.clone());
        let made = Namespace {
            metadata: ObjectMeta { name: Some(LEASE_NAMESPACE.into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        if let Err(error) = act::call("create namespace", namespaces.create(&PostParams::default(), &made)).await
            && !error.is_conflict()
        {
            tracing::info!(namespace = LEASE_NAMESPACE, error = %error, "namespace of heartbeats not made");
        }
    }
    let owner = uid.map(|uid| OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.clone(),
        uid,
        ..OwnerReference::default()
    });
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(LEASE_NAMESPACE.into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.clone()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    act::create(&api, &lease, &node.writes).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_node_that_returns_is_ready_with_a_new_transition_and_foreign_conditions_stay() {
        let then = Timestamp::from_second(1_000).unwrap();
        let now = Timestamp::from_second(2_000).unwrap();
        let condition = |kind: &str, status: &str| NodeCondition {
            type_: kind.into(),
            status: status.into(),
            last_transition_time: Some(Time(then)),
            ..NodeCondition::default()
        };
        let all = conditions(
            &[condition("Ready", "Unknown"), condition("Frozen", "True"), condition("DiskPressure", "False")],
            now,
        );
        let find = |kind: &str| all.iter().find(|condition| condition.type_ == kind).unwrap();
        assert_eq!(find("Ready").last_transition_time, Some(Time(now)));
        assert_eq!(find("DiskPressure").last_transition_time, Some(Time(then)), "its status did not change");
        assert_eq!(find("Frozen").status, "True");
    }

    #[test]
    fn sizes_are_compared_by_amount() {
        let have = json!({ "cpu": "2", "memory": "1Gi", "pods": "110", "more": "1" });
        let same = json!({ "cpu": "2000m", "memory": "1073741824", "pods": "110" });
        assert!(same_sizes(Some(&have), Some(&same)));
        assert!(!same_sizes(Some(&have), Some(&json!({ "cpu": "3" }))));
        assert!(!same_sizes(None, Some(&same)));
    }
}
