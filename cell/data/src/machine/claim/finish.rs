//! The second half of a claim: what other logs left is taken over, the next segment opened, and the log served.

use std::collections::VecDeque;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Merge, Reason, Refusal, SegmentReply, Statics, StoredEntry};
use cell_store::StoreError;
use cell_store::engine::SMALL_BODY;
use prost::Message as _;

use super::{Claim, ClaimStep, Next};
use crate::machine::owner::{Job, Owner};
use crate::machine::types::{Effect, Inheritance};
use crate::machine::walk::Walk;
use crate::machine::{LogMachine, State};

/// The merge an entry holds. Its body is small enough never to be left out.
fn merge_of(stored: &StoredEntry) -> Option<Merge> {
    if stored.body.is_empty() || stored.body.len() > SMALL_BODY {
        return None;
    }
    match Entry::decode(stored.body.as_slice()).ok()?.change?.kind? {
        Kind::Merge(merge) => Some(merge),
        _ => None,
    }
}

impl LogMachine {
    pub(super) fn walked(&self, claim: &mut Claim, walk: Walk) -> Next {
        if !claim.others_known {
            claim.others_known = true;
            match self.me.unit {
                Unit::Guild(guild_id) => claim.others.push_back((Unit::bucket(guild_id).log(), u64::MAX)),
                Unit::Bucket(_) => {
                    // Only what the seal covered: a guild split out again commits in its own log, and applies it there.
                    let merged = walk.loaded().filter_map(merge_of);
                    claim.others.extend(merged.map(|merge| (Unit::Guild(merge.guild_id).log(), merge.sealed_at)));
                }
            }
            if !self.rules.inherit_window && !self.rules.inherit_timestamps {
                claim.others.clear();
            }
        }
        claim.own = Some(walk);
        self.next_other(claim)
    }

    pub(super) fn next_other(&self, claim: &mut Claim) -> Next {
        match (claim.others.pop_front(), claim.own.take()) {
            (Some((log, up_to)), own) => {
                claim.own = own;
                Next::Step(ClaimStep::Other(log, up_to))
            }
            (None, Some(walk)) => Next::Step(ClaimStep::Open { walk, doubted: false }),
            (None, None) => Next::Step(ClaimStep::Cursors),
        }
    }

    pub(in crate::machine) fn as_ruled(&self, inheritance: &mut Inheritance) {
        if !self.rules.inherit_window {
            inheritance.operations.clear();
        }
        if !self.rules.inherit_timestamps {
            (inheritance.last_timestamp_us, inheritance.last_snowflake) = (0, 0);
        }
    }

    pub(super) fn opened(
        &self,
        claim: &Claim,
        mut walk: Walk,
        doubted: bool,
        result: Result<SegmentReply, StoreError>,
    ) -> Next {
        let Ok(reply) = result else { return Next::Pause(ClaimStep::Open { walk, doubted: true }) };
        let wished = claim.opening(&walk);
        match reply.statics {
            Some(statics) if reply.applied || (doubted && statics == wished) => {
                Next::Step(ClaimStep::Verify { walk, statics })
            }
            // A segment beyond the hint: seal and read it, then open the one after it.
            Some(statics) if statics.term < claim.new.term || !self.rules.walk_checks_term => {
                walk.resume();
                Next::Step(ClaimStep::Walk(walk))
            }
            _ => Next::Refuse(self.not_owner(None)),
        }
    }

    pub(super) fn serve(&mut self, claim: Claim, walk: Walk, statics: Statics) {
        let segment = walk.next_segment();
        let statics = if self.rules.hand_on { statics } else { Statics { last_timestamp_us: 0, ..statics } };
        let applied = if self.rules.reapply { claim.applied.min(statics.last) } else { statics.last };
        claim.inherited.iter().for_each(|other| self.window.inherit(other));
        let mut backlog = VecDeque::new();
        for (segment, stored) in walk.entries() {
            if stored.number <= applied {
                self.window.note(&stored, segment);
                continue;
            }
            let Ok(entry) = Entry::decode(stored.body.as_slice()) else {
                self.effects.push(Effect::Trouble(format!("{} of {} cannot be read", stored.number, self.me.log)));
                return self
                    .release(Refusal::new(Reason::StoreUnavailable, "the log holds an entry that cannot be read"));
            };
            let entry = std::sync::Arc::new(entry);
            self.window.insert(&entry, segment);
            backlog.push_back(entry);
        }
        self.effects.push(Effect::Claimed { head: claim.new.clone(), last: statics.last });
        self.failures = 0;
        self.state = State::Owner(Box::new(Owner {
            head: claim.new,
            segment,
            statics,
            claimed_last: statics.last,
            opened_at_us: self.now_us,
            segment_entries: 0,
            segment_bytes: 0,
            applied,
            cursor: claim.applied,
            cursor_due_us: self.now_us,
            backlog,
            hint_due: true,
            recheck: false,
            handover: None,
            retention_due_us: self.now_us + self.limits.retention_every_us,
            retention_checked: false,
            job: Job::Idle,
        }));
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::Change;

    use super::*;

    #[test]
    fn the_largest_merge_entry_is_small() {
        let merge = Merge { guild_id: i64::MAX, sealed_term: u64::MAX, sealed_at: u64::MAX };
        let entry = Entry {
            number: u64::MAX,
            timestamp_us: i64::MAX,
            operation_id: vec![255; 16],
            actor_id: 0,
            change: Some(Change { kind: Some(Kind::Merge(merge)) }),
            policy_version: 0,
        };
        let stored = StoredEntry { body: entry.encode_to_vec(), ..StoredEntry::default() };
        assert_eq!(merge_of(&stored), Some(merge));
    }
}
