//! Read states: what a user's clients have read goes into the user's log and is told its sessions here. One writer per user: what comes
//! while it writes, or just after, goes together in the next write, so a storm of acknowledgements costs few entries. Nobody is answered
//! before what it said, or something further on, is committed. Sessions on other gateways learn it at their next READY.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{ReadState, ReadStatesAdvanced, ReadStatesQuery, Reason, query_reply};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::calls::{COMMAND_TIMEOUT, CallError, Deadline};
use crate::gateway::Gateway;
use crate::rest::commands::{kind_of, stamp};
use crate::wire::event::Event;

/// Users whose read states are written at once; more are refused.
const MAX_WRITERS: usize = 20_000;
/// Channels of one write.
const MAX_STATES: usize = 100;
/// The least time between two writes for one user.
const PAUSE: Duration = Duration::from_millis(250);
/// Users told apart where it is counted whom sessions were told about; others with the same number only cost a read more.
const TOLD_APART: usize = 1024;
/// Pages of a user's read states that READY carries, a thousand channels each.
const MAX_PAGES: usize = 10;

type Outcome = Result<(), CallError>;
type Told = Shared<BoxFuture<'static, Outcome>>;

/// What goes together.
struct Batch {
    /// The furthest message by channel.
    states: BTreeMap<i64, i64>,
    tell: oneshot::Sender<Outcome>,
    told: Told,
}

impl Batch {
    fn new() -> Self {
        let (tell, told) = oneshot::channel();
        let told = told.map(|told| told.unwrap_or(Err(CallError::OutcomeUnknown))).boxed().shared();
        Self { states: BTreeMap::new(), tell, told }
    }
}

/// Who has a writer, and what it writes next. Pure.
#[derive(Default)]
pub struct Writers(HashMap<i64, Option<Batch>>);

impl Writers {
    /// Adds to what is written next; says whether the user needs a writer.
    fn join(&mut self, user_id: i64, state: ReadState) -> Result<(Told, bool), CallError> {
        let needs_writer = !self.0.contains_key(&user_id);
        if needs_writer && self.0.len() >= MAX_WRITERS {
            return Err(CallError::TooManyHeld);
        }
        let batch = self.0.entry(user_id).or_default().get_or_insert_with(Batch::new);
        if batch.states.len() >= MAX_STATES && !batch.states.contains_key(&state.channel_id) {
            return Err(CallError::TooManyHeld);
        }
        let last = batch.states.entry(state.channel_id).or_default();
        *last = (*last).max(state.last_message_id);
        Ok((batch.told.clone(), needs_writer))
    }

    /// What a user's writer writes now; none when it has nothing to do and is gone.
    fn take(&mut self, user_id: i64) -> Option<Batch> {
        let next = self.0.get_mut(&user_id)?.take();
        if next.is_none() {
            self.0.remove(&user_id);
        }
        next
    }
}

/// Removes a user's writer that ended without having taken its leave: it panicked, or its task was dropped.
struct Leaves<'a> {
    writers: &'a Mutex<Writers>,
    user_id: i64,
    has_left: bool,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            // What waits for it learns that nobody knows.
            drop(self.writers.lock().0.remove(&self.user_id));
        }
    }
}

/// How often sessions were told that a user has read something. Pure.
pub struct AcksTold(Vec<u64>);

impl Default for AcksTold {
    fn default() -> Self {
        Self(vec![0; TOLD_APART])
    }
}

impl AcksTold {
    fn place(user_id: i64) -> usize {
        usize::try_from(user_id.rem_euclid(TOLD_APART as i64)).unwrap_or(0)
    }

    /// A number that rises when a session of this user is told something; others may make it rise too.
    pub fn of(&self, user_id: i64) -> u64 {
        self.0.get(Self::place(user_id)).copied().unwrap_or(0)
    }

    fn rise(&mut self, user_id: i64) {
        self.0.iter_mut().skip(Self::place(user_id)).take(1).for_each(|count| *count += 1);
    }
}

/// One read state as READY has it. Mentions are not counted, so there is no count of them.
fn entry(state: &ReadState) -> Value {
    json!({ "id": state.channel_id.to_string(), "last_message_id": state.last_message_id.to_string() })
}

impl Gateway {
    /// The user has read a channel up to a message. Answers once that, or something further on, is committed.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn advance_read_state(
        self: &Arc<Self>,
        user_id: i64,
        state: ReadState,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let (told, needs_writer) = self.read_states.lock().join(user_id, state)?;
        self.metrics.acks.inc();
        if needs_writer {
            tokio::spawn(self.clone().write_read_states(user_id));
        }
        tokio::time::timeout_at(deadline.at, told).await.unwrap_or(Err(CallError::OutcomeUnknown))
    }

    async fn write_read_states(self: Arc<Self>, user_id: i64) {
        let mut leaves = Leaves { writers: &self.read_states, user_id, has_left: false };
        loop {
            let Some(batch) = self.read_states.lock().take(user_id) else {
                leaves.has_left = true;
                return;
            };
            self.metrics.ack_writes.inc();
            let outcome = self.write_batch(user_id, &batch.states).await;
            // Whoever waited may have gone away.
            drop(batch.tell.send(outcome));
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn write_batch(&self, user_id: i64, states: &BTreeMap<i64, i64>) -> Outcome {
        let states = states.iter().map(|(channel, last)| ReadState { channel_id: *channel, last_message_id: *last });
        let change = Kind::ReadStatesAdvanced(ReadStatesAdvanced { user_id, states: states.collect() });
        let command = stamp(user_id, change, Deadline::after(COMMAND_TIMEOUT));
        let committed = match self.calls.submit(Unit::bucket(user_id).log(), &command).await {
            Ok(committed) => committed,
            // All of it was read before, as another client of the same user said.
            Err(CallError::Refused(refusal)) if refusal.why() == Reason::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        };
        let version = committed.position.as_ref().map_or(0, |position| position.number);
        if let Some((Kind::ReadStatesAdvanced(advanced), _)) = kind_of(committed) {
            // A session is either added before and told, or sees that the number has risen.
            let mut told = self.acks_told.lock();
            told.rise(user_id);
            advanced.states.iter().for_each(|state| self.tell_acknowledged(user_id, state, version));
        }
        Ok(())
    }

    /// Bots have no read states.
    fn tell_acknowledged(&self, user_id: i64, state: &ReadState, version: u64) {
        let body = json!({
            "channel_id": state.channel_id.to_string(),
            "message_id": state.last_message_id.to_string(),
            "version": version,
        });
        let event = Event::new("MESSAGE_ACK", &body);
        for slot in self.registry.of_user(user_id).iter().filter(|slot| !slot.bot) {
            slot.push(event.clone());
        }
    }

    /// The user's read states as READY carries them; none when they could not be read, which is no reason to refuse a session.
    pub(crate) async fn read_state_entries(&self, user_id: i64, deadline: Deadline) -> Option<Value> {
        let (mut entries, mut after_channel_id) = (Vec::new(), 0);
        for _ in 0..MAX_PAGES {
            let query = Query::ReadStates(ReadStatesQuery { user_id, after_channel_id });
            let page = match self.calls.query(Unit::bucket(user_id).log(), query, deadline).await {
                Ok(reply) => match reply.answer {
                    Some(query_reply::Answer::ReadStates(page)) => page,
                    _ => return None,
                },
                Err(error) => {
                    tracing::debug!(user_id, %error, "a user's read states were not read");
                    return None;
                }
            };
            entries.extend(page.states.iter().map(entry));
            match page.states.last().filter(|_| page.more) {
                Some(last) => after_channel_id = last.channel_id,
                None => return Some(Value::Array(entries)),
            }
        }
        self.metrics.cut_read_states.inc();
        Some(Value::Array(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(channel_id: i64, last_message_id: i64) -> ReadState {
        ReadState { channel_id, last_message_id }
    }

    #[tokio::test]
    async fn what_comes_while_a_user_is_written_goes_together_and_keeps_the_furthest() {
        let mut writers = Writers::default();
        let (first, needs_writer) = writers.join(7, state(1, 10)).unwrap();
        assert!(needs_writer);
        let batch = writers.take(7).unwrap();
        let mut later = Vec::new();
        for message in [12, 11, 13, 9] {
            let (told, needs_writer) = writers.join(7, state(1, message)).unwrap();
            assert!(!needs_writer, "one writer per user");
            later.push(told);
        }
        drop(writers.join(7, state(2, 5)).unwrap());
        batch.tell.send(Ok(())).unwrap();
        assert_eq!(first.await, Ok(()));
        let next = writers.take(7).unwrap();
        assert_eq!(next.states, [(1, 13), (2, 5)].into());
        next.tell.send(Err(CallError::TooManyHeld)).unwrap();
        for told in later {
            assert_eq!(told.await, Err(CallError::TooManyHeld));
        }
        assert!(writers.take(7).is_none());
        assert!(writers.join(7, state(1, 14)).unwrap().1, "its writer has gone");
    }

    #[tokio::test]
    async fn a_writer_that_panics_is_gone_and_one_that_has_left_does_not_take_the_next_with_it() {
        let writers = Mutex::new(Writers::default());
        let leaves = |has_left| Leaves { writers: &writers, user_id: 7, has_left };
        let (first, _) = writers.lock().join(7, state(1, 1)).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _leaves = leaves(false);
            let _batch = writers.lock().take(7);
            panic!("as planned");
        }));
        assert!(panicked.is_err());
        assert_eq!(first.await, Err(CallError::OutcomeUnknown));
        let (second, needs_writer) = writers.lock().join(7, state(1, 2)).unwrap();
        assert!(needs_writer, "nobody writes for this user");
        drop(leaves(true));
        assert!(!writers.lock().join(7, state(1, 3)).unwrap().1, "the next writer's place was taken away");
        drop(leaves(false));
        assert_eq!(second.await, Err(CallError::OutcomeUnknown), "whoever came meanwhile is told too");
    }

    #[tokio::test]
    async fn a_writer_that_dies_leaves_the_outcome_unknown_and_bounds_hold() {
        let mut writers = Writers::default();
        let (told, _) = writers.join(7, state(1, 1)).unwrap();
        drop(writers.take(7));
        assert_eq!(told.await, Err(CallError::OutcomeUnknown));
        for channel in 0..MAX_STATES as i64 {
            drop(writers.join(8, state(channel, 1)).unwrap());
        }
        assert!(writers.join(8, state(0, 2)).is_ok());
        assert_eq!(writers.join(8, state(-1, 1)).err(), Some(CallError::TooManyHeld));
        for user in 0..MAX_WRITERS as i64 {
            drop(writers.join(1000 + user, state(1, 1)));
        }
        assert_eq!(writers.join(-1, state(1, 1)).err(), Some(CallError::TooManyHeld));
        assert!(writers.0.len() <= MAX_WRITERS);
    }
}
