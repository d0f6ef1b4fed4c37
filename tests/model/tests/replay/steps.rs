//! What each step of the model means for the machine.

use cell_data::machine::Input;
use cell_model::log::Step;
use cell_model::log::state::{Batch, Flight, OPERATIONS, Operation};
use cell_proto::v1::Head;
use cell_store::Request;

use super::world::{STORES, Told, World};

const RUN: &str = "replay";

/// Whether the machine could be brought to do a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replayed {
    Done,
    /// It did not come to that point: it has decided otherwise, or is there already.
    Elsewhere,
}

fn done(reached: bool) -> Replayed {
    if reached { Replayed::Done } else { Replayed::Elsewhere }
}

fn is_append(request: &Request) -> bool {
    matches!(request, Request::Append(_))
}

fn is_cas_head(request: &Request) -> bool {
    matches!(request, Request::CasHead(_))
}

/// The model numbers segments from 0, the code from 1.
fn is_segment(segment: u64, wanted: u8) -> bool {
    segment == u64::from(wanted) + 1
}

impl World {
    /// Brings the machine to a step.
    pub fn replay(&mut self, step: Step) -> Replayed {
        self.trace.push(step.to_string());
        match step {
            Step::Lands { flight, .. } => return self.land(flight),
            Step::Backfills => {
                self.backfill(STORES[0], STORES[1]);
                return Replayed::Done;
            }
            Step::DropsCopy { store } => return self.drops_copy(STORES[usize::from(store)]),
            _ => {}
        }
        let process = usize::from(step.owner().expect("a process's step"));
        match step {
            Step::Crashes { .. } => {
                self.crash(process);
                Replayed::Done
            }
            Step::ReadsHead { .. } => {
                self.input(process, Input::Claim);
                done(self.until(process, is_cas_head))
            }
            Step::Claims { .. } => self.reach(process, is_cas_head),
            Step::ClaimUnknown { .. } => self.reach_and_lose(process, is_cas_head),
            Step::SettlesHead { .. } => self.reach(process, |request| matches!(request, Request::ReadHead(_))),
            Step::Seals { segment, .. } => self.reach(process, |request| match request {
                Request::CasSegment(seal) => is_segment(seal.segment, segment),
                _ => false,
            }),
            Step::Opens { segment, .. } => self.reach(process, |request| match request {
                Request::OpenSegment(open) => is_segment(open.segment, segment),
                _ => false,
            }),
            Step::Verifies { .. } => self.becomes_owner(process),
            Step::StepsBack { .. } => self.steps_back(process),
            _ => self.replay_owner(process, step),
        }
    }

    fn replay_owner(&mut self, process: usize, step: Step) -> Replayed {
        match step {
            Step::Appends { batch, .. } | Step::AppendRefused { batch, .. } => {
                self.submit_batch(process, &batch);
                self.reach(process, is_append)
            }
            Step::AppendUnknown { batch, .. } => {
                self.submit_batch(process, &batch);
                self.reach_and_lose(process, is_append)
            }
            Step::Settles { .. } => self.reach(process, |request| matches!(request, Request::ReadSegment(_))),
            Step::AnswersDuplicate { operation, .. } | Step::Refuses { operation, .. } => {
                self.submit(process, operation);
                self.told(process, operation)
            }
            Step::Applies { number, .. } => self.applies(process, number),
            Step::ApplyUnknown { .. } => self.reach_and_lose(process, |request| matches!(request, Request::Write(_))),
            Step::ClosesForSwitch { .. } => {
                self.input(process, Input::Close { run_id: RUN.into() });
                (0..20).for_each(|_| self.turn(process));
                done(self.processes[process].drained)
            }
            Step::Switches { .. } => {
                let to_cell = if process == 2 { "a" } else { "b" };
                self.input(process, Input::Switch { to_cell: to_cell.into() });
                self.reach(process, is_cas_head)
            }
            Step::SwitchUnknown { .. } => {
                let to_cell = if process == 2 { "a" } else { "b" };
                self.input(process, Input::Switch { to_cell: to_cell.into() });
                let lost = self.reach_and_lose(process, is_cas_head);
                // The model takes it back if it did not happen; the machine, unless told so, would try again.
                self.input(process, Input::Reopen { run_id: RUN.into() });
                lost
            }
            Step::Undoes { .. } => {
                self.processes[process].drained = false;
                self.input(process, Input::Reopen { run_id: RUN.into() });
                Replayed::Done
            }
            // Rolling is the machine's own affair: when a segment is old, at the next append.
            Step::Rolls { .. } => {
                self.now_us += 700_000_000;
                Replayed::Done
            }
            Step::Marks { .. } | Step::DropsSegment { .. } => {
                self.now_us += 4_000_000_000;
                (0..12).for_each(|_| self.turn(process));
                Replayed::Done
            }
            _ => self.replay_copy(process, step),
        }
    }

    fn run_id(&self) -> String {
        format!("run-{}", self.run)
    }

    /// The store that a process would ship to.
    fn other(&self, process: usize) -> Option<&'static str> {
        let serving = self.processes[process].machine.serving()?;
        STORES.into_iter().find(|name| *name != serving)
    }

    fn replay_copy(&mut self, process: usize, step: Step) -> Replayed {
        let Some(target) = self.other(process) else { return Replayed::Elsewhere };
        let ship = Input::Ship { target: target.into(), run_id: self.run_id() };
        match step {
            Step::StartsCopy { .. } => {
                self.input(process, ship);
                done(self.copy_until(process, is_append))
            }
            // A claimant ships on, which the directory tells it.
            Step::Ships { again, .. } => {
                self.input(process, ship);
                let reached = self.copy_until(process, is_append);
                let asked = self.processes[process].copy_asked.iter().flat_map(|(_, requests)| requests);
                let twice: Vec<_> = asked.filter(|(_, request)| again && is_append(request)).cloned().collect();
                self.late.extend(twice);
                self.deliver_copy(process);
                done(reached)
            }
            Step::OpensInCopy { .. } => {
                self.input(process, ship);
                self.reach_in_copy(process, |request| matches!(request, Request::OpenSegment(_)))
            }
            Step::AppliesShipped { .. } => {
                self.input(process, ship);
                self.reach_in_copy(process, |request| matches!(request, Request::Write(_)))
            }
            Step::ClosesForCutover { .. } => {
                self.input(process, ship);
                self.copy_until(process, |_| false);
                self.input(process, Input::Close { run_id: RUN.into() });
                (0..20).for_each(|_| self.turn(process));
                self.input(process, Input::CutOver { to: target.into(), run_id: self.run_id(), restarts: None });
                done(self.processes[process].drained)
            }
            Step::SealsForCutover { .. } => {
                self.copy_until(process, |_| false);
                self.reach(process, |request| matches!(request, Request::CasSegment(_)))
            }
            Step::CutsOver { .. } => self.reach(process, is_cas_head),
            Step::CutUnknown { .. } => self.reach_and_lose(process, is_cas_head),
            _ => Replayed::Elsewhere,
        }
    }

    fn reach_in_copy(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) -> Replayed {
        let reached = self.copy_until(process, wanted);
        if reached {
            self.deliver_copy(process);
        }
        done(reached)
    }

    /// The operator asks until the copy is released; an owner that shipped gives the log up first.
    fn drops_copy(&mut self, target: &'static str) -> Replayed {
        if self.ghost.serving == target {
            return Replayed::Elsewhere;
        }
        self.copy_ended = false;
        for _ in 0..4 {
            for process in 0..self.processes.len() {
                if self.processes[process].machine.serving().is_none() {
                    continue;
                }
                self.input(process, Input::EndCopy { target: target.into(), run_id: self.run_id() });
                for _ in 0..20 {
                    self.turn(process);
                    self.deliver_copy(process);
                }
                if self.copy_ended {
                    self.wipe(target);
                    self.run += 1;
                    return Replayed::Done;
                }
                self.input(process, Input::Claim);
                (0..30).for_each(|_| self.turn(process));
            }
        }
        Replayed::Elsewhere
    }

    fn reach(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) -> Replayed {
        let reached = self.until(process, wanted);
        if reached {
            self.deliver(process);
        }
        done(reached)
    }

    fn reach_and_lose(&mut self, process: usize, wanted: impl Fn(&Request) -> bool) -> Replayed {
        let reached = self.until(process, wanted);
        if reached {
            self.lose(process);
        }
        done(reached)
    }

    fn submit_batch(&mut self, process: usize, batch: &Batch) {
        for entry in batch.iter().flatten() {
            self.submit(process, entry.operation);
        }
    }

    fn becomes_owner(&mut self, process: usize) -> Replayed {
        for _ in 0..20 {
            if self.processes[process].machine.head().is_some() {
                return Replayed::Done;
            }
            self.turn(process);
        }
        Replayed::Elsewhere
    }

    fn steps_back(&mut self, process: usize) -> Replayed {
        self.input(process, Input::Recheck);
        for _ in 0..40 {
            if self.processes[process].machine.is_released() {
                return Replayed::Done;
            }
            self.turn(process);
        }
        Replayed::Elsewhere
    }

    fn told(&mut self, process: usize, operation: Operation) -> Replayed {
        for _ in 0..20 {
            if self.told[operation as usize] != Told::Nothing {
                return Replayed::Done;
            }
            self.turn(process);
        }
        Replayed::Elsewhere
    }

    /// Applied up to a number; the code's first entry makes the guild, so its numbers are one ahead.
    fn applies(&mut self, process: usize, number: u8) -> Replayed {
        for _ in 0..80 {
            let applied = self.processes[process].machine.position().map(|(_, applied)| applied);
            match applied {
                Some(applied) if applied > u64::from(number) => return self.ask_again(process, number),
                Some(_) => self.turn(process),
                None => return Replayed::Elsewhere,
            }
        }
        Replayed::Elsewhere
    }

    /// In the model whoever waits is told once an entry is applied; here its client may have asked an owner that is gone.
    fn ask_again(&mut self, process: usize, number: u8) -> Replayed {
        let Some(entry) = self.ghost.committed.get(usize::from(number)) else { return Replayed::Elsewhere };
        let operation = OPERATIONS[usize::from(entry.operation_id[15]) - 1];
        if self.told[operation as usize] == Told::Nothing {
            self.submit(process, operation);
            return self.told(process, operation);
        }
        Replayed::Done
    }

    fn land(&mut self, flight: Flight) -> Replayed {
        let at = |store: u8| STORES[usize::from(store)];
        let fits = |(store, request): &(String, Request)| match (flight, request) {
            (Flight::Append { to, last, .. }, Request::Append(append)) => {
                store == at(to.0) && is_segment(append.segment, to.1) && append.last == u64::from(last) + 1
            }
            (Flight::Ship { to, last, .. }, Request::Append(append)) => {
                store == at(to.0) && append.last == u64::from(last) + 1
            }
            (Flight::Head { new, .. }, Request::CasHead(change)) => {
                let appender = new.appender.map(|process| format!("p{process}")).unwrap_or_default();
                let same = |head: &Head| (head.term, &head.appender) == (u64::from(new.term), &appender);
                change.new.as_ref().is_some_and(same)
            }
            (Flight::Write { store: to, .. }, Request::Write(_)) => store == at(to),
            _ => false,
        };
        let Some(index) = self.late.iter().position(fits) else { return Replayed::Elsewhere };
        let request = self.late.remove(index);
        drop(self.execute(request));
        Replayed::Done
    }
}
