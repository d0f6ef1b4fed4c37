//! How long work is shown on stderr: bars on a terminal, lines otherwise. An end time is shown only where it can be known.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines of one phase come at most this often when only numbers changed.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// An estimate needs this much of the work and this much time behind it.
const ESTIMATE_FROM: (f64, Duration) = (0.1, Duration::from_secs(3));

/// Work that has not moved for this long has no end time.
const STALLED: Duration = Duration::from_secs(3);

/// Where progress goes.
#[derive(Debug)]
pub struct Progress {
    bars: Option<MultiProgress>,
    quiet: bool,
}

impl Progress {
    /// Bars if stderr is a terminal, lines otherwise.
    pub fn to_stderr() -> Self {
        let terminal = std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { bars: terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr())), quiet: false }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self { bars: None, quiet: true }
    }

    /// One line.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.bars {
            Some(bars) => {
                let _ = bars.println(text);
            }
            None => line(text),
        }
    }

    /// Lines below the bars, none yet.
    pub fn lines(&self) -> Lines<'_> {
        Lines { progress: self, shown: Vec::new() }
    }

    /// Whether it is shown on a terminal.
    pub fn is_live(&self) -> bool {
        self.bars.is_some()
    }

    /// Begins a phase; with a total, what is done is counted.
    pub fn phase(&self, name: &str, total: Option<u64>) -> Phase {
        let measure = total.map_or(Measure::None, Measure::Count);
        self.begin(name, measure)
    }

    /// Begins a phase of which somebody else knows how much is done, in parts per million, and when it ends.
    pub fn share(&self, name: &str) -> Phase {
        self.begin(name, Measure::Share)
    }

    fn begin(&self, name: &str, measure: Measure) -> Phase {
        let bar = self.bars.as_ref().map(|bars| new_bar(bars, name, measure));
        Phase {
            name: name.to_owned(),
            measure,
            bar,
            quiet: self.quiet,
            began: Instant::now(),
            shown: Mutex::new(Shown { note: String::new(), peak: 0, peak_at: Instant::now(), at: None }),
        }
    }
}

/// Lines on a terminal that are replaced while work goes on; nothing where there is none.
#[derive(Debug)]
pub struct Lines<'a> {
    progress: &'a Progress,
    shown: Vec<ProgressBar>,
}

impl Lines<'_> {
    /// Shows these lines and no others.
    pub fn set(&mut self, lines: &[String]) {
        let Some(bars) = &self.progress.bars else { return };
        while self.shown.len() > lines.len() {
            self.shown.pop().iter().for_each(ProgressBar::finish_and_clear);
        }
        while self.shown.len() < lines.len() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            self.shown.push(bars.add(bar));
        }
        for (bar, line) in self.shown.iter().zip(lines) {
            bar.set_message(line.clone());
        }
    }
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        self.shown.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// What is known of how much there is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    None,
    Count(u64),
    Share,
}

impl Measure {
    fn total(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Count(total) => Some(total),
            Self::Share => Some(MILLION),
        }
    }

    /// On a line.
    fn text(self, done: u64) -> String {
        match self {
            Self::None => done.to_string(),
            Self::Count(total) => format!("{done}/{total}"),
            Self::Share => format!("{} %", done * 100 / MILLION),
        }
    }
}

const MILLION: u64 = 1_000_000;

fn new_bar(bars: &MultiProgress, name: &str, measure: Measure) -> ProgressBar {
    // It belongs to the others before it is drawn for the first time, or that drawing stays where it is.
    let bar = bars.add(measure.total().map_or_else(ProgressBar::new_spinner, ProgressBar::new));
    let template = match measure {
        Measure::Count(_) => "{prefix:>12} [{bar:30}] {pos}/{len} {wide_msg}",
        Measure::Share => "{prefix:>12} [{bar:30}] {percent:>3} % {wide_msg}",
        Measure::None => "{prefix:>12} {spinner} {elapsed} {wide_msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(name.to_owned());
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[derive(Debug)]
struct Shown {
    note: String,
    /// The most that was ever done, and when it became so.
    peak: u64,
    peak_at: Instant,
    at: Option<Instant>,
}

/// One phase of some work.
#[derive(Debug)]
pub struct Phase {
    name: String,
    measure: Measure,
    bar: Option<ProgressBar>,
    quiet: bool,
    began: Instant,
    shown: Mutex<Shown>,
}

impl Phase {
    /// Says what is waited for, or what is happening; shown once for each change.
    pub fn note(&self, note: &str) {
        let Ok(mut shown) = self.shown.lock() else { return };
        if shown.note == note {
            return;
        }
        note.clone_into(&mut shown.note);
        match &self.bar {
            Some(bar) => bar.set_message(note.to_owned()),
            None if !self.quiet => line(&format!("{}: {note}", self.name)),
            None => {}
        }
    }

    /// How much is done, and what more there is to say about it.
    pub fn set(&self, done: u64, detail: &str) {
        let Ok(mut shown) = self.shown.lock() else { return };
        if done > shown.peak {
            (shown.peak, shown.peak_at) = (done, Instant::now());
        }
        let moving = done == shown.peak && shown.peak_at.elapsed() < STALLED;
        let counted = moving && self.measure != Measure::Share;
        let left = estimate(done, self.measure.total(), self.began.elapsed()).filter(|_| counted);
        let text = match left {
            Some(left) => format!("{detail} ({} s left)", left.as_secs() + 1).trim_start().to_owned(),
            None => detail.to_owned(),
        };
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(text);
            return;
        }
        if self.quiet || shown.at.is_some_and(|at| at.elapsed() < LINE_EVERY) {
            return;
        }
        shown.at = Some(Instant::now());
        line(format!("{}: {} {text}", self.name, self.measure.text(done)).trim_end());
    }

    /// Ends the phase with its outcome.
    pub fn finish(self, outcome: &str) {
        let text = format!("{}: {outcome} ({:.1} s)", self.name, self.began.elapsed().as_secs_f64());
        match &self.bar {
            Some(bar) => {
                bar.disable_steady_tick();
                bar.set_style(ProgressStyle::default_spinner());
                bar.finish_and_clear();
                bar.suspend(|| line(&text));
            }
            None if !self.quiet => line(&text),
            None => {}
        }
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar
            && !bar.is_finished()
        {
            bar.finish_and_clear();
        }
    }
}

/// The time left, once enough is done to tell.
fn estimate(done: u64, total: Option<u64>, elapsed: Duration) -> Option<Duration> {
    let total = total.filter(|total| *total > 0)?;
    let share = done as f64 / total as f64;
    let known = share >= ESTIMATE_FROM.0 && elapsed >= ESTIMATE_FROM.1 && share < 1.0;
    known.then(|| elapsed.mul_f64((1.0 - share) / share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_shown_in_per_cent_and_a_count_beside_its_total() {
        assert_eq!([0, 415_999, 1_000_000].map(|done| Measure::Share.text(done)), ["0 %", "41 %", "100 %"]);
        assert_eq!((Measure::Count(9).text(5), Measure::None.text(5)), ("5/9".to_owned(), "5".to_owned()));
    }

    #[test]
    fn no_end_time_is_shown_before_it_can_be_known() {
        let seconds = Duration::from_secs;
        assert_eq!(estimate(5, None, seconds(60)), None, "no total");
        assert_eq!(estimate(5, Some(100), seconds(60)), None, "too little done");
        assert_eq!(estimate(50, Some(100), seconds(1)), None, "too early");
        assert_eq!(estimate(100, Some(100), seconds(9)), None, "nothing left");
        assert_eq!(estimate(25, Some(100), seconds(10)), Some(seconds(30)));
    }
}
