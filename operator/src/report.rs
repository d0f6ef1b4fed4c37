//! From what was found to conditions, statuses and events. Nothing changed means nothing written; an event is sent only when the
//! standing changes.

use cell_crds::condition::{Wanted, find, merge};
use cell_crds::{ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::{Event, EventType, Recorder};

use crate::apply::Object;

/// How a resource stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// As its spec asks.
    Ready(Reason, String),
    /// Not yet; the operator works on it or waits for something that comes by itself.
    Reconciling(Reason, String),
    /// Someone must change something.
    Stalled(Reason, String),
}

impl Standing {
    /// Why.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Ready(reason, _) | Self::Reconciling(reason, _) | Self::Stalled(reason, _) => *reason,
        }
    }

    /// For people.
    pub fn message(&self) -> &str {
        match self {
            Self::Ready(_, message) | Self::Reconciling(_, message) | Self::Stalled(_, message) => message,
        }
    }

    /// What a `blockedBy` says: nothing when ready.
    pub fn blocked_by(&self) -> Option<String> {
        match self {
            Self::Ready(..) => None,
            other => Some(format!("{}: {}", other.reason().label(), other.message())),
        }
    }

    /// The conditions that say so, merged into the present ones.
    pub fn conditions(&self, present: &[Condition], generation: Option<i64>) -> Vec<Condition> {
        let want = |kind, status| Wanted { kind, status, reason: self.reason(), message: self.message().to_owned() };
        let wanted = match self {
            Self::Ready(..) => vec![want(ConditionType::Ready, true)],
            Self::Reconciling(..) => {
                vec![want(ConditionType::Ready, false), want(ConditionType::Reconciling, true)]
            }
            Self::Stalled(..) => vec![want(ConditionType::Ready, false), want(ConditionType::Stalled, true)],
        };
        merge(present, &wanted, generation.unwrap_or_default(), now())
    }
}

/// The time as Kubernetes writes it: whole seconds.
pub fn now() -> Time {
    time_of(cell_runtime::unix_ms())
}

/// Unix milliseconds as Kubernetes writes time: whole seconds.
pub fn time_of(unix_ms: i64) -> Time {
    Time(Timestamp::from_second(unix_ms.div_euclid(1000)).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Whether `Ready` changed its status or reason: the only time an event is sent.
pub fn is_transition(before: &[Condition], after: &[Condition]) -> bool {
    let key = |conditions: &[Condition]| {
        find(conditions, ConditionType::Ready).map(|ready| (ready.status.clone(), ready.reason.clone()))
    };
    key(before) != key(after)
}

/// Sends an event about a transition. Losing one is harmless.
pub async fn announce<K: Object>(recorder: &Recorder, object: &K, standing: &Standing, action: &str) {
    let type_ = if matches!(standing, Standing::Stalled(..)) { EventType::Warning } else { EventType::Normal };
    let event = Event {
        type_,
        reason: standing.reason().label().to_owned(),
        note: Some(standing.message().chars().take(1000).collect()),
        action: action.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &object.object_ref(&())).await {
        tracing::debug!(%error, "an event was lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_keep_their_time_until_the_status_flips() {
        let waiting = Standing::Reconciling(Reason::Progressing, "pods start".into());
        let mut first = waiting.conditions(&[], Some(1));
        assert_eq!(first.iter().map(|one| one.type_.as_str()).collect::<Vec<_>>(), ["Ready", "Reconciling"]);
        first.iter_mut().for_each(|one| one.last_transition_time = time_of(1_000));
        assert_eq!(waiting.conditions(&first, Some(1)), first, "unchanged: identical");
        let ready = Standing::Ready(Reason::AsDesired, "all is well".into()).conditions(&first, Some(1));
        assert_eq!(ready.len(), 1);
        assert_ne!(ready[0].last_transition_time, time_of(1_000));
        assert!(is_transition(&first, &ready));
    }

    #[test]
    fn a_new_message_alone_is_no_transition() {
        let one = Standing::Reconciling(Reason::Progressing, "1 of 2".into()).conditions(&[], Some(1));
        let two = Standing::Reconciling(Reason::Progressing, "2 of 2".into()).conditions(&one, Some(1));
        assert!(one != two && !is_transition(&one, &two));
    }
}
