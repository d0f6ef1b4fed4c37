//! Whether a guild has become so busy that it should have a cell of its own: thresholds, hold time, hysteresis at half a threshold
//! and a budget. It only decides; demotion is never automatic.

/// How busy a guild is, against its own thresholds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hotness {
    /// Below half of every threshold.
    #[default]
    Cold,
    /// From half a threshold.
    Warm,
    /// At or above a threshold, and not yet below half of it again.
    Hot,
}

impl Hotness {
    /// The word in status, metrics and the CLI.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cold => "Cold",
            Self::Warm => "Warm",
            Self::Hot => "Hot",
        }
    }
}

/// When a guild counts as hot. A threshold of `None` or below 1 is not looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// Connected sessions.
    pub sessions_above: Option<i64>,
    /// Messages a second.
    pub messages_per_second_above: Option<i64>,
    /// How long it must stay hot.
    pub hold_for_ms: i64,
}

/// One look at a guild's load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Connected sessions.
    pub sessions: i64,
    /// Messages a second.
    pub messages_per_second: i64,
}

/// What was seen before; kept by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// The class as of the last look.
    pub hotness: Hotness,
    /// Since when it has been hot without a pause.
    pub hot_since_ms: Option<i64>,
}

/// Takes one look into account. A hot guild cools only below half of every threshold, so that load around a threshold does not
/// restart the hold time.
pub fn observe(memory: Memory, thresholds: &Thresholds, sample: Sample, now_ms: i64) -> Memory {
    let pairs = [
        (thresholds.sessions_above, sample.sessions),
        (thresholds.messages_per_second_above, sample.messages_per_second),
    ];
    let watched = || pairs.iter().filter_map(|(bound, value)| bound.filter(|bound| *bound > 0).map(|b| (b, *value)));
    let over = watched().any(|(bound, value)| value > bound);
    let half = watched().any(|(bound, value)| value.saturating_mul(2) > bound);
    if over || (half && memory.hotness == Hotness::Hot) {
        return Memory { hotness: Hotness::Hot, hot_since_ms: memory.hot_since_ms.or(Some(now_ms)) };
    }
    Memory { hotness: if half { Hotness::Warm } else { Hotness::Cold }, hot_since_ms: None }
}

/// What bounds promotions of a fleet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Promotions that run now.
    pub running: usize,
    /// Most that may run at once.
    pub most: usize,
}

/// Whether to promote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Give it a cell of its own.
    Promote,
    /// Leave it, for this reason.
    Keep(Kept),
}

/// Why a guild is not promoted now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Not over a threshold.
    NotHot,
    /// Hot, but not for long enough: until this time, in Unix milliseconds.
    Holding {
        /// When the hold time is over.
        until_ms: i64,
    },
    /// It has a cell of its own.
    AlreadyDedicated,
    /// Automation is paused.
    AutomationPaused,
    /// As many promotions run as may.
    BudgetSpent,
}

impl Kept {
    /// The stable CamelCase reason.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotHot => "NotHot",
            Self::Holding { .. } => "Holding",
            Self::AlreadyDedicated => "AlreadyDedicated",
            Self::AutomationPaused => "AutomationPaused",
            Self::BudgetSpent => "PromotionBudgetSpent",
        }
    }
}

/// The state of the fleet that bears on a promotion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The guild has a cell of its own.
    pub dedicated: bool,
    /// `automation pause` is in force.
    pub paused: bool,
    /// What bounds promotions.
    pub budget: Budget,
}

/// Decides. The caller turns `Promote` into a wish for a dedicated cell.
pub fn decide(memory: Memory, thresholds: &Thresholds, setting: &Setting, now_ms: i64) -> Decision {
    if setting.dedicated {
        return Decision::Keep(Kept::AlreadyDedicated);
    }
    let Some(since) = memory.hot_since_ms else { return Decision::Keep(Kept::NotHot) };
    let until_ms = since.saturating_add(thresholds.hold_for_ms.max(0));
    if now_ms < until_ms {
        return Decision::Keep(Kept::Holding { until_ms });
    }
    if setting.paused {
        return Decision::Keep(Kept::AutomationPaused);
    }
    if setting.budget.running >= setting.budget.most {
        return Decision::Keep(Kept::BudgetSpent);
    }
    Decision::Promote
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Thresholds =
        Thresholds { sessions_above: Some(100), messages_per_second_above: None, hold_for_ms: 1000 };
    const FREE: Setting = Setting { dedicated: false, paused: false, budget: Budget { running: 0, most: 1 } };

    fn run(sessions: &[i64]) -> Memory {
        let looks = sessions.iter().enumerate();
        looks.fold(Memory::default(), |memory, (second, sessions)| {
            let sample = Sample { sessions: *sessions, messages_per_second: 0 };
            observe(memory, &RULES, sample, second as i64 * 500)
        })
    }

    #[test]
    fn a_guild_over_its_threshold_for_the_hold_time_is_promoted() {
        let memory = run(&[101, 101]);
        assert_eq!(decide(memory, &RULES, &FREE, 999), Decision::Keep(Kept::Holding { until_ms: 1000 }));
        assert_eq!(decide(memory, &RULES, &FREE, 1000), Decision::Promote);
    }

    #[test]
    fn a_dip_that_stays_above_half_does_not_restart_the_hold_time() {
        assert_eq!(run(&[101, 60, 101]).hot_since_ms, Some(0));
        assert_eq!(run(&[101, 50, 101]).hot_since_ms, Some(1000));
        assert_eq!(run(&[60]).hotness, Hotness::Warm);
        assert_eq!(run(&[50]).hotness, Hotness::Cold);
        assert_eq!(run(&[100]).hotness, Hotness::Warm);
    }

    #[test]
    fn what_keeps_a_hot_guild_is_said() {
        let hot = run(&[500]);
        let kept = |setting| match decide(hot, &RULES, &setting, 9999) {
            Decision::Keep(kept) => kept.label(),
            Decision::Promote => "promoted",
        };
        assert_eq!(kept(Setting { dedicated: true, ..FREE }), "AlreadyDedicated");
        assert_eq!(kept(Setting { paused: true, ..FREE }), "AutomationPaused");
        assert_eq!(kept(Setting { budget: Budget { running: 1, most: 1 }, ..FREE }), "PromotionBudgetSpent");
        assert_eq!(kept(FREE), "promoted");
    }

    #[test]
    fn without_thresholds_nothing_is_hot() {
        let rules = Thresholds { sessions_above: Some(0), messages_per_second_above: None, hold_for_ms: 0 };
        let sample = Sample { sessions: i64::MAX, messages_per_second: i64::MAX };
        assert_eq!(observe(Memory::default(), &rules, sample, 0).hotness, Hotness::Cold);
    }
}
