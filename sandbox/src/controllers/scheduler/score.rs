//! Which of the possible nodes is best: keep an earlier choice, then spread by zone and host, then the emptier, then by name. Pure.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::filter::{count_in, count_near, fits_term, spread_selector};
use super::{Cluster, HOST_LABEL, NodeView, VolumeRule, ZONE_LABEL, requests};
use crate::controllers::pods;

/// Lower is better, compared field by field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Score {
    away_from_choice: bool,
    disliked: i64,
    crowding: Vec<usize>,
    used_permille: i64,
    name: String,
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.away_from_choice, self.disliked, &self.crowding, self.used_permille, &self.name).cmp(&(
            other.away_from_choice,
            other.disliked,
            &other.crowding,
            other.used_permille,
            &other.name,
        ))
    }
}

/// Scores a node that passed every filter.
pub(super) fn score(pod: &Pod, volumes: &VolumeRule, node: &NodeView, cluster: &Cluster) -> Score {
    Score {
        away_from_choice: volumes.prefer.as_ref().is_some_and(|prefer| *prefer != node.name),
        disliked: -liking(pod, node),
        crowding: crowding(pod, node, cluster),
        used_permille: used_permille(node, cluster),
        name: node.name.clone(),
    }
}

fn liking(pod: &Pod, node: &NodeView) -> i64 {
    let affinity =
        pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()).and_then(|spec| spec.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_deref());
    let liked = terms.unwrap_or(&[]).iter().filter(|term| fits_term(&term.preference, node));
    liked.map(|term| i64::from(term.weight)).sum()
}

/// How crowded the node's domains are with Pods this one should keep away from, the most important rule first. Without any rule,
/// Pods of the same controller spread over zones, then hosts.
fn crowding(pod: &Pod, node: &NodeView, cluster: &Cluster) -> Vec<usize> {
    let spec = pod.spec.as_ref();
    let apart = spec
        .and_then(|spec| spec.affinity.as_ref())
        .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
        .and_then(|apart| apart.preferred_during_scheduling_ignored_during_execution.as_deref())
        .unwrap_or(&[]);
    let mut apart: Vec<_> = apart.iter().collect();
    apart.sort_by_key(|term| -i64::from(term.weight));
    let mut found: Vec<usize> =
        apart.iter().map(|term| count_near(pod, &term.pod_affinity_term, node, cluster)).collect();
    for rule in spec.and_then(|spec| spec.topology_spread_constraints.as_ref()).into_iter().flatten() {
        let domain = node.labels.get(&rule.topology_key);
        let count = domain.map_or(usize::MAX, |domain| {
            count_in(pod, &spread_selector(pod, rule), &rule.topology_key, domain, cluster)
        });
        found.push(count);
    }
    for key in [ZONE_LABEL, HOST_LABEL] {
        found.push(siblings(pod, node, key, cluster));
    }
    found
}

fn siblings(pod: &Pod, node: &NodeView, key: &str, cluster: &Cluster) -> usize {
    let (Some(owner), Some(domain)) = (pods::controller(&pod.metadata), node.labels.get(key)) else { return 0 };
    let in_domain =
        |name: &str| cluster.nodes.iter().any(|other| other.name == name && other.labels.get(key) == Some(domain));
    cluster
        .placed
        .iter()
        .filter(|placed| {
            placed.pod.uid() != pod.uid()
                && pods::controlled_by(&placed.pod.metadata, &owner.uid)
                && !pods::is_leaving(&placed.pod)
                && in_domain(&placed.node)
        })
        .count()
}

fn used_permille(node: &NodeView, cluster: &Cluster) -> i64 {
    let here: Vec<_> = cluster.placed.iter().filter(|placed| placed.node == node.name).collect();
    let (cpu, memory) =
        here.iter().map(|placed| requests(&placed.pod)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let share = |used: i64, of: i64| used.saturating_mul(1000).checked_div(of).unwrap_or(0);
    share(cpu, node.cpu).max(share(memory, node.memory)) + share(here.len() as i64, node.pods)
}
