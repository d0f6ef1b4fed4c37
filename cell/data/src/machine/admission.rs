//! Which commands come in, and how those that wait are answered (LOG.md rules 8 and 9).

use cell_proto::v1::{Reason, Refusal};
use cell_store::StoreError;
use prost::Message as _;

use super::types::{Command, Effect, OperationId, Outcome, Pending, Ticket};
use super::{Admission, LogMachine, State};
use crate::domain;

/// What a caller is told to wait when admission is closed, in milliseconds.
const WAIT_MS: u32 = 20;
/// And when the store's volume is full: somebody must make room first.
const FULL_MS: u32 = 30_000;

impl LogMachine {
    pub(super) fn submit(&mut self, ticket: Ticket, command: Command) {
        if let Err(refusal) = domain::check_place(self.me.unit, &command.change) {
            return self.tell(ticket, Err(refusal));
        }
        if let Some(pending) = self.pending.get_mut(&command.operation_id) {
            if pending.tickets.len() >= self.limits.waiters {
                // It may be proposed by now, so nobody is told that it is not done.
                return self.tell(ticket, Err(unknown()));
            }
            pending.tickets.push(ticket);
            return;
        }
        if let Err(refusal) = self.admit(&command) {
            return self.tell(ticket, Err(refusal));
        }
        let operation_id = command.operation_id;
        let bytes = command.change.encoded_len() + 64;
        let proposed = self.uncertain.contains(&operation_id);
        self.expiry_at_us = self.expiry_at_us.min(command.deadline_ms.saturating_mul(1000));
        let pending =
            Pending { command, tickets: vec![ticket], proposed, queued: true, bytes, arrived_us: self.now_us };
        self.pending.insert(operation_id, pending);
        self.queue.push_back(operation_id);
    }

    fn admit(&self, command: &Command) -> Result<(), Refusal> {
        match &self.state {
            State::Released => return Err(self.not_owner(None)),
            State::Claiming(_) => {}
            State::Owner(owner) => {
                if command.term != 0 && command.term < owner.head.term {
                    let message = format!("the sender's term is {}, the head's {}", command.term, owner.head.term);
                    let route = self.not_owner(Some(&owner.head)).route;
                    return Err(Refusal { route, ..Refusal::new(Reason::StaleTerm, message) });
                }
                // Answered from the window, whatever its deadline: the first attempt was in time.
                if self.window.get(&command.operation_id).is_none() {
                    self.check_deadline(command)?;
                }
            }
        }
        if self.pending.len() >= self.limits.queue {
            let message = format!("{} commands wait for {}", self.pending.len(), self.me.log);
            return Err(Refusal::new(Reason::Overloaded, message).retry_after_ms(100));
        }
        if self.window.len() >= self.limits.window_operations && self.window.get(&command.operation_id).is_none() {
            let message =
                format!("{} operations of the last minutes are remembered of {}", self.window.len(), self.me.log);
            return Err(Refusal::new(Reason::Overloaded, message).retry_after_ms(1000));
        }
        match &self.admission {
            Admission::Open => Ok(()),
            Admission::Closed { .. } => {
                Err(Refusal::new(Reason::Wait, "the log is being handed over").retry_after_ms(WAIT_MS))
            }
        }
    }

    /// Rule 9, by this owner's monotone clock.
    pub(super) fn check_deadline(&self, command: &Command) -> Result<(), Refusal> {
        if !self.rules.deadlines {
            return Ok(());
        }
        let now_ms = self.now_us / 1000;
        if command.deadline_ms <= now_ms {
            let doubted = self.uncertain.contains(&command.operation_id)
                || self.pending.get(&command.operation_id).is_some_and(|pending| pending.proposed);
            return Err(if doubted && self.rules.never_refuse_proposed {
                unknown()
            } else {
                Refusal::new(Reason::DeadlinePassed, "the command's deadline has passed; send a new command")
            });
        }
        let most_ms = now_ms.saturating_add(self.limits.window_us / 2000);
        if command.deadline_ms > most_ms {
            return Err(Refusal::new(
                Reason::DeadlineTooFar,
                format!("deadline_unix_ms may be at most {} ms ahead", self.limits.window_us / 2000),
            ));
        }
        Ok(())
    }

    /// Answers what has waited past its deadline.
    pub(super) fn expire(&mut self) {
        if !self.rules.deadlines || self.now_us < self.expiry_at_us {
            return;
        }
        self.expire_late();
        // What is past due and kept waits for its turn, not for the clock.
        let deadlines = self.pending.values().map(|pending| pending.command.deadline_ms.saturating_mul(1000));
        self.expiry_at_us = deadlines.filter(|at| *at > self.now_us).min().unwrap_or(i64::MAX);
    }

    fn expire_late(&mut self) {
        let now_ms = self.now_us / 1000;
        let late = |(id, pending): (&OperationId, &Pending)| (pending.command.deadline_ms <= now_ms).then_some(*id);
        let late: Vec<OperationId> = self.pending.iter().filter_map(late).collect();
        if late.is_empty() {
            return;
        }
        let in_flight = |id: &OperationId| self.pending.get(id).is_some_and(|pending| !pending.queued);
        let (flying, waiting): (Vec<_>, Vec<_>) = late.into_iter().partition(in_flight);
        for operation_id in flying {
            // It stays known as in flight; only its callers stop waiting.
            let tickets = match self.pending.get_mut(&operation_id) {
                Some(pending) => std::mem::take(&mut pending.tickets),
                None => Vec::new(),
            };
            tickets.into_iter().for_each(|ticket| self.tell(ticket, Err(unknown())));
        }
        for operation_id in waiting {
            if matches!(self.state, State::Claiming(_)) {
                // An earlier owner may have committed it: the log is not read yet.
                self.settle_pending(&operation_id, &Err(unknown()));
            } else if self.window.get(&operation_id).is_none() {
                let passed = "the command's deadline has passed; send a new command";
                self.refuse(operation_id, Refusal::new(Reason::DeadlinePassed, passed));
            }
        }
    }

    pub(super) fn tell(&mut self, ticket: Ticket, outcome: Outcome) {
        self.effects.push(Effect::Answer { ticket, outcome });
    }

    /// Answers everyone who waits for an operation.
    pub(super) fn settle_pending(&mut self, operation_id: &OperationId, outcome: &Outcome) {
        if let Some(pending) = self.pending.remove(operation_id) {
            // Once answered it must not be judged again, were it still waiting for its turn.
            if pending.queued {
                self.queue.retain(|waiting| waiting != operation_id);
            }
            pending.tickets.into_iter().for_each(|ticket| self.tell(ticket, outcome.clone()));
        }
    }

    /// Refuses what waits for its turn: the volume is full, and whoever waits would learn it only from its deadline.
    pub(super) fn refuse_waiting(&mut self, refusal: &Refusal) {
        let waiting: Vec<OperationId> = self.queue.iter().filter(|id| self.window.get(id).is_none()).copied().collect();
        waiting.into_iter().for_each(|operation_id| self.refuse(operation_id, refusal.clone()));
    }

    /// Refuses an operation — unless it was proposed: then nobody knows (rule 8).
    pub(super) fn refuse(&mut self, operation_id: OperationId, refusal: Refusal) {
        let proposed = self.pending.get(&operation_id).is_some_and(|pending| pending.proposed);
        let refusal = if proposed && self.rules.never_refuse_proposed { unknown() } else { refusal };
        self.settle_pending(&operation_id, &Err(refusal));
    }
}

/// What a store's failure, after which nothing was done, means for a caller.
pub(crate) fn refused_by(error: &StoreError) -> Refusal {
    match error {
        StoreError::Full { .. } => Refusal::new(Reason::StoreFull, error.to_string()).retry_after_ms(FULL_MS),
        _ => Refusal::new(Reason::StoreUnavailable, error.to_string()).retry_after_ms(200),
    }
}

/// The answer for what was proposed and not seen committed.
pub(super) fn unknown() -> Refusal {
    Refusal::new(Reason::UnknownOutcome, "the outcome is not known; retry with the same operation id")
        .retry_after_ms(50)
}
