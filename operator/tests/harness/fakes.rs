//! Fake cells: data services and guild nodes that keep heads in memory and follow the contracts of the move's requests. They count
//! requests, so that a test can stop the operator right after any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use cell_proto::directory::{Member, Role};
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_server::{DataService, DataServiceServer};
use cell_proto::v1::guild_service_server::{GuildService, GuildServiceServer};
use cell_proto::v1::migrate_service_server::{MigrateService, MigrateServiceServer};
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::*;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

type Streamed<T> = Pin<Box<dyn futures::Stream<Item = Result<T, Status>> + Send>>;
type Reply<T> = Result<Response<T>, Status>;

/// A live process.
pub fn member_of(role: Role, cell: &str, storage_cell: &str, address: &str) -> Member {
    Member {
        id: format!("{cell}-{}-0", role.label()),
        role,
        cell: cell.to_owned(),
        storage_cell: storage_cell.to_owned(),
        incarnation: 1,
        grpc_address: address.to_owned(),
        http_address: None,
        admin_address: address.to_owned(),
        draining: false,
    }
}

#[derive(Default)]
pub struct World {
    pub copies: BTreeMap<String, FakeCopy>,
    pub heads: BTreeMap<String, Head>,
    pub users: BTreeMap<i64, User>,
    pub owners: BTreeMap<i64, String>,
    pub warm: BTreeSet<(String, i64)>,
    pub head_changes: BTreeMap<String, u32>,
    pub bootstraps: u32,
    /// Guilds that their buckets do not know; every other one exists.
    pub missing_guilds: BTreeSet<i64>,
    /// Requests of runs, in order.
    pub asked: Vec<&'static str>,
    /// Of every TakeOver and PointAway: the term its route names, and the head's.
    pub route_terms: Vec<(u64, u64)>,
}

/// All fake cells of a test share this.
#[derive(Clone)]
pub struct Fakes {
    pub world: Arc<Mutex<World>>,
    requests: Arc<watch::Sender<u32>>,
}

impl Default for Fakes {
    fn default() -> Self {
        Self { world: Arc::default(), requests: Arc::new(watch::Sender::new(0)) }
    }
}

impl Fakes {
    /// Starts the services of one cell; answers its members.
    pub async fn start(&self, cell: &str, storage_cell: &str) -> Vec<Member> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = FakeCell { cell: cell.to_owned(), fakes: self.clone() };
        let server = tonic::transport::Server::builder()
            .add_service(DataServiceServer::new(service.clone()))
            .add_service(GuildServiceServer::new(service));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(server.serve_with_incoming(incoming));
        [Role::Data, Role::Guild].map(|role| member_of(role, cell, storage_cell, &address)).into()
    }

    /// Starts the coordinator of a migration; answers its member.
    pub async fn start_coordinator(&self, migration: &str) -> Member {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = FakeCoordinator { fakes: self.clone(), state: Mutex::default() };
        let server = tonic::transport::Server::builder().add_service(MigrateServiceServer::new(service));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(server.serve_with_incoming(incoming));
        member_of(Role::Migrate, migration, "", &address)
    }

    /// Waits until `count` requests of runs were made since the start.
    pub async fn wait_requests(&self, count: u32) {
        let mut requests = self.requests.subscribe();
        requests.wait_for(|now| *now >= count).await.unwrap();
    }

    pub fn requests(&self) -> u32 {
        *self.requests.borrow()
    }

    fn ask(&self, name: &'static str) {
        self.world.lock().asked.push(name);
        self.requests.send_modify(|count| *count += 1);
    }
}

/// Where a log is, and its copy.
#[derive(Clone, Debug, Default)]
pub struct FakeCopy {
    /// Empty until somebody asked: then the run's source.
    pub serving: String,
    pub shipping: bool,
    pub cut_overs: u32,
}

impl World {
    fn ship(&mut self, request: &ShipRequest) -> ShipReply {
        let term = self.heads.get(&request.log).map(|head| head.term).unwrap_or_default();
        let copy = self.copies.entry(request.log.clone()).or_default();
        if copy.serving.is_empty() {
            copy.serving.clone_from(&request.source);
        }
        copy.shipping = true;
        ShipReply { serving: copy.serving.clone(), term, last: 10, shipped: 10, ..ShipReply::default() }
    }

    fn cut_over(&mut self, request: &CutOverRequest) -> CutOverReply {
        let copy = self.copies.entry(request.log.clone()).or_default();
        let Some(head) = self.heads.get_mut(&request.log) else { return CutOverReply::default() };
        if copy.serving == request.to {
            return CutOverReply { cut: true, new_term: head.term, ..CutOverReply::default() };
        }
        if head.term != request.expected_term || !copy.shipping {
            return CutOverReply { refusal: refused(Reason::StaleTerm), ..CutOverReply::default() };
        }
        copy.serving.clone_from(&request.to);
        copy.cut_overs += 1;
        head.term += 1;
        CutOverReply { cut: true, at: 10, new_term: head.term, held_us: 2_500, ..CutOverReply::default() }
    }
}

/// A coordinator that finishes a phase after a few looks.
struct FakeCoordinator {
    fakes: Fakes,
    state: Mutex<MigrateState>,
}

#[tonic::async_trait]
impl MigrateService for FakeCoordinator {
    async fn control(&self, request: Request<MigrateControlRequest>) -> Reply<MigrateState> {
        self.fakes.ask("Control");
        let request = request.into_inner();
        let mut state = self.state.lock();
        if request.phase() != MigratePhase::Unspecified && request.round > state.round {
            *state = MigrateState {
                run_id: request.run_id.clone(),
                phase: request.phase,
                round: request.round,
                ranges_total: 2,
                workers: 1,
                ..MigrateState::default()
            };
        }
        state.paused = request.paused;
        if state.ranges_done < state.ranges_total && !request.paused {
            state.ranges_done += 1;
            state.rows += 500;
        }
        state.complete = state.ranges_done == state.ranges_total;
        if state.complete && state.phase() == MigratePhase::Verify {
            let now = cell_runtime::unix_ms();
            state.receipt = Some(Receipt {
                run_id: request.run_id,
                round: state.round,
                began_unix_ms: now,
                ended_unix_ms: now,
                source: request.source,
                target: request.target,
                ranges: 2,
                rows_compared: 1_000,
                clean: true,
                ..Receipt::default()
            });
        }
        Ok(Response::new(state.clone()))
    }

    async fn ranges(&self, _: Request<RangesRequest>) -> Reply<RangesReply> {
        let row =
            |table: &str| RangeRow { table: table.into(), state: "done".into(), rows: 500, ..RangeRow::default() };
        Ok(Response::new(RangesReply { ranges: vec![row("messages"), row("users")], ..RangesReply::default() }))
    }

    async fn lease(&self, _: Request<LeaseRequest>) -> Reply<LeaseReply> {
        Err(Status::unimplemented("not in this fake"))
    }

    async fn report(&self, _: Request<RangeReport>) -> Reply<ReportReply> {
        Err(Status::unimplemented("not in this fake"))
    }
}

#[derive(Clone)]
struct FakeCell {
    cell: String,
    fakes: Fakes,
}

impl FakeCell {
    fn claim_head(&self, log: &str) -> Option<Head> {
        let mut world = self.fakes.world.lock();
        let head = world.heads.get_mut(log)?;
        head.term += 1;
        head.appender = format!("{}-data-0", self.cell);
        Some(head.clone())
    }
}

fn done() -> Reply<RunReply> {
    Ok(Response::new(RunReply { done: true, unchanged: false, refusal: None }))
}

fn refused(reason: Reason) -> Option<Refusal> {
    Some(Refusal::new(reason, "refused by the fake"))
}

#[tonic::async_trait]
impl DataService for FakeCell {
    async fn submit(&self, request: Request<SubmitRequest>) -> Reply<SubmitReply> {
        let request = request.into_inner();
        let Some(Kind::UserCreated(created)) = request.change.and_then(|change| change.kind) else {
            return Err(Status::unimplemented("only users"));
        };
        let user = created.user.unwrap();
        let duplicate = self.fakes.world.lock().users.insert(user.id, user).is_some();
        let committed = Committed { duplicate, ..Committed::default() };
        Ok(Response::new(SubmitReply { outcome: Some(Outcome::Committed(committed)) }))
    }

    async fn query(&self, request: Request<QueryRequest>) -> Reply<QueryReply> {
        let Some(Query::User(query)) = request.into_inner().query else {
            return Err(Status::unimplemented("only users"));
        };
        let found = self.fakes.world.lock().users.get(&query.user_id).cloned();
        let answer =
            found.map_or_else(|| Answer::Refusal(Refusal::new(Reason::NotFound, "no such user")), Answer::User);
        Ok(Response::new(QueryReply { as_of: 1, answer: Some(answer) }))
    }

    type ReadGuildStream = Streamed<GuildChunk>;
    async fn read_guild(&self, request: Request<ReadGuildRequest>) -> Reply<Self::ReadGuildStream> {
        let id = request.into_inner().guild_id;
        let missing = self.fakes.world.lock().missing_guilds.contains(&id);
        let chunk = if missing {
            GuildChunk { refusal: refused(Reason::NotFound), ..GuildChunk::default() }
        } else {
            GuildChunk { guild: Some(Guild { id, ..Guild::default() }), done: true, ..GuildChunk::default() }
        };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(chunk)]))))
    }
    type FeedStream = Streamed<FeedBatch>;
    async fn feed(&self, _: Request<FeedRequest>) -> Reply<Self::FeedStream> {
        Err(Status::unimplemented("not in this fake"))
    }
    async fn ack_feed(&self, _: Request<AckFeedRequest>) -> Reply<AckFeedReply> {
        Err(Status::unimplemented("not in this fake"))
    }
    async fn read_log(&self, _: Request<ReadLogRequest>) -> Reply<ReadLogReply> {
        Err(Status::unimplemented("not in this fake"))
    }

    async fn create_heads(&self, request: Request<CreateHeadsRequest>) -> Reply<CreateHeadsReply> {
        let mut world = self.fakes.world.lock();
        world.bootstraps += 1;
        let mut reply = CreateHeadsReply::default();
        for head in request.into_inner().heads {
            if world.heads.contains_key(&head.log) {
                reply.existing += 1;
            } else {
                reply.created += 1;
                world.heads.insert(head.log.clone(), head);
            }
        }
        Ok(Response::new(reply))
    }

    async fn list_heads(&self, request: Request<ListHeadsRequest>) -> Reply<ListHeadsReply> {
        let request = request.into_inner();
        let world = self.fakes.world.lock();
        let fits = |head: &&Head| head.log > request.after && (request.cell.is_empty() || head.cell == request.cell);
        let limit = usize::try_from(request.limit).unwrap();
        let heads: Vec<Head> = world.heads.values().filter(fits).take(limit + 1).cloned().collect();
        let more = heads.len() > limit;
        Ok(Response::new(ListHeadsReply { heads: heads.into_iter().take(limit).collect(), more, refusal: None }))
    }

    async fn inspect(&self, request: Request<InspectRequest>) -> Reply<InspectReply> {
        self.fakes.ask("Inspect");
        let log = request.into_inner().log;
        let world = self.fakes.world.lock();
        let head = world.heads.get(&log).cloned();
        let split = world.heads.values().filter(|head| head.moved_to.is_empty()).filter_map(|head| {
            let guild_id = head.log.strip_prefix('g')?.parse().ok()?;
            (Unit::bucket(guild_id).log() == log).then_some(guild_id)
        });
        let split_guilds = split.collect();
        Ok(Response::new(InspectReply { head, last: 10, applied: 10, split_guilds, ..InspectReply::default() }))
    }

    async fn claim(&self, request: Request<ClaimRequest>) -> Reply<ClaimReply> {
        self.fakes.ask("Claim");
        Ok(Response::new(ClaimReply { head: self.claim_head(&request.into_inner().log), refusal: None }))
    }

    async fn split_guild(&self, request: Request<SplitGuildRequest>) -> Reply<RunReply> {
        self.fakes.ask("Split");
        let request = request.into_inner();
        let mut world = self.fakes.world.lock();
        let bucket = world.heads.get(&request.bucket_log).cloned().unwrap();
        let log = Unit::Guild(request.guild_id).log();
        let fresh = Head { log: log.clone(), cell: bucket.cell, term: 1, ..Head::default() };
        world.heads.entry(log).or_insert(fresh);
        drop(world);
        done()
    }

    async fn merge_guild(&self, request: Request<MergeGuildRequest>) -> Reply<RunReply> {
        self.fakes.ask("Merge");
        let request = request.into_inner();
        let log = Unit::Guild(request.guild_id).log();
        if let Some(head) = self.fakes.world.lock().heads.get_mut(&log) {
            head.moved_to = format!("log:{}", request.bucket_log);
        }
        done()
    }

    async fn switch(&self, request: Request<SwitchRequest>) -> Reply<SwitchReply> {
        let request = request.into_inner();
        let reply = {
            let mut world = self.fakes.world.lock();
            let warm = world.warm.contains(&(request.to_cell.clone(), request.guild_id));
            let head = world.heads.get_mut(&request.log).unwrap();
            if head.cell == request.to_cell {
                SwitchReply { switched: true, new_term: head.term, ..SwitchReply::default() }
            } else if head.cell != request.from_cell || head.term != request.expected_term {
                SwitchReply { refusal: refused(Reason::StaleTerm), ..SwitchReply::default() }
            } else if !warm {
                SwitchReply { refusal: refused(Reason::Wait), ..SwitchReply::default() }
            } else {
                head.cell = request.to_cell;
                head.term += 1;
                let new_term = head.term;
                *world.head_changes.entry(request.log).or_default() += 1;
                SwitchReply { switched: true, at: 10, new_term, held_us: 1500, refusal: None }
            }
        };
        self.fakes.ask("Switch");
        Ok(Response::new(reply))
    }

    async fn ship(&self, request: Request<ShipRequest>) -> Reply<ShipReply> {
        self.fakes.ask("Ship");
        Ok(Response::new(self.fakes.world.lock().ship(&request.into_inner())))
    }

    async fn cut_over(&self, request: Request<CutOverRequest>) -> Reply<CutOverReply> {
        let reply = self.fakes.world.lock().cut_over(&request.into_inner());
        self.fakes.ask("CutOver");
        Ok(Response::new(reply))
    }

    async fn end_copy(&self, request: Request<EndCopyRequest>) -> Reply<RunReply> {
        self.fakes.ask("EndCopy");
        let log = request.into_inner().log;
        self.fakes.world.lock().copies.entry(log).or_default().shipping = false;
        done()
    }

    async fn copy_status(&self, _: Request<CopyStatusRequest>) -> Reply<CopyStatusReply> {
        self.fakes.ask("CopyStatus");
        Ok(Response::new(CopyStatusReply { shadow_samples: 1_000, ..CopyStatusReply::default() }))
    }
}

#[tonic::async_trait]
impl GuildService for FakeCell {
    type LinkStream = Streamed<LinkDown>;
    async fn link(&self, _: Request<tonic::Streaming<LinkUp>>) -> Reply<Self::LinkStream> {
        Err(Status::unimplemented("not in this fake"))
    }
    async fn mutate(&self, _: Request<MutateRequest>) -> Reply<SubmitReply> {
        Err(Status::unimplemented("not in this fake"))
    }
    async fn members(&self, _: Request<MembersRequest>) -> Reply<MembersReply> {
        Err(Status::unimplemented("not in this fake"))
    }
    async fn inspect_guild(&self, _: Request<InspectGuildRequest>) -> Reply<InspectGuildReply> {
        Err(Status::unimplemented("not in this fake"))
    }

    async fn warm(&self, request: Request<WarmRequest>) -> Reply<WarmReply> {
        self.fakes.ask("Warm");
        self.fakes.world.lock().warm.insert((self.cell.clone(), request.into_inner().guild_id));
        Ok(Response::new(WarmReply { ready: true, position: 10, refusal: None }))
    }
    async fn announce_standby(&self, _: Request<AnnounceStandbyRequest>) -> Reply<RunReply> {
        self.fakes.ask("AnnounceStandby");
        done()
    }
    async fn reach(&self, request: Request<ReachRequest>) -> Reply<ReachReply> {
        self.fakes.ask("Reach");
        let request = request.into_inner();
        let warm = self.fakes.world.lock().warm.contains(&(self.cell.clone(), request.guild_id));
        let refusal = if warm { None } else { refused(Reason::NotFound) };
        Ok(Response::new(ReachReply { reached: warm, position: request.at, refusal }))
    }
    async fn take_over(&self, request: Request<TakeOverRequest>) -> Reply<RunReply> {
        let request = request.into_inner();
        self.fakes.ask(if request.claim { "TakeOver" } else { "PointAway" });
        let named = request.route.map(|route| route.term).unwrap_or_default();
        let term = self.fakes.world.lock().heads.get(&request.log).map(|head| head.term).unwrap_or_default();
        self.fakes.world.lock().route_terms.push((named, term));
        if request.claim {
            self.fakes.world.lock().owners.insert(request.guild_id, self.cell.clone());
        }
        done()
    }
    async fn forget(&self, request: Request<ForgetRequest>) -> Reply<RunReply> {
        self.fakes.ask("Forget");
        self.fakes.world.lock().warm.remove(&(self.cell.clone(), request.into_inner().guild_id));
        done()
    }
}
