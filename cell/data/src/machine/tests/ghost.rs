//! What really happened: every append the store took, every row written, every answer given; and the invariants over them.

use std::collections::{BTreeMap, HashMap, HashSet};

use cell_proto::v1::change::Kind;
use cell_proto::v1::{AppendRequest, Entry, Head, MessagesDeleted, ReadRowsRequest, SegmentReply, WriteRequest};
use cell_store::{MemoryState, Reply};
use prost::Message as _;

use super::super::places::pointer_of;
use super::super::types::OperationId;
use crate::domain::tables::{self, MESSAGES, mutations};

#[derive(Default)]
pub(super) struct Ghost {
    /// Everything committed, in the order the store took it.
    pub(super) committed: Vec<(String, Entry)>,
    by_number: HashMap<(String, u64), OperationId>,
    pub(super) by_operation: HashMap<OperationId, (String, u64)>,
    last: HashMap<String, (u64, i64)>,
    last_term: HashMap<String, u64>,
    guild_last_us: i64,
    last_message_id: i64,
    written: HashSet<(String, i64)>,
    /// In which StorageCell a number was committed.
    committed_at: HashMap<(String, u64), String>,
    /// Which StorageCell's head was claimed last.
    pub(super) serving: HashMap<String, String>,
    /// Messages that exist, by what is committed.
    alive: HashSet<i64>,
    /// Whose claim a term of a log is.
    claims: HashMap<(String, u64), String>,
    /// Operations refused by the owner of a term.
    refused: HashSet<(OperationId, String, u64)>,
    /// Logs whose head names nobody, after a switch.
    unclaimed: HashSet<String>,
    /// Entries committed while their log was nobody's.
    strays: HashSet<OperationId>,
    /// A switch was undone after its compare-and-set may have been sent: strays are then no fault.
    pub(super) undone: bool,
    /// How often what happened: a schedule that does nothing proves nothing.
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) split_out: bool,
    pub(super) violation: Option<String>,
}

fn operation(entry: &Entry) -> OperationId {
    entry.operation_id.as_slice().try_into().unwrap()
}

impl Ghost {
    pub(super) fn accuse(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A head was changed: every change of cell, appender or pointer raises the term.
    pub(super) fn head_changed(&mut self, store: &str, old: Option<&Head>, new: &Head) {
        let points = |head: &Head| pointer_of(head).is_some();
        if old.is_none_or(points) && points(new) {
            // A copy's head is made, or marked: it admits nobody either way.
            return self.count("copies marked");
        }
        if old.is_some_and(|old| !points(old)) && points(new) {
            self.count("cutovers");
        }
        if old.is_some_and(|old| new.term <= old.term) {
            self.accuse(format!("the head of {} changed and its term did not rise: {new:?}", new.log));
        }
        if new.appender.is_empty() && new.moved_to.is_empty() && old.is_some() {
            self.count("switches");
            self.unclaimed.insert(new.log.clone());
        } else {
            self.unclaimed.remove(&new.log);
        }
        if !new.appender.is_empty() {
            self.count("claims");
            self.claims.insert((new.log.clone(), new.term), new.appender.clone());
            self.serving.insert(new.log.clone(), store.to_owned());
        }
    }

    /// The owner of a term refused an operation.
    pub(super) fn was_refused(&mut self, id: OperationId, log: &str, term: u64) {
        self.refused.insert((id, log.to_owned(), term));
    }

    pub(super) fn appended(&mut self, store: &str, request: &AppendRequest, reply: &SegmentReply) {
        if !reply.applied {
            return;
        }
        if self.is_copy(store, request) {
            return;
        }
        if let Some(serving) = self.serving.get(&request.log)
            && serving != store
        {
            self.accuse(format!("{} takes an append in {store} while {serving} serves it", request.log));
        }
        let before = self.last_term.insert(request.log.clone(), request.term).unwrap_or(0);
        if request.term < before {
            self.accuse(format!("{} takes an append of term {} after one of term {before}", request.log, request.term));
        }
        for stored in &request.entries {
            let entry = Entry::decode(stored.body.as_slice()).unwrap();
            let id = operation(&entry);
            if self.refused.contains(&(id, request.log.clone(), request.term)) {
                self.accuse(format!("operation {id:?} was refused and then committed by the same owner"));
            }
            if self.unclaimed.contains(&request.log) {
                self.strays.insert(id);
            }
            self.committed_at.insert((request.log.clone(), entry.number), store.to_owned());
            self.entry(&request.log, entry);
        }
    }

    /// Entries committed in another StorageCell, and the same ones.
    fn is_copy(&mut self, store: &str, request: &AppendRequest) -> bool {
        let known = |stored: &cell_proto::v1::StoredEntry| {
            let at = (request.log.clone(), stored.number);
            self.serving.get(&request.log).is_some_and(|serving| serving != store)
                && self.by_number.get(&at).is_some_and(|id| id.as_slice() == stored.operation_id)
        };
        let copy = request.entries.iter().all(known);
        if copy {
            self.count("shipped");
        }
        copy
    }

    fn entry(&mut self, log: &str, entry: Entry) {
        let id = operation(&entry);
        let at = format!("{log}/{}", entry.number);
        if let Some(other) = self.by_number.insert((log.to_owned(), entry.number), id)
            && other != id
        {
            self.accuse(format!("the number {at} holds two different entries"));
        }
        if let Some(before) = self.by_operation.insert(id, (log.to_owned(), entry.number)) {
            self.accuse(format!("operation {id:?} was committed twice, at {before:?} and {at}"));
        }
        let (last, last_us) = self.last.get(log).copied().unwrap_or_default();
        if entry.number != last + 1 {
            self.accuse(format!("{at} follows number {last}"));
        }
        if entry.timestamp_us <= last_us {
            self.accuse(format!("the timestamp of {at} does not rise"));
        }
        self.last.insert(log.to_owned(), (entry.number, entry.timestamp_us));
        self.guild_entry(log, &entry, &at);
        self.committed.push((log.to_owned(), entry));
    }

    fn guild_entry(&mut self, log: &str, entry: &Entry, at: &str) {
        let kind = entry.change.as_ref().unwrap().kind.as_ref().unwrap();
        match kind {
            Kind::Split(_) if self.split_out => self.accuse(format!("{at} splits what is split")),
            Kind::Split(_) => self.split_out = true,
            Kind::Merge(_) if !self.split_out => self.accuse(format!("{at} merges what is not split")),
            Kind::Merge(_) => self.split_out = false,
            _ if log.starts_with('g') != self.split_out => {
                self.accuse(format!("{at}: the guild lives in the other log"))
            }
            _ => {}
        }
        if entry.timestamp_us <= self.guild_last_us {
            self.accuse(format!("the timestamp of {at} is below one of the guild's other log"));
        }
        self.guild_last_us = self.guild_last_us.max(entry.timestamp_us);
        self.count("entries");
        match kind {
            Kind::MessageCreated(created) => {
                let id = created.message.as_ref().unwrap().id;
                if id <= self.last_message_id {
                    self.accuse(format!("the message id of {at} does not rise"));
                }
                self.last_message_id = id;
                self.alive.insert(id);
            }
            Kind::MessageEdited(edited) if !self.alive.contains(&edited.message_id) => {
                self.accuse(format!("{at} edits a message that is not there"));
            }
            Kind::MessageDeleted(deleted) if !self.alive.remove(&deleted.message_id) => {
                self.accuse(format!("{at} deletes a message that is not there"));
            }
            Kind::MessagesDeleted(gone) => self.bulk(gone, at),
            Kind::Split(_) => self.count("splits"),
            Kind::Merge(_) => self.count("merges"),
            _ => {}
        }
    }

    fn bulk(&mut self, gone: &MessagesDeleted, at: &str) {
        self.count("bulk deletes");
        if !gone.ranges.is_empty() {
            self.count("range deletes");
        }
        if !gone.message_ids.iter().all(|id| self.alive.remove(id)) {
            self.accuse(format!("{at} deletes messages that are not there"));
        }
        let covered = |id: &i64| gone.ranges.iter().any(|range| (range.first..=range.last).contains(id));
        if self.alive.iter().any(covered) {
            self.accuse(format!("the ranges of {at} cover a message that lives"));
        }
    }

    pub(super) fn written(&mut self, store: &str, request: &WriteRequest) {
        self.written.extend(request.mutations.iter().map(|mutation| (store.to_owned(), mutation.timestamp_us)));
    }

    /// Whether an entry was applied in a StorageCell.
    pub(super) fn was_written(&self, store: &str, timestamp_us: i64) -> bool {
        self.written.contains(&(store.to_owned(), timestamp_us))
    }

    /// An operation was acknowledged with this entry.
    pub(super) fn acknowledged(&mut self, id: OperationId, log: &str, entry: &Entry, duplicate: bool) {
        self.count(if duplicate { "duplicates" } else { "acknowledged" });
        if self.strays.contains(&id) && !duplicate && !self.undone {
            self.accuse(format!("operation {id:?} was committed by an owner that had switched its log away"));
        }
        let applied = self.committed_at.get(&(log.to_owned(), entry.number));
        // What deletes nothing writes nothing.
        let applied = applied.is_some_and(|store| self.written.contains(&(store.clone(), entry.timestamp_us)))
            || mutations(entry).is_empty();
        match self.by_operation.get(&id) {
            None => self.accuse(format!("operation {id:?} was acknowledged and is in no log")),
            Some(at) if *at != (log.to_owned(), entry.number) => {
                let at = at.clone();
                self.accuse(format!("operation {id:?} was acknowledged as {log}/{} and is {at:?}", entry.number));
            }
            Some(_) if operation(entry) != id => self.accuse(format!("{id:?} was acknowledged with another's entry")),
            Some(_) if !applied => {
                self.accuse(format!("operation {id:?} was answered before it was applied"));
            }
            Some(_) => {}
        }
    }

    /// At the end: the tables hold what the committed entries say, in their order.
    pub(super) fn compare(&mut self, what: &str, store: &mut MemoryState) {
        let mut fold = MemoryState::default();
        let mut partitions = HashSet::new();
        for (index, (_, entry)) in self.committed.iter().enumerate() {
            let mut rows = mutations(entry);
            for row in &mut rows {
                row.timestamp_us = index as i64 + 1;
                partitions.insert((row.table.clone(), row.partition.clone()));
            }
            let request = WriteRequest { timestamp_us: 1, mutations: rows, ttl_seconds: 0 };
            fold.handle(request.into(), 0).unwrap();
        }
        for (table, partition) in partitions {
            let (expected, found) = (dump(&mut fold, &table, &partition), dump(store, &table, &partition));
            if expected != found {
                self.accuse(format!(
                    "table {table} in {what} differs from its log's fold: {found:?} is not {expected:?}"
                ));
            }
        }
    }
}

pub(super) type Dump = BTreeMap<(Vec<u8>, String), Vec<u8>>;

fn dump(store: &mut MemoryState, table: &str, partition: &[u8]) -> Dump {
    let request = ReadRowsRequest {
        table: table.into(),
        partition: partition.into(),
        limit: 1_000_000,
        ..ReadRowsRequest::default()
    };
    let Ok(Reply::Rows(reply)) = store.handle(request.into(), 0) else { panic!("rows") };
    let whole =
        |row: &cell_proto::v1::Row| table != MESSAGES || row.cells.iter().any(|cell| cell.column == tables::BODY);
    let rows = reply.rows.into_iter().filter(whole);
    rows.flat_map(|row| row.cells.into_iter().map(move |cell| ((row.clustering.clone(), cell.column), cell.value)))
        .collect()
}

/// The message an entry created.
pub(super) fn message_id(entry: &Entry) -> Option<i64> {
    match entry.change.as_ref()?.kind.as_ref()? {
        Kind::MessageCreated(created) => Some(created.message.as_ref()?.id),
        _ => None,
    }
}
