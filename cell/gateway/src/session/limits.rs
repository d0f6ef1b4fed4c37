//! Counting limits: frames of a connection, session starts of a bot. Pure; the time is an argument.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// At most `limit` in any window of `window_ms`, counted in sixtieths of the window so that memory stays small.
#[derive(Debug, Clone)]
pub struct SlidingWindow {
    limit: u32,
    step_ms: u64,
    steps: VecDeque<(u64, u32)>,
    total: u32,
}

const STEPS: u64 = 60;

/// Forgets what is idle in a map of at least `many`, but only when it would grow: looking through all of it at every insert would cost more
/// than what is counted.
pub fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, V>, many: usize, mut is_idle: impl FnMut(&mut V) -> bool) {
    if map.len() < many || map.len() < map.capacity() {
        return;
    }
    map.retain(|_, value| !is_idle(value));
    if map.len() > map.capacity() / 2 {
        map.reserve(map.len());
    }
}

impl SlidingWindow {
    /// A window that admits `limit` in `window_ms`.
    pub fn new(limit: u32, window_ms: u64) -> Self {
        Self { limit, step_ms: (window_ms / STEPS).max(1), steps: VecDeque::new(), total: 0 }
    }

    /// Counts one if it fits.
    pub fn admit(&mut self, now_ms: u64) -> bool {
        let step = now_ms / self.step_ms;
        self.forget(step);
        if self.total >= self.limit {
            return false;
        }
        match self.steps.back_mut() {
            Some((last, count)) if *last == step => *count += 1,
            _ => self.steps.push_back((step, 1)),
        }
        self.total += 1;
        true
    }

    /// How many more fit now.
    pub fn remaining(&mut self, now_ms: u64) -> u32 {
        self.forget(now_ms / self.step_ms);
        self.limit - self.total.min(self.limit)
    }

    /// After how many milliseconds the window has forgotten its oldest count.
    pub fn reset_after_ms(&self, now_ms: u64) -> u64 {
        let oldest = self.steps.front().map_or(0, |(step, _)| *step);
        ((oldest + STEPS) * self.step_ms).saturating_sub(now_ms)
    }

    /// Whether nothing is counted any more.
    pub fn is_idle(&mut self, now_ms: u64) -> bool {
        self.forget(now_ms / self.step_ms);
        self.total == 0
    }

    fn forget(&mut self, step: u64) {
        while let Some((oldest, count)) = self.steps.front().copied() {
            if step < oldest + STEPS {
                break;
            }
            self.total -= count;
            self.steps.pop_front();
        }
    }
}

/// The session-start budget, as told by `/gateway/bot`.
#[derive(Debug, Clone, Copy)]
pub struct StartLimits {
    /// Identifies of one bot in 24 hours.
    pub daily: u32,
    /// Keys that may identify at the same time: `shard_id % max_concurrency`.
    pub max_concurrency: u32,
    /// Identifies of one key in 5 seconds.
    pub burst: u32,
}

/// Why a session start was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartRefusal {
    /// The day's identifies are used up.
    Daily,
    /// Too many at once.
    Concurrency,
}

const DAY_MS: u64 = 24 * 3600 * 1000;
const CONCURRENCY_WINDOW_MS: u64 = 5000;
/// From so many on, idle users' budgets are forgotten.
const MAX_USERS: usize = 100_000;

/// Session starts of every bot at this gateway.
#[derive(Debug)]
pub struct Starts {
    limits: StartLimits,
    daily: HashMap<i64, SlidingWindow>,
    keys: HashMap<(i64, u32), SlidingWindow>,
}

impl Starts {
    /// Nothing started yet.
    pub fn new(limits: StartLimits) -> Self {
        Self { limits, daily: HashMap::new(), keys: HashMap::new() }
    }

    /// Counts an identify.
    ///
    /// # Errors
    /// [`StartRefusal`]: the answer is op 9.
    pub fn admit(&mut self, user_id: i64, shard_id: u32, now_ms: u64) -> Result<(), StartRefusal> {
        self.forget_idle(now_ms);
        let daily = self.daily.entry(user_id).or_insert_with(|| SlidingWindow::new(self.limits.daily, DAY_MS));
        if daily.remaining(now_ms) == 0 {
            return Err(StartRefusal::Daily);
        }
        let key = (user_id, shard_id % self.limits.max_concurrency.max(1));
        let window = || SlidingWindow::new(self.limits.burst, CONCURRENCY_WINDOW_MS);
        if !self.keys.entry(key).or_insert_with(window).admit(now_ms) {
            return Err(StartRefusal::Concurrency);
        }
        daily.admit(now_ms);
        Ok(())
    }

    /// What is left of the day, and after how many milliseconds the oldest start is forgotten.
    pub fn remaining(&mut self, user_id: i64, now_ms: u64) -> (u32, u64) {
        match self.daily.get_mut(&user_id) {
            None => (self.limits.daily, 0),
            Some(daily) => {
                let remaining = daily.remaining(now_ms);
                (remaining, if remaining == self.limits.daily { 0 } else { daily.reset_after_ms(now_ms) })
            }
        }
    }

    fn forget_idle(&mut self, now_ms: u64) {
        make_room(&mut self.keys, MAX_USERS, |window| window.is_idle(now_ms));
        make_room(&mut self.daily, MAX_USERS, |window| window.is_idle(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hundred_and_twenty_first_frame_in_a_minute_does_not_fit() {
        let mut window = SlidingWindow::new(120, 60_000);
        for n in 0..120 {
            assert!(window.admit(n * 10));
        }
        assert!(!window.admit(30_000));
        assert!(window.admit(61_000));
    }

    #[test]
    fn room_is_made_from_what_is_idle_and_not_at_every_insert() {
        let mut map = HashMap::new();
        let mut looks = 0;
        for key in 0..10_000_u32 {
            make_room(&mut map, 100, |at: &mut u32| {
                looks += 1;
                *at + 500 < key
            });
            map.insert(key, key);
        }
        assert!(map.len() < 5_000, "{} are kept though 500 are not idle", map.len());
        assert!(looks < 30_000, "{looks} looks for 10,000 inserts");
    }

    #[test]
    fn a_burst_over_the_concurrency_is_refused_and_costs_no_daily_start() {
        let mut starts = Starts::new(StartLimits { daily: 3, max_concurrency: 2, burst: 1 });
        assert_eq!(starts.admit(1, 0, 0), Ok(()));
        assert_eq!(starts.admit(1, 2, 10), Err(StartRefusal::Concurrency), "shard 2 shares the key of shard 0");
        assert_eq!(starts.admit(1, 1, 10), Ok(()));
        assert_eq!(starts.remaining(1, 10).0, 1);
        assert_eq!(starts.admit(1, 0, 6000), Ok(()));
        assert_eq!(starts.admit(1, 0, 20_000), Err(StartRefusal::Daily));
        assert_eq!(starts.admit(2, 0, 20_000), Ok(()), "another bot has its own budget");
        assert_eq!(starts.admit(1, 0, DAY_MS + DAY_MS / 60 + 6000), Ok(()));
    }
}
