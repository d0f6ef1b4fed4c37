//! Timing a closure many times, interleaved with its ablation so that both see the same machine; and what a process has used.

use std::time::{Duration, Instant};

use anyhow::Context;

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
    Pair { ours: quantile(&first, 50) / per_round, other: quantile(&second, 50) / per_round }
}

fn time(work: &mut impl FnMut()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

/// The value that `percent` of the values do not exceed; zero of none.
pub fn quantile<T: Copy + Ord + Default>(values: &[T], percent: usize) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}

/// How many in a second, at so long for one.
pub fn per_second(each: Duration) -> String {
    let count = 1.0 / each.as_secs_f64();
    if count >= 1e6 { format!("{:.2} M", count / 1e6) } else { format!("{:.0} k", count / 1e3) }
}

/// Prints one row.
pub fn row(what: &str, ours: &str, other: &str, ratio: f64) {
    println!("{what:<58} {ours:>24} {other:>34} {ratio:>8.2}x");
}

/// Prints a pair of rates: ours, and its ablation's with the word for what that one does.
pub fn rates(what: &str, pair: Pair, ablation: &str) {
    row(what, &per_second(pair.ours), &format!("{} ({ablation})", per_second(pair.other)), pair.ratio());
}

/// Prints a row that has no peer.
pub fn figure(what: &str, value: &str) {
    println!("{what:<58} {value:>24}");
}

/// Resident memory of a process, in bytes.
pub fn resident_bytes(pid: u32) -> anyhow::Result<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in the status")?;
    let kibibytes: i64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kibibytes * 1024)
}

/// Processor time a process has used, in user and system mode. The kernel counts in hundredths of a second.
pub fn processor_time(pid: u32) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(')').context("no name in the stat")?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next().context("a short stat")?.parse::<u64>().context("ticks");
    Ok(Duration::from_millis((ticks()? + ticks()?) * 10))
}
