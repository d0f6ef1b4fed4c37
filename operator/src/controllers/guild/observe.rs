//! What a guild's reconcile looks at: where the directory places it, its moves, its load, and whether automation is paused.

use cell_crds::condition::is_ready;
use cell_crds::{Cell, Fleet, Guild, Move, MoveCause, MoveResult};
use cell_plan::intent::{RunningMove, Situation, Wish};
use cell_plan::promotion::Sample;
use cell_runtime::route::unit_of_guild;
use kube::ResourceExt;

use super::wish::move_name;
use crate::context::Context;
use crate::error::ReconcileError;

/// How long the directory may take to show what a finished Move did. Moves and routes come by different watches.
const SHOWN_WITHIN_MS: i64 = 60_000;

/// Everything the later stages decide on.
pub(super) struct Seen {
    pub(super) fleet: Option<Fleet>,
    pub(super) current: Option<String>,
    pub(super) storage_cell: Option<String>,
    pub(super) cells: Vec<Cell>,
    pub(super) running: Option<RunningMove>,
    /// Finished moves of this guild.
    pub(super) finished: Vec<Move>,
    pub(super) promotions_running: usize,
    pub(super) paused: bool,
    /// etcd has been read: what the directory does not know is not there.
    pub(super) is_known: bool,
    pub(super) has_load: bool,
    pub(super) sample: Sample,
    pub(super) now_ms: i64,
}

pub(super) async fn observe(guild: &Guild, context: &Context) -> Result<Seen, ReconcileError> {
    let fleet = context.stores.fleet();
    let moves = context.stores.all_moves();
    let of_guild = |one: &&Move| one.spec.guild.as_ref() == Some(&guild.spec.guild_id);
    let is_running = |one: &&Move| one.status.as_ref().is_none_or(|status| status.result.is_none());
    let running = moves.iter().filter(of_guild).find(|one| is_running(one));
    let mut seen = Seen {
        current: None,
        storage_cell: None,
        cells: context.stores.all_cells(),
        running: running.map(|one| RunningMove { name: one.name_any(), to: one.spec.to.clone() }),
        finished: moves.iter().filter(of_guild).filter(|one| !is_running(one)).cloned().collect(),
        promotions_running: moves
            .iter()
            .filter(is_running)
            .filter(|one| one.spec.cause == MoveCause::Promotion)
            .count(),
        paused: fleet.as_ref().is_some_and(|fleet| fleet.spec.paused),
        is_known: false,
        has_load: false,
        sample: Sample::default(),
        now_ms: cell_runtime::unix_ms(),
        fleet,
    };
    let Some(fleet) = &seen.fleet else { return Ok(seen) };
    let link = context.hub.link_to(&fleet.spec.etcd);
    seen.is_known = link.directory.is_synced();
    if let Ok(guild_id) = guild.spec.guild_id.parse::<i64>() {
        let view = link.directory.view();
        let unit = unit_of_guild(&view, guild_id);
        seen.current = view.place(&unit.log()).map(|place| place.cell.clone()).filter(|cell| !cell.is_empty());
    }
    if seen.running.is_none() {
        seen.running = seen.not_shown_yet().map(|one| RunningMove { name: one.name_any(), to: one.spec.to.clone() });
    }
    let cell = seen.current.as_ref().and_then(|name| seen.cells.iter().find(|cell| cell.name_any() == *name));
    seen.storage_cell = cell.map(|cell| cell.spec.storage_cell_ref.clone());
    let wishes = guild.spec.placement.is_some() || guild.spec.promotion.as_ref().is_some_and(|one| one.auto);
    if wishes || guild.spec.promotion.is_some() {
        let reading = context.loads.read(&link).await?;
        seen.paused |= reading.paused;
        seen.sample = reading.guilds.get(&guild.spec.guild_id).copied().unwrap_or_default();
        seen.has_load = guild.spec.promotion.is_some();
    }
    Ok(seen)
}

impl Seen {
    /// The Move that has just brought the guild somewhere that the directory does not show yet: it counts as under way. Only the newest
    /// can be it: where an earlier one went has been left since.
    fn not_shown_yet(&self) -> Option<&Move> {
        let ended_ms = |one: &Move| {
            let ended = one.status.as_ref().and_then(|status| status.finished_at.as_ref());
            ended.map_or(0, |ended| ended.0.as_millisecond())
        };
        let completed = || {
            let result = |one: &Move| one.status.as_ref().and_then(|status| status.result);
            self.finished.iter().filter(move |one| result(one) == Some(MoveResult::Completed))
        };
        let newest_ms = completed().map(ended_ms).max().filter(|ended| self.now_ms - ended < SHOWN_WITHIN_MS)?;
        // Times are in seconds: of several that ended in the same one each may be the newest.
        let mut newest = completed().filter(|one| ended_ms(one) == newest_ms);
        let shown = newest.clone().any(|one| self.current.as_ref() == Some(&one.spec.to));
        if shown { None } else { newest.next() }
    }

    pub(super) fn situation(&self, wanted: &Wish, guild: &Guild) -> Situation {
        let target = wanted.cell().and_then(|name| self.cells.iter().find(|cell| cell.name_any() == name));
        let ready = |cell: &Cell| {
            cell.status.as_ref().is_some_and(|status| is_ready(&status.conditions, cell.metadata.generation))
        };
        let name = move_name(guild, wanted);
        let last = self.finished.iter().find(|one| one.name_any() == name);
        let result = last.and_then(|one| one.status.as_ref()?.result);
        Situation {
            current: self.current.clone(),
            running: self.running.clone(),
            target_exists: target.is_some(),
            target_ready: target.is_some_and(ready),
            paused: self.paused,
            gave_up: result.map(|result| label(result).to_owned()),
        }
    }
}

fn label(result: MoveResult) -> &'static str {
    match result {
        MoveResult::Completed => "Completed",
        MoveResult::Aborted => "Aborted",
        MoveResult::RolledBack => "RolledBack",
        MoveResult::Refused => "Refused",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_move_that_has_just_ended_counts_as_under_way_until_the_directory_shows_it() {
        let to = |to: &str, result: &str, ended_ms: i64| -> Move {
            serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": {"guild": "7", "from": "a", "to": to},
                "status": {"result": result, "finishedAt": crate::report::time_of(ended_ms)}}))
            .unwrap()
        };
        let one = |result: &str, ended_ms: i64| vec![to("b", result, ended_ms)];
        let seen = |current: &str, finished: Vec<Move>| Seen {
            fleet: None,
            current: Some(current.to_owned()),
            storage_cell: None,
            cells: Vec::new(),
            running: None,
            finished,
            promotions_running: 0,
            paused: false,
            is_known: true,
            has_load: false,
            sample: Sample::default(),
            now_ms: 100_000,
        };
        let behind =
            |current: &str, finished: Vec<Move>| seen(current, finished).not_shown_yet().map(|one| one.spec.to.clone());
        assert_eq!(behind("a", one("Completed", 99_000)).as_deref(), Some("b"));
        assert_eq!(behind("b", one("Completed", 99_000)), None, "it is shown");
        assert_eq!(behind("a", one("Completed", 30_000)), None, "somebody moved it on since");
        assert_eq!(behind("a", one("Aborted", 99_000)), None);
        let there_and_back = || vec![to("b", "Completed", 90_000), to("a", "Completed", 99_000)];
        assert_eq!(behind("a", there_and_back()), None, "the first of two has been left since");
        assert_eq!(behind("b", there_and_back()).as_deref(), Some("a"), "the second is not shown");
        let at_once = || vec![to("b", "Completed", 99_000), to("a", "Completed", 99_000)];
        assert_eq!(behind("a", at_once()), None, "either may be the newest");
    }
}
