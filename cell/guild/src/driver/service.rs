//! The gRPC service: finds the guild's task, asks it, waits for the answer no longer than the caller does.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::guild_service_server::GuildService;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    AnnounceStandbyRequest, ForgetRequest, InspectGuildReply, InspectGuildRequest, LinkDown, LinkUp, Member,
    MembersReply, MembersRequest, MutateRequest, ReachReply, ReachRequest, Reason, Refusal, Route, RunReply,
    SubmitReply, TakeOverRequest, WarmReply, WarmRequest,
};
use cell_runtime::unix_ms;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::ask::{Ask, Envelope};
use super::link_server;
use super::node::{Decision, Node, deliver};
use super::registry::Handle;
use crate::machine::GuildView;

/// Longest wait for an answer of an operator's request.
const OPERATOR_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for the guild to be owned, for a query.
const QUERY_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait a caller of Reach can ask for, in milliseconds.
const REACH_LIMIT_MS: u32 = 30_000;
/// Members in one answer.
const PAGE_LIMIT: usize = 1000;
/// Users asked for by id at once.
const IDS_LIMIT: usize = 10_000;

/// The service of one node.
pub(super) struct Service(pub(super) Arc<Node>);

impl Service {
    /// Asks a guild's task. The refusal says why there is no answer.
    async fn ask<T>(
        &self,
        handle: &Handle,
        limit: Duration,
        ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        deliver(&self.0, handle, Envelope::Ask(ask(answer)))?;
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            // What was asked for may have been proposed already, so nobody may say that it was not done.
            Ok(Err(_)) => {
                Err(Refusal::new(Reason::UnknownOutcome, "the guild is being restarted; retry").retry_after_ms(50))
            }
            Err(_) => Err(Refusal::new(Reason::UnknownOutcome, "the guild did not answer in time; retry")),
        }
    }

    async fn view(&self, guild_id: i64, log: &str) -> Result<Box<GuildView>, Refusal> {
        let deadline = Instant::now() + QUERY_LIMIT;
        loop {
            let handle = self.0.owned(guild_id, log)?;
            match self.ask(&handle, QUERY_LIMIT, Ask::View).await.flatten() {
                Err(refusal)
                    if matches!(refusal.why(), Reason::Wait | Reason::UnknownOutcome) && Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(u64::from(refusal.retry_after_ms.clamp(10, 200)))).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn run(
        &self,
        handle: Result<Handle, Refusal>,
        ask: impl FnOnce(oneshot::Sender<RunReply>) -> Ask,
    ) -> RunReply {
        let outcome = match handle {
            Ok(handle) => self.ask(&handle, OPERATOR_LIMIT, ask).await,
            Err(refusal) => Err(refusal),
        };
        outcome.unwrap_or_else(|refusal| RunReply { done: false, unchanged: false, refusal: Some(refusal) })
    }
}

/// Nothing of the guild is here, so there is nothing to do.
fn nothing_to_do() -> RunReply {
    RunReply { done: true, unchanged: true, refusal: None }
}

#[tonic::async_trait]
impl GuildService for Service {
    type LinkStream = ReceiverStream<Result<LinkDown, Status>>;

    async fn link(&self, request: Request<Streaming<LinkUp>>) -> Result<Response<Self::LinkStream>, Status> {
        if self.0.is_draining() {
            return Err(Status::unavailable("this guild node is finishing"));
        }
        let (sender, receiver) = link_server::channel();
        tokio::spawn(link_server::serve(self.0.clone(), request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn mutate(&self, request: Request<MutateRequest>) -> Result<Response<SubmitReply>, Status> {
        let request = request.into_inner();
        let left_ms = u64::try_from(request.deadline_unix_ms.saturating_sub(unix_ms())).unwrap_or(0);
        let outcome = match self.0.owned(request.guild_id, &request.log) {
            // A little longer than the deadline: the machine's own refusal says more.
            Ok(handle) => {
                let limit = Duration::from_millis(left_ms.min(300_000) + 1000);
                self.ask(&handle, limit, |answer| Ask::Mutate(Box::new(request), answer)).await
            }
            Err(refusal) => Err(refusal),
        };
        let reply = outcome.unwrap_or_else(|refusal| SubmitReply { outcome: Some(Outcome::Refusal(refusal)) });
        Ok(Response::new(reply))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Result<Response<MembersReply>, Status> {
        let request = request.into_inner();
        if request.user_ids.len() > IDS_LIMIT {
            let message = format!("user_ids has more than {IDS_LIMIT} entries; ask in parts");
            return Ok(Response::new(refused_members(Refusal::new(Reason::TooLarge, message))));
        }
        let reply = match self.view(request.guild_id, &request.log).await {
            Ok(view) => tokio::task::spawn_blocking(move || find_members(&view, &request))
                .await
                .map_err(|_| Status::internal("the search for members failed"))?,
            Err(refusal) => refused_members(refusal),
        };
        Ok(Response::new(reply))
    }

    async fn warm(&self, request: Request<WarmRequest>) -> Result<Response<WarmReply>, Status> {
        let WarmRequest { guild_id, log, run_id, term, .. } = request.into_inner();
        let route = Route { log: log.clone(), term, ..Route::default() };
        let outcome = match self.0.start(guild_id, &log) {
            Ok(handle) => self.ask(&handle, OPERATOR_LIMIT, |answer| Ask::Warm { run_id, route, answer }).await,
            Err(refusal) => Err(refusal),
        };
        let refused = |refusal| WarmReply { ready: false, position: 0, refusal: Some(refusal) };
        Ok(Response::new(outcome.unwrap_or_else(refused)))
    }

    async fn announce_standby(&self, request: Request<AnnounceStandbyRequest>) -> Result<Response<RunReply>, Status> {
        let AnnounceStandbyRequest { guild_id, run_id, target } = request.into_inner();
        let Some(target) = target else { return Err(Status::invalid_argument("target is missing")) };
        let Some(handle) = self.0.registry.get(guild_id) else { return Ok(Response::new(nothing_to_do())) };
        let ask = |answer| Ask::AnnounceStandby(run_id, target, answer);
        Ok(Response::new(self.run(Ok(handle), ask).await))
    }

    async fn reach(&self, request: Request<ReachRequest>) -> Result<Response<ReachReply>, Status> {
        let ReachRequest { guild_id, log, at, wait_ms, run_id } = request.into_inner();
        let wait_ms = wait_ms.min(REACH_LIMIT_MS);
        let limit = Duration::from_millis(u64::from(wait_ms)) + Duration::from_secs(1);
        let outcome = match self.0.registry.get(guild_id) {
            Some(handle) => self.ask(&handle, limit, |answer| Ask::Reach { run_id, log, at, wait_ms, answer }).await,
            None => Err(Refusal::new(Reason::NotFound, "this node does not follow the guild; warm it first")),
        };
        let refused = |refusal| ReachReply { reached: false, position: 0, refusal: Some(refusal) };
        Ok(Response::new(outcome.unwrap_or_else(refused)))
    }

    async fn take_over(&self, request: Request<TakeOverRequest>) -> Result<Response<RunReply>, Status> {
        let TakeOverRequest { guild_id, log, run_id, claim, route } = request.into_inner();
        if let Some(route) = &route {
            // A request that was on its way for long must not depose who owns the guild by now.
            if claim
                && let Decision::Elsewhere(known) = self.0.decide(guild_id, &log)
                && known.log == route.log
                && known.term > route.term
            {
                let refusal = Refusal::new(Reason::StaleTerm, "the guild has moved on since; plan anew");
                let refusal = Some(refusal.with_route(known));
                return Ok(Response::new(RunReply { done: false, unchanged: false, refusal }));
            }
            self.0.directory.correct(route);
        }
        let handle = if claim {
            self.0.start(guild_id, &log)
        } else {
            match self.0.registry.get(guild_id) {
                Some(handle) => Ok(handle),
                None => return Ok(Response::new(nothing_to_do())),
            }
        };
        let ask = |answer| Ask::TakeOver { run_id, claim, route, answer };
        Ok(Response::new(self.run(handle, ask).await))
    }

    async fn forget(&self, request: Request<ForgetRequest>) -> Result<Response<RunReply>, Status> {
        let ForgetRequest { guild_id, run_id, log, term } = request.into_inner();
        let route = Route { log, term, ..Route::default() };
        let Some(handle) = self.0.registry.get(guild_id) else { return Ok(Response::new(nothing_to_do())) };
        Ok(Response::new(self.run(Ok(handle), |answer| Ask::Forget { run_id, route, answer }).await))
    }

    async fn inspect_guild(
        &self,
        request: Request<InspectGuildRequest>,
    ) -> Result<Response<InspectGuildReply>, Status> {
        let absent = InspectGuildReply { state: "absent".into(), ..InspectGuildReply::default() };
        let Some(handle) = self.0.registry.get(request.into_inner().guild_id) else { return Ok(Response::new(absent)) };
        Ok(Response::new(self.ask(&handle, OPERATOR_LIMIT, Ask::Inspect).await.unwrap_or(absent)))
    }
}

fn refused_members(refusal: Refusal) -> MembersReply {
    MembersReply { refusal: Some(refusal), ..MembersReply::default() }
}

fn find_members(view: &GuildView, request: &MembersRequest) -> MembersReply {
    let mut reply = MembersReply { member_count: view.member_count(), ..MembersReply::default() };
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let limit = if limit == 0 { PAGE_LIMIT } else { limit.min(PAGE_LIMIT) };
    if !request.user_ids.is_empty() {
        let info = crate::machine::member_info(request.guild_id, &view.members, &request.user_ids);
        (reply.members, reply.not_found) = (info.members, info.not_members);
    } else if request.by_prefix {
        let prefix = request.name_prefix.to_lowercase();
        let matches = view.members.iter().filter(|member| has_prefix(member, &prefix)).take(limit);
        reply.members = matches.map(|member| Member::clone(member)).collect();
    } else {
        let page = view.members.after(request.after_user_id).take(limit);
        reply.members = page.map(|member| Member::clone(member)).collect();
    }
    reply
}

fn has_prefix(member: &Member, prefix: &str) -> bool {
    let starts = |name: &str| name.to_lowercase().starts_with(prefix);
    starts(&member.nick) && !member.nick.is_empty()
        || member
            .user
            .as_ref()
            .is_some_and(|user| starts(&user.name) || starts(&user.global_name) && !user.global_name.is_empty())
}
