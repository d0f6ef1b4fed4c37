//! From a guild's wish to "a move is wanted" or not, with the reason. It decides on facts given; it starts nothing.

/// Where a guild should live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Wherever it is: no rule names a place.
    Anywhere,
    /// In this cell.
    Cell(String),
    /// In a cell of its own with this name, because its `Guild` says so.
    Dedicated(String),
    /// In a cell of its own with this name, because it became hot.
    Promoted(String),
}

impl Wish {
    /// The cell wished for.
    pub fn cell(&self) -> Option<&str> {
        match self {
            Self::Anywhere => None,
            Self::Cell(cell) | Self::Dedicated(cell) | Self::Promoted(cell) => Some(cell),
        }
    }

    /// Why the guild is, or goes, there: the stable CamelCase placement reason.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Anywhere => "Bucket",
            Self::Cell(_) => "Pinned",
            Self::Dedicated(_) => "Dedicated",
            Self::Promoted(_) => "Promoted",
        }
    }
}

/// What bears on the decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Situation {
    /// The cell that serves the guild; none before the fleet is bootstrapped.
    pub current: Option<String>,
    /// A run that holds the guild's unit, and where it goes.
    pub running: Option<RunningMove>,
    /// Whether the wished cell exists.
    pub target_exists: bool,
    /// Whether the wished cell is Ready.
    pub target_ready: bool,
    /// `automation pause`, or the fleet is paused.
    pub paused: bool,
    /// The last move of this very wish ended without getting there, for this reason.
    pub gave_up: Option<String>,
}

/// A move under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningMove {
    /// Its name.
    pub name: String,
    /// Where it goes.
    pub to: String,
}

/// What to do about a wish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Nothing: it is where it should be, or no rule says otherwise.
    Satisfied,
    /// Make the dedicated cell first.
    MakeCell {
        /// Its name.
        name: String,
    },
    /// A move is wanted.
    Move {
        /// Where it is.
        from: String,
        /// Where it should be.
        to: String,
    },
    /// A move of this guild is under way.
    Moving {
        /// The Move's name.
        name: String,
    },
    /// Something is in the way.
    Blocked(Blocked),
}

/// What is in the way of a wish.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Blocked {
    /// No head is known.
    #[error("the fleet is not bootstrapped, so no cell serves the guild yet")]
    NotPlaced,
    /// A pinned cell is missing.
    #[error("spec.placement.cell: cell {0} does not exist; create it or name another")]
    MissingCell(String),
    /// The target is coming up.
    #[error("cell {0} is not Ready yet")]
    TargetNotReady(String),
    /// New moves are stopped.
    #[error("automation is paused; resume it with `cellctl automation resume`")]
    AutomationPaused,
    /// Another run holds the guild.
    #[error("move {name} to {to} is under way; it must end first")]
    OtherMove {
        /// Its name.
        name: String,
        /// Where it goes.
        to: String,
    },
    /// The last try ended elsewhere: trying again unasked would loop.
    #[error("the last move for this wish ended as {0}; change the wish or delete that Move to try again")]
    GaveUp(String),
}

impl Blocked {
    /// The stable CamelCase reason.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NotPlaced => "NotPlaced",
            Self::MissingCell(_) => "MissingCell",
            Self::TargetNotReady(_) => "TargetNotReady",
            Self::AutomationPaused => "AutomationPaused",
            Self::OtherMove { .. } => "UnitBusy",
            Self::GaveUp(_) => "MoveGaveUp",
        }
    }
}

/// Decides what a wish needs now.
pub fn decide(wish: &Wish, situation: &Situation) -> Intent {
    let Some(to) = wish.cell() else {
        return match &situation.running {
            Some(running) => Intent::Moving { name: running.name.clone() },
            None => Intent::Satisfied,
        };
    };
    if let Some(running) = &situation.running {
        if running.to == to {
            return Intent::Moving { name: running.name.clone() };
        }
        return Intent::Blocked(Blocked::OtherMove { name: running.name.clone(), to: running.to.clone() });
    }
    let Some(from) = &situation.current else { return Intent::Blocked(Blocked::NotPlaced) };
    if from == to {
        return Intent::Satisfied;
    }
    if situation.paused {
        return Intent::Blocked(Blocked::AutomationPaused);
    }
    if let Some(ended) = &situation.gave_up {
        return Intent::Blocked(Blocked::GaveUp(ended.clone()));
    }
    if !situation.target_exists {
        return match wish {
            Wish::Dedicated(name) | Wish::Promoted(name) => Intent::MakeCell { name: name.clone() },
            _ => Intent::Blocked(Blocked::MissingCell(to.to_owned())),
        };
    }
    if !situation.target_ready {
        return Intent::Blocked(Blocked::TargetNotReady(to.to_owned()));
    }
    Intent::Move { from: from.clone(), to: to.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cell: &str) -> Situation {
        Situation {
            current: Some(cell.into()),
            running: None,
            target_exists: true,
            target_ready: true,
            paused: false,
            gave_up: None,
        }
    }

    #[test]
    fn a_guild_without_a_rule_stays() {
        assert_eq!(decide(&Wish::Anywhere, &at("a")), Intent::Satisfied);
        assert_eq!(decide(&Wish::Cell("a".into()), &at("a")), Intent::Satisfied);
    }

    #[test]
    fn a_pinned_guild_moves_once_its_cell_is_ready() {
        let wish = Wish::Cell("b".into());
        assert_eq!(decide(&wish, &at("a")), Intent::Move { from: "a".into(), to: "b".into() });
        let missing = Situation { target_exists: false, target_ready: false, ..at("a") };
        assert_eq!(decide(&wish, &missing), Intent::Blocked(Blocked::MissingCell("b".into())));
        let coming = Situation { target_ready: false, ..at("a") };
        assert_eq!(decide(&wish, &coming), Intent::Blocked(Blocked::TargetNotReady("b".into())));
    }

    #[test]
    fn a_dedicated_cell_is_made_before_the_move() {
        let missing = Situation { target_exists: false, target_ready: false, ..at("a") };
        assert_eq!(decide(&Wish::Dedicated("g-1-cell".into()), &missing), Intent::MakeCell { name: "g-1-cell".into() });
    }

    #[test]
    fn a_running_move_elsewhere_must_end_first() {
        let running = Some(RunningMove { name: "m".into(), to: "c".into() });
        let busy = Situation { running, ..at("a") };
        assert_eq!(decide(&Wish::Cell("c".into()), &busy), Intent::Moving { name: "m".into() });
        assert!(matches!(decide(&Wish::Cell("b".into()), &busy), Intent::Blocked(Blocked::OtherMove { .. })));
    }

    #[test]
    fn a_pause_or_a_failed_try_stops_new_moves_and_says_so() {
        let wish = Wish::Cell("b".into());
        let paused = Situation { paused: true, ..at("a") };
        assert_eq!(decide(&wish, &paused), Intent::Blocked(Blocked::AutomationPaused));
        let failed = Situation { gave_up: Some("Aborted".into()), ..at("a") };
        assert_eq!(decide(&wish, &failed), Intent::Blocked(Blocked::GaveUp("Aborted".into())));
    }
}
