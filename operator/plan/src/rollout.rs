//! Which Pod of an OnDelete StatefulSet may be replaced now: one at a time, only while all others are Ready, sound ones only in the
//! set's turn, and a broken outdated Pod first; and how long a set keeps others from their turn. It decides; deleting (with the Pod's
//! UID as precondition) is the caller's, and so is the clock.

/// Longest time that a new Pod may take to get Ready, or an old one to go, while other sets wait for it. What takes longer is not a
/// replacement under way any more but something for people: a sibling may be what repairs it.
pub const SETTLING_MS: i64 = 5 * 60_000;
/// Longest time that other sets wait for a Pod to be made or to find a node: a sibling may have to give the room for it.
pub const PLACING_MS: i64 = 30_000;
/// Longest time that a set waits for another that is to go first.
pub const PATIENCE_MS: i64 = 10 * 60_000;

/// What is known of one Pod of the set. Times are in Unix milliseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// It runs the set's newest revision.
    pub up_to_date: bool,
    /// It is Ready.
    pub ready: bool,
    /// The scheduler found no node for it.
    pub unscheduled: bool,
    /// When it was made.
    pub made_ms: i64,
    /// When it should be gone at the latest, if it is being deleted.
    pub gone_by_ms: Option<i64>,
}

/// Whether sound Pods of a set may be replaced now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// They may.
    Own,
    /// Another set is being rolled out: a message's way misses one Pod at a time, not several. This is what is awaited.
    Others(String),
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
pub fn next(pods: &[PodFacts], replicas: usize, turn: &Turn) -> Rollout {
    if let Some(pod) = pods.iter().find(|pod| pod.gone_by_ms.is_some()) {
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
    let Some(pod) = outdated().max_by_key(|pod| (pod.name.len(), pod.name.clone())) else { return Rollout::Complete };
    match turn {
        Turn::Own => Rollout::Replace(pod.name.clone()),
        Turn::Others(awaited) => {
            Rollout::Waiting(format!("pod {} is outdated and waits for its turn: {awaited}", pod.name))
        }
    }
}

/// The replacement that is under way in a set, which keeps sound Pods of other sets from going. A set that is short, has no room or is
/// long not Ready keeps nobody. `short_since_ms` is when the set was first seen with too few Pods, if it has too few.
pub fn under_way(pods: &[PodFacts], short_since_ms: Option<i64>, now_ms: i64) -> Option<String> {
    let within = |since_ms: i64, limit_ms: i64| now_ms.saturating_sub(since_ms) < limit_ms;
    let going = |pod: &&PodFacts| pod.gone_by_ms.is_some_and(|gone_by_ms| within(gone_by_ms, SETTLING_MS));
    if let Some(pod) = pods.iter().find(going) {
        return Some(format!("pod {} is being replaced", pod.name));
    }
    let coming = |pod: &&PodFacts| {
        let limit_ms = if pod.unscheduled { PLACING_MS } else { SETTLING_MS };
        pod.gone_by_ms.is_none() && pod.up_to_date && !pod.ready && within(pod.made_ms, limit_ms)
    };
    if let Some(pod) = pods.iter().find(coming) {
        return Some(format!("pod {} is new and not Ready yet", pod.name));
    }
    // Between a Pod's end and its successor's beginning there is neither.
    short_since_ms.filter(|since_ms| within(*since_ms, PLACING_MS)).map(|_| "a pod is being made anew".to_owned())
}

/// What a set has to do before others that go after it: what is under way, and its sound Pods that are still outdated. A set that is
/// dead, or whose own rollout is halted, is not awaited.
pub fn goes_first(pods: &[PodFacts], short_since_ms: Option<i64>, now_ms: i64) -> Option<String> {
    under_way(pods, short_since_ms, now_ms).or_else(|| match next(pods, pods.len(), &Turn::Own) {
        Rollout::Replace(name) if pods.iter().all(|pod| pod.ready) => Some(format!("pod {name} is replaced first")),
        _ => None,
    })
}

/// The turn of a set that others go before: theirs, until it has waited for [`PATIENCE_MS`].
pub fn turn_after(first: String, since_ms: i64, now_ms: i64) -> Turn {
    if now_ms.saturating_sub(since_ms) < PATIENCE_MS { Turn::Others(first) } else { Turn::Own }
}

#[cfg(test)]
mod tests;
