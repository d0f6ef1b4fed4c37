//! What a move must satisfy before anything is asked of a cell. A refusal names the field, the reason and the remedy; nothing here
//! looks at heads, which the run itself reads.

/// What is known of a cell from its resource and the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CellFacts {
    /// The cell's name.
    pub name: String,
    /// The StorageCell that serves it.
    pub storage_cell: String,
    /// What its resource allows.
    pub availability: Availability,
    /// The resource is being deleted.
    pub deleting: bool,
    /// Live data services that are not draining.
    pub data_nodes: usize,
    /// Live guild nodes that are not draining.
    pub guild_nodes: usize,
}

/// What a cell's resource allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Availability {
    /// Everything.
    Active,
    /// Keeps what it has; gets nothing new.
    Cordoned,
    /// Is to be emptied.
    Evacuated,
}

/// Why a move is not possible.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MoveRefusal {
    /// From and to are one cell.
    #[error("spec.to: {0} is where the unit is already; name another cell")]
    SameCell(String),
    /// No such resource.
    #[error("spec.to: cell {0} does not exist; create the Cell first")]
    MissingTarget(String),
    /// No such resource.
    #[error("spec.from: cell {0} does not exist; name the cell that serves the unit (cellctl locate)")]
    MissingSource(String),
    /// The target takes nothing new.
    #[error("spec.to: cell {0} is cordoned; uncordon it or name another cell")]
    Cordoned(String),
    /// The target is to be emptied or deleted.
    #[error("spec.to: cell {0} is being emptied or deleted; name another cell")]
    Leaving(String),
    /// Needs data carried to another StorageCell.
    #[error(
        "spec.to: cell {to} is on StorageCell {to_storage}, the unit's data is on {from_storage}: that needs a storage migration, which this version does not do; name a cell on {from_storage}"
    )]
    NeedsStorageMigration {
        /// The target.
        to: String,
        /// Its StorageCell.
        to_storage: String,
        /// The source's StorageCell.
        from_storage: String,
    },
    /// Nobody there could take over yet: may pass.
    #[error("cell {0} has no live data service or guild node; see its Pods")]
    TargetNotLive(String),
    /// Another run holds it.
    #[error("unit {unit} is held by run {run_id}; wait for it, abort it or roll it back")]
    UnitBusy {
        /// The unit.
        unit: String,
        /// The run that holds it.
        run_id: String,
    },
    /// Nothing to move.
    #[error("spec.units: {0}")]
    Units(String),
    /// The unit is not where the move says.
    #[error("spec.from: unit {unit} is in cell {actual}, not in {expected}; plan the move again")]
    NotAtSource {
        /// The unit.
        unit: String,
        /// Where the head says it is.
        actual: String,
        /// Where the move says it is.
        expected: String,
    },
    /// No head: never bootstrapped, or no such guild log.
    #[error("unit {0} has no head; the fleet is not bootstrapped or the unit does not exist")]
    NoHead(String),
    /// A merge needs both logs in one cell.
    #[error("spec.to: guild {guild_id} goes back to its bucket's cell {bucket_cell} only; name that cell")]
    NotBucketCell {
        /// The guild.
        guild_id: i64,
        /// Where its bucket is.
        bucket_cell: String,
    },
}

impl MoveRefusal {
    /// The stable CamelCase reason, for conditions, events, metrics and the CLI.
    pub fn label(&self) -> &'static str {
        match self {
            Self::SameCell(_) => "SameCell",
            Self::MissingTarget(_) => "MissingTarget",
            Self::MissingSource(_) => "MissingSource",
            Self::Cordoned(_) => "TargetCordoned",
            Self::Leaving(_) => "TargetLeaving",
            Self::NeedsStorageMigration { .. } => "NeedsStorageMigration",
            Self::TargetNotLive(_) => "TargetNotLive",
            Self::UnitBusy { .. } => "UnitBusy",
            Self::Units(_) => "InvalidUnits",
            Self::NotAtSource { .. } => "NotAtSource",
            Self::NoHead(_) => "NoHead",
            Self::NotBucketCell { .. } => "NotBucketCell",
        }
    }

    /// Whether waiting can help without anybody changing the move.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::TargetNotLive(_) | Self::UnitBusy { .. })
    }
}

/// Checks the two ends of a move.
///
/// # Errors
/// The first [`MoveRefusal`] that holds, permanent ones first.
pub fn check_ends(from: &str, to: &str, cells: &[CellFacts]) -> Result<(), MoveRefusal> {
    if from == to {
        return Err(MoveRefusal::SameCell(to.to_owned()));
    }
    let find = |name: &str| cells.iter().find(|cell| cell.name == name);
    let target = find(to).ok_or_else(|| MoveRefusal::MissingTarget(to.to_owned()))?;
    let source = find(from).ok_or_else(|| MoveRefusal::MissingSource(from.to_owned()))?;
    if target.deleting || target.availability == Availability::Evacuated {
        return Err(MoveRefusal::Leaving(to.to_owned()));
    }
    if target.availability == Availability::Cordoned {
        return Err(MoveRefusal::Cordoned(to.to_owned()));
    }
    if source.storage_cell != target.storage_cell {
        return Err(MoveRefusal::NeedsStorageMigration {
            to: to.to_owned(),
            to_storage: target.storage_cell.clone(),
            from_storage: source.storage_cell.clone(),
        });
    }
    if target.data_nodes == 0 || target.guild_nodes == 0 {
        return Err(MoveRefusal::TargetNotLive(to.to_owned()));
    }
    Ok(())
}

/// Checks a merge whose guild is in its bucket's cell already: nothing new comes to the cell, so a cordon does not matter.
///
/// # Errors
/// The first [`MoveRefusal`] that holds.
pub fn check_in_place(cell: &str, cells: &[CellFacts]) -> Result<(), MoveRefusal> {
    let facts = cells.iter().find(|facts| facts.name == cell);
    let facts = facts.ok_or_else(|| MoveRefusal::MissingTarget(cell.to_owned()))?;
    if facts.data_nodes == 0 || facts.guild_nodes == 0 {
        return Err(MoveRefusal::TargetNotLive(cell.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str) -> CellFacts {
        CellFacts {
            name: name.into(),
            storage_cell: "main".into(),
            availability: Availability::Active,
            deleting: false,
            data_nodes: 1,
            guild_nodes: 1,
        }
    }

    fn refusal(change: impl Fn(&mut CellFacts)) -> Option<&'static str> {
        let mut target = cell("b");
        change(&mut target);
        check_ends("a", "b", &[cell("a"), target]).err().map(|refusal| refusal.label())
    }

    #[test]
    fn a_move_to_itself_or_to_nothing_is_refused() {
        assert_eq!(check_ends("a", "a", &[cell("a")]).unwrap_err().label(), "SameCell");
        assert_eq!(check_ends("a", "b", &[cell("a")]).unwrap_err().label(), "MissingTarget");
        assert_eq!(check_ends("a", "b", &[cell("b")]).unwrap_err().label(), "MissingSource");
    }

    #[test]
    fn a_target_that_cannot_take_it_is_refused_with_the_reason() {
        assert_eq!(refusal(|_| ()), None);
        assert_eq!(refusal(|cell| cell.availability = Availability::Cordoned), Some("TargetCordoned"));
        assert_eq!(refusal(|cell| cell.availability = Availability::Evacuated), Some("TargetLeaving"));
        assert_eq!(refusal(|cell| cell.deleting = true), Some("TargetLeaving"));
        assert_eq!(refusal(|cell| cell.storage_cell = "other".into()), Some("NeedsStorageMigration"));
        assert_eq!(refusal(|cell| cell.guild_nodes = 0), Some("TargetNotLive"));
    }

    #[test]
    fn a_merge_in_place_needs_a_live_cell_and_no_room_in_it() {
        let mut cordoned = cell("a");
        cordoned.availability = Availability::Cordoned;
        assert_eq!(check_in_place("a", &[cordoned]), Ok(()));
        assert_eq!(check_in_place("b", &[cell("a")]).unwrap_err().label(), "MissingTarget");
        let mut empty = cell("a");
        empty.data_nodes = 0;
        assert_eq!(check_in_place("a", &[empty]).unwrap_err().label(), "TargetNotLive");
    }

    #[test]
    fn only_what_can_pass_by_itself_is_waited_for() {
        assert!(MoveRefusal::TargetNotLive("b".into()).may_pass());
        assert!(!MoveRefusal::Cordoned("b".into()).may_pass());
    }
}
