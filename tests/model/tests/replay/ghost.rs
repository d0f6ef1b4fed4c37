//! What really happened to the store, and what must hold of it: the model's invariants, said of the code's own entries.

use std::collections::{BTreeMap, HashSet};

use cell_data::domain::tables::{MESSAGES, mutations};
use cell_data::machine::pointer_of;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{AppendRequest, CasHeadRequest, Entry, Head, ReadRowsRequest, StoredEntry, WriteRequest};
use cell_store::{MemoryState, Reply, Request};
use prost::Message as _;

#[derive(Default)]
pub struct Ghost {
    /// Everything committed, in the order the store took it.
    pub committed: Vec<Entry>,
    /// In which store each was.
    places: Vec<&'static str>,
    operations: HashSet<Vec<u8>>,
    written: HashSet<(&'static str, i64)>,
    term: u64,
    /// The store whose head was claimed last.
    pub serving: &'static str,
    /// Appends to a copy: a replay that ships nothing proves nothing.
    pub shipped: u64,
    pub cutovers: u64,
    pub violation: Option<String>,
}

impl Ghost {
    pub fn of(serving: &'static str) -> Self {
        Self { serving, ..Self::default() }
    }

    pub fn accuse(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub fn has(&self, operation_id: &[u8]) -> bool {
        self.operations.contains(operation_id)
    }

    pub fn first_change(&self) -> Option<Kind> {
        self.committed.first()?.change.clone()?.kind
    }

    pub fn saw(&mut self, store: &'static str, request: &Request, reply: &Reply) {
        match (request, reply) {
            (Request::Append(append), Reply::Segment(reply)) if reply.applied => self.appended(store, append),
            (Request::CasHead(change), Reply::CasHead(reply)) if reply.applied => self.head_changed(store, change),
            (Request::Write(write), _) => {
                self.written.extend(write.mutations.iter().map(|row| (store, row.timestamp_us)));
            }
            _ => {}
        }
    }

    fn appended(&mut self, store: &'static str, append: &AppendRequest) {
        if store != self.serving {
            let known = |stored: &StoredEntry| {
                let entry =
                    usize::try_from(stored.number).ok().and_then(|number| self.committed.get(number.checked_sub(1)?));
                entry.is_some_and(|entry| entry.operation_id == stored.operation_id)
            };
            if !append.entries.iter().all(known) {
                self.accuse(format!("{store} takes an append while {} serves", self.serving));
            }
            self.shipped += 1;
            return;
        }
        if append.term < self.term {
            self.accuse(format!("an append of term {} is taken after one of term {}", append.term, self.term));
        }
        self.term = append.term;
        for stored in &append.entries {
            self.places.push(store);
            self.entry(Entry::decode(stored.body.as_slice()).expect("an entry"));
        }
    }

    fn head_changed(&mut self, store: &'static str, change: &CasHeadRequest) {
        let points = |head: &Option<Head>| head.as_ref().is_some_and(|head| pointer_of(head).is_some());
        let term = |head: &Option<Head>| head.as_ref().map(|head| head.term);
        if points(&change.new) && (points(&change.expected) || change.expected.is_none()) {
            // A copy's head, made or marked: it admits nobody either way.
            return;
        }
        if change.expected.is_some() && term(&change.new) <= term(&change.expected) {
            self.accuse("a head changed hands and its term did not rise".into());
        }
        if points(&change.new) {
            self.cutovers += 1;
        } else {
            self.serving = store;
        }
    }

    fn entry(&mut self, entry: Entry) {
        if !self.operations.insert(entry.operation_id.clone()) {
            self.accuse(format!("an operation is committed twice, again as entry {}", entry.number));
        }
        let (last, newest) = self.committed.last().map_or((0, 0), |last| (last.number, last.timestamp_us));
        if entry.number != last + 1 {
            self.accuse(format!("entry {} follows entry {last}", entry.number));
        }
        if entry.timestamp_us <= newest {
            self.accuse(format!("the timestamp of entry {} does not rise", entry.number));
        }
        self.committed.push(entry);
    }

    pub fn acknowledged(&mut self, entry: &Entry) {
        if !self.has(&entry.operation_id) {
            self.accuse(format!("entry {} was acknowledged and is in no log", entry.number));
        }
        let place = entry.number.checked_sub(1).and_then(|index| self.places.get(index as usize)).copied();
        if place.is_none_or(|place| !self.written.contains(&(place, entry.timestamp_us))) {
            self.accuse(format!("entry {} was answered before it was applied", entry.number));
        }
    }

    /// At the end the tables hold what the committed entries say in their order.
    pub fn compare(&mut self, store: &mut MemoryState) {
        let mut fold = MemoryState::default();
        let mut partitions = HashSet::new();
        for (index, entry) in self.committed.iter().enumerate() {
            let mut rows = mutations(entry);
            for row in rows.iter_mut() {
                row.timestamp_us = index as i64 + 1;
            }
            partitions.extend(rows.iter().filter(|row| row.table == MESSAGES).map(|row| row.partition.clone()));
            let write = WriteRequest { timestamp_us: 1, mutations: rows, ttl_seconds: 0 };
            fold.handle(write.into(), 0).expect("a write");
        }
        for partition in partitions {
            let (expected, found) = (dump(&mut fold, &partition), dump(store, &partition));
            if expected != found {
                self.accuse(format!("the table shows {found:?}, the log says {expected:?}"));
            }
        }
    }
}

type Dump = BTreeMap<(Vec<u8>, String), Vec<u8>>;

fn dump(store: &mut MemoryState, partition: &[u8]) -> Dump {
    let table = MESSAGES.to_owned();
    let request = ReadRowsRequest { table, partition: partition.into(), limit: 1000, ..ReadRowsRequest::default() };
    let Ok(Reply::Rows(reply)) = store.handle(request.into(), 0) else { panic!("rows") };
    let rows = reply.rows.into_iter();
    rows.flat_map(|row| row.cells.into_iter().map(move |cell| ((row.clustering.clone(), cell.column), cell.value)))
        .collect()
}
