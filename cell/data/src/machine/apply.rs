//! Applying: committed entries go into the tables in log order, each with its own timestamp; only then are they answered and fed
//! (rules 5 and 7).

use std::sync::Arc;

use cell_proto::v1::{Entry, WriteRequest};
use cell_store::{Reply, Request, StoreError};
use prost::Message as _;

use super::LogMachine;
use super::owner::{Job, Left, Owner};
use super::types::Effect;
use crate::domain::tables;

/// Most entries applied by one write.
const CHUNK: usize = 512;
/// And most bytes.
const CHUNK_BYTES: usize = 2 << 20;
/// And most purges of a channel, each of which deletes a partition for every ten days that it lived.
const CHUNK_PURGES: usize = 16;

impl LogMachine {
    pub(super) fn apply_count(&self, owner: &Owner) -> usize {
        let (mut bytes, mut purges) = (0, 0);
        let fits = |entry: &&Arc<Entry>| {
            bytes += entry.encoded_len();
            purges += usize::from(tables::purges(entry));
            bytes <= CHUNK_BYTES && purges <= CHUNK_PURGES
        };
        owner.backlog.iter().take(CHUNK).take_while(fits).count().max(1)
    }

    pub(super) fn apply_request(&self, owner: &Owner, count: usize) -> Request {
        let first = owner.backlog.front().map_or(1, |entry| entry.timestamp_us);
        let mutations = owner.backlog.iter().take(count).flat_map(|entry| tables::mutations(entry)).collect();
        WriteRequest { timestamp_us: first, mutations, ttl_seconds: 0 }.into()
    }

    pub(super) fn apply_answered(
        &mut self,
        owner: &mut Owner,
        count: usize,
        result: Option<Result<Reply, StoreError>>,
    ) -> Option<Left> {
        if let Some(Err(error @ (StoreError::Invalid(_) | StoreError::Refused(_) | StoreError::Damaged(_)))) = &result {
            self.effects.push(Effect::Trouble(format!("failed to apply to {}: {error}", self.me.log)));
        }
        if !matches!(result, Some(Ok(_))) {
            return self.again(owner, Job::Apply(count));
        }
        self.went_well();
        if owner.applied == owner.cursor {
            owner.cursor_due_us = self.now_us + self.limits.cursor_us;
        }
        let entries: Vec<Arc<Entry>> = owner.backlog.drain(..count.min(owner.backlog.len())).collect();
        if let Some(last) = entries.last() {
            owner.applied = if owner.backlog.is_empty() { owner.statics.last } else { last.number };
        }
        // Fed before answered: whoever hears the answer and asks a follower finds it there soonest.
        self.effects.push(Effect::Applied(entries.clone()));
        for entry in entries {
            self.answer_committed(owner, &entry);
        }
        None
    }
}
