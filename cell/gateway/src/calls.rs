//! Requests to data owners and guild owners: found by the directory, corrected by redirects, tried again until one deadline with the
//! same operation id. It holds a bounded number of them and never changes what is asked.

mod retry;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::Role;
use cell_proto::unit::Unit;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{
    Change, Committed, Invite, MembersReply, MembersRequest, MutateRequest, Position, QueryReply, QueryRequest,
    ReadGuildRequest, Reason, Refusal, SubmitReply, SubmitRequest, query_reply, submit_reply,
};
use cell_runtime::retry::{Step, redirect};
use cell_runtime::{Channels, Directory, route};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::metrics::Metrics;
use retry::Retrying;

/// How long a command may take from the client's request on.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one try may take before it is tried elsewhere.
const TRY_TIMEOUT: Duration = Duration::from_secs(4);
/// Invites of one guild that are listed.
const MAX_INVITES: usize = 1000;

/// Why a request failed for good.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The owner said no.
    #[error("{}: {}", .0.why().label(), .0.message)]
    Refused(Box<Refusal>),
    /// The deadline passed while nobody could serve it; nothing was done.
    #[error("no owner served the request in time ({})", .last.label())]
    TimedOut {
        /// Why the last try was refused.
        last: Reason,
    },
    /// The deadline passed after a try whose outcome is not known.
    #[error(
        "the outcome of the request is not known; look at the history, or send with enforce_nonce and retry with the same nonce"
    )]
    OutcomeUnknown,
    /// Too many requests are being held.
    #[error("too many commands are held; retry later")]
    TooManyHeld,
}

/// A command or a structural change, stamped once.
#[derive(Debug, Clone)]
pub struct Command {
    /// 16 bytes.
    pub operation_id: Vec<u8>,
    /// Who does it.
    pub actor_id: i64,
    /// The policy version it was judged by.
    pub policy_version: u64,
    /// What is done.
    pub change: Change,
    /// When it is given up.
    pub deadline: Deadline,
}

/// One deadline, for the own clock and for the wire.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    /// On the monotonic clock.
    pub at: Instant,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
}

impl Deadline {
    /// From now on.
    pub fn after(timeout: Duration) -> Self {
        Self { at: Instant::now() + timeout, unix_ms: cell_runtime::unix_ms() + timeout.as_millis() as i64 }
    }
}

/// Who is to serve a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    Data,
    Guild(i64),
}

/// One try's answer.
type Answer<T> = Result<Result<T, Box<Refusal>>, Box<tonic::Status>>;

/// What one try needs to know.
struct Try {
    channel: Channel,
    log: String,
    term: u64,
}

/// Makes requests.
pub struct Calls {
    directory: Directory,
    channels: Arc<Channels>,
    metrics: Arc<Metrics>,
    held: Semaphore,
}

impl Calls {
    /// At most `max_held` requests wait for admission at the same time.
    pub fn new(directory: Directory, channels: Arc<Channels>, metrics: Arc<Metrics>, max_held: usize) -> Self {
        Self { directory, channels, metrics, held: Semaphore::new(max_held) }
    }

    /// The log a guild lives in, as far as known.
    pub fn log_of_guild(&self, guild_id: i64) -> String {
        route::unit_of_guild(&self.directory.view(), guild_id).log()
    }

    /// Commits a change at the data owner of a log.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn submit(&self, log: String, command: &Command) -> Result<Committed, CallError> {
        let started = Instant::now();
        let one = |to: Try| async move {
            let request = SubmitRequest {
                log: to.log,
                operation_id: command.operation_id.clone(),
                deadline_unix_ms: command.deadline.unix_ms,
                actor_id: command.actor_id,
                policy_version: command.policy_version,
                guild_term: 0,
                term: to.term,
                change: Some(command.change.clone()),
            };
            let reply = data_client(to.channel).submit(request).await.map_err(Box::new)?.into_inner();
            Ok(outcome(reply))
        };
        let committed = self.call(Owner::Data, log, command.deadline, true, one).await?;
        self.metrics.committed(started.elapsed().as_secs_f64());
        Ok(committed)
    }

    /// Makes a structural change at the guild's owner.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn mutate(&self, guild_id: i64, command: &Command) -> Result<Committed, CallError> {
        let started = Instant::now();
        let one = |to: Try| async move {
            let request = MutateRequest {
                guild_id,
                log: to.log,
                operation_id: command.operation_id.clone(),
                deadline_unix_ms: command.deadline.unix_ms,
                actor_id: command.actor_id,
                change: Some(command.change.clone()),
            };
            let reply = guild_client(to.channel).mutate(request).await.map_err(Box::new)?.into_inner();
            Ok(outcome(reply))
        };
        let log = self.log_of_guild(guild_id);
        let committed = self.call(Owner::Guild(guild_id), log, command.deadline, true, one).await?;
        self.metrics.committed(started.elapsed().as_secs_f64());
        Ok(committed)
    }

    /// Reads from the data owner of a log.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query(&self, log: String, query: Query, deadline: Deadline) -> Result<QueryReply, CallError> {
        self.query_since(log, query, None, deadline).await
    }

    /// As [`Calls::query`], never older than `known`. In another log, where the guild went, its number means nothing.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn query_since(
        &self,
        log: String,
        query: Query,
        known: Option<Position>,
        deadline: Deadline,
    ) -> Result<QueryReply, CallError> {
        let (query, known) = (&query, &known);
        let one = |to: Try| async move {
            let not_before = known.as_ref().filter(|known| known.log == to.log).map_or(0, |known| known.number);
            let (deadline_unix_ms, query) = (deadline.unix_ms, Some(query.clone()));
            let request = QueryRequest { log: to.log, deadline_unix_ms, query, not_before };
            let reply = data_client(to.channel).query(request).await.map_err(Box::new)?.into_inner();
            match reply.answer {
                Some(query_reply::Answer::Refusal(refusal)) => Ok(Err(Box::new(refusal))),
                _ => Ok(Ok(reply)),
            }
        };
        self.call(Owner::Data, log, deadline, false, one).await
    }

    /// Asks a guild's owner for members.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn members(&self, request: MembersRequest, deadline: Deadline) -> Result<MembersReply, CallError> {
        let guild_id = request.guild_id;
        let request = &request;
        let one = |to: Try| async move {
            let request = MembersRequest { log: to.log, ..request.clone() };
            let mut reply = guild_client(to.channel).members(request).await.map_err(Box::new)?.into_inner();
            match reply.refusal.take() {
                Some(refusal) => Ok(Err(Box::new(refusal))),
                None => Ok(Ok(reply)),
            }
        };
        self.call(Owner::Guild(guild_id), self.log_of_guild(guild_id), deadline, false, one).await
    }

    /// The invites of a guild: read with the whole guild, so it is for the rare caller who manages it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn invites(&self, log: String, guild_id: i64, deadline: Deadline) -> Result<Vec<Invite>, CallError> {
        let one = |to: Try| async move {
            let request = ReadGuildRequest { log: to.log, guild_id };
            let mut chunks = data_client(to.channel).read_guild(request).await.map_err(Box::new)?.into_inner();
            let mut invites = Vec::new();
            while let Some(chunk) = chunks.message().await.map_err(Box::new)? {
                if let Some(refusal) = chunk.refusal {
                    return Ok(Err(Box::new(refusal)));
                }
                invites.extend(chunk.invites);
                // Members come last, and may be many.
                if chunk.done || !chunk.members.is_empty() || invites.len() > MAX_INVITES {
                    break;
                }
            }
            Ok(Ok(invites))
        };
        self.call(Owner::Data, log, deadline, false, one).await
    }

    fn address(&self, owner: &Owner, log: &str) -> Option<String> {
        let view = self.directory.view();
        let member = match owner {
            Owner::Data => route::data_member(&view, log),
            Owner::Guild(guild_id) => route::guild_member(&view, log, *guild_id),
        };
        // A guild split out while the directory is away: its log began in its bucket's cell, which knows where it went.
        let in_bucket = || {
            let Ok(Unit::Guild(guild_id)) = log.parse() else { return None };
            let cell = &view.place(&Unit::bucket(guild_id).log())?.cell;
            match owner {
                Owner::Data => route::winner(&view, Role::Data, cell, log),
                Owner::Guild(guild_id) => route::guild_winner(&view, cell, *guild_id),
            }
        };
        member.or_else(in_bucket).map(|member| member.grpc_address.clone())
    }

    async fn call<T, F, Fut>(
        &self,
        owner: Owner,
        mut log: String,
        deadline: Deadline,
        writes: bool,
        one: F,
    ) -> Result<T, CallError>
    where
        F: Fn(Try) -> Fut,
        Fut: Future<Output = Answer<T>>,
    {
        let mut state = Retrying::new(writes);
        let mut told: Option<String> = None;
        let mut permit = None;
        loop {
            let term = self.directory.view().place(&log).map_or(0, |place| place.term);
            let address = told.take().or_else(|| self.address(&owner, &log));
            let step = match address.as_deref().map(|address| self.channels.get(address)) {
                Some(Ok(channel)) => {
                    let to = Try { channel, log: log.clone(), term };
                    let at_most = TRY_TIMEOUT.min(deadline.at.saturating_duration_since(Instant::now()));
                    match tokio::time::timeout(at_most, one(to)).await {
                        Ok(Ok(Ok(reply))) => return Ok(reply),
                        Ok(Ok(Err(refusal))) => self.refused(&owner, &mut log, refusal, &mut state)?,
                        Ok(Err(_)) | Err(_) => state.broken(),
                    }
                }
                _ => state.no_owner(),
            };
            match step {
                Step::At(address) => told = Some(address),
                Step::Pause(pause) => {
                    if Instant::now() + pause >= deadline.at {
                        return Err(state.give_up());
                    }
                    if permit.is_none() {
                        permit = Some(self.hold().map_err(|full| state.unless_unknown(full))?);
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn hold(&self) -> Result<Held<'_>, CallError> {
        let Ok(permit) = self.held.try_acquire() else {
            self.metrics.refused_commands.inc();
            return Err(CallError::TooManyHeld);
        };
        self.metrics.held_commands.inc();
        Ok(Held { _permit: permit, metrics: &self.metrics })
    }

    fn refused(
        &self,
        owner: &Owner,
        log: &mut String,
        refusal: Box<Refusal>,
        state: &mut Retrying,
    ) -> Result<Step, CallError> {
        let why = refusal.why();
        // An older policy is the caller's matter: it must be judged anew.
        if !why.is_retryable() || why == Reason::StalePolicy {
            return Err(CallError::Refused(refusal));
        }
        // A volume that is full stays so for longer than a client waits; it says nothing of what an earlier try did.
        if why == Reason::StoreFull {
            return Err(state.unless_unknown(CallError::Refused(refusal)));
        }
        self.metrics.retried(why);
        let role = if *owner == Owner::Data { Role::Data } else { Role::Guild };
        let elsewhere = redirect(&self.directory, log, &refusal, role);
        Ok(state.refused(&refusal, elsewhere))
    }
}

/// Counts a held command for as long as it is held.
struct Held<'a> {
    _permit: tokio::sync::SemaphorePermit<'a>,
    metrics: &'a Metrics,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.metrics.held_commands.dec();
    }
}

fn outcome(reply: SubmitReply) -> Result<Committed, Box<Refusal>> {
    match reply.outcome {
        Some(submit_reply::Outcome::Committed(committed)) => Ok(committed),
        Some(submit_reply::Outcome::Refusal(refusal)) => Err(Box::new(refusal)),
        None => Err(Box::new(Refusal::new(Reason::UnknownOutcome, "the owner answered nothing"))),
    }
}

fn data_client(channel: Channel) -> DataServiceClient<Channel> {
    DataServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

fn guild_client(channel: Channel) -> GuildServiceClient<Channel> {
    GuildServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}
