//! What is seen while it runs: a bar on a terminal, otherwise one line every few seconds. An end time only where one can be known.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use crate::ranges::State;

const LINE_EVERY: Duration = Duration::from_secs(5);

/// The display of one phase.
pub struct Show {
    bar: Option<ProgressBar>,
    shown_at: Option<Instant>,
}

/// The one line: phase, copied n/m, rows a second, what holds it back and why, when it will end.
pub fn heartbeat(state: &State) -> String {
    let percent = f64::from(state.done_ppm) / 10_000.0;
    let mut line = format!(
        "{} {}/{} ranges {percent:.1} %, {} rows, {} rows/s",
        state.phase.label(),
        state.ranges_done,
        state.ranges_total,
        state.counts.rows,
        state.rows_per_second
    );
    if state.ranges_failed > 0 {
        line.push_str(&format!(", {} failed", state.ranges_failed));
    }
    if !state.throttle.is_empty() {
        line.push_str(&format!(", {}: {}", state.throttle, state.throttle_reason));
    }
    match state.eta_seconds {
        0 => {}
        seconds => line.push_str(&format!(", {} left", duration(seconds))),
    }
    line
}

fn duration(seconds: u32) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

impl Show {
    /// A bar where stderr is a terminal.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(Some(1_000_000), ProgressDrawTarget::stderr());
            let style =
                ProgressStyle::with_template("{bar:30} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style);
            bar
        });
        Self { bar, shown_at: None }
    }

    /// Shows it, not too often.
    pub fn show(&mut self, state: &State) {
        if let Some(bar) = &self.bar {
            bar.set_position(u64::from(state.done_ppm));
            bar.set_message(heartbeat(state));
        } else if self.shown_at.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.shown_at = Some(Instant::now());
            eprintln!("{}", heartbeat(state));
        }
    }

    /// The last state of the phase, always shown.
    pub fn finish(&mut self, state: &State) {
        match self.bar.take() {
            Some(bar) => bar.finish_and_clear(),
            None => eprintln!("{}", heartbeat(state)),
        }
    }
}

impl Default for Show {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::{Machine, Phase, Saved, Settings};

    #[test]
    fn the_line_says_how_far_how_fast_why_and_until_when() {
        let (machine, _) = Machine::restore(Settings::standard("r"), vec![], Saved::default());
        let mut state = machine.state(0);
        state.phase = Phase::Backfill;
        (state.done_ppm, state.ranges_done, state.ranges_total) = (123_456, 3, 9);
        assert_eq!(heartbeat(&state), "backfill 3/9 ranges 12.3 %, 0 rows, 0 rows/s");
        (state.ranges_failed, state.eta_seconds, state.throttle) = (1, 3_725, "target-latency".to_owned());
        state.throttle_reason = "the target is slow".to_owned();
        let expected = "backfill 3/9 ranges 12.3 %, 0 rows, 0 rows/s, 1 failed, target-latency: the target is slow, 1 h 2 min left";
        assert_eq!(heartbeat(&state), expected);
    }
}
