//! Which nodes a Pod must not go to, one reason each. Pure.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use super::{Cluster, HOST_LABEL, NodeView, Reason, VolumeRule, requests};
use crate::controllers::selector::{contains_all, matches, meets};

/// The first reason against `node`, or None when it will do.
pub(super) fn refuse(pod: &Pod, volumes: &VolumeRule, node: &NodeView, cluster: &Cluster) -> Option<Reason> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or(&[]);
    let tolerated_cordon = tolerates(
        tolerations,
        &Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() },
    );
    if node.unschedulable && !tolerated_cordon {
        return Some(Reason::Unschedulable);
    }
    if !node.ready {
        return Some(Reason::NotReady);
    }
    let blocking = |taint: &&Taint| {
        taint.effect != "PreferNoSchedule"
            && taint.key != "node.kubernetes.io/unschedulable"
            && !tolerates(tolerations, taint)
    };
    if node.taints.iter().any(|taint| blocking(&taint)) {
        return Some(Reason::Taint);
    }
    if !fits_affinity(pod, node) {
        return Some(Reason::Affinity);
    }
    let host = node.labels.get(HOST_LABEL);
    if volumes.only.iter().any(|home| Some(&home.host) != host) {
        return Some(Reason::VolumeElsewhere);
    }
    refuse_room(pod, node, cluster).or_else(|| refuse_neighbours(pod, node, cluster))
}

/// True when one of the tolerations covers the taint.
pub(crate) fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.as_deref().unwrap_or("");
        let key = toleration.key.as_deref().unwrap_or("");
        let exists = toleration.operator.as_deref() == Some("Exists");
        (effect.is_empty() || effect == taint.effect)
            && (key == taint.key || (key.is_empty() && exists))
            && (exists || toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or(""))
    })
}

/// True when the node meets the Pod's nodeSelector and required node affinity.
pub(super) fn fits_affinity(pod: &Pod, node: &NodeView) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return true };
    let chosen = spec.node_selector.as_ref().is_none_or(|wanted| contains_all(wanted, Some(&node.labels)));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    chosen && required.is_none_or(|selector| fits_node_selector(selector, node))
}

fn fits_node_selector(selector: &NodeSelector, node: &NodeView) -> bool {
    selector.node_selector_terms.iter().any(|term| fits_term(term, node))
}

/// True when the node meets one node selector term.
pub(super) fn fits_term(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let labels = term.match_expressions.iter().flatten().all(|requirement| {
        meets(&requirement.operator, node.labels.get(&requirement.key), requirement.values.as_deref().unwrap_or(&[]))
    });
    let fields = term.match_fields.iter().flatten().all(|requirement| {
        requirement.key == "metadata.name"
            && meets(&requirement.operator, Some(&node.name), requirement.values.as_deref().unwrap_or(&[]))
    });
    let empty =
        term.match_expressions.iter().flatten().next().is_none() && term.match_fields.iter().flatten().next().is_none();
    labels && fields && !empty
}

fn refuse_room(pod: &Pod, node: &NodeView, cluster: &Cluster) -> Option<Reason> {
    let (cpu, memory) = requests(pod);
    let (mut used_cpu, mut used_memory, mut pods) = (0, 0, 0);
    for placed in cluster.placed.iter().filter(|placed| placed.node == node.name) {
        let (one_cpu, one_memory) = requests(&placed.pod);
        used_cpu += one_cpu;
        used_memory += one_memory;
        pods += 1;
    }
    if cpu > 0 && used_cpu + cpu > node.cpu {
        Some(Reason::Cpu)
    } else if memory > 0 && used_memory + memory > node.memory {
        Some(Reason::Memory)
    } else if pods + 1 > node.pods {
        Some(Reason::TooManyPods)
    } else {
        None
    }
}

fn refuse_neighbours(pod: &Pod, node: &NodeView, cluster: &Cluster) -> Option<Reason> {
    let spec = pod.spec.as_ref()?;
    let hard =
        spec.topology_spread_constraints.iter().flatten().filter(|rule| rule.when_unsatisfiable == "DoNotSchedule");
    for rule in hard {
        if !keeps_skew(pod, rule, node, cluster) {
            return Some(Reason::Spread);
        }
    }
    let affinity = spec.affinity.as_ref();
    let apart = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let apart = apart.and_then(|apart| apart.required_during_scheduling_ignored_during_execution.as_deref());
    if apart.unwrap_or(&[]).iter().any(|term| count_near(pod, term, node, cluster) > 0) {
        return Some(Reason::PodAffinity);
    }
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let near = near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_deref());
    let missing = |term: &PodAffinityTerm| {
        let selects_itself = term.label_selector.as_ref().is_some_and(|selector| matches(selector, Some(pod.labels())));
        count_near(pod, term, node, cluster) == 0 && !(selects_itself && count_anywhere(pod, term, cluster) == 0)
    };
    near.unwrap_or(&[]).iter().any(missing).then_some(Reason::PodAffinity)
}

fn keeps_skew(pod: &Pod, rule: &TopologySpreadConstraint, node: &NodeView, cluster: &Cluster) -> bool {
    let Some(domain) = node.labels.get(&rule.topology_key) else { return false };
    let selector = spread_selector(pod, rule);
    let least = cluster
        .nodes
        .iter()
        .filter(|other| fits_affinity(pod, other))
        .filter_map(|other| other.labels.get(&rule.topology_key))
        .map(|value| count_in(pod, &selector, &rule.topology_key, value, cluster))
        .min()
        .unwrap_or(0);
    let here = count_in(pod, &selector, &rule.topology_key, domain, cluster);
    let own = usize::from(matches(&selector, Some(pod.labels())));
    here + own <= least + usize::try_from(rule.max_skew.max(1)).unwrap_or(1)
}

/// The selector of a spread rule with its matchLabelKeys filled in from the Pod.
pub(super) fn spread_selector(pod: &Pod, rule: &TopologySpreadConstraint) -> LabelSelector {
    let mut selector = rule.label_selector.clone().unwrap_or_default();
    for key in rule.match_label_keys.iter().flatten() {
        if let Some(value) = pod.labels().get(key) {
            selector.match_labels.get_or_insert_default().insert(key.clone(), value.clone());
        }
    }
    selector
}

/// Pods of the same namespace that match `selector` in the domain `key = value`, leaving ones aside.
pub(super) fn count_in(pod: &Pod, selector: &LabelSelector, key: &str, value: &str, cluster: &Cluster) -> usize {
    cluster
        .placed
        .iter()
        .filter(|placed| {
            placed.pod.metadata.namespace == pod.metadata.namespace
                && placed.pod.metadata.deletion_timestamp.is_none()
                && matches(selector, placed.pod.metadata.labels.as_ref())
                && domain_of(&placed.node, key, cluster).is_some_and(|domain| domain == value)
        })
        .count()
}

fn domain_of<'a>(node: &str, key: &str, cluster: &'a Cluster) -> Option<&'a str> {
    cluster.nodes.iter().find(|view| view.name == node)?.labels.get(key).map(String::as_str)
}

/// Pods a Pod affinity term selects in the node's domain.
pub(super) fn count_near(pod: &Pod, term: &PodAffinityTerm, node: &NodeView, cluster: &Cluster) -> usize {
    let (Some(selector), Some(domain)) = (term.label_selector.as_ref(), node.labels.get(&term.topology_key)) else {
        return 0;
    };
    count_in(pod, selector, &term.topology_key, domain, cluster)
}

fn count_anywhere(pod: &Pod, term: &PodAffinityTerm, cluster: &Cluster) -> usize {
    let Some(selector) = term.label_selector.as_ref() else { return 0 };
    cluster
        .placed
        .iter()
        .filter(|placed| {
            placed.pod.metadata.namespace == pod.metadata.namespace
                && matches(selector, placed.pod.metadata.labels.as_ref())
        })
        .count()
}
