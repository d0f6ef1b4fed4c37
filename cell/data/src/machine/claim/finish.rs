//! The second half of a claim: what other logs left is taken over, the next segment opened, and the log served.

use std::collections::VecDeque;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Merge, Reason, Refusal, SegmentReply, Statics, StoredEntry};
use cell_store::engine::SMALL_BODY;
use cell_store::{Reply, StoreError};
use prost::Message as _;

use super::{Claim, ClaimStep, Next, head_of, value_of};
use crate::domain;
use crate::machine::owner::{Job, Owner, same_claim, segment_of};
use crate::machine::places::{Locator, Search};
use crate::machine::types::{Effect, Inheritance};
use crate::machine::walk::{Step, Walk};
use crate::machine::{LogMachine, State};

type Answer = Option<Result<Reply, StoreError>>;

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
                Next::Step(ClaimStep::FindOther { locator: self.locator(&log), log, up_to })
            }
            (None, Some(walk)) => Next::Step(ClaimStep::Open { walk, doubted: false }),
            (None, None) => Next::Step(ClaimStep::Cursors),
        }
    }

    /// The other log is read where it is served (rule 14), as its own claimant would.
    pub(super) fn other_searched(&self, mut locator: Locator, log: String, up_to: u64, answer: Answer) -> Next {
        let Ok(head) = head_of(answer) else { return Next::Pause(ClaimStep::FindOther { locator, log, up_to }) };
        match locator.answered(head) {
            Search::Go => Next::Step(ClaimStep::FindOther { locator, log, up_to }),
            Search::Found(place) => Next::Step(ClaimStep::Other { place, log, up_to }),
            Search::Refuse(refusal) => Next::Refuse(refusal),
        }
    }

    pub(super) fn other_walked(
        &self,
        claim: &mut Claim,
        (store, mut walk, up_to): (String, Walk, u64),
        answer: Answer,
    ) -> Next {
        match walk.answered(segment_of(answer)) {
            Step::Go => Next::Step(ClaimStep::WalkOther { store, walk, up_to }),
            Step::Pause => Next::Pause(ClaimStep::WalkOther { store, walk, up_to }),
            Step::Outrun => Next::Refuse(self.not_owner(None)),
            Step::Done => {
                let mut inheritance = walk.inheritance();
                inheritance.operations.retain(|(_, number, _, _)| *number <= up_to);
                inheritance.store = store;
                self.as_ruled(&mut inheritance);
                claim.inherited.push(inheritance);
                self.next_other(claim)
            }
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

    /// Rule 2: the head is still this claim's, and what was opened was never there before: a segment below the mark of what is retained
    /// came and went while nobody looked, and with it the log's end.
    pub(super) fn verified(
        &self,
        claim: &Claim,
        (walk, statics): (Walk, Statics),
        (head, retained): (Answer, Answer),
    ) -> Next {
        let (Ok(head), Ok(retained)) = (head_of(head), value_of(retained)) else {
            return Next::Pause(ClaimStep::Verify { walk, statics });
        };
        if self.rules.verify_retained && retained > walk.next_segment() {
            return Next::Refuse(self.not_owner(None).retry_after_ms(20));
        }
        match head {
            Some(head) if same_claim(&head, &claim.new) => Next::Serve(walk, statics),
            _ if !self.rules.verify_head => Next::Serve(walk, statics),
            head => Next::Refuse(self.not_owner(head.as_ref())),
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
            let entry = match domain::entry_of(&stored) {
                Ok(entry) => std::sync::Arc::new(entry),
                Err(unreadable) => {
                    self.effects.push(Effect::Trouble(format!("cannot serve {}: {unreadable}", self.me.log)));
                    return self.release(Refusal::new(Reason::StoreUnavailable, unreadable.to_string()));
                }
            };
            self.window.insert(&entry, segment);
            backlog.push_back(entry);
        }
        // A failover's floor lies above the last entry: what is not there is applied.
        let applied = if backlog.is_empty() { statics.last } else { applied };
        let store = claim.store;
        self.effects.push(Effect::Claimed { store: store.clone(), head: claim.new.clone(), last: statics.last });
        self.failures = 0;
        self.state = State::Owner(Box::new(Owner {
            store,
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
            copy: None,
            has_shipped: false,
            gives_up: false,
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
