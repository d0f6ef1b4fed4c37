//! The gRPC face of the data role: turns requests into messages and refusals into replies with routes. Every call is answered within a
//! bound.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_server::{DataService, DataServiceServer};
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::submit_reply::Outcome as SubmitOutcome;
use cell_proto::v1::{
    AckFeedReply, AckFeedRequest, ClaimReply, ClaimRequest, CopyStatusReply, CopyStatusRequest, CreateHeadsReply,
    CreateHeadsRequest, CutOverReply, CutOverRequest, EndCopyRequest, FeedBatch, FeedRequest, GuildChunk, InspectReply,
    InspectRequest, ListHeadsReply, ListHeadsRequest, MergeGuildRequest, QueryReply, QueryRequest, ReadGuildRequest,
    ReadLogReply, ReadLogRequest, Reason, Refusal, RunReply, ShipReply, ShipRequest, SplitGuildRequest, SubmitReply,
    SubmitRequest, SwitchReply, SwitchRequest,
};
use cell_runtime::{CancellationToken, Channels, Directory, unix_ms};
use cell_store::Store;
use futures::{Stream, StreamExt};
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::feed::{self, concerns};
use super::guild;
use super::handle::Message;
use super::logs::{Logs, Turn};
use super::metrics::Metrics;
use super::operate::Splits;
use super::query::Queries;
use super::reader::LogReader;
use super::routes::Routes;
use super::shadow::Shadow;
use super::stores::Stores;
use super::task::Context;
use crate::machine::{Command, Limits};

/// The longest a submit may wait when its deadline allows more; the caller retries with the same operation id.
const SUBMIT: Duration = Duration::from_secs(15);
/// Moves of logs that share a lane wait for each other.
const LANES: usize = 64;
/// Feeds at once; a follower needs one task and a few batches.
const MAX_FOLLOWERS: usize = 10_000;

/// Who this data service is.
#[derive(Clone, Debug)]
pub struct DataServerConfig {
    /// The cell it serves.
    pub cell: String,
    /// Its member id.
    pub member_id: String,
    /// host:port that others dial.
    pub address: String,
    /// Bounds and times.
    pub limits: Limits,
}

/// The data role's service.
#[derive(Clone)]
pub struct DataServer {
    pub(super) logs: Arc<Logs>,
    pub(super) channels: Arc<Channels>,
    pub(super) window_us: i64,
    pub(super) splits: Arc<tokio::sync::Mutex<Option<Splits>>>,
    pub(super) shadow: Arc<Shadow>,
    queries: Arc<Queries>,
    moves: Arc<[tokio::sync::Mutex<()>; LANES]>,
    followers: Arc<Semaphore>,
}

impl DataServer {
    /// A service over one store; owns nothing until it is asked. Registers its metrics. `shutdown` drains its logs.
    pub fn new(
        config: DataServerConfig,
        store: Arc<dyn Store>,
        directory: Directory,
        registry: &mut Registry,
        shutdown: CancellationToken,
    ) -> Self {
        Self::with_stores(config, Stores::single(store), directory, registry, shutdown)
    }

    /// The same where logs may be served or copied in other StorageCells.
    pub fn with_stores(
        config: DataServerConfig,
        stores: Stores,
        directory: Directory,
        registry: &mut Registry,
        shutdown: CancellationToken,
    ) -> Self {
        let context = Context {
            stores,
            copies: super::copies::Copies::default(),
            directory: directory.clone(),
            metrics: Metrics::new(registry),
            member_id: config.member_id.clone(),
            shutdown,
        };
        let routes = Routes { directory, cell: config.cell, member_id: config.member_id, address: config.address };
        let window_us = config.limits.window_us;
        let shadow = Arc::new(Shadow::new());
        let queries = Arc::new(Queries::new(shadow.clone(), &context.metrics));
        Self {
            logs: Arc::new(Logs::new(context, routes, config.limits)),
            channels: Arc::new(Channels::default()),
            window_us,
            splits: Arc::default(),
            shadow,
            queries,
            moves: Arc::new(std::array::from_fn(|_| tokio::sync::Mutex::new(()))),
            followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)),
        }
    }

    /// The tonic service.
    pub fn into_service(self) -> DataServiceServer<Self> {
        DataServiceServer::new(self)
            .max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(cell_proto::MAX_MESSAGE_BYTES)
    }

    /// All owned logs look at their heads: somebody may have claimed them while this process looked dead.
    pub fn recheck(&self) {
        self.logs.recheck();
    }

    /// Logs with a task here.
    pub fn open_logs(&self) -> usize {
        self.logs.all().len()
    }

    async fn submit_one(&self, request: SubmitRequest) -> Result<cell_proto::v1::Committed, Refusal> {
        let operation_id = request.operation_id.as_slice().try_into().map_err(|_| {
            Refusal::new(
                Reason::Invalid,
                format!("operation_id has {} bytes, it must have 16", request.operation_id.len()),
            )
        })?;
        let change = request.change.ok_or_else(|| Refusal::new(Reason::Invalid, "change is missing"))?;
        if matches!(change.kind, Some(Kind::Split(_) | Kind::Merge(_))) {
            return Err(Refusal::new(Reason::Invalid, "splits and merges go through SplitGuild and MergeGuild"));
        }
        let command = Box::new(Command {
            operation_id,
            deadline_ms: request.deadline_unix_ms,
            actor_id: request.actor_id,
            policy_version: request.policy_version,
            guild_term: request.guild_term,
            term: request.term,
            change,
            inheritance: None,
        });
        let handle = self.logs.owner(&request.log, Turn::Ours).await?;
        let left = u64::try_from(request.deadline_unix_ms.saturating_sub(unix_ms())).unwrap_or(0);
        // A little longer than the deadline: the machine tells the reason better.
        let wait = SUBMIT.min(Duration::from_millis(left.saturating_add(250)));
        let answer = handle.ask(|answer| Message::Submit { command, answer });
        match tokio::time::timeout(wait, answer).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                let message = "no outcome in time; retry with the same operation id";
                Err(Refusal::new(Reason::UnknownOutcome, message).retry_after_ms(100))
            }
        }
    }

    /// Runs a move of a log to its end, whether or not its caller stays: admission must not stay closed because somebody hung up. One
    /// move of a log at a time.
    async fn undisturbed<T: Send + 'static>(
        &self,
        log: String,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let moves = self.moves.clone();
        let task = tokio::spawn(async move {
            let lane = log.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % LANES;
            let Some(lane) = moves.get(lane) else { return work.await };
            let _alone = lane.lock().await;
            work.await
        });
        task.await.unwrap_or_else(|error| Err(Refusal::new(Reason::UnknownOutcome, error.to_string())))
    }

    async fn read_log_page(&self, request: &ReadLogRequest) -> Result<ReadLogReply, Refusal> {
        super::logs::parse(&request.log)?;
        let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=1000).contains(limit));
        let limit = limit.ok_or_else(|| Refusal::new(Reason::Invalid, "limit must be 1–1000"))?;
        let store = match self.logs.get(&request.log).map(|handle| handle.store()) {
            Some(Ok(store)) => store,
            _ => self.logs.locate(&request.log).await?.store,
        };
        let mut reader = LogReader::new(store, &request.log);
        let (entries, last) = reader.next(request.from, limit).await?;
        // `last` is that of the segment read; a short page tells the caller to ask again from its end.
        let entries = entries.into_iter().filter(|entry| concerns(entry, request.guild_id)).collect();
        Ok(ReadLogReply { entries, last, refusal: None })
    }
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Turns a refused call into a reply that carries the refusal.
macro_rules! reply {
    ($self:expr, $log:expr, $call:expr, $reply:ident) => {{
        let log = $log;
        match $call.await {
            Ok(reply) => Ok(Response::new(reply)),
            Err(refusal) => {
                let refusal = $self.logs.redirect(&log, refusal).await;
                Ok(Response::new($reply { refusal: Some(refusal), ..$reply::default() }))
            }
        }
    }};
}

#[tonic::async_trait]
impl DataService for DataServer {
    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitReply>, Status> {
        let request = request.into_inner();
        let log = request.log.clone();
        let outcome = match self.submit_one(request).await {
            Ok(committed) => SubmitOutcome::Committed(committed),
            Err(refusal) => SubmitOutcome::Refusal(self.logs.redirect(&log, refusal).await),
        };
        Ok(Response::new(SubmitReply { outcome: Some(outcome) }))
    }

    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryReply>, Status> {
        let request = request.into_inner();
        let log = request.log.clone();
        let mut reply = match self.logs.owner(&log, Turn::Ours).await {
            Ok(handle) => self.queries.run(self.logs.clone(), handle, request).await,
            Err(refusal) => QueryReply { as_of: 0, answer: Some(Answer::Refusal(refusal)) },
        };
        if let Some(Answer::Refusal(refusal)) = reply.answer {
            reply.answer = Some(Answer::Refusal(self.logs.redirect(&log, refusal).await));
        }
        Ok(Response::new(reply))
    }

    type ReadGuildStream = Streamed<GuildChunk>;
    async fn read_guild(&self, request: Request<ReadGuildRequest>) -> Result<Response<Self::ReadGuildStream>, Status> {
        let request = request.into_inner();
        let (sender, receiver) = guild::channel();
        match self.logs.owner(&request.log, Turn::Ours).await {
            Ok(handle) => {
                tokio::spawn(guild::run(self.logs.clone(), handle, request, sender));
            }
            Err(refusal) => {
                let refusal = self.logs.redirect(&request.log, refusal).await;
                drop(sender.send(Ok(GuildChunk { refusal: Some(refusal), ..GuildChunk::default() })).await);
            }
        }
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    type FeedStream = Streamed<FeedBatch>;
    async fn feed(&self, request: Request<FeedRequest>) -> Result<Response<Self::FeedStream>, Status> {
        let request = request.into_inner();
        let (sender, receiver) = feed::channel();
        let owned = async {
            let handle = self.logs.owner(&request.log, Turn::Ours).await?;
            handle.owned().await?;
            let permit = self.followers.clone().try_acquire_owned().map_err(|_| {
                Refusal::new(Reason::Overloaded, format!("{MAX_FOLLOWERS} feeds are open here")).retry_after_ms(1000)
            })?;
            Ok::<_, Refusal>((handle, permit))
        };
        match owned.await {
            Ok((handle, permit)) => {
                let logs = self.logs.clone();
                tokio::spawn(async move {
                    feed::run(logs, handle, request, sender).await;
                    drop(permit);
                });
            }
            Err(refusal) => {
                let refusal = self.logs.redirect(&request.log, refusal).await;
                drop(sender.send(Ok(FeedBatch { refusal: Some(refusal), ..FeedBatch::default() })).await);
            }
        }
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    async fn ack_feed(&self, request: Request<AckFeedRequest>) -> Result<Response<AckFeedReply>, Status> {
        let request = request.into_inner();
        let refused = |refusal| AckFeedReply { refusal: Some(refusal), cursor: 0 };
        Ok(Response::new(self.ack(&request).await.unwrap_or_else(refused)))
    }

    async fn read_log(&self, request: Request<ReadLogRequest>) -> Result<Response<ReadLogReply>, Status> {
        let request = request.into_inner();
        reply!(self, request.log.clone(), self.read_log_page(&request), ReadLogReply)
    }

    async fn create_heads(&self, request: Request<CreateHeadsRequest>) -> Result<Response<CreateHeadsReply>, Status> {
        reply!(self, String::new(), self.create(request.into_inner()), CreateHeadsReply)
    }

    async fn list_heads(&self, request: Request<ListHeadsRequest>) -> Result<Response<ListHeadsReply>, Status> {
        reply!(self, String::new(), self.list(request.into_inner()), ListHeadsReply)
    }

    async fn inspect(&self, request: Request<InspectRequest>) -> Result<Response<InspectReply>, Status> {
        let request = request.into_inner();
        reply!(self, request.log.clone(), self.inspect_log(request), InspectReply)
    }

    async fn claim(&self, request: Request<ClaimRequest>) -> Result<Response<ClaimReply>, Status> {
        let request = request.into_inner();
        reply!(self, request.log.clone(), self.claim_log(request), ClaimReply)
    }

    async fn split_guild(&self, request: Request<SplitGuildRequest>) -> Result<Response<RunReply>, Status> {
        let request = request.into_inner();
        let (server, log) = (self.clone(), request.bucket_log.clone());
        let work = self.undisturbed(log.clone(), async move {
            let done = server.split_guild_out(request).await;
            *server.splits.lock().await = None;
            done
        });
        reply!(self, log, work, RunReply)
    }

    async fn merge_guild(&self, request: Request<MergeGuildRequest>) -> Result<Response<RunReply>, Status> {
        let request = request.into_inner();
        let (server, log) = (self.clone(), request.bucket_log.clone());
        let work = self.undisturbed(log.clone(), async move {
            let done = server.merge_guild_back(request).await;
            *server.splits.lock().await = None;
            done
        });
        reply!(self, log, work, RunReply)
    }

    async fn switch(&self, request: Request<SwitchRequest>) -> Result<Response<SwitchReply>, Status> {
        let request = request.into_inner();
        let (server, log) = (self.clone(), request.log.clone());
        let work = self.undisturbed(log.clone(), async move { server.switch_log(request).await });
        reply!(self, log, work, SwitchReply)
    }

    async fn ship(&self, request: Request<ShipRequest>) -> Result<Response<ShipReply>, Status> {
        let request = request.into_inner();
        reply!(self, request.log.clone(), self.ship_log(request), ShipReply)
    }

    async fn cut_over(&self, request: Request<CutOverRequest>) -> Result<Response<CutOverReply>, Status> {
        let request = request.into_inner();
        let (server, log) = (self.clone(), request.log.clone());
        let arrived = tokio::time::Instant::now();
        let work = self.undisturbed(log.clone(), async move { server.cut_over_log(request, arrived).await });
        reply!(self, log, work, CutOverReply)
    }

    async fn end_copy(&self, request: Request<EndCopyRequest>) -> Result<Response<RunReply>, Status> {
        let request = request.into_inner();
        let (server, log) = (self.clone(), request.log.clone());
        let work = self.undisturbed(log.clone(), async move { server.end_copy_of(request).await });
        reply!(self, log, work, RunReply)
    }

    async fn copy_status(&self, request: Request<CopyStatusRequest>) -> Result<Response<CopyStatusReply>, Status> {
        Ok(Response::new(self.status_of_copies(&request.into_inner())))
    }
}
