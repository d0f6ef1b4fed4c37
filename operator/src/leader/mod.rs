//! Who leads: decided from the Lease as seen and this process's own monotonic clock; clocks of others are never compared. Pure; the
//! renewing is `keep`'s. `leaseTransitions` is the fencing token of everything the leader writes elsewhere.

mod keep;

use std::time::Duration;

pub use keep::{Leadership, LostLeadership, acquire};

/// How long a Lease that is not renewed is respected by others.
pub const LEASE_DURATION: Duration = Duration::from_secs(10);
/// A leader that could not renew for this long stops at once: well before others may take over.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(7);
/// Pause between two looks.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Longest wait for one request about the Lease.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The Lease as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Who holds it; empty when released.
    pub holder: String,
    /// How often it changed hands.
    pub transitions: i32,
    /// Changes at every renewal; its meaning is the holder's clock's, so it is only compared for equality.
    pub renewal: String,
    /// How long the holder asks to be respected.
    pub duration: Duration,
}

/// What this process remembers between looks: the Lease and when it last saw it change, by its own clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// As last seen.
    pub seen: Seen,
    /// Time since this process started, at the last change.
    pub changed_at: Duration,
}

/// What to do about the Lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is none: create it.
    Create,
    /// It is free or has run out: take it, with this number of transitions.
    Take(i32),
    /// It is this process's: renew it.
    Renew,
    /// It is another's: look again.
    Wait,
}

/// Decides. `now` is the time since this process started. Also answers what to remember.
pub fn evaluate(lease: Option<&Seen>, memory: Option<&Memory>, id: &str, now: Duration) -> (Verdict, Option<Memory>) {
    let Some(seen) = lease else { return (Verdict::Create, None) };
    let same = memory.filter(|memory| memory.seen == *seen);
    let changed_at = same.map_or(now, |memory| memory.changed_at);
    let remembered = Some(Memory { seen: seen.clone(), changed_at });
    let verdict = if seen.holder == id {
        Verdict::Renew
    } else if seen.holder.is_empty() || now.saturating_sub(changed_at) > seen.duration {
        Verdict::Take(seen.transitions.saturating_add(1))
    } else {
        Verdict::Wait
    };
    (verdict, remembered)
}

/// Whether a leader that last renewed at `renewed_at` must stop.
pub fn has_lost(renewed_at: Duration, now: Duration) -> bool {
    now.saturating_sub(renewed_at) >= RENEW_DEADLINE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: &str, renewal: &str) -> Seen {
        Seen { holder: holder.into(), transitions: 4, renewal: renewal.into(), duration: LEASE_DURATION }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_that_is_renewed_is_respected_for_ever() {
        let mut memory = None;
        for tick in 0..100 {
            let lease = seen("other", &tick.to_string());
            let (verdict, next) = evaluate(Some(&lease), memory.as_ref(), "me", seconds(tick * 2));
            assert_eq!(verdict, Verdict::Wait);
            memory = next;
        }
    }

    #[test]
    fn a_lease_that_stands_still_is_taken_only_after_its_duration_by_our_own_clock() {
        let lease = seen("other", "1999-01-01");
        let (verdict, memory) = evaluate(Some(&lease), None, "me", seconds(100));
        assert_eq!(verdict, Verdict::Wait, "its old time says nothing: clocks are not compared");
        let at = |now| evaluate(Some(&lease), memory.as_ref(), "me", seconds(now)).0;
        assert_eq!((at(109), at(110), at(111)), (Verdict::Wait, Verdict::Wait, Verdict::Take(5)));
    }

    #[test]
    fn a_free_lease_is_taken_and_an_own_one_renewed() {
        assert_eq!(evaluate(None, None, "me", seconds(0)).0, Verdict::Create);
        assert_eq!(evaluate(Some(&seen("", "x")), None, "me", seconds(0)).0, Verdict::Take(5));
        assert_eq!(evaluate(Some(&seen("me", "x")), None, "me", seconds(0)).0, Verdict::Renew);
    }

    #[test]
    fn a_leader_stops_before_another_may_take_over() {
        assert!(RENEW_DEADLINE + REQUEST_TIMEOUT < LEASE_DURATION);
        assert!(!has_lost(seconds(10), seconds(16)));
        assert!(has_lost(seconds(10), seconds(17)));
    }
}
