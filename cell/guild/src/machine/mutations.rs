//! Structural changes: queued, judged one after the other against the state they will meet, sent to the data owner, answered. Joins go side by
//! side; every other change waits until those before it are back on the feed, so that it is judged by what the log holds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cell_proto::v1::change::Kind;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Committed, Entry, GuildEvent, MutateRequest, Reason, Refusal, SubmitReply, SubmitRequest,
};

use super::GuildActor;
use super::input::{Effect, Now, Reply, Ticket, Whereto};
use super::judge::{Judging, judge};
use super::members::user_id_of;

/// Callers that wait for one change; further ones ask again.
const WAITERS_LIMIT: usize = 64;
/// How long after a claim retries of what the owner before did may come, in milliseconds: longer than any caller's deadline.
const RETRIES_MS: u64 = 60_000;

/// Changes on their way, and the answers kept for retries.
#[derive(Debug, Default)]
pub(super) struct Mutations {
    queue: VecDeque<(Ticket, MutateRequest)>,
    in_flight: BTreeMap<Ticket, InFlight>,
    /// Refused by judgement, while the data owner is asked whether an earlier try did it: who waits, and the refusal.
    doubted: BTreeMap<Ticket, (Ticket, Refusal)>,
    /// Sequence numbers in the ring by operation id, oldest first in `order`.
    remembered: BTreeMap<Vec<u8>, u64>,
    order: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct InFlight {
    operation_id: Vec<u8>,
    waiters: Vec<Ticket>,
    /// The user and the invite, when it is a join.
    join: Option<(i64, String)>,
    /// Committed since, but not back on the feed yet.
    committed_at_ms: Option<u64>,
}

impl Mutations {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty() && self.doubted.is_empty()
    }

    fn joining(&self) -> Vec<(i64, String)> {
        self.in_flight.values().filter_map(|in_flight| in_flight.join.clone()).collect()
    }

    fn may_start(&self, join: bool, limit: usize) -> bool {
        if join {
            self.in_flight.len() < limit && self.in_flight.values().all(|other| other.join.is_some())
        } else {
            self.in_flight.is_empty()
        }
    }

    fn remember(&mut self, operation_id: &[u8], sequence: u64, limit: usize) {
        if operation_id.is_empty() || self.remembered.insert(operation_id.to_vec(), sequence).is_some() {
            return;
        }
        self.order.push_back(operation_id.to_vec());
        while self.order.len() > limit {
            if let Some(oldest) = self.order.pop_front() {
                self.remembered.remove(&oldest);
            }
        }
    }
}

impl GuildActor {
    pub(super) fn mutate(&mut self, ticket: Ticket, request: MutateRequest, now: Now) {
        self.last_used_ms = now.mono_ms;
        if !self.is_owner() && !self.wanted {
            return self.refuse(ticket, self.not_owner(None));
        }
        if request.operation_id.len() != 16 {
            let refusal = Refusal::new(Reason::Invalid, "operation_id is not 16 bytes");
            return self.refuse(ticket, refusal);
        }
        if let Some(in_flight) =
            self.mutations.in_flight.values_mut().find(|other| other.operation_id == request.operation_id)
            && in_flight.committed_at_ms.is_none()
        {
            if in_flight.waiters.len() >= WAITERS_LIMIT {
                return self.refuse(ticket, unknown());
            }
            return in_flight.waiters.push(ticket);
        }
        if self.mutations.queue.len() >= self.limits.queued_mutations {
            self.counters.overflowed_mutations += 1;
            let refusal = Refusal::new(Reason::Overloaded, "too many changes of this guild are waiting; retry later");
            return self.refuse(ticket, refusal.retry_after_ms(100));
        }
        self.mutations.queue.push_back((ticket, request));
        self.pump_mutations(now);
    }

    /// Starts what may start.
    pub(super) fn pump_mutations(&mut self, now: Now) {
        if !self.is_serving() {
            return;
        }
        while let Some((_, request)) = self.mutations.queue.front() {
            let join = join_of(request.change.as_ref());
            if !self.mutations.may_start(join.is_some(), self.limits.mutations_in_flight) {
                return;
            }
            let Some((ticket, request)) = self.mutations.queue.pop_front() else { return };
            self.start_mutation(ticket, request, join, now);
        }
    }

    fn start_mutation(&mut self, ticket: Ticket, request: MutateRequest, join: Option<(i64, String)>, now: Now) {
        if let Some(committed) = self.remembered(&request.operation_id) {
            return self.answer(ticket, Outcome::Committed(committed));
        }
        if request.deadline_unix_ms <= now.unix_ms {
            let refusal = Refusal::new(Reason::DeadlinePassed, "deadline_unix_ms has passed");
            return self.refuse(ticket, refusal);
        }
        let joining = self.mutations.joining();
        let judging = Judging {
            view: &self.view,
            actor_id: request.actor_id,
            now_ms: now.unix_ms,
            member_limit: self.limits.members,
            joining: &joining,
        };
        let asked = request.change.unwrap_or_default();
        let change = match judge(&judging, &asked) {
            Ok(change) => change,
            Err(refusal) => {
                let request = MutateRequest { change: Some(asked), ..request };
                return self.refuse_or_doubt(ticket, request, refusal, now);
            }
        };
        let submit = SubmitRequest {
            log: self.log.clone(),
            operation_id: request.operation_id.clone(),
            deadline_unix_ms: request.deadline_unix_ms,
            actor_id: request.actor_id,
            // Joins change no permission and need none, so they do not wait for the latest policy.
            policy_version: if join.is_some() { 0 } else { self.view.guild.policy_version },
            guild_term: self.held_guild_term().unwrap_or_default(),
            term: self.term,
            change: Some(change),
        };
        let number = self.ticket();
        let operation_id = request.operation_id;
        let in_flight = InFlight { operation_id, waiters: vec![ticket], join, committed_at_ms: None };
        self.mutations.in_flight.insert(number, in_flight);
        self.out.push(Effect::Submit { ticket: number, request: Box::new(submit) });
    }

    /// A retry may be refused because its first try was done, by the owner before: what that one committed last is not remembered here. The
    /// data owner remembers. Asked with a deadline that has passed, it answers what was done and does nothing new.
    fn refuse_or_doubt(&mut self, ticket: Ticket, request: MutateRequest, refusal: Refusal, now: Now) {
        let inherited = self.held_guild_term().is_some_and(|held| held > 1);
        if !inherited || now.mono_ms.saturating_sub(self.owned_ms) >= RETRIES_MS {
            return self.refuse(ticket, refusal);
        }
        if self.mutations.doubted.len() >= self.limits.mutations_in_flight {
            return self.refuse(ticket, unknown());
        }
        let probe = SubmitRequest {
            log: self.log.clone(),
            operation_id: request.operation_id,
            deadline_unix_ms: 1,
            actor_id: request.actor_id,
            change: request.change,
            ..SubmitRequest::default()
        };
        let number = self.ticket();
        self.mutations.doubted.insert(number, (ticket, refusal));
        self.out.push(Effect::Submit { ticket: number, request: Box::new(probe) });
    }

    fn doubt_settled(&mut self, (ticket, refusal): (Ticket, Refusal), outcome: SubmitReply) {
        match outcome.outcome {
            Some(Outcome::Committed(committed)) => {
                self.answer(ticket, Outcome::Committed(Committed { duplicate: true, ..committed }));
            }
            Some(Outcome::Refusal(answer)) if !answer.why().is_retryable() => self.refuse(ticket, refusal),
            _ => self.refuse(ticket, unknown()),
        }
    }

    fn remembered(&self, operation_id: &[u8]) -> Option<Committed> {
        let event = self.ring.get(*self.mutations.remembered.get(operation_id)?)?;
        let entry = event.entry.clone().filter(|entry| entry.operation_id == operation_id)?;
        Some(Committed { position: event.position.clone(), entry: Some(entry), duplicate: true, term: self.term })
    }

    pub(super) fn submitted(&mut self, number: Ticket, outcome: SubmitReply, now: Now) {
        if let Some(doubted) = self.mutations.doubted.remove(&number) {
            return self.doubt_settled(doubted, outcome);
        }
        let Some(mut in_flight) = self.mutations.in_flight.remove(&number) else { return };
        let waiters = std::mem::take(&mut in_flight.waiters);
        let outcome = outcome.outcome.unwrap_or_else(|| {
            Outcome::Refusal(Refusal::new(Reason::UnknownOutcome, "the data owner's answer is empty; retry"))
        });
        if let Outcome::Committed(committed) = &outcome
            && !self.has(committed.entry.as_ref())
        {
            // Those behind it are judged once it is back on the feed.
            in_flight.committed_at_ms = Some(now.mono_ms);
            self.mutations.in_flight.insert(number, in_flight);
        }
        let stale = matches!(&outcome, Outcome::Refusal(refusal) if refusal.why() == Reason::StaleGuildTerm);
        for ticket in waiters {
            self.answer(ticket, outcome.clone());
        }
        if stale && self.is_owner() {
            // The log knows a higher claim. Whoever made it is found by reading anew.
            self.counters.stale_guild_terms += 1;
            self.step_back(Whereto::Unknown);
            self.start_load();
        }
        self.pump_mutations(now);
    }

    fn has(&self, entry: Option<&Entry>) -> bool {
        entry.is_some_and(|entry| self.mutations.remembered.contains_key(&entry.operation_id))
    }

    /// An entry was applied: whoever waits for it goes on, and its answer is kept for retries.
    pub(super) fn echoed(&mut self, event: &Arc<GuildEvent>, sequence: u64) {
        let Some(entry) = event.entry.as_ref().filter(|entry| is_structural(entry)) else { return };
        self.mutations.remember(&entry.operation_id, sequence, self.limits.remembered_operations);
        self.mutations
            .in_flight
            .retain(|_, other| other.committed_at_ms.is_none() || other.operation_id != entry.operation_id);
    }

    pub(super) fn refuse_mutations(&mut self, refusal: &Refusal) {
        for (ticket, _) in std::mem::take(&mut self.mutations.queue) {
            self.refuse(ticket, refusal.clone());
        }
    }

    pub(super) fn expire_mutations(&mut self, now: Now) {
        let (expired, waiting): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.mutations.queue)
            .into_iter()
            .partition(|(_, request)| request.deadline_unix_ms <= now.unix_ms);
        self.mutations.queue = waiting;
        for (ticket, _) in expired {
            self.refuse(ticket, Refusal::new(Reason::DeadlinePassed, "deadline_unix_ms has passed"));
        }
        let before = self.mutations.in_flight.len();
        let overdue = |since_ms: u64| now.mono_ms.saturating_sub(since_ms) >= self.limits.echo_ms;
        self.mutations.in_flight.retain(|_, other| !other.committed_at_ms.is_some_and(overdue));
        if self.mutations.in_flight.len() < before && self.is_loaded() {
            self.counters.gaps += 1;
            self.start_load();
        }
    }

    fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.counters.refused_mutations += 1;
        self.answer(ticket, Outcome::Refusal(refusal));
    }

    fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        self.reply(ticket, Reply::Mutate(Box::new(SubmitReply { outcome: Some(outcome) })));
    }
}

fn unknown() -> Refusal {
    let message = "whether an earlier try was done is not known; retry with the same operation id";
    Refusal::new(Reason::UnknownOutcome, message).retry_after_ms(50)
}

fn join_of(change: Option<&Change>) -> Option<(i64, String)> {
    match change?.kind.as_ref()? {
        Kind::MemberPut(put) if put.joined => Some((user_id_of(put.member.as_ref()?), put.invite_code.clone())),
        _ => None,
    }
}

fn is_structural(entry: &Entry) -> bool {
    let kind = entry.change.as_ref().and_then(|change| change.kind.as_ref());
    !matches!(
        kind,
        None | Some(
            Kind::MessageCreated(_) | Kind::MessageEdited(_) | Kind::MessageDeleted(_) | Kind::MessagesDeleted(_)
        )
    )
}
