//! The quiet end of a simulation: no more faults, everything settles, and tables and logs agree.

use super::super::types::Input;
use super::clients::State;
use super::schedule::Schedule;
use super::world::{HOME, Process, limits, logs};

impl Schedule {
    pub(super) fn late(&self, index: usize) -> bool {
        let slack_us = self.world.plan.faults.skew_us + limits().window_us;
        self.clients.operations[index].command.deadline_ms * 1000 + slack_us < self.world.now_us
    }

    /// No more faults: whoever can, claims; everything settles; tables and logs agree.
    pub(super) fn settle(&mut self) {
        while !self.world.late.is_empty() {
            self.land();
        }
        for round in 0..4000 {
            for log in logs() {
                let cell = self.world.head(&log).filter(|head| head.moved_to.is_empty()).map(|head| head.cell);
                if self.world.owners(&log).is_empty()
                    && let Some(cell) = cell
                {
                    let fits = |index: &usize| self.world.processes[*index].cell == cell;
                    if let Some(process) = (0..self.world.processes.len()).find(fits) {
                        self.world.input(process, &log, Input::Claim);
                    }
                }
                for process in self.world.owners(&log) {
                    if round % 50 == 0 {
                        self.world.input(process, &log, Input::Recheck);
                    }
                    if let Some(run_id) = self.world.machine(process, &log).machine.closed_by().map(str::to_owned) {
                        self.world.input(process, &log, Input::Reopen { run_id });
                    }
                }
            }
            self.finish_moves(round);
            self.keep_copy();
            self.deliver_all();
            let open: Vec<usize> = (0..self.clients.operations.len())
                .filter(|index| self.clients.operations[*index].state == State::Open)
                .collect();
            if round % 20 == 10 {
                for index in &open {
                    let log = logs()[usize::from(self.world.ghost.split_out)].clone();
                    for process in self.world.owners(&log) {
                        self.send_to(process, &log, *index);
                    }
                }
            }
            if open.is_empty() && round > 300 && self.is_idle() {
                return self.finish();
            }
            if self.world.ghost.violation.is_some() {
                return;
            }
        }
        self.world.ghost.accuse("it does not settle".into());
    }

    /// A split or merge that was cut off is finished, as the operator does by asking again.
    pub(super) fn finish_moves(&mut self, round: u32) {
        let [bucket, own] = logs();
        if round % 40 != 20 {
            return;
        }
        let head = self.world.head(&own);
        let Some(process) = self.world.owners(&bucket).first().copied() else { return };
        match head {
            None if self.world.ghost.split_out => self.world.input(process, &own, Input::Claim),
            Some(head) if !head.moved_to.is_empty() && self.world.ghost.split_out => {
                let inheritance = self.inheritance(process, &own);
                // Either the merge is finished, or the guild is opened again from the term that a new split names.
                self.merge(process, &head, inheritance);
                self.world.input(process, &own, Input::Claim);
            }
            _ => {}
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        let quiet = |process: &Process| {
            process
                .places
                .values()
                .all(|place| place.machine.queued() == 0 && place.asked.is_none() || place.machine.is_idle())
                && process.places.values().all(|place| {
                    place.machine.copy_status().is_none_or(|copy| copy.backlog == 0 || !copy.blocked_by.is_empty())
                })
        };
        let owned = !self.world.owners(&logs()[usize::from(self.world.ghost.split_out)]).is_empty();
        owned && self.world.processes.iter().all(quiet)
    }

    pub(super) fn finish(&mut self) {
        for index in 0..self.clients.operations.len() {
            let operation = &self.clients.operations[index];
            let committed = self.world.ghost.by_operation.contains_key(&operation.command.operation_id);
            match operation.state {
                State::Acknowledged if !committed => {
                    self.world.ghost.accuse(format!("operation {} was acknowledged and is lost", index + 1));
                }
                State::Refused if committed => {
                    self.world.ghost.accuse(format!("operation {} was refused and is committed", index + 1));
                }
                _ => {}
            }
        }
        let serving = self.world.ghost.serving.get(&logs()[0]).cloned().unwrap_or_else(|| HOME.into());
        let mut tables = self.world.side(&serving).tables.clone();
        self.world.ghost.compare(&serving, &mut tables);
        self.compare_copy();
    }
}
