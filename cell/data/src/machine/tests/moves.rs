//! Moves of a simulation, as the driver and the operator run them: switches, splits and merges.

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Head, Merge, ReadCursorRequest, Split};
use cell_store::{CURSOR_RETAINED, CURSOR_SEGMENT, Reply, Request};
use rand::Rng;

use super::super::types::{Command, Inheritance, Input};
use super::super::walk::{Step, Walk, Wanted};
use super::clients::{GUILD, command};
use super::schedule::{OWN, Schedule};
use super::world::{HOME, limits, logs};

impl Schedule {
    pub(super) fn switch(&mut self) {
        let log = self.any_log();
        let Some(process) = self.world.owners(&log).first().copied() else { return };
        let closed_by = self.world.machine(process, &log).machine.closed_by().map(str::to_owned);
        if let Some(run_id) = closed_by {
            if self.rng.random_bool(0.1) {
                self.world.ghost.undone = true;
                self.world.note(|| format!("p{process} is told to undo {run_id}"));
                self.world.input(process, &log, Input::Reopen { run_id });
            }
            return;
        }
        self.runs += 1;
        let run_id = format!("switch-{}", self.runs);
        self.world.note(|| format!("p{process} closes {log} for a switch"));
        self.world.input(process, &log, Input::Close { run_id });
    }

    pub(super) fn own_entry(&mut self, process: usize, log: &str, kind: Kind, inheritance: Option<Inheritance>) {
        self.runs += 1;
        let deadline_ms = self.world.now_us / 1000 + limits().window_us / 4000;
        let inheritance = inheritance.map(std::sync::Arc::new);
        let command = Command { inheritance, ..command((1 << 50) + self.runs, deadline_ms, kind) };
        self.world.input(process, log, Input::Submit { ticket: OWN + self.runs, command: Box::new(command) });
    }

    /// As the driver does it: the guild's head is read, then the bucket's owner proposes the entry.
    pub(super) fn split_or_merge(&mut self) {
        let [bucket, own] = logs();
        let owners = self.world.owners(&bucket);
        if owners.is_empty() {
            return;
        }
        let process = owners[self.rng.random_range(0..owners.len())];
        let head = self.world.head(&own);
        match head {
            Some(head) if head.moved_to.is_empty() => {
                self.world.note(|| format!("p{process} means to merge the guild back"));
                self.merging = Some(process);
                self.world.input(process, &own, Input::Claim);
                self.close_for_merge(process, &own);
            }
            Some(head) if self.rng.random_bool(0.5) => {
                let inheritance = self.inheritance(process, &own);
                self.world.note(|| format!("p{process} finishes a merge, seal term {}", head.term));
                self.merge(process, &head, inheritance);
            }
            head => {
                let log_term = head.map_or(0, |head| head.term);
                self.world.note(|| format!("p{process} means to split, term {log_term}"));
                self.own_entry(process, &bucket, Kind::Split(Split { guild_id: GUILD, log_term }), None);
            }
        }
    }

    pub(super) fn close_for_merge(&mut self, process: usize, own: &str) {
        if self.world.owners(own).contains(&process) {
            self.runs += 1;
            let run_id = format!("merge-{}", self.runs);
            self.world.input(process, own, Input::Close { run_id });
        }
    }

    pub(super) fn merge(&mut self, process: usize, head: &Head, inheritance: Inheritance) {
        let [bucket, _] = logs();
        let merge = Merge { guild_id: GUILD, sealed_term: head.term, sealed_at: head.moved_at };
        self.own_entry(process, &bucket, Kind::Merge(merge), Some(inheritance));
    }

    pub(super) fn inheritance(&mut self, process: usize, log: &str) -> Inheritance {
        let mut cursor = |name: &str| match self
            .world
            .execute((HOME.into(), ReadCursorRequest { log: log.into(), name: name.into() }.into()))
        {
            Ok(Reply::ReadCursor(reply)) => reply.value,
            _ => 0,
        };
        let (first, retained) = (cursor(CURSOR_SEGMENT), cursor(CURSOR_RETAINED));
        let since_us = self.world.now_us + self.world.processes[process].skew_us - limits().window_us;
        let wanted =
            Wanted { seal_term: None, check_term: false, own_term: false, above: u64::MAX, since_us, retained };
        let mut walk = Walk::new(log.into(), first.max(retained), wanted);
        loop {
            let request: Request = walk.requests().remove(0);
            let Ok(Reply::Segment(reply)) = self.world.execute((HOME.into(), request)) else { panic!("a read fails") };
            if let Step::Done = walk.answered(Ok(reply)) {
                return walk.inheritance();
            }
        }
    }

    pub(super) fn drained(&mut self, process: usize, log: &str, run_id: String) {
        if run_id.starts_with("cut") {
            self.drained_for_cutover(process, log, run_id);
        } else if run_id.starts_with("merge") {
            let moved_to = format!("log:{}", Unit::bucket(GUILD).log());
            self.world.input(process, log, Input::Seal { moved_to });
        } else if self.quiet || (!self.always_switch && self.rng.random_bool(0.3)) {
            self.world.input(process, log, Input::Reopen { run_id });
        } else {
            let to_cell = if self.world.processes[process].cell == "a" { "b" } else { "a" };
            self.world.input(process, log, Input::Switch { to_cell: to_cell.into() });
        }
    }
}
