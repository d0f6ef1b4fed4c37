//! How a run ended: for people, as JSON, and as an exit code. Zero only when everything is done and nothing differs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::ranges::{Counts, Finding, Phase, RangeRow, Receipt};

/// The endings and their exit codes, as cellctl has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// 0
    Done,
    /// 1: it could not go on.
    Failed,
    /// 2: the command line makes no sense.
    Usage,
    /// 3: it was not begun.
    Refused,
    /// 5: ranges are left, or rows differ.
    Partly,
}

impl Ending {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Partly => 5,
        }
    }
}

/// One phase's result.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseResult {
    /// Phase.
    pub phase: Phase,
    /// Round.
    pub round: u32,
    /// Every range is done.
    pub complete: bool,
    /// Parts per million of the token space.
    pub done_ppm: u32,
    /// Given up.
    pub ranges_failed: u32,
    /// Sums over all starts with this state file.
    pub counts: Counts,
    /// Of this start.
    pub seconds: f64,
    /// Rows of this start.
    pub rows: u64,
}

/// Everything there is to say.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// Why, when not well.
    pub message: String,
    /// The source's tables by cluster, name and table id.
    pub source: String,
    /// The target's.
    pub target: String,
    /// What was really in force.
    pub settings: BTreeMap<String, String>,
    /// Phases of this start, in order.
    pub phases: Vec<PhaseResult>,
    /// Of the last whole verification.
    pub receipt: Option<Receipt>,
    /// Ranges and partitions that need someone.
    pub findings: Vec<Finding>,
    /// Ranges that are not done.
    pub failed_ranges: Vec<RangeRow>,
}

impl Outcome {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for phase in &self.phases {
            let rate = phase.rows as f64 / phase.seconds.max(0.001);
            let percent = f64::from(phase.done_ppm) / 10_000.0;
            let _ = writeln!(
                text,
                "{}: {:.2} % of the ring, {} rows ({} now, {rate:.0}/s), {} ranges redone, {} failed",
                phase.phase.label(),
                percent,
                phase.counts.rows,
                phase.rows,
                phase.counts.redone,
                phase.ranges_failed
            );
            if phase.counts.without_cells > 0 {
                let _ = writeln!(
                    text,
                    "  {} rows are a key alone: written with the oldest write time, for ever",
                    phase.counts.without_cells
                );
            }
            let classes: Vec<String> =
                phase.counts.mismatches.iter().map(|(class, count)| format!("{class} {count}")).collect();
            if !classes.is_empty() {
                let _ = writeln!(text, "  mismatches: {}; repaired {}", classes.join(", "), phase.counts.repaired);
            }
        }
        for finding in &self.findings {
            let place = if finding.partition.is_empty() {
                format!("tokens {} to {}", finding.first_token, finding.last_token)
            } else {
                format!("partition {}", finding.partition)
            };
            let _ = writeln!(text, "{} in {}, {place}: {}", finding.kind.label(), finding.table, finding.message);
        }
        for range in &self.failed_ranges {
            let _ = writeln!(
                text,
                "not done: {} tokens {} to {} after {} tries: {}",
                range.table, range.first_token, range.last_token, range.attempts, range.failure
            );
        }
        if let Some(receipt) = &self.receipt {
            let verdict = if receipt.clean { "clean" } else { "not clean" };
            let _ = writeln!(
                text,
                "receipt: {verdict}, {} rows compared in {} ranges",
                receipt.rows_compared, receipt.ranges
            );
        }
        let word = match self.ending {
            Ending::Done => "done",
            Ending::Failed => "failed",
            Ending::Usage => "usage",
            Ending::Refused => "refused",
            Ending::Partly => "partly done",
        };
        let _ = match self.message.as_str() {
            "" => writeln!(text, "{word}"),
            message => writeln!(text, "{word}: {message}"),
        };
        text
    }
}
