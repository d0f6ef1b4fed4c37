//! Reads. Identical ones in flight share one query, whose key holds every argument and the log's last number, so that authors read
//! their own writes. A caller that goes away cancels nothing; a failed query fails those who wait for it once and is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{Channel, QueryReply, QueryRequest, ReadRowsRequest, Reason, Refusal, Row, User, UserGuilds};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::guild::cells_of;
use super::logs::{Logs, unavailable};
use super::task::LogHandle;
use crate::domain::tables::{self, BODY, CHANNEL_GUILD, GUILD_OBJECTS, USER_GUILDS, USERS, id_key, kind, object_key};
use crate::domain::{self, invite_of, other_log};

/// Distinct queries reading the store at once; others wait their turn.
const PARALLEL: usize = 256;
/// Distinct queries of one lane of channels or guilds: one that is read by many must not starve the others.
const PARALLEL_OF_ONE: usize = 16;
/// Channels and guilds share this many lanes.
const LANES: usize = 256;
/// Distinct queries waiting or reading; more are refused at once.
const MAX_FLIGHTS: usize = 8192;
/// The longest such wait.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most guilds of one user.
const MAX_USER_GUILDS: usize = 1000;

type Key = (Arc<str>, u64, Vec<u8>);
type Flight = Shared<BoxFuture<'static, Result<Answer, Refusal>>>;

/// The queries in flight.
pub(super) struct Queries {
    flights: Mutex<HashMap<Key, Flight>>,
    permits: Arc<Semaphore>,
    lanes: Vec<Semaphore>,
}

impl Queries {
    pub(super) fn new() -> Self {
        Self {
            flights: Mutex::default(),
            permits: Arc::new(Semaphore::new(PARALLEL)),
            lanes: (0..LANES).map(|_| Semaphore::new(PARALLEL_OF_ONE)).collect(),
        }
    }

    /// Answers one query at a log owned here.
    pub(super) async fn run(self: &Arc<Self>, logs: Arc<Logs>, handle: LogHandle, request: QueryRequest) -> QueryReply {
        let refused = |refusal| QueryReply { as_of: 0, answer: Some(Answer::Refusal(refusal)) };
        if let Err(refusal) = handle.owned().await {
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

    /// Waits for a turn: first among the queries of the same lane, then among all. Semaphores are first come, first served.
    async fn turn(&self, query: &Query) -> Option<(SemaphorePermit<'_>, SemaphorePermit<'_>)> {
        let id = match query {
            Query::MessagePage(query) => query.channel_id,
            Query::Message(query) => query.channel_id,
            Query::Channel(query) => query.channel_id,
            Query::Invite(query) => query.guild_id,
            Query::User(query) => query.user_id,
            Query::UserGuilds(query) => query.user_id,
        };
        let lane = self.lanes.get(lane_of(id))?;
        Some((lane.acquire().await.ok()?, self.permits.acquire().await.ok()?))
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
        let (queries, logs, own_key) = (self.clone(), logs.clone(), key.clone());
        // A task of its own: whoever started it may go away.
        let task = tokio::spawn(async move {
            let result = match tokio::time::timeout(PATIENCE, queries.turn(&query)).await {
                Ok(Some(_permits)) => {
                    logs.context.metrics.queries.inc();
                    read(&logs, &handle, query).await
                }
                _ => Err(Refusal::new(Reason::Overloaded, "too many reads wait").retry_after_ms(500)),
            };
            queries.flights.lock().remove(&own_key);
            result
        });
        let flight = async move {
            task.await.unwrap_or_else(|_| Err(Refusal::new(Reason::StoreUnavailable, "the read was interrupted")))
        };
        let flight = flight.boxed().shared();
        flights.insert(key, flight.clone());
        flight
    }
}

/// Channels of one guild fall into one bucket, so their lanes come from elsewhere.
fn lane_of(id: i64) -> usize {
    usize::from(bucket_of(id.rotate_left(23) ^ 0x5bd1)) % LANES
}

async fn read(logs: &Logs, handle: &LogHandle, query: Query) -> Result<Answer, Refusal> {
    match query {
        Query::MessagePage(page) => {
            channel_location(logs, handle, page.channel_id).await?;
            Ok(Answer::MessagePage(super::history::page(&logs.context.store, &page).await?))
        }
        Query::Message(message) => {
            channel_location(logs, handle, message.channel_id).await?;
            let found = super::history::one(&logs.context.store, message.channel_id, message.message_id).await?;
            found.map(Answer::Message).ok_or_else(|| not_found("message"))
        }
        Query::User(user) => {
            let row = row(logs, USERS, id_key(user.user_id), Vec::new()).await?;
            body::<User>(row.as_ref()).map(Answer::User).ok_or_else(|| not_found("user"))
        }
        Query::UserGuilds(user) => user_guilds(logs, user.user_id).await.map(Answer::UserGuilds),
        Query::Invite(invite) => {
            location(logs, handle, invite.guild_id).await?;
            let code: String = invite.code.chars().take(64).collect();
            let row = row(logs, GUILD_OBJECTS, id_key(invite.guild_id), tables::invite_key(&code)).await?;
            let found = row.as_ref().and_then(|row| invite_of(&cells_of(row)));
            found.map(Answer::Invite).ok_or_else(|| not_found("invite"))
        }
        Query::Channel(channel) => {
            let guild_id = channel_location(logs, handle, channel.channel_id).await?;
            let key = object_key(kind::CHANNEL, channel.channel_id);
            let row = row(logs, GUILD_OBJECTS, id_key(guild_id), key).await?;
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

async fn row(logs: &Logs, table: &str, partition: Vec<u8>, clustering: Vec<u8>) -> Result<Option<Row>, Refusal> {
    let mut end = clustering.clone();
    end.push(0);
    let request =
        ReadRowsRequest { table: table.to_owned(), partition, start: clustering, end, limit: 1, reverse: false };
    let reply = logs.context.store.read_rows(request).await.map_err(|error| unavailable(&error))?;
    Ok(reply.rows.into_iter().next())
}

/// Whether a guild's reads belong at this log.
pub(super) async fn location(logs: &Logs, handle: &LogHandle, guild_id: i64) -> Result<(), Refusal> {
    match handle.log.parse::<Unit>() {
        Ok(Unit::Guild(own)) if own == guild_id => Ok(()),
        Ok(unit @ Unit::Bucket(_)) if Unit::bucket(guild_id) == unit => {
            let split = row(logs, GUILD_OBJECTS, id_key(guild_id), object_key(kind::SPLIT, 0)).await?;
            if split.is_some() { Err(other_log(guild_id)) } else { Ok(()) }
        }
        _ => Err(Refusal::new(Reason::Invalid, format!("guild {guild_id} does not belong into log {}", handle.log))),
    }
}

/// The guild of a channel, if its reads belong at this log.
async fn channel_location(logs: &Logs, handle: &LogHandle, channel_id: i64) -> Result<i64, Refusal> {
    if channel_id <= 0 {
        return Err(Refusal::new(Reason::Invalid, "channel_id must be above 0"));
    }
    let found = row(logs, CHANNEL_GUILD, tables::channel_guild_partition(channel_id), id_key(channel_id)).await?;
    let cell = found.as_ref().and_then(|row| row.cells.iter().find(|cell| cell.column == "guild"));
    let guild_id = cell.and_then(|cell| <[u8; 8]>::try_from(cell.value.as_slice()).ok()).map(i64::from_be_bytes);
    let guild_id = guild_id.ok_or_else(|| not_found("channel"))?;
    location(logs, handle, guild_id).await?;
    Ok(guild_id)
}

async fn user_guilds(logs: &Logs, user_id: i64) -> Result<UserGuilds, Refusal> {
    let request = ReadRowsRequest {
        table: USER_GUILDS.to_owned(),
        partition: id_key(user_id),
        start: Vec::new(),
        end: Vec::new(),
        limit: i32::try_from(MAX_USER_GUILDS).unwrap_or(i32::MAX),
        reverse: false,
    };
    let reply = logs.context.store.read_rows(request).await.map_err(|error| unavailable(&error))?;
    let id = |row: &Row| Some(i64::from_be_bytes(row.clustering.as_slice().try_into().ok()?));
    Ok(UserGuilds { guild_ids: reply.rows.iter().filter_map(id).collect() })
}

/// Kept so that the domain's reading of a message row is the only one.
pub(super) fn message_of(row: &Row) -> Option<cell_proto::v1::Message> {
    domain::message_of(&cells_of(row))
}
