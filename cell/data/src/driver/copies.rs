//! Which logs should have copies, by the directory's migrations: a hint, so an owner that misses it lets its copy lag. What this process
//! was told to end is not begun again by a directory that does not know it yet.

use std::collections::HashSet;
use std::sync::Arc;

use cell_proto::directory::Migration;
use cell_proto::unit::Unit;
use cell_runtime::View;
use parking_lot::Mutex;

/// Releases remembered; more means that long ago some ended, whose migrations are gone.
const MAX_ENDED: usize = 16_384;

/// What this process remembers of migrations.
#[derive(Clone, Default)]
pub(super) struct Copies {
    ended: Arc<Mutex<HashSet<(String, String)>>>,
}

/// Whether a log belongs to a migration; a bucket's split guilds go with it.
pub(super) fn concerns(migration: &Migration, log: &str) -> bool {
    if migration.units.is_empty() {
        return true;
    }
    let bucket = match log.parse() {
        Ok(Unit::Guild(guild_id)) => Unit::bucket(guild_id).log(),
        Ok(Unit::Bucket(_)) => log.to_owned(),
        Err(_) => return false,
    };
    migration.units.contains(&bucket)
}

/// The other StorageCell of a migration; none when it does not concern the one that serves.
pub(super) fn other_of<'a>(migration: &'a Migration, serving: &str) -> Option<&'a str> {
    match serving {
        serving if serving == migration.source => Some(&migration.target),
        serving if serving == migration.target => Some(&migration.source),
        _ => None,
    }
}

/// The run that moves a log's storage, if any: it must not be split or merged meanwhile.
pub(super) fn migrating(view: &View, log: &str) -> Option<String> {
    let run = |migration: &Migration| (migration.ship && concerns(migration, log)).then(|| migration.run_id.clone());
    view.migrations().find_map(run)
}

impl Copies {
    /// The copy that a log served by `serving` should have: its StorageCell and the run.
    pub(super) fn wanted(&self, view: &View, log: &str, serving: &str) -> Option<(String, String)> {
        let wanted = |migration: &Migration| {
            let ended = self.ended.lock().contains(&(migration.run_id.clone(), log.to_owned()));
            let target =
                other_of(migration, serving).filter(|_| migration.ship && !ended && concerns(migration, log))?;
            Some((target.to_owned(), migration.run_id.clone()))
        };
        // Several at once would be a mistake; the same one is taken by everybody.
        view.migrations().filter_map(wanted).min_by(|a, b| a.1.cmp(&b.1))
    }

    /// Other StorageCells that may serve a log.
    pub(super) fn peers(&self, view: &View, log: &str, home: &str) -> Vec<String> {
        let peer = |migration: &Migration| {
            if concerns(migration, log) { other_of(migration, home).map(str::to_owned) } else { None }
        };
        view.migrations().filter_map(peer).collect()
    }

    /// A run ends its copy of a log: the directory may say so only later.
    pub(super) fn end(&self, run_id: &str, log: &str) {
        let mut ended = self.ended.lock();
        if ended.len() >= MAX_ENDED {
            ended.clear();
        }
        ended.insert((run_id.to_owned(), log.to_owned()));
    }

    pub(super) fn has_ended(&self, run_id: &str, log: &str) -> bool {
        self.ended.lock().contains(&(run_id.to_owned(), log.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(units: &[&str], ship: bool) -> View {
        let mut view = View::default();
        view.set_migration(Migration {
            run_id: "run-1".into(),
            source: "a".into(),
            target: "b".into(),
            units: units.iter().map(|unit| (*unit).to_owned()).collect(),
            ship,
            shadow_per_10000: 0,
        });
        view
    }

    #[test]
    fn the_store_that_serves_decides_where_the_copy_is() {
        let copies = Copies::default();
        assert_eq!(copies.wanted(&view(&[], true), "b0001", "a"), Some(("b".into(), "run-1".into())));
        assert_eq!(copies.wanted(&view(&[], true), "b0001", "b"), Some(("a".into(), "run-1".into())));
        assert_eq!(copies.wanted(&view(&[], true), "b0001", "c"), None);
        assert_eq!(copies.wanted(&view(&[], false), "b0001", "a"), None);
        copies.end("run-1", "b0001");
        assert_eq!(copies.wanted(&view(&[], true), "b0001", "a"), None);
    }

    #[test]
    fn the_guilds_split_out_of_a_bucket_go_with_it() {
        let guild = 81_384_788_765_712_384;
        let bucket = Unit::bucket(guild).log();
        let (inside, outside) = (view(&[&bucket], true), view(&["b4095"], true));
        assert!(migrating(&inside, &Unit::Guild(guild).log()).is_some());
        assert!(migrating(&inside, &bucket).is_some());
        assert!(migrating(&outside, &Unit::Guild(guild).log()).is_none());
    }
}
