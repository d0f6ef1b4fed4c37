//! Timing a closure many times, interleaved with its ablation so that both see the same machine.

use std::time::{Duration, Instant};

/// Medians of two interleaved measurements.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Of the first.
    pub ours: Duration,
    /// Of the second.
    pub other: Duration,
}

impl Pair {
    /// How many times longer the other takes.
    pub fn ratio(self) -> f64 {
        self.other.as_secs_f64() / self.ours.as_secs_f64()
    }
}

/// Runs both closures `rounds` times in turn and returns the median time of one of `per_round` operations of each.
pub fn interleaved(rounds: usize, per_round: u32, mut ours: impl FnMut(), mut other: impl FnMut()) -> Pair {
    let (mut first, mut second) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        first.push(time(&mut ours));
        second.push(time(&mut other));
    }
    Pair { ours: median(first) / per_round, other: median(second) / per_round }
}

fn time(work: &mut impl FnMut()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Prints one row.
pub fn row(what: &str, ours: &str, other: &str, ratio: f64) {
    println!("{what:<44} {ours:>14} {other:>18} {ratio:>8.2}x");
}
