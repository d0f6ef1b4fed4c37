//! The clients of a simulation: operations that create, edit and delete messages, one or several at once, each kept until it is acknowledged or refused.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, Message, MessageCreated, MessageDeleted, MessageEdited, MessagesDeleted, Reason, User};
use rand::Rng;
use rand::rngs::StdRng;

use super::super::types::{Command, OperationId};

pub(super) const AUTHOR: i64 = 7;
pub(super) const GUILD: i64 = 81_384_788_765_712_384;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Not acknowledged; may be sent again.
    Open,
    Acknowledged,
    /// Refused for good, by what the data says.
    Refused,
    /// Its deadline passed, or was too far.
    Given,
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) command: Command,
    pub(super) state: State,
    /// The message it made, edits or deletes.
    pub(super) message_id: i64,
    pub(super) deletes: bool,
    /// What it deletes at once.
    pub(super) bulk: Vec<i64>,
    pub(super) sent: bool,
}

#[derive(Default)]
pub(super) struct Clients {
    pub(super) operations: Vec<Operation>,
    pub(super) channel_id: i64,
}

pub(super) fn id_of(number: u64) -> OperationId {
    let mut id = [0; 16];
    id[8..].copy_from_slice(&number.to_be_bytes());
    id
}

pub(super) fn command(number: u64, deadline_ms: i64, kind: Kind) -> Command {
    Command {
        operation_id: id_of(number),
        deadline_ms,
        actor_id: AUTHOR,
        policy_version: 0,
        guild_term: 0,
        term: 0,
        change: Change { kind: Some(kind) },
        inheritance: None,
    }
}

impl Clients {
    /// A new operation: more often a change of an old message than one of its own.
    pub(super) fn create(&mut self, rng: &mut StdRng, deadline_ms: i64, bulk_of_1000: u32) -> usize {
        let known: Vec<i64> = self
            .operations
            .iter()
            .filter(|operation| operation.state == State::Acknowledged && !operation.deletes)
            .map(|operation| operation.message_id)
            .filter(|id| *id != 0)
            .collect();
        let number = self.operations.len() as u64 + 1;
        let (channel_id, guild_id) = (self.channel_id, GUILD);
        if bulk_of_1000 > 0 && known.len() >= 3 && rng.random_range(0..1000) < bulk_of_1000 {
            let bulk = bulk_of(&known, rng);
            let message_ids = bulk.clone();
            let kind =
                Kind::MessagesDeleted(MessagesDeleted { guild_id, channel_id, message_ids, ..Default::default() });
            return self.push(command(number, deadline_ms, kind), 0, true, bulk);
        }
        let recent = &known[known.len().saturating_sub(3)..];
        let target =
            if recent.is_empty() || rng.random_bool(0.4) { 0 } else { recent[rng.random_range(0..recent.len())] };
        let deletes = target != 0 && rng.random_bool(0.3);
        let kind = if deletes {
            Kind::MessageDeleted(MessageDeleted { guild_id, channel_id, message_id: target })
        } else if target != 0 {
            let content = format!("edit {number}");
            Kind::MessageEdited(MessageEdited {
                guild_id,
                channel_id,
                message_id: target,
                content,
                ..MessageEdited::default()
            })
        } else {
            let author = Some(User { id: AUTHOR, name: "ann".into(), ..User::default() });
            let content = format!("message {number}");
            let message = Message { guild_id, channel_id, author, content, ..Message::default() };
            Kind::MessageCreated(MessageCreated { message: Some(message) })
        };
        self.push(command(number, deadline_ms, kind), target, deletes, Vec::new())
    }

    fn push(&mut self, command: Command, message_id: i64, deletes: bool, bulk: Vec<i64>) -> usize {
        self.operations.push(Operation { command, state: State::Open, message_id, deletes, bulk, sent: false });
        self.operations.len() - 1
    }

    /// Whether a refusal of "no such message" contradicts what clients know: nobody ever tried to delete it.
    pub(super) fn is_wrong(&self, index: usize, reason: Reason) -> bool {
        let message_id = self.operations[index].message_id;
        let names = |operation: &Operation| operation.message_id == message_id || operation.bulk.contains(&message_id);
        let tried = |operation: &Operation| message_id != 0 && operation.deletes && operation.sent && names(operation);
        let others = self.operations.iter().enumerate().any(|(other, operation)| other != index && tried(operation));
        reason == Reason::NotFound && !others
    }
}

/// Some of the latest messages, and sometimes one that never was.
fn bulk_of(known: &[i64], rng: &mut StdRng) -> Vec<i64> {
    let recent = &known[known.len().saturating_sub(6)..];
    let mut bulk: Vec<i64> = recent.iter().filter(|_| rng.random_bool(0.6)).copied().collect();
    if bulk.len() < 2 || rng.random_bool(0.2) {
        bulk = vec![recent[0], recent[1], recent[1] + 1];
    }
    bulk.sort_unstable();
    bulk.dedup();
    bulk
}
