//! Settling: after an append whose outcome is not known the segment is read serially, and what is found is compared by operation id
//! before anything else is appended (rule 4). A late append that lands afterwards makes the next one fail on `last`, and is found then.

use std::sync::Arc;

use cell_proto::v1::{Entry, SegmentReply};
use cell_store::StoreError;

use super::LogMachine;
use super::commit::Batch;
use super::owner::{Job, Left, Owner};
use crate::domain;

impl LogMachine {
    pub(super) fn settle_answered(
        &mut self,
        owner: &mut Owner,
        batch: Batch,
        result: Result<SegmentReply, StoreError>,
    ) -> Option<Left> {
        let Ok(reply) = result else { return self.again(owner, Job::Settle(batch)) };
        let Some(statics) = reply.statics.filter(|statics| owner.is_mine(statics)) else {
            return Some(Left::Refusal(self.not_owner(None)));
        };
        let decoded: Result<Vec<Entry>, _> = reply.entries.iter().map(domain::entry_of).collect();
        let Ok(mut entries) = decoded else {
            return Some(Left::Refusal(self.not_owner(None)));
        };
        self.went_well();
        if !self.rules.settle_by_operation {
            // Taken for this batch's own, because the numbers fit.
            for (entry, mine) in entries.iter_mut().zip(&batch.entries) {
                entry.operation_id.clone_from(&mine.operation_id);
            }
        }
        let read_to = entries.last().map_or(owner.statics.last, |entry| entry.number);
        if entries.is_empty() && statics.last == owner.statics.last {
            self.requeue(batch.operations);
            return None;
        }
        let whole = read_to >= statics.last;
        let mut known = statics;
        known.last = read_to.min(known.last);
        self.take_over(owner, known, entries.into_iter().map(Arc::new).collect());
        if whole {
            let open = |operation_id: &_| self.window.get(operation_id).is_none();
            let operations = batch.operations.into_iter().filter(open).collect();
            self.requeue(operations);
        } else {
            owner.job = Job::Settle(batch);
        }
        None
    }
}
