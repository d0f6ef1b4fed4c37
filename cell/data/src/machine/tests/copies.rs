//! Copies in a simulation, as the driver, the operator and the workers of a migration make them: shipped, backfilled, cut over, rolled
//! back, released and dropped, while the target's compactions collect tombstones.

use std::collections::{BTreeMap, BTreeSet};

use cell_proto::v1::{CasHeadRequest, CellWrite, ReadRowsRequest, Row, RowMutation, WriteRequest};
use cell_store::{MemoryState, Reply, Request};
use rand::Rng;

use super::super::types::Input;
use super::schedule::Schedule;
use super::world::{HOME, Side, is_read, logs};
use crate::domain::tables::mutations;

/// A batch that is older is read again.
const BATCH_AGE_US: i64 = 300_000;
/// How long a target keeps its tombstones; longer than a batch may be old.
const GRACE_US: i64 = 600_000;

type Partition = (String, Vec<u8>);

/// What a worker of the backfill read and has not written.
struct Batch {
    partition: Partition,
    rows: Vec<Row>,
    read_us: i64,
}

pub(super) struct Copies {
    run: u32,
    /// StorageCells whose tables are whole up to where their logs begin, by the copy's incarnation.
    whole: BTreeMap<String, u64>,
    /// The incarnation being filled, and what is done of it.
    filling: Option<(String, u32, u64)>,
    done: BTreeSet<Partition>,
    batch: Option<Batch>,
    down_until_us: i64,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            run: 1,
            whole: [(HOME.to_owned(), 0)].into(),
            filling: None,
            done: BTreeSet::new(),
            batch: None,
            down_until_us: 0,
        }
    }
}

impl Copies {
    pub(super) fn target_is_down(&self, now_us: i64) -> bool {
        now_us < self.down_until_us
    }
}

fn other(store: &str) -> &'static str {
    if store == HOME { "B" } else { HOME }
}

fn rows_of(side: &mut MemoryState, (table, partition): &Partition) -> Vec<Row> {
    let request = ReadRowsRequest {
        table: table.clone(),
        partition: partition.clone(),
        limit: 1_000_000,
        ..ReadRowsRequest::default()
    };
    match side.handle(request.into(), 0) {
        Ok(Reply::Rows(reply)) => reply.rows,
        other => panic!("{other:?}"),
    }
}

/// Cells with their own write times.
fn as_writes((table, partition): &Partition, rows: &[Row]) -> Vec<RowMutation> {
    let cell = |row: &Row, cell: &cell_proto::v1::CellRead| RowMutation {
        table: table.clone(),
        partition: partition.clone(),
        clustering: row.clustering.clone(),
        cells: vec![CellWrite { column: cell.column.clone(), value: cell.value.clone() }],
        timestamp_us: cell.timestamp_us,
        ..RowMutation::default()
    };
    rows.iter().flat_map(|row| row.cells.iter().map(move |of| cell(row, of))).collect()
}

impl Schedule {
    pub(super) fn run_id(&self) -> String {
        format!("run-{}", self.copies.run)
    }

    fn bucket_owner(&mut self) -> Option<(usize, String)> {
        let log = logs()[0].clone();
        let owners = self.world.owners(&log);
        let process = *owners.get(self.rng.random_range(0..owners.len().max(1)))?;
        Some((process, log))
    }

    pub(super) fn tend_copies(&mut self) {
        let Some((process, log)) = self.bucket_owner() else { return };
        let machine = &self.world.machine(process, &log).machine;
        let serving = machine.serving().unwrap_or(HOME).to_owned();
        let closed_by = machine.closed_by().map(str::to_owned);
        let target = other(&serving);
        match self.rng.random_range(0..1000) {
            0..200 => {
                let run_id = self.run_id();
                self.world.input(process, &log, Input::Ship { target: target.into(), run_id });
            }
            200..600 => (0..3).for_each(|_| self.backfill(process, &log)),
            600..900 if closed_by.is_none() && self.copy_is_filled(process, &log) => {
                self.runs += 1;
                let run_id = format!("cut-{}", self.runs);
                self.world.note(|| format!("p{process} closes {log} for a cutover to {target}"));
                self.world.input(process, &log, Input::Close { run_id });
            }
            900..915 => {
                if let Some(run_id) = closed_by.filter(|run_id| run_id.starts_with("cut")) {
                    self.world.note(|| format!("p{process} is told to undo {run_id}"));
                    self.world.input(process, &log, Input::Reopen { run_id });
                }
            }
            915..935 => {
                let run_id = self.run_id();
                self.world.note(|| format!("p{process} is asked to release the copy in {target}"));
                self.copies.whole.remove(target);
                self.copies.run += 1;
                self.world.input(process, &log, Input::EndCopy { target: target.into(), run_id });
            }
            935..980 => self.compact(target),
            980..990 => {
                let down_us = self.rng.random_range(0..500_000);
                self.copies.down_until_us = self.world.now_us + down_us;
            }
            _ => {}
        }
    }

    /// At the quiet end a copy is made whole, so that it can be compared.
    pub(super) fn keep_copy(&mut self) {
        if self.world.plan.faults.copy == 0 || self.world.plan.steps == 0 {
            return;
        }
        let Some((process, log)) = self.bucket_owner() else { return };
        let machine = &self.world.machine(process, &log).machine;
        let target = other(machine.serving().unwrap_or(HOME));
        let run_id = self.run_id();
        self.world.input(process, &log, Input::Ship { target: target.into(), run_id });
        self.backfill(process, &log);
    }

    /// The copy that this owner ships is backfilled.
    fn copy_is_filled(&mut self, process: usize, log: &str) -> bool {
        let status = self.world.machine(process, log).machine.copy_status();
        status.is_some_and(|copy| {
            copy.run_id == self.run_id()
                && copy.blocked_by.is_empty()
                && self.copies.whole.get(&copy.target) == Some(&copy.restarts)
        })
    }

    pub(super) fn drained_for_cutover(&mut self, process: usize, log: &str, run_id: String) {
        let status = self.world.machine(process, log).machine.copy_status();
        let wanted =
            !self.quiet && (self.always_switch || self.rng.random_bool(0.85)) && self.copy_is_filled(process, log);
        match status.filter(|_| wanted) {
            Some(copy) => {
                let run_id = self.run_id();
                self.world.input(
                    process,
                    log,
                    Input::CutOver { to: copy.target, run_id, restarts: Some(copy.restarts) },
                );
            }
            None => self.world.input(process, log, Input::Reopen { run_id }),
        }
    }

    /// A worker reads a partition, or writes the one it has read.
    pub(super) fn backfill(&mut self, process: usize, log: &str) {
        let Some(copy) = self.world.machine(process, log).machine.copy_status() else { return };
        if !copy.blocked_by.is_empty() || copy.run_id != self.run_id() {
            return;
        }
        if self.copies.whole.get(&copy.target) == Some(&copy.restarts) {
            return;
        }
        let incarnation = (copy.target.clone(), self.copies.run, copy.restarts);
        if self.copies.filling.as_ref() != Some(&incarnation) {
            self.copies.filling = Some(incarnation);
            self.copies.done.clear();
            self.copies.batch = None;
        }
        let source = other(&copy.target);
        if self.copies.batch.is_some() && self.rng.random_bool(0.6) {
            // The worker is slow.
            return;
        }
        if let Some(mut batch) = self.copies.batch.take() {
            let old = self.world.now_us - batch.read_us > BATCH_AGE_US;
            if old && self.world.plan.store.backfill_rereads {
                batch.rows = rows_of(&mut self.world.side(source).tables, &batch.partition);
            }
            let mut mutations = as_writes(&batch.partition, &batch.rows);
            if !self.world.plan.store.backfill_keeps_times {
                mutations.iter_mut().for_each(|mutation| mutation.timestamp_us = self.world.now_us);
            }
            if !mutations.is_empty() {
                let write: Request = WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }.into();
                self.world.side(&copy.target).tables.handle(write, 0).unwrap();
            }
            self.world.ghost.count("backfilled");
            self.copies.done.insert(batch.partition);
            return;
        }
        let position = self.world.machine(process, log).machine.position();
        let settled = position.is_some_and(|(last, applied)| last == applied);
        let all: BTreeSet<Partition> = self.partitions();
        match all.into_iter().find(|partition| !self.copies.done.contains(partition)) {
            Some(partition) => {
                let rows = rows_of(&mut self.world.side(source).tables, &partition);
                self.copies.batch = Some(Batch { partition, rows, read_us: self.world.now_us });
            }
            // The verification: once it has settled, what the source does not have (any more) is deleted.
            None if copy.backlog == 0 && (settled || !self.world.plan.store.verify_settles) => {
                self.repair(source, &copy.target);
                self.world.note(|| format!("{} is backfilled", copy.target));
                self.world.ghost.count("backfills");
                self.copies.whole.insert(copy.target, copy.restarts);
            }
            None => {}
        }
    }

    /// Rows that only the copy has, left by an earlier one, are deleted at their own highest write time.
    fn repair(&mut self, source: &str, target: &str) {
        for partition in self.partitions() {
            let known = rows_of(&mut self.world.side(source).tables, &partition);
            let found = rows_of(&mut self.world.side(target).tables, &partition);
            let is_extra = |row: &&Row| known.iter().all(|other| other.clustering != row.clustering);
            let delete = |row: &Row| RowMutation {
                table: partition.0.clone(),
                partition: partition.1.clone(),
                clustering: row.clustering.clone(),
                delete_row: true,
                timestamp_us: row.cells.iter().map(|cell| cell.timestamp_us).max().unwrap_or(1),
                ..RowMutation::default()
            };
            let mutations: Vec<RowMutation> = found.iter().filter(is_extra).map(delete).collect();
            if !mutations.is_empty() {
                self.world.ghost.count("extra rows");
                let write = WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 };
                self.world.side(target).tables.handle(write.into(), 0).unwrap();
            }
        }
    }

    /// A worker has read the partitions of a table, and dozes.
    pub(super) fn read_batch(&mut self, process: usize, table: &str) {
        for _ in 0..1000 {
            if self.copies.batch.as_ref().is_some_and(|batch| batch.partition.0 == table) {
                return;
            }
            self.backfill(process, &logs()[0].clone());
        }
        panic!("{table} is never read");
    }

    /// It wakes up and writes them.
    pub(super) fn fill_without_verifying(&mut self) {
        for _ in 0..1000 {
            if self.copies.batch.is_none() {
                return;
            }
            self.backfill(0, &logs()[0].clone());
        }
        panic!("the batch is never written");
    }

    fn partitions(&self) -> BTreeSet<Partition> {
        let rows = self.world.ghost.committed.iter().flat_map(|(_, entry)| mutations(entry));
        rows.map(|row| (row.table, row.partition)).collect()
    }

    /// A target forgets tombstones older than its grace; nothing that old is on its way any more.
    pub(super) fn compact(&mut self, store: &'static str) {
        let writes = |(_, request): &(String, Request)| matches!(request, Request::Write(_));
        let places = self.world.processes.iter().flat_map(|process| process.places.values());
        let flying = places.flat_map(|place| {
            place.asked.iter().flatten().chain(place.copy_asked.iter().flat_map(|(_, requests)| requests))
        });
        if flying.filter(|asked| !is_read(&asked.1)).any(writes) || self.world.late.iter().any(writes) {
            return;
        }
        let oldest_us = self.world.now_us - GRACE_US;
        let mut compacted = MemoryState::default();
        for partition in self.partitions() {
            let rows = rows_of(&mut self.world.side(store).tables, &partition);
            let mutations = as_writes(&partition, &rows);
            if !mutations.is_empty() {
                compacted.handle(WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }.into(), 0).unwrap();
            }
        }
        let young = self.world.ghost.committed.iter().filter(|(_, entry)| entry.timestamp_us >= oldest_us);
        let young = young.flat_map(|(_, entry)| mutations(entry));
        let tombstones: Vec<RowMutation> = young.filter(|row| row.delete_row || !row.range_end.is_empty()).collect();
        // Only those that were written there.
        let known =
            tombstones.into_iter().filter(|row| self.world.ghost.was_written(store, row.timestamp_us)).collect();
        compacted.handle(WriteRequest { timestamp_us: 1, mutations: known, ttl_seconds: 0 }.into(), 0).unwrap();
        self.world.side(store).tables = compacted;
        self.world.ghost.count("compactions");
    }

    /// The copy is released; what it held is dropped, or not.
    pub(super) fn copy_ended(&mut self, process: usize) {
        let log = logs()[0].clone();
        let Some(serving) = self.world.machine(process, &log).machine.serving().map(str::to_owned) else { return };
        let target = other(&serving);
        self.world.ghost.count("copies released");
        self.copies.whole.remove(target);
        if self.rng.random_bool(0.5) {
            self.world.note(|| format!("what {target} held is dropped"));
            let head = self.world.head_at(target, &log);
            let side = self.world.side(target);
            *side = Side::default();
            if let Some(head) = head {
                side.logs.handle(CasHeadRequest { log, expected: None, new: Some(head) }.into(), 0).unwrap();
            }
        }
    }

    /// At the end: a copy that is whole and at the end equals what it is a copy of.
    pub(super) fn compare_copy(&mut self) {
        let log = logs()[0].clone();
        let Some(process) = self.world.owners(&log).first().copied() else { return };
        let Some(copy) = self.world.machine(process, &log).machine.copy_status() else { return };
        if copy.backlog == 0 && self.copy_is_filled(process, &log) {
            self.world.ghost.count("copies compared");
            let mut tables = self.world.side(&copy.target).tables.clone();
            self.world.ghost.compare(&copy.target, &mut tables);
        }
    }
}
