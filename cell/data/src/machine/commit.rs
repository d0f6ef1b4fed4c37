//! Group commit: judge what waits in order, append what is accepted as one conditional batch, prove and give the refusals (rules 4, 6
//! and 8).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cell_proto::v1::{
    AppendRequest, Committed, Entry, Position, ReadSegmentRequest, Refusal, SegmentReply, StoredEntry,
};
use cell_store::{Reply, Request, StoreError};
use prost::Message as _;

use super::LogMachine;
use super::admission::{refused_by, unknown};
use super::owner::{Job, Left, Owner};
use super::types::{Inheritance, OperationId};
use super::window::Seen;
use crate::domain::{self, Asked, Ids, Need};

/// Commands whose judging waits for reads.
pub(super) struct Judging {
    operations: Vec<OperationId>,
    needs: Vec<Need>,
    lookups: Vec<OperationId>,
    pub(super) requests: Vec<(String, Request)>,
}

/// One append in the making or in flight.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Arc<Entry>>,
    /// Drawn from data; given once the append has proven that this is the owner.
    pub(super) refusals: Vec<(OperationId, Refusal)>,
    /// Everything in the batch, in the order it came.
    pub(super) operations: Vec<OperationId>,
    pub(super) last_timestamp_us: i64,
    pub(super) last_snowflake: i64,
}

impl LogMachine {
    pub(super) fn begin_batch(&mut self, owner: &mut Owner) {
        if self.roll_is_due(owner) {
            return self.start_roll(owner);
        }
        self.window.prune(self.now_us - self.limits.window_us);
        let (mut operations, mut bytes) = (Vec::new(), 0);
        while operations.len() < self.limits.batch_entries
            && bytes < self.limits.batch_bytes
            && let Some(operation_id) = self.queue.pop_front()
        {
            if let Some(pending) = self.pending.get_mut(&operation_id) {
                pending.queued = false;
                bytes += pending.bytes;
                operations.push(operation_id);
            }
        }
        self.prepare(owner, operations);
    }

    /// Asks for what judging must know, or judges at once.
    fn prepare(&mut self, owner: &mut Owner, operations: Vec<OperationId>) {
        let (mut needs, mut lookups, mut reads) = (HashSet::new(), Vec::new(), Vec::new());
        for operation_id in &operations {
            match self.window.get(operation_id) {
                Some(seen) if self.window.recent(seen.number).is_none() || seen.other_log.is_some() => {
                    lookups.push(*operation_id);
                    reads.push(self.lookup(owner, seen));
                }
                Some(_) => {}
                None => {
                    let kind = self.pending.get(operation_id).and_then(|pending| pending.command.change.kind.as_ref());
                    needs.extend(kind.map(domain::needs).unwrap_or_default());
                }
            }
        }
        let (needs, requests) = self.known.missing(&needs);
        let mut requests: Vec<(String, Request)> =
            requests.into_iter().map(|request| (owner.store.clone(), request)).collect();
        requests.extend(reads);
        let judging = Judging { operations, needs, lookups, requests };
        if judging.requests.is_empty() {
            self.judge_batch(owner, judging.operations, &HashMap::new());
        } else {
            owner.job = Job::Judge(judging);
        }
    }

    fn lookup(&self, owner: &Owner, seen: &Seen) -> (String, Request) {
        let (log, store) = match seen.other_log.as_deref() {
            Some((log, store)) if !store.is_empty() => (log.as_str(), store.as_str()),
            Some((log, _)) => (log.as_str(), owner.store.as_str()),
            None => (self.me.log.as_str(), owner.store.as_str()),
        };
        let (segment, from) = (seen.segment, seen.number);
        let read = ReadSegmentRequest { log: log.to_owned(), segment, from, limit: 1, bodies_from: 0 };
        (store.to_owned(), read.into())
    }

    pub(super) fn judge_answered(
        &mut self,
        owner: &mut Owner,
        mut judging: Judging,
        mut results: Vec<Result<Reply, StoreError>>,
    ) -> Option<Left> {
        let found = results.split_off(results.len().saturating_sub(judging.lookups.len()));
        let needs = std::mem::take(&mut judging.needs);
        if self.known.learn(needs.clone(), results).is_err() || found.iter().any(Result::is_err) {
            self.known.end_batch();
            judging.needs = needs;
            return self.again(owner, Job::Judge(judging));
        }
        self.went_well();
        let decode = |(operation_id, reply): (OperationId, Result<Reply, StoreError>)| match reply {
            Ok(Reply::Segment(reply)) => {
                let entry = reply.entries.first().and_then(|stored| domain::entry_of(stored).ok())?;
                Some((operation_id, Arc::new(entry)))
            }
            _ => None,
        };
        let found = judging.lookups.into_iter().zip(found).filter_map(decode).collect();
        self.judge_batch(owner, judging.operations, &found);
        None
    }

    fn judge_batch(
        &mut self,
        owner: &mut Owner,
        operations: Vec<OperationId>,
        found: &HashMap<OperationId, Arc<Entry>>,
    ) {
        let mut batch = Batch {
            last_timestamp_us: owner.statics.last_timestamp_us,
            last_snowflake: owner.statics.last_snowflake,
            ..Batch::default()
        };
        for operation_id in operations {
            if let Some(seen) = self.window.get(&operation_id).cloned() {
                self.answer_duplicate(owner, operation_id, &seen, found.get(&operation_id));
                continue;
            }
            let Some(pending) = self.pending.get(&operation_id) else { continue };
            if let Err(refusal) = self.check_deadline(&pending.command) {
                self.refuse(operation_id, refusal);
                continue;
            }
            let inheritance = pending.command.inheritance.clone();
            self.inherit(inheritance, &mut batch);
            batch.operations.push(operation_id);
            let number = owner.statics.last + batch.entries.len() as u64 + 1;
            match self.judge_one(operation_id, number, &mut batch) {
                Ok(entry) => {
                    if self.rules.overlay {
                        self.known.overlay(&entry);
                    }
                    batch.entries.push(Arc::new(entry));
                }
                Err(refusal) => batch.refusals.push((operation_id, refusal)),
            }
        }
        if !batch.entries.is_empty() {
            owner.job = Job::Append(batch);
        } else if batch.refusals.is_empty() {
            self.known.end_batch();
        } else if self.rules.prove_refusals {
            owner.job = Job::Prove(batch.refusals);
        } else {
            self.give_refusals(batch.refusals);
        }
    }

    /// A merge brings what the guild's log left: before its entry, and whatever follows it, is judged (rule 18).
    fn inherit(&mut self, inheritance: Option<Arc<Inheritance>>, batch: &mut Batch) {
        let Some(inheritance) = inheritance else { return };
        let mut inheritance = Inheritance::clone(&inheritance);
        self.as_ruled(&mut inheritance);
        self.window.inherit(&inheritance);
        batch.last_timestamp_us = batch.last_timestamp_us.max(inheritance.last_timestamp_us);
        batch.last_snowflake = batch.last_snowflake.max(inheritance.last_snowflake);
    }

    fn judge_one(&self, operation_id: OperationId, number: u64, batch: &mut Batch) -> Result<Entry, Refusal> {
        let pending = self.pending.get(&operation_id).ok_or_else(unknown)?;
        let command = &pending.command;
        let timestamp_us =
            if self.rules.strict_timestamps { self.now_us.max(batch.last_timestamp_us + 1) } else { self.now_us };
        let asked = Asked {
            actor_id: command.actor_id,
            policy_version: command.policy_version,
            guild_term: command.guild_term,
            operation_id: &command.operation_id,
            least_run: self.limits.least_run,
        };
        let ids = Ids { last: batch.last_snowflake, unix_ms: timestamp_us / 1000 };
        let judged = domain::judge(&self.known, self.me.unit, &asked, &command.change, ids)?;
        batch.last_timestamp_us = timestamp_us;
        batch.last_snowflake = judged.last_snowflake;
        Ok(Entry {
            number,
            timestamp_us,
            operation_id: operation_id.to_vec(),
            actor_id: command.actor_id,
            change: Some(judged.change),
            policy_version: judged.policy_version,
        })
    }

    fn answer_duplicate(&mut self, owner: &Owner, operation_id: OperationId, seen: &Seen, found: Option<&Arc<Entry>>) {
        let recent = if seen.other_log.is_none() { self.window.recent(seen.number) } else { None };
        let outcome = match recent.or(found) {
            Some(entry) => {
                let log = seen.other_log.as_deref().map(|(log, _)| log.as_str());
                Ok(self.committed(owner, entry, log, true))
            }
            None => Err(unknown()),
        };
        self.settle_pending(&operation_id, &outcome);
    }

    pub(super) fn committed(&self, owner: &Owner, entry: &Entry, log: Option<&str>, duplicate: bool) -> Committed {
        let log = log.unwrap_or(&self.me.log).to_owned();
        Committed {
            position: Some(Position { log, number: entry.number }),
            entry: Some(entry.clone()),
            duplicate,
            term: owner.head.term,
        }
    }

    pub(super) fn append_request(&self, owner: &Owner, batch: &Batch) -> Request {
        let stored = |entry: &Arc<Entry>| StoredEntry {
            number: entry.number,
            timestamp_us: entry.timestamp_us,
            operation_id: entry.operation_id.clone(),
            body: entry.encode_to_vec(),
        };
        AppendRequest {
            log: self.me.log.clone(),
            segment: owner.segment,
            term: owner.head.term,
            last: owner.statics.last,
            entries: batch.entries.iter().map(stored).collect(),
            last_timestamp_us: batch.last_timestamp_us,
            last_snowflake: batch.last_snowflake,
        }
        .into()
    }

    pub(super) fn append_answered(
        &mut self,
        owner: &mut Owner,
        batch: Batch,
        result: Result<SegmentReply, StoreError>,
    ) -> Option<Left> {
        match result {
            Ok(reply) if reply.applied => {
                self.went_well();
                self.take_over(owner, reply.statics.unwrap_or_default(), batch.entries);
                self.give_refusals(batch.refusals);
                None
            }
            Ok(SegmentReply { statics: Some(statics), .. }) if owner.is_mine(&statics) => {
                if !self.rules.settle {
                    owner.statics = statics;
                }
                self.doubt(owner, batch);
                None
            }
            Ok(_) => {
                self.propose(&batch);
                Some(Left::Refusal(self.not_owner(None)))
            }
            Err(error) if error.may_have_happened() => {
                self.doubt(owner, batch);
                self.pause();
                None
            }
            Err(error) => {
                let refusal = refused_by(&error);
                self.known.forget();
                batch.operations.iter().for_each(|operation_id| self.refuse(*operation_id, refusal.clone()));
                None
            }
        }
    }

    /// From here on the batch's operations may be in the log, now or later.
    fn propose(&mut self, batch: &Batch) {
        for operation_id in batch.entries.iter().filter_map(|entry| super::window::operation_of(entry)) {
            if let Some(pending) = self.pending.get_mut(&operation_id) {
                pending.proposed = true;
            }
            self.uncertain.insert(operation_id);
        }
    }

    fn doubt(&mut self, owner: &mut Owner, batch: Batch) {
        self.propose(&batch);
        self.known.forget();
        if self.rules.settle {
            owner.job = Job::Settle(batch);
        } else {
            self.requeue(batch.operations);
        }
    }

    /// Back to the front of the queue, in order, for another try.
    pub(super) fn requeue(&mut self, operations: Vec<OperationId>) {
        for operation_id in operations.into_iter().rev() {
            if let Some(pending) = self.pending.get_mut(&operation_id) {
                pending.queued = true;
                self.queue.push_front(operation_id);
            }
        }
    }

    /// These entries are committed: `statics` is the segment's row with them.
    pub(super) fn take_over(&mut self, owner: &mut Owner, statics: cell_proto::v1::Statics, entries: Vec<Arc<Entry>>) {
        owner.segment_entries += entries.len() as u64;
        owner.statics = statics;
        // What was in doubt at an older last number can never land any more.
        self.uncertain.clear();
        for entry in entries {
            owner.segment_bytes += entry.encoded_len() as u64;
            self.window.insert(&entry, owner.segment);
            if !self.rules.answer_after_apply {
                self.answer_committed(owner, &entry);
            }
            owner.backlog.push_back(entry);
        }
        self.known.end_batch();
        if !self.rules.overlay {
            self.known.forget();
        }
    }

    pub(super) fn answer_committed(&mut self, owner: &Owner, entry: &Entry) {
        if let Some(operation_id) = super::window::operation_of(entry) {
            let outcome = Ok(self.committed(owner, entry, None, entry.number <= owner.claimed_last));
            self.settle_pending(&operation_id, &outcome);
        }
    }

    pub(super) fn give_refusals(&mut self, refusals: Vec<(OperationId, Refusal)>) {
        self.known.end_batch();
        for (operation_id, refusal) in refusals {
            self.refuse(operation_id, refusal);
        }
    }

    pub(super) fn prove_answered(
        &mut self,
        owner: &mut Owner,
        refusals: Vec<(OperationId, Refusal)>,
        result: Result<SegmentReply, StoreError>,
    ) -> Option<Left> {
        let Ok(reply) = result else { return self.again(owner, Job::Prove(refusals)) };
        self.went_well();
        match reply.statics {
            Some(statics) if owner.is_mine(&statics) && statics.last == owner.statics.last => {
                self.give_refusals(refusals);
                None
            }
            Some(statics) if owner.is_mine(&statics) => {
                let operations = refusals.into_iter().map(|(operation_id, _)| operation_id).collect();
                self.known.forget();
                owner.job = Job::Settle(Batch { operations, ..Batch::default() });
                None
            }
            _ => Some(Left::Refusal(self.not_owner(None))),
        }
    }
}
