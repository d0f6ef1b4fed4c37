//! Which membership changes the users' own buckets do not know about yet, and so up to where the feed may be acknowledged. Tells nobody.

use std::collections::VecDeque;

/// Beyond this many, what follows is left out until these are told; then the log is compared from the cursor on, as at a claim.
pub const OUTSTANDING_LIMIT: usize = 10_000;

#[derive(Debug)]
struct Item {
    log: String,
    number: u64,
    done: bool,
}

/// Memberships on their way, in log order.
#[derive(Debug, Default)]
pub struct Memberships {
    outstanding: VecDeque<Item>,
    overflowed: bool,
    acknowledged: Option<(String, u64)>,
}

impl Memberships {
    /// An entry's membership is to be told. False: there are too many; it is left to the next comparison.
    pub fn begin(&mut self, log: &str, number: u64) -> bool {
        if self.outstanding.len() >= OUTSTANDING_LIMIT {
            self.overflowed = true;
        }
        if !self.overflowed {
            self.outstanding.push_back(Item { log: log.to_owned(), number, done: false });
        }
        !self.overflowed
    }

    /// The user's bucket has it.
    pub fn fed(&mut self, log: &str, number: u64) {
        let is_it = |item: &&mut Item| !item.done && item.number == number && item.log == log;
        if let Some(item) = self.outstanding.iter_mut().find(is_it) {
            item.done = true;
        }
    }

    /// It could not be told: it is left to the next comparison.
    pub fn left_out(&mut self, log: &str, number: u64) {
        self.outstanding.retain(|item| item.done || item.number != number || item.log != log);
        self.overflowed = true;
    }

    /// A comparison up to here is to be made: nothing is acknowledged before it is.
    pub fn compare(&mut self, log: &str, number: u64) {
        self.overflowed = false;
        self.outstanding.push_back(Item { log: log.to_owned(), number, done: false });
    }

    /// Whether something was left out, and all that was not is told.
    pub fn wants_comparison(&self) -> bool {
        self.overflowed && self.outstanding.iter().all(|item| item.done)
    }

    /// The guild left a log after this entry: what is done there is still to be acknowledged.
    pub fn left(&mut self, log: &str, number: u64) {
        if !self.overflowed {
            self.outstanding.push_back(Item { log: log.to_owned(), number, done: true });
        }
    }

    /// A new claim starts from the cursor.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// What to acknowledge now, if that is news; `applied` is where the actor stands in `log`.
    pub fn acknowledge(&mut self, log: &str, applied: u64) -> Option<(String, u64)> {
        let mut last = None;
        while self.outstanding.front().is_some_and(|item| item.done) {
            let Some(item) = self.outstanding.pop_front() else { break };
            let another_log_follows = self.outstanding.front().is_some_and(|next| next.log != item.log);
            last = Some((item.log, item.number));
            if another_log_follows {
                break;
            }
        }
        if self.outstanding.is_empty() && !self.overflowed && last.as_ref().is_none_or(|(done_in, _)| done_in == log) {
            last = Some((log.to_owned(), applied));
        }
        let news = last.filter(|last| last.1 > 0 && self.acknowledged.as_ref() != Some(last))?;
        self.acknowledged = Some(news.clone());
        Some(news)
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_is_acknowledged_up_to_the_first_membership_not_told() {
        let mut memberships = Memberships::default();
        assert!(memberships.begin("b0001", 5) && memberships.begin("b0001", 7));
        memberships.fed("b0001", 7);
        assert_eq!(memberships.acknowledge("b0001", 9), None);
        memberships.fed("b0001", 5);
        assert_eq!(memberships.acknowledge("b0001", 9), Some(("b0001".into(), 9)));
        assert_eq!(memberships.acknowledge("b0001", 9), None);
    }

    #[test]
    fn nothing_is_acknowledged_before_the_comparison_of_a_claim() {
        let mut memberships = Memberships::default();
        memberships.compare("b0001", 40);
        memberships.begin("b0001", 41);
        memberships.fed("b0001", 41);
        assert_eq!(memberships.acknowledge("b0001", 50), None);
        memberships.fed("b0001", 40);
        assert_eq!(memberships.acknowledge("b0001", 50), Some(("b0001".into(), 50)));
    }

    #[test]
    fn what_was_left_out_is_compared_when_the_rest_is_told_and_only_then_acknowledged() {
        let mut memberships = Memberships::default();
        assert!(memberships.begin("b0001", 5) && memberships.begin("b0001", 6));
        memberships.left_out("b0001", 6);
        assert!(!memberships.begin("b0001", 7));
        assert!(!memberships.wants_comparison());
        memberships.fed("b0001", 5);
        assert_eq!(memberships.acknowledge("b0001", 9), Some(("b0001".into(), 5)));
        assert!(memberships.wants_comparison());
        memberships.compare("b0001", 9);
        assert_eq!(memberships.acknowledge("b0001", 9), None);
        memberships.fed("b0001", 9);
        assert_eq!(memberships.acknowledge("b0001", 9), Some(("b0001".into(), 9)));
    }

    #[test]
    fn a_log_that_was_left_is_acknowledged_to_its_end_before_the_next() {
        let mut memberships = Memberships::default();
        memberships.begin("b0001", 5);
        memberships.left("b0001", 6);
        memberships.begin("g9", 1);
        memberships.fed("g9", 1);
        memberships.fed("b0001", 5);
        assert_eq!(memberships.acknowledge("g9", 3), Some(("b0001".into(), 6)));
        assert_eq!(memberships.acknowledge("g9", 3), Some(("g9".into(), 3)));
    }
}
