//! Which Pod of an OnDelete StatefulSet may be replaced now: one at a time, only while all others are Ready, and a broken outdated
//! Pod first. It decides; deleting (with the Pod's UID as precondition) is the caller's.

/// What is known of one Pod of the set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// It runs the set's newest revision.
    pub up_to_date: bool,
    /// It is Ready.
    pub ready: bool,
    /// It is being deleted.
    pub deleting: bool,
}

/// What the rollout does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rollout {
    /// Every Pod runs the newest revision and is Ready.
    Complete,
    /// This Pod may go.
    Replace(String),
    /// Something must settle first.
    Waiting(String),
}

/// Decides the next step of a set that should have `replicas` Pods.
pub fn next(pods: &[PodFacts], replicas: usize) -> Rollout {
    if let Some(pod) = pods.iter().find(|pod| pod.deleting) {
        return Rollout::Waiting(format!("pod {} is being replaced", pod.name));
    }
    let outdated = || pods.iter().filter(|pod| !pod.up_to_date);
    let broken_new = pods.iter().find(|pod| pod.up_to_date && !pod.ready);
    // The newest revision does not come up: stop at the first replica, keep the others as they are.
    if let Some(pod) = broken_new {
        return Rollout::Waiting(format!("pod {} of the newest revision is not Ready", pod.name));
    }
    if pods.len() < replicas {
        return Rollout::Waiting(format!("{} of {replicas} pods exist", pods.len()));
    }
    if let Some(pod) = outdated().find(|pod| !pod.ready) {
        return Rollout::Replace(pod.name.clone());
    }
    // The highest ordinal first, as StatefulSets do.
    match outdated().max_by_key(|pod| (pod.name.len(), pod.name.clone())) {
        Some(pod) => Rollout::Replace(pod.name.clone()),
        None => Rollout::Complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, up_to_date: bool, ready: bool) -> PodFacts {
        PodFacts { name: name.into(), up_to_date, ready, deleting: false }
    }

    #[test]
    fn outdated_pods_go_one_at_a_time_while_all_are_ready() {
        let all = [pod("a-0", false, true), pod("a-1", false, true)];
        assert_eq!(next(&all, 2), Rollout::Replace("a-1".into()));
        let one_new = [pod("a-0", false, true), pod("a-1", true, true)];
        assert_eq!(next(&one_new, 2), Rollout::Replace("a-0".into()));
        assert_eq!(next(&[pod("a-0", true, true)], 1), Rollout::Complete);
    }

    #[test]
    fn a_rollout_halts_at_the_first_replica_that_does_not_come_up() {
        let halted = [pod("a-0", false, true), pod("a-1", true, false)];
        assert!(matches!(next(&halted, 2), Rollout::Waiting(_)));
    }

    #[test]
    fn a_broken_outdated_pod_is_replaced_first_and_nothing_while_one_goes() {
        let broken = [pod("a-0", false, false), pod("a-1", false, true)];
        assert_eq!(next(&broken, 2), Rollout::Replace("a-0".into()));
        let going = [PodFacts { deleting: true, ..pod("a-0", false, true) }, pod("a-1", false, true)];
        assert!(matches!(next(&going, 2), Rollout::Waiting(_)));
        assert!(matches!(next(&[pod("a-0", false, true)], 2), Rollout::Waiting(_)));
    }
}
