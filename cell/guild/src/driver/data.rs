//! Requests to data owners: finds the owner through the directory, follows redirects, waits out refusals that pass, all until a deadline.

use std::future::Future;
use std::time::Duration;

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::Role;
use cell_proto::unit::Unit;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    AckFeedRequest, GuildChunk, QueryRequest, ReadGuildRequest, ReadLogReply, ReadLogRequest, Reason, Refusal,
    SubmitReply, SubmitRequest, UserGuildsQuery,
};
use cell_runtime::retry::{Retry, Step, redirect};
use cell_runtime::{Channels, Directory, route, unix_ms};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::machine::{GuildView, Loaded, LogPage, user_id_of};

/// How long a whole guild may take to read.
const LOAD_DEADLINE: Duration = Duration::from_secs(60);
/// How long a page of a log, or an acknowledgement, may take with all its retries.
const READ_DEADLINE: Duration = Duration::from_secs(10);
/// One attempt, so that a peer that hangs does not eat the whole deadline.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
/// Entries in one page.
pub(super) const PAGE_LIMIT: i32 = 500;

/// How one attempt failed.
pub(super) enum Failure {
    /// The owner, or somebody else, said no.
    Refused(Refusal),
    /// Nobody answered.
    Transport(tonic::Status),
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Self::Transport(status)
    }
}

/// A client of all data owners; clones share it.
#[derive(Clone)]
pub(super) struct DataClient {
    directory: Directory,
    channels: std::sync::Arc<Channels>,
    member_id: String,
}

impl DataClient {
    pub(super) fn new(directory: Directory, channels: std::sync::Arc<Channels>, member_id: String) -> Self {
        Self { directory, channels, member_id }
    }

    fn address(&self, log: &str) -> Option<String> {
        route::data_member(&self.directory.view(), log).map(|member| member.grpc_address.clone())
    }

    /// The owner's client.
    pub(super) fn client(
        &self,
        log: &str,
        address: Option<&str>,
    ) -> Result<(DataServiceClient<Channel>, String), Failure> {
        let unknown = || {
            let message = format!("no live data service is known for log {log}");
            Failure::Refused(Refusal::new(Reason::Wait, message).retry_after_ms(100))
        };
        let address = address.map(str::to_owned).or_else(|| self.address(log)).ok_or_else(unknown)?;
        let channel = self
            .channels
            .get(&address)
            .map_err(|error| Failure::Refused(Refusal::new(Reason::Wait, error.to_string()).retry_after_ms(200)))?;
        let client = DataServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Ok((client, address))
    }

    /// Takes over what a refusal says; gives the address to try next.
    pub(super) fn redirect(&self, log: &str, refusal: &Refusal) -> Option<String> {
        redirect(&self.directory, &mut log.to_owned(), refusal, Role::Data)
    }

    /// Calls the owner of `log` until it answers or the deadline passes. `call` gets the log to name: it changes when the guild went to
    /// another one.
    async fn call<T, F, R>(&self, log: &str, deadline: Instant, call: F) -> Result<T, Refusal>
    where
        F: FnMut(DataServiceClient<Channel>, String, Option<u64>) -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        self.call_within(log, deadline, ATTEMPT_LIMIT, call).await
    }

    /// As [`DataClient::call`], for attempts that may take longer as a whole.
    async fn call_within<T, F, R>(
        &self,
        log: &str,
        deadline: Instant,
        attempt_limit: Duration,
        mut call: F,
    ) -> Result<T, Refusal>
    where
        F: FnMut(DataServiceClient<Channel>, String, Option<u64>) -> R,
        R: Future<Output = Result<T, Failure>>,
    {
        let (mut log, mut retry) = (log.to_owned(), Retry::default());
        let (mut term, mut told, mut doubted) = (None, None::<String>, false);
        loop {
            let failure = match self.client(&log, told.take().as_deref()) {
                Ok((client, address)) => {
                    let attempt = tokio::time::timeout(attempt_limit, call(client, log.clone(), term));
                    match attempt.await {
                        Ok(Ok(answer)) => return Ok(answer),
                        Ok(Err(failure)) => failure,
                        Err(_) => Failure::Transport(tonic::Status::deadline_exceeded(format!(
                            "{address} did not answer in time"
                        ))),
                    }
                }
                Err(failure) => failure,
            };
            let refusal = match failure {
                Failure::Refused(refusal) => refusal,
                Failure::Transport(status) => Refusal::new(
                    Reason::UnknownOutcome,
                    format!("failed to reach the data owner: {}", status.message()),
                ),
            };
            doubted |= refusal.why() == Reason::UnknownOutcome;
            let theirs = matches!(refusal.why(), Reason::StalePolicy | Reason::StaleGuildTerm);
            // A volume that is full stays so for longer than anybody waits; it says nothing of what an earlier try did.
            let full = refusal.why() == Reason::StoreFull;
            if full && doubted {
                return Err(Refusal { reason: Reason::UnknownOutcome.into(), ..refusal });
            }
            if full || theirs || !refusal.why().is_retryable() {
                return Err(refusal);
            }
            term = refusal.route.as_ref().map(|route| route.term).or(Some(0));
            let elsewhere = redirect(&self.directory, &mut log, &refusal, Role::Data);
            let pause = match retry.refused(&refusal, elsewhere) {
                Step::At(address) => {
                    told = Some(address);
                    Duration::ZERO
                }
                Step::Pause(pause) => pause,
            };
            if Instant::now() + pause >= deadline {
                return Err(refusal);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Commits a change, with the same operation id until its deadline.
    pub(super) async fn submit(&self, request: SubmitRequest) -> SubmitReply {
        let left_ms = u64::try_from(request.deadline_unix_ms.saturating_sub(unix_ms())).unwrap_or(0);
        let deadline = Instant::now() + Duration::from_millis(left_ms);
        let log = request.log.clone();
        let outcome = self.call(&log, deadline, |mut client, log, term| {
            let term = term.unwrap_or(request.term);
            let request = SubmitRequest { log, term, ..request.clone() };
            async move {
                match client.submit(request).await?.into_inner().outcome {
                    Some(Outcome::Committed(committed)) => Ok(committed),
                    Some(Outcome::Refusal(refusal)) => Err(Failure::Refused(refusal)),
                    None => Err(Failure::Transport(tonic::Status::internal("the answer is empty"))),
                }
            }
        });
        let outcome = match outcome.await {
            Ok(committed) => Outcome::Committed(committed),
            Err(refusal) => Outcome::Refusal(refusal),
        };
        SubmitReply { outcome: Some(outcome) }
    }

    /// Reads a whole guild. A large one comes in many chunks: each of them is waited for, not all of them, as long as one attempt may take.
    pub(super) async fn read_guild(&self, log: &str, guild_id: i64) -> Result<Loaded, Refusal> {
        let deadline = Instant::now() + LOAD_DEADLINE;
        self.call_within(log, deadline, LOAD_DEADLINE, |mut client, log, _| async move {
            let slow = |_: tokio::time::error::Elapsed| {
                Failure::Transport(tonic::Status::deadline_exceeded("the guild's next chunk did not come in time"))
            };
            let request = ReadGuildRequest { log: log.clone(), guild_id };
            let opened = tokio::time::timeout(ATTEMPT_LIMIT, client.read_guild(request)).await.map_err(slow)?;
            let mut chunks = opened?.into_inner();
            let mut loaded = Loaded { view: GuildView::default(), log, as_of: 0, term: 0 };
            let mut done = false;
            while let Some(chunk) = tokio::time::timeout(ATTEMPT_LIMIT, chunks.message()).await.map_err(slow)?? {
                if let Some(refusal) = chunk.refusal {
                    return Err(Failure::Refused(refusal));
                }
                done |= chunk.done;
                take_chunk(&mut loaded, chunk);
            }
            if done { Ok(loaded) } else { Err(Failure::Transport(tonic::Status::aborted("the guild ended early"))) }
        })
        .await
    }

    /// Reads the page of a log that begins with `from`, of all guilds: only so does it tell how far the log was read. Never follows the
    /// guild to another log: the numbers would mean nothing there.
    pub(super) async fn read_log(&self, log: &str, from: u64) -> Result<LogPage, Refusal> {
        let reply = self.read_page(log, from, PAGE_LIMIT).await?;
        // Segments end pages early, so only an empty page is the end.
        let scanned_to = reply.entries.last().map_or(reply.last, |entry| entry.number);
        Ok(LogPage { entries: reply.entries, scanned_to })
    }

    /// One page as the data owner gives it.
    pub(super) async fn read_page(&self, log: &str, from: u64, limit: i32) -> Result<ReadLogReply, Refusal> {
        let deadline = Instant::now() + READ_DEADLINE;
        let request = ReadLogRequest { log: log.to_owned(), from, limit, guild_id: 0 };
        self.call(log, deadline, |mut client, _, _| {
            let request = request.clone();
            async move {
                let mut reply = client.read_log(request).await?.into_inner();
                match reply.refusal.take() {
                    Some(refusal) => Err(Failure::Refused(refusal)),
                    None => Ok(reply),
                }
            }
        })
        .await
    }

    /// The guilds a user is in, as the user's own bucket has it.
    pub(super) async fn user_guilds(&self, user_id: i64) -> Result<Vec<i64>, Refusal> {
        let deadline = Instant::now() + READ_DEADLINE;
        let deadline_unix_ms = unix_ms() + i64::try_from(READ_DEADLINE.as_millis()).unwrap_or(0);
        self.call(&Self::user_log(user_id), deadline, |mut client, log, _| async move {
            let query = Some(Query::UserGuilds(UserGuildsQuery { user_id }));
            let request = QueryRequest { log, deadline_unix_ms, query, ..QueryRequest::default() };
            let reply = client.query(request).await?.into_inner();
            match reply.answer {
                Some(Answer::UserGuilds(guilds)) => Ok(guilds.guild_ids),
                Some(Answer::Refusal(refusal)) => Err(Failure::Refused(refusal)),
                _ => Err(Failure::Transport(tonic::Status::internal("the answer is of another kind"))),
            }
        })
        .await
    }

    /// Says that everything up to `number` is processed (0: nothing new), and gets up to where it is. Losing it is harmless.
    pub(super) async fn ack_feed(&self, log: &str, number: u64, guild_id: i64) -> Result<u64, Refusal> {
        let deadline = Instant::now() + READ_DEADLINE;
        let request = AckFeedRequest { log: log.to_owned(), number, follower: self.member_id.clone(), guild_id };
        self.call(log, deadline, |mut client, _, _| {
            let request = request.clone();
            async move {
                let reply = client.ack_feed(request).await?.into_inner();
                match reply.refusal {
                    Some(refusal) => Err(Failure::Refused(refusal)),
                    None => Ok(reply.cursor),
                }
            }
        })
        .await
    }

    /// The log of a user's own data.
    pub(super) fn user_log(user_id: i64) -> String {
        Unit::bucket(user_id).log()
    }
}

fn take_chunk(loaded: &mut Loaded, chunk: GuildChunk) {
    let view = &mut loaded.view;
    if let Some(guild) = chunk.guild {
        view.guild = guild;
        loaded.as_of = chunk.as_of;
        loaded.term = chunk.term;
        view.guild_term = chunk.guild_term;
    }
    std::sync::Arc::make_mut(&mut view.channels)
        .extend(chunk.channels.into_iter().map(|channel| (channel.id, channel)));
    std::sync::Arc::make_mut(&mut view.roles).extend(chunk.roles.into_iter().map(|role| (role.id, role)));
    std::sync::Arc::make_mut(&mut view.invites)
        .extend(chunk.invites.into_iter().map(|invite| (invite.code.clone(), invite)));
    for member in chunk.members {
        view.members.insert(user_id_of(&member), member);
    }
}
