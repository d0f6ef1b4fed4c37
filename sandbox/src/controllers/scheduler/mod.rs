//! The scheduler's decision: which node a Pod goes to, or why none will do. Pure: it is given nodes, Pods and volumes, and returns a
//! choice; the same input gives the same choice. It never moves a Pod that is bound. Existing Pods' own anti-affinity is not
//! weighed against a new Pod; only the new Pod's is.

pub mod claims;
pub mod drive;
pub(super) mod filter;
mod score;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::ResourceExt;

use super::quantity;
use super::selector::Labels;

/// The label that names a node.
pub const HOST_LABEL: &str = "kubernetes.io/hostname";
/// The label that names a node's zone.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// What the scheduler knows of a node.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// Labels, the host label always among them.
    pub labels: Labels,
    /// The Ready condition is True.
    pub ready: bool,
    /// Cordoned.
    pub unschedulable: bool,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Allocatable CPU in thousandths of a core.
    pub cpu: i64,
    /// Allocatable memory in bytes.
    pub memory: i64,
    /// Allocatable number of Pods.
    pub pods: i64,
}

impl NodeView {
    /// Reads a node.
    pub fn of(node: &Node) -> Self {
        let mut labels = node.labels().clone();
        labels.entry(HOST_LABEL.to_owned()).or_insert_with(|| node.name_any());
        let status = node.status.clone().unwrap_or_default();
        let offered = |key: &str, read: fn(&_) -> Option<i64>, otherwise: i64| {
            status.allocatable.as_ref().and_then(|map| map.get(key)).and_then(read).unwrap_or(otherwise)
        };
        let spec = node.spec.clone().unwrap_or_default();
        Self {
            name: node.name_any(),
            labels,
            ready: status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            unschedulable: spec.unschedulable == Some(true),
            taints: spec.taints.unwrap_or_default(),
            cpu: offered("cpu", quantity::milli, 0),
            memory: offered("memory", quantity::units, 0),
            pods: offered("pods", quantity::units, 110),
        }
    }
}

/// A Pod that takes room on a node: bound, or chosen for it a moment ago.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// Its node.
    pub node: String,
}

/// What a Pod's volumes allow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeRule {
    /// Each bound volume's node requirement: the labels it asks for.
    pub only: Vec<VolumeHome>,
    /// The node already chosen for an unbound claim: kept when it still fits.
    pub prefer: Option<String>,
}

/// Where a bound volume lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHome {
    /// The volume's name.
    pub volume: String,
    /// The value of the host label it requires.
    pub host: String,
}

/// Nodes and placed Pods.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Every node.
    pub nodes: Vec<NodeView>,
    /// Every Pod that takes room.
    pub placed: Vec<Placed>,
}

/// Why a node will not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Cordoned.
    Unschedulable,
    /// The Ready condition is not True.
    NotReady,
    /// A taint the Pod does not tolerate.
    Taint,
    /// nodeSelector or required node affinity.
    Affinity,
    /// A bound volume lives elsewhere.
    VolumeElsewhere,
    /// Not enough CPU.
    Cpu,
    /// Not enough memory.
    Memory,
    /// The node's number of Pods is reached.
    TooManyPods,
    /// A required spread would be broken.
    Spread,
    /// A required Pod affinity or anti-affinity.
    PodAffinity,
}

impl Reason {
    /// Kubernetes' words for the reason.
    pub fn text(self) -> &'static str {
        match self {
            Self::Unschedulable => "node(s) were unschedulable",
            Self::NotReady => "node(s) were not ready",
            Self::Taint => "node(s) had untolerated taint(s)",
            Self::Affinity => "node(s) didn't match Pod's node affinity/selector",
            Self::VolumeElsewhere => "node(s) had volume node affinity conflict",
            Self::Cpu => "Insufficient cpu",
            Self::Memory => "Insufficient memory",
            Self::TooManyPods => "Too many pods",
            Self::Spread => "node(s) didn't match pod topology spread constraints",
            Self::PodAffinity => "node(s) didn't match pod affinity/anti-affinity rules",
        }
    }
}

/// Why no node will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoNode {
    /// Number of nodes.
    pub nodes: usize,
    /// How many nodes fell to each reason.
    pub reasons: BTreeMap<Reason, usize>,
}

impl fmt::Display for NoNode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "0/{} nodes are available", self.nodes)?;
        for (index, (reason, count)) in self.reasons.iter().enumerate() {
            write!(out, "{}{count} {}", if index == 0 { ": " } else { ", " }, reason.text())?;
        }
        write!(out, ".")
    }
}

/// Chooses a node for `pod`.
///
/// # Errors
/// [`NoNode`] counts, per reason, the nodes that will not do.
pub fn place(pod: &Pod, volumes: &VolumeRule, cluster: &Cluster) -> Result<String, NoNode> {
    let mut reasons = BTreeMap::new();
    let mut best: Option<(score::Score, &NodeView)> = None;
    for node in &cluster.nodes {
        match filter::refuse(pod, volumes, node, cluster) {
            Some(reason) => *reasons.entry(reason).or_insert(0) += 1,
            None => {
                let score = score::score(pod, volumes, node, cluster);
                if best.as_ref().is_none_or(|(least, _)| score < *least) {
                    best = Some((score, node));
                }
            }
        }
    }
    match best {
        Some((_, node)) => Ok(node.name.clone()),
        None => Err(NoNode { nodes: cluster.nodes.len(), reasons }),
    }
}

/// CPU (thousandths) and memory (bytes) a Pod asks for: its containers together, or its largest init container.
pub fn requests(pod: &Pod) -> (i64, i64) {
    let Some(spec) = pod.spec.as_ref() else { return (0, 0) };
    let asks = |container: &k8s_openapi::api::core::v1::Container| {
        let resources = container.resources.clone().unwrap_or_default();
        let of = |key: &str, read: fn(&_) -> Option<i64>| {
            let asked = resources.requests.as_ref().and_then(|map| map.get(key));
            asked.or_else(|| resources.limits.as_ref().and_then(|map| map.get(key))).and_then(read).unwrap_or(0)
        };
        (of("cpu", quantity::milli), of("memory", quantity::units))
    };
    let (mut cpu, mut memory) = (0, 0);
    for (one_cpu, one_memory) in spec.containers.iter().map(asks) {
        cpu += one_cpu;
        memory += one_memory;
    }
    for (one_cpu, one_memory) in spec.init_containers.iter().flatten().map(asks) {
        cpu = cpu.max(one_cpu);
        memory = memory.max(one_memory);
    }
    (cpu, memory)
}
