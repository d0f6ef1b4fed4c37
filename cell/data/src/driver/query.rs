//! Reads. Identical ones in flight share one query, whose key holds every argument and the log's last number, so that authors read
//! their own writes. A caller that goes away cancels nothing; a failed query fails those who wait for it once and is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    Channel, QueryReply, QueryRequest, ReadRowsRequest, ReadStates, ReadStatesQuery, Reason, Refusal, Row, User,
    UserGuilds,
};
use cell_store::Store;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::empty::EmptyBuckets;
use super::guild::cells_of;
use super::handle::LogHandle;
use super::logs::{Logs, unavailable};
use super::metrics::Metrics;
use super::shadow::Shadow;
use crate::domain::tables::{
    self, BODY, CHANNEL_GUILD, GUILD_OBJECTS, READ_STATES, USER_GUILDS, USERS, id_key, kind, object_key,
};
use crate::domain::{self, invite_of, other_log, read_state_of};

/// Distinct queries reading the store at once; others wait their turn.
const PARALLEL: usize = 256;
/// Distinct queries of one lane of channels or guilds: one that is read by many must not starve the others.
const PARALLEL_OF_ONE: usize = 16;
/// Bytes that answers being read may take, in KiB; a query takes its share before it reads.
const ANSWERS_KIB: u32 = 128 * 1024;
/// The largest message as a row, in KiB, with room to spare.
const MESSAGE_KIB: u32 = 16;
/// Channels and guilds share this many lanes.
const LANES: usize = 256;
/// Distinct queries waiting or reading; more are refused at once.
const MAX_FLIGHTS: usize = 8192;
/// The longest such wait.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a read may wait until what its caller knows already is applied.
const NEWS_PATIENCE: Duration = Duration::from_secs(1);
/// Most guilds of one user.
const MAX_USER_GUILDS: usize = 1000;
/// Read states of one answer.
const READ_STATES_PAGE: i32 = 1000;

type Key = (Arc<str>, u64, Vec<u8>);
type Flight = Shared<BoxFuture<'static, Result<Answer, Refusal>>>;

/// The queries in flight.
pub(super) struct Queries {
    shadow: Arc<Shadow>,
    flights: Mutex<HashMap<Key, Flight>>,
    permits: Arc<Semaphore>,
    /// KiB of answers being read.
    room: Semaphore,
    lanes: Vec<Semaphore>,
    empty: EmptyBuckets,
}

/// What an answer may take, in KiB: at most a page of the largest messages.
fn share_of(query: &Query) -> u32 {
    match query {
        Query::MessagePage(page) => u32::try_from(page.limit.clamp(1, 100)).unwrap_or(100) * MESSAGE_KIB,
        _ => MESSAGE_KIB,
    }
}

impl Queries {
    pub(super) fn new(shadow: Arc<Shadow>, metrics: &Metrics) -> Self {
        Self {
            shadow,
            flights: Mutex::default(),
            permits: Arc::new(Semaphore::new(PARALLEL)),
            room: Semaphore::new(ANSWERS_KIB as usize),
            empty: EmptyBuckets::new(metrics.empty_skipped.clone(), metrics.empty_overflows.clone()),
            lanes: (0..LANES).map(|_| Semaphore::new(PARALLEL_OF_ONE)).collect(),
        }
    }

    /// Answers one query at a log owned here.
    pub(super) async fn run(self: &Arc<Self>, logs: Arc<Logs>, handle: LogHandle, request: QueryRequest) -> QueryReply {
        let refused = |refusal| QueryReply { as_of: 0, answer: Some(Answer::Refusal(refusal)) };
        if let Err(refusal) = handle.owned().await {
            return refused(refusal);
        }
        if let Err(refusal) = reach(&handle, request.not_before).await {
            return refused(refusal);
        }
        let as_of = *handle.shared.applied.borrow();
        let Some(query) = request.query else {
            return refused(Refusal::new(Reason::Invalid, "query is missing, or one of a newer version"));
        };
        let bytes = QueryRequest { query: Some(query.clone()), ..QueryRequest::default() }.encode_to_vec();
        let key = (handle.log.clone(), as_of, bytes);
        match self.join(&logs, handle, key, query).await {
            Ok(answer) => QueryReply { as_of, answer: Some(answer) },
            Err(refusal) => refused(refusal),
        }
    }

    /// Waits for a turn: first among the queries of the same lane, then among all, then for room. Semaphores are first come, first served.
    async fn turn(&self, query: &Query) -> Option<[SemaphorePermit<'_>; 3]> {
        let id = match query {
            Query::MessagePage(query) => query.channel_id,
            Query::Message(query) => query.channel_id,
            Query::Channel(query) => query.channel_id,
            Query::Invite(query) => query.guild_id,
            Query::User(query) => query.user_id,
            Query::UserGuilds(query) => query.user_id,
            Query::ReadStates(query) => query.user_id,
        };
        let lane = self.lanes.get(lane_of(id))?;
        let (lane, turn) = (lane.acquire().await.ok()?, self.permits.acquire().await.ok()?);
        Some([lane, turn, self.room.acquire_many(share_of(query)).await.ok()?])
    }

    fn join(self: &Arc<Self>, logs: &Arc<Logs>, handle: LogHandle, key: Key, query: Query) -> Flight {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&key) {
            logs.context.metrics.queries_joined.inc();
            return flight.clone();
        }
        if flights.len() >= MAX_FLIGHTS {
            let refusal = Refusal::new(Reason::Overloaded, format!("{MAX_FLIGHTS} reads wait")).retry_after_ms(500);
            return futures::future::ready(Err(refusal)).boxed().shared();
        }
        let (queries, logs, as_of) = (self.clone(), logs.clone(), key.1);
        // A task of its own: whoever started it may go away.
        let landing = Landing { queries: self.clone(), key: key.clone() };
        let task = tokio::spawn(async move {
            let _forgotten_at_the_end = landing;
            match tokio::time::timeout(PATIENCE, queries.turn(&query)).await {
                Ok(Some(_permits)) => {
                    logs.context.metrics.queries.inc();
                    answer_here(&queries, &logs, &handle, query, as_of).await
                }
                _ => Err(Refusal::new(Reason::Overloaded, "too many reads wait").retry_after_ms(500)),
            }
        });
        let flight = async move {
            task.await.unwrap_or_else(|_| Err(Refusal::new(Reason::StoreUnavailable, "the read was interrupted")))
        };
        let flight = flight.boxed().shared();
        flights.insert(key, flight.clone());
        flight
    }
}

/// Forgets a query when its task ends, also by a panic: the next one who asks reads anew.
struct Landing {
    queries: Arc<Queries>,
    key: Key,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.queries.flights.lock().remove(&self.key);
    }
}

/// Waits until everything up to `number` is applied here. An owner that was deposed unawares never gets there: its caller is sent to look
/// again.
async fn reach(handle: &LogHandle, number: u64) -> Result<(), Refusal> {
    let mut applied = handle.shared.applied.subscribe();
    let reached = applied.wait_for(|applied| *applied >= number);
    if tokio::time::timeout(NEWS_PATIENCE, reached).await.is_ok_and(|reached| reached.is_ok()) {
        return Ok(());
    }
    handle.owned().await?;
    let message = format!("{} is not applied up to {number} here yet; retry", handle.log);
    Err(Refusal::new(Reason::Wait, message).retry_after_ms(50))
}

/// Channels of one guild fall into one bucket, so their lanes come from elsewhere.
fn lane_of(id: i64) -> usize {
    usize::from(bucket_of(id.rotate_left(23) ^ 0x5bd1)) % LANES
}

/// Reads where the log is served; perhaps once more at its copy, for which nobody waits.
async fn answer_here(
    queries: &Arc<Queries>,
    logs: &Arc<Logs>,
    handle: &LogHandle,
    query: Query,
    as_of: u64,
) -> Result<Answer, Refusal> {
    let answered = read_at(&handle.store()?, handle, query.clone(), Some(&queries.empty)).await;
    queries.shadow.consider(logs, handle, &query, (&answered, as_of));
    answered
}

/// One read of a log's tables in a store.
pub(super) async fn read_at(
    store: &Arc<dyn Store>,
    handle: &LogHandle,
    query: Query,
    empty: Option<&EmptyBuckets>,
) -> Result<Answer, Refusal> {
    match query {
        Query::MessagePage(page) => {
            channel_location(store, handle, page.channel_id).await?;
            Ok(Answer::MessagePage(super::history::page(store, &page, empty).await?))
        }
        Query::Message(message) => {
            channel_location(store, handle, message.channel_id).await?;
            let found = super::history::one(store, message.channel_id, message.message_id).await?;
            found.map(Answer::Message).ok_or_else(|| not_found("message"))
        }
        Query::User(user) => {
            let row = row(store, USERS, id_key(user.user_id), Vec::new()).await?;
            body::<User>(row.as_ref()).map(Answer::User).ok_or_else(|| not_found("user"))
        }
        Query::UserGuilds(user) => user_guilds(store, user.user_id).await.map(Answer::UserGuilds),
        Query::ReadStates(query) => read_states(store, query).await.map(Answer::ReadStates),
        Query::Invite(invite) => {
            location(store, handle, invite.guild_id).await?;
            let code: String = invite.code.chars().take(64).collect();
            let row = row(store, GUILD_OBJECTS, id_key(invite.guild_id), tables::invite_key(&code)).await?;
            let found = row.as_ref().and_then(|row| invite_of(&cells_of(row)));
            found.map(Answer::Invite).ok_or_else(|| not_found("invite"))
        }
        Query::Channel(channel) => {
            let guild_id = channel_location(store, handle, channel.channel_id).await?;
            let key = object_key(kind::CHANNEL, channel.channel_id);
            let row = row(store, GUILD_OBJECTS, id_key(guild_id), key).await?;
            body::<Channel>(row.as_ref()).map(Answer::Channel).ok_or_else(|| not_found("channel"))
        }
    }
}

fn not_found(what: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("no such {what}"))
}

fn body<M: prost::Message + Default>(row: Option<&Row>) -> Option<M> {
    let cell = row?.cells.iter().find(|cell| cell.column == BODY)?;
    M::decode(cell.value.as_slice()).ok()
}

async fn row(
    store: &Arc<dyn Store>,
    table: &str,
    partition: Vec<u8>,
    clustering: Vec<u8>,
) -> Result<Option<Row>, Refusal> {
    let mut end = clustering.clone();
    end.push(0);
    let request =
        ReadRowsRequest { table: table.to_owned(), partition, start: clustering, end, limit: 1, reverse: false };
    let reply = store.read_rows(request).await.map_err(|error| unavailable(&error))?;
    Ok(reply.rows.into_iter().next())
}

/// Whether a guild's reads belong at this log.
pub(super) async fn location(store: &Arc<dyn Store>, handle: &LogHandle, guild_id: i64) -> Result<(), Refusal> {
    match handle.log.parse::<Unit>() {
        Ok(Unit::Guild(own)) if own == guild_id => Ok(()),
        Ok(unit @ Unit::Bucket(_)) if Unit::bucket(guild_id) == unit => {
            let split = row(store, GUILD_OBJECTS, id_key(guild_id), object_key(kind::SPLIT, 0)).await?;
            if split.is_some() { Err(other_log(guild_id)) } else { Ok(()) }
        }
        _ => Err(Refusal::new(Reason::Invalid, format!("guild {guild_id} does not belong into log {}", handle.log))),
    }
}

/// The guild of a channel, if its reads belong at this log.
async fn channel_location(store: &Arc<dyn Store>, handle: &LogHandle, channel_id: i64) -> Result<i64, Refusal> {
    if channel_id <= 0 {
        return Err(Refusal::new(Reason::Invalid, "channel_id must be above 0"));
    }
    let found = row(store, CHANNEL_GUILD, tables::channel_guild_partition(channel_id), id_key(channel_id)).await?;
    let cell = found.as_ref().and_then(|row| row.cells.iter().find(|cell| cell.column == "guild"));
    let guild_id = cell.and_then(|cell| <[u8; 8]>::try_from(cell.value.as_slice()).ok()).map(i64::from_be_bytes);
    let guild_id = guild_id.ok_or_else(|| not_found("channel"))?;
    location(store, handle, guild_id).await?;
    Ok(guild_id)
}

async fn user_guilds(store: &Arc<dyn Store>, user_id: i64) -> Result<UserGuilds, Refusal> {
    let request = ReadRowsRequest {
        table: USER_GUILDS.to_owned(),
        partition: id_key(user_id),
        start: Vec::new(),
        end: Vec::new(),
        limit: i32::try_from(MAX_USER_GUILDS).unwrap_or(i32::MAX),
        reverse: false,
    };
    let reply = store.read_rows(request).await.map_err(|error| unavailable(&error))?;
    let id = |row: &Row| Some(i64::from_be_bytes(row.clustering.as_slice().try_into().ok()?));
    Ok(UserGuilds { guild_ids: reply.rows.iter().filter_map(id).collect() })
}

async fn read_states(store: &Arc<dyn Store>, query: ReadStatesQuery) -> Result<ReadStates, Refusal> {
    let request = ReadRowsRequest {
        table: READ_STATES.to_owned(),
        partition: id_key(query.user_id),
        start: id_key(query.after_channel_id.max(0).saturating_add(1)),
        end: Vec::new(),
        limit: READ_STATES_PAGE,
        reverse: false,
    };
    let reply = store.read_rows(request).await.map_err(|error| unavailable(&error))?;
    let state = |row: &Row| {
        let channel_id = i64::from_be_bytes(row.clustering.as_slice().try_into().ok()?);
        read_state_of(channel_id, &cells_of(row))
    };
    Ok(ReadStates { states: reply.rows.iter().filter_map(state).collect(), more: reply.more })
}

/// Kept so that the domain's reading of a message row is the only one.
pub(super) fn message_of(row: &Row) -> Option<cell_proto::v1::Message> {
    domain::message_of(&cells_of(row))
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[tokio::test]
    async fn a_query_that_panics_fails_those_who_wait_once_and_is_forgotten() {
        let queries = Arc::new(Queries::new(Arc::new(Shadow::new()), &Metrics::new(&mut Registry::default())));
        let key: Key = (Arc::from("b0001"), 7, Vec::new());
        let flight = futures::future::ready(Err(Refusal::new(Reason::StoreUnavailable, ""))).boxed().shared();
        queries.flights.lock().insert(key.clone(), flight);
        let landing = Landing { queries: queries.clone(), key };
        let task = tokio::spawn(async move {
            let _forgotten_at_the_end = landing;
            panic!("as a defect would");
        });
        assert!(task.await.unwrap_err().is_panic());
        assert!(queries.flights.lock().is_empty());
    }
}
