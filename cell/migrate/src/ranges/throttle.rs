//! How fast the copy may go: a bound on rows a second that falls when either side answers slowly or is away and rises when both are
//! well. It always knows why it holds back.

use std::collections::VecDeque;

/// What a worker saw since its last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// p99 of reads at the source, in microseconds; 0: none.
    pub read_us: u32,
    /// p99 of writes at the target, in microseconds; 0: none.
    pub write_us: u32,
}

/// Why it is not faster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThrottleReason {
    /// Somebody set a rate.
    Rate,
    /// Somebody paused it.
    Paused,
    /// The source answers slowly.
    SourceLatency,
    /// The target answers slowly.
    TargetLatency,
    /// One of the two does not answer.
    Unavailable,
}

impl ThrottleReason {
    /// The stable word.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Paused => "paused",
            Self::SourceLatency => "source-latency",
            Self::TargetLatency => "target-latency",
            Self::Unavailable => "unavailable",
        }
    }
}

const STEP_MS: i64 = 1_000;
const RATE_WINDOW_MS: i64 = 10_000;
const LEAST_ROWS_PER_SECOND: f64 = 100.0;
const SAMPLES: usize = 256;

/// The bound and what it was made from.
#[derive(Clone, Debug)]
pub struct Throttle {
    ceiling_us: u32,
    bound: Option<f64>,
    why: Option<(ThrottleReason, u32)>,
    worst: Sample,
    stepped_ms: i64,
    unavailable_since: Option<i64>,
    rows: VecDeque<(i64, u64)>,
}

impl Throttle {
    /// `ceiling_us`: answers slower than this on either side slow the copy down.
    pub fn new(ceiling_us: u32) -> Self {
        Self {
            ceiling_us,
            bound: None,
            why: None,
            worst: Sample::default(),
            stepped_ms: i64::MIN,
            unavailable_since: None,
            rows: VecDeque::new(),
        }
    }

    /// Takes a report in: rows done since the last one, and latencies.
    pub fn observe(&mut self, rows: u64, sample: Sample, now_ms: i64) {
        if rows > 0 {
            self.unavailable_since = None;
            self.rows.push_back((now_ms, rows));
        }
        while self.rows.len() > SAMPLES || self.rows.front().is_some_and(|(at, _)| *at < now_ms - RATE_WINDOW_MS) {
            self.rows.pop_front();
        }
        self.worst.read_us = self.worst.read_us.max(sample.read_us);
        self.worst.write_us = self.worst.write_us.max(sample.write_us);
        if now_ms >= self.stepped_ms.saturating_add(STEP_MS) {
            self.step(now_ms);
        }
    }

    /// A side did not answer.
    pub fn observe_unavailable(&mut self, now_ms: i64) {
        self.unavailable_since.get_or_insert(now_ms);
    }

    /// Since when no row was done because a side does not answer.
    pub fn unavailable_since(&self) -> Option<i64> {
        self.unavailable_since
    }

    /// Something was done, even if it was no row.
    pub fn observe_available(&mut self) {
        self.unavailable_since = None;
    }

    fn step(&mut self, now_ms: i64) {
        let worst = std::mem::take(&mut self.worst);
        self.stepped_ms = now_ms;
        let slow = [(worst.write_us, ThrottleReason::TargetLatency), (worst.read_us, ThrottleReason::SourceLatency)];
        let slowest = slow.into_iter().filter(|(us, _)| *us > self.ceiling_us).max_by_key(|(us, _)| *us);
        let measured = self.rows_per_second(now_ms) as f64;
        match (slowest, self.bound) {
            (Some((us, reason)), bound) => {
                let from = bound.unwrap_or(measured).min(measured.max(LEAST_ROWS_PER_SECOND));
                self.bound = Some((from * 0.7).max(LEAST_ROWS_PER_SECOND));
                self.why = Some((reason, us));
            }
            (None, Some(bound)) if bound > measured * 3.0 + 10_000.0 => {
                self.bound = None;
                self.why = None;
            }
            (None, Some(bound)) => self.bound = Some(bound * 1.25),
            (None, None) => {}
        }
    }

    /// Rows a second over the last 10 s.
    pub fn rows_per_second(&self, now_ms: i64) -> u64 {
        let rows: u64 = self.rows.iter().map(|(_, rows)| rows).sum();
        let first = self.rows.front().map_or(now_ms, |(at, _)| *at);
        let span = (now_ms - first).clamp(1_000, RATE_WINDOW_MS).unsigned_abs();
        rows * 1000 / span
    }

    /// The bound in rows a second, 0 for none, given the rate somebody set (0: none).
    pub fn bound(&self, rate: u32) -> u32 {
        let own = self.bound.map_or(0, |bound| bound as u32);
        match (rate, own) {
            (0, own) => own,
            (rate, 0) => rate,
            (rate, own) => rate.min(own),
        }
    }

    /// Why it is not faster; none at full speed.
    pub fn reason(&self, rate: u32, paused: bool, now_ms: i64) -> Option<(ThrottleReason, String)> {
        if paused {
            return Some((ThrottleReason::Paused, "paused; resume it to go on".to_owned()));
        }
        if let Some(since) = self.unavailable_since {
            let seconds = (now_ms - since) / 1000;
            return Some((
                ThrottleReason::Unavailable,
                format!("a side has not answered for {seconds} s; trying again"),
            ));
        }
        if let (Some((reason, us)), true) = (self.why, self.bound(rate) != rate) {
            let side = if reason == ThrottleReason::SourceLatency { "source" } else { "target" };
            let ceiling = self.ceiling_us / 1000;
            return Some((
                reason,
                format!("the {side} answered in {} ms (p99), the ceiling is {ceiling} ms", us / 1000),
            ));
        }
        (rate > 0).then(|| (ThrottleReason::Rate, format!("{rate} rows a second were asked for")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(read_us: u32, write_us: u32) -> Sample {
        Sample { read_us, write_us }
    }

    #[test]
    fn a_slow_target_lowers_the_bound_until_it_is_well_again() {
        let mut throttle = Throttle::new(100_000);
        for second in 0..5 {
            throttle.observe(10_000, sample(5_000, 20_000), second * 1000);
        }
        assert_eq!((throttle.bound(0), throttle.reason(0, false, 5000)), (0, None));
        let mut last = u32::MAX;
        for second in 5..9 {
            throttle.observe(10_000, sample(5_000, 300_000), second * 1000);
            assert!(throttle.bound(0) < last, "each slow second lowers it");
            last = throttle.bound(0);
        }
        let (reason, text) = throttle.reason(0, false, 9000).unwrap();
        assert_eq!(reason, ThrottleReason::TargetLatency);
        assert!(text.contains("300 ms") && text.contains("100 ms"), "{text}");
        for second in 9..60 {
            throttle.observe(2_000, sample(5_000, 20_000), second * 1000);
        }
        assert_eq!((throttle.bound(0), throttle.reason(0, false, 60_000)), (0, None), "it came back to full speed");
    }

    #[test]
    fn the_bound_never_falls_to_nothing() {
        let mut throttle = Throttle::new(1_000);
        for second in 0..200 {
            throttle.observe(1, sample(900_000, 0), second * 1000);
        }
        assert_eq!(throttle.bound(0), 100);
        assert_eq!(throttle.bound(40), 40, "a rate somebody set is kept");
        assert_eq!(throttle.reason(0, false, 0).unwrap().0, ThrottleReason::SourceLatency);
    }

    #[test]
    fn a_side_that_is_away_is_the_reason_until_a_row_is_done() {
        let mut throttle = Throttle::new(1_000_000);
        throttle.observe_unavailable(1_000);
        throttle.observe_unavailable(9_000);
        assert_eq!(throttle.unavailable_since(), Some(1_000));
        assert_eq!(throttle.reason(5, false, 61_000).unwrap().1, "a side has not answered for 60 s; trying again");
        throttle.observe(1, Sample::default(), 62_000);
        assert_eq!(throttle.reason(5, false, 62_000).unwrap().0, ThrottleReason::Rate);
        assert_eq!(throttle.reason(5, true, 62_000).unwrap().0, ThrottleReason::Paused);
    }
}
