//! Forgetting history: what a compaction removes, and when one is due. It decides on figures and times handed in and never removes a
//! version that a reader at or after the compacted revision could see.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::super::error::StoreError;
use super::super::options::AutoCompaction;
use super::{Mvcc, Version, revision_weight};

/// What to remove from disk, then from memory, to compact to a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompactionPlan {
    pub revision: i64,
    /// (revision, place within it) of every version that goes.
    pub removed: Vec<(i64, u32)>,
    keys: Vec<Bytes>,
}

impl Mvcc {
    /// Plans a compaction: afterwards no revision before `revision` can be read.
    pub(crate) fn plan_compaction(&self, revision: i64) -> Result<CompactionPlan, StoreError> {
        if revision <= self.compacted {
            return Err(StoreError::Compacted { requested: revision, compacted: self.compacted });
        }
        if revision > self.visible {
            return Err(StoreError::FutureRevision { requested: revision, current: self.visible });
        }
        // Only keys changed since the last compaction can have versions to lose.
        let changed = self.history.range(..=revision).flat_map(|(_, revision)| &revision.changes);
        let keys: BTreeSet<Bytes> = changed.map(|change| change.kv.key.clone()).collect();
        let mut removed = Vec::new();
        for versions in keys.iter().filter_map(|key| self.keys.get(key)) {
            let gone = versions.iter().take(superseded(versions, revision));
            removed.extend(gone.map(|version| (version.kv.mod_revision, version.sub)));
        }
        Ok(CompactionPlan { revision, removed, keys: keys.into_iter().collect() })
    }

    /// Carries out a plan that is durable. Nothing may have been published between the two.
    pub(crate) fn compact(&mut self, plan: &CompactionPlan) {
        for key in &plan.keys {
            let Some(versions) = self.keys.get_mut(key) else { continue };
            for version in versions.drain(..superseded(versions, plan.revision)) {
                self.bytes -= version.kv.weight();
            }
            if versions.is_empty() {
                self.keys.remove(key);
            }
        }
        let kept = self.history.split_off(&plan.revision);
        let dropped = std::mem::replace(&mut self.history, kept);
        self.history_bytes -= dropped.values().map(|revision| revision_weight(revision)).sum::<u64>();
        self.compacted = plan.revision;
    }

    /// The revision to compact to now, if any bound is passed. Marks the time, so it wants to be asked every [`mark_every`] or so.
    pub(crate) fn compaction_due(&mut self, policy: AutoCompaction, now_ms: u64) -> Option<i64> {
        let target = self.due_by_age(policy.keep_for, now_ms).max(self.due_by_count(policy.keep_revisions));
        let target = target.max(self.due_by_bytes(policy.keep_bytes));
        target.filter(|target| *target > self.compacted)
    }

    fn due_by_age(&mut self, keep_for: Duration, now_ms: u64) -> Option<i64> {
        let every = duration_ms(mark_every(keep_for));
        if self.marks.back().is_none_or(|(marked, _)| now_ms.saturating_sub(*marked) >= every) {
            self.marks.push_back((now_ms, self.visible));
        }
        let old_enough = now_ms.checked_sub(duration_ms(keep_for))?;
        let mut target = None;
        while let Some((marked, revision)) = self.marks.front().copied() {
            if marked > old_enough {
                break;
            }
            target = Some(revision);
            self.marks.pop_front();
        }
        target
    }

    fn due_by_count(&self, keep: i64) -> Option<i64> {
        // Some slack, so that not every write at the bound compacts.
        (self.visible - self.compacted > keep.saturating_add(keep / 8)).then(|| self.visible - keep)
    }

    fn due_by_bytes(&self, keep: u64) -> Option<i64> {
        let mut excess = self.history_bytes.checked_sub(keep - keep / 4).filter(|_| self.history_bytes > keep)?;
        for (revision, changes) in &self.history {
            match excess.checked_sub(revision_weight(changes)) {
                Some(rest) if *revision < self.visible => excess = rest,
                _ => return Some(*revision),
            }
        }
        None
    }
}

/// How often time is marked for compaction by age.
pub(crate) fn mark_every(keep_for: Duration) -> Duration {
    (keep_for / 20).max(Duration::from_millis(100))
}

fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How many of the oldest versions nobody can see at `revision` or later. A deletion at exactly `revision` stays, for the watcher that
/// starts there.
fn superseded(versions: &[Version], revision: i64) -> usize {
    let until = versions.partition_point(|version| version.kv.mod_revision <= revision);
    let Some(last) = until.checked_sub(1) else { return 0 };
    let gone = versions.get(last).is_some_and(|version| version.kv.version == 0 && version.kv.mod_revision < revision);
    if gone { until } else { last }
}
