//! The scripted data owner's gRPC.

use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_server::DataService;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::*;
use tonic::{Request, Status};

use super::{Boxed, Fake, Out, guild_of, refuse};
use tonic::Response;

impl Fake {
    fn answer(&self, request: QueryRequest) -> QueryReply {
        let state = self.state.lock();
        let not_found = || Answer::Refusal(Refusal::new(Reason::NotFound, "scripted"));
        let mut messages = state.guilds.values().flat_map(|guild| &guild.messages);
        let answer = match request.query.unwrap() {
            Query::User(query) => state.users.get(&query.user_id).cloned().map(Answer::User),
            Query::UserGuilds(query) => {
                let guild_ids = state.user_guilds.get(&query.user_id).cloned().unwrap_or_default();
                Some(Answer::UserGuilds(UserGuilds { guild_ids }))
            }
            Query::ReadStates(query) => {
                // Pages of one, so that going on is seen to work.
                let known = state.read_states.get(&query.user_id).cloned().unwrap_or_default();
                let mut rest = known.range(query.after_channel_id + 1..);
                let state = |(channel, last): (&i64, &i64)| ReadState { channel_id: *channel, last_message_id: *last };
                let states: Vec<ReadState> = rest.next().map(state).into_iter().collect();
                Some(Answer::ReadStates(ReadStates { states, more: rest.next().is_some() }))
            }
            Query::Message(query) => messages.find(|one| one.id == query.message_id).cloned().map(Answer::Message),
            Query::MessagePage(query) => {
                let mut found: Vec<_> = messages
                    .filter(|one| one.channel_id == query.channel_id)
                    .filter(|one| query.before == 0 || one.id < query.before)
                    .filter(|one| one.id > query.after)
                    .cloned()
                    .collect();
                found.sort_by_key(|one| std::cmp::Reverse(one.id));
                found.truncate(query.limit as usize);
                Some(Answer::MessagePage(MessagePage { messages: found }))
            }
            Query::Invite(query) => {
                let invites = state.guilds.values().flat_map(|guild| &guild.invites).find(|one| one.code == query.code);
                invites.cloned().map(Answer::Invite)
            }
            Query::Channel(query) => {
                let channels =
                    state.guilds.values().flat_map(|guild| &guild.channels).find(|one| one.id == query.channel_id);
                channels.cloned().map(Answer::Channel)
            }
        };
        QueryReply { as_of: i64::MAX.unsigned_abs(), answer: Some(answer.unwrap_or_else(not_found)) }
    }
}

#[tonic::async_trait]
impl DataService for Fake {
    type ReadGuildStream = Boxed<GuildChunk>;
    type FeedStream = Boxed<FeedBatch>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Out<SubmitReply> {
        let request = request.into_inner();
        let change = request.change.unwrap();
        if self.state.lock().full {
            return Ok(Response::new(refuse(Reason::StoreFull, 30_000)));
        }
        if let Some(Kind::ReadStatesAdvanced(read)) = &change.kind {
            // Long enough for others to come meanwhile.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            return Ok(Response::new(self.advance(request.actor_id, request.operation_id, read)));
        }
        let (guild_id, lost) = {
            let mut state = self.state.lock();
            state.seen.push((request.operation_id.clone(), request.deadline_unix_ms));
            if state.waits > 0 {
                state.waits -= 1;
                return Ok(Response::new(refuse(Reason::Wait, 20)));
            }
            let guild_id = guild_of(&change, &state);
            let current = state.guilds.get(&guild_id).map_or(0, |guild| guild.guild.policy_version);
            let structural = matches!(change.kind, Some(Kind::GuildCreated(_)));
            if state.stale_policies > 0 || !structural && request.policy_version < current {
                state.stale_policies = state.stale_policies.saturating_sub(1);
                return Ok(Response::new(refuse(Reason::StalePolicy, 0)));
            }
            let lost = state.lost_answers > 0;
            state.lost_answers = state.lost_answers.saturating_sub(1);
            (guild_id, lost)
        };
        let committed = self.commit(guild_id, request.operation_id, request.actor_id, change.kind.unwrap());
        if lost {
            return Err(Status::unavailable("the answer was lost"));
        }
        Ok(Response::new(SubmitReply { outcome: Some(submit_reply::Outcome::Committed(committed)) }))
    }

    async fn query(&self, request: Request<QueryRequest>) -> Out<QueryReply> {
        let request = request.into_inner();
        let is_read = matches!(request.query, Some(Query::ReadStates(_)));
        let gate = if is_read { self.state.lock().read_gate.take() } else { None };
        let reply = self.answer(request);
        if let Some((ready, go)) = gate {
            ready.send(()).unwrap();
            go.await.unwrap();
        }
        Ok(Response::new(reply))
    }

    async fn read_guild(&self, request: Request<ReadGuildRequest>) -> Out<Self::ReadGuildStream> {
        let guild = self.state.lock().guilds.get(&request.into_inner().guild_id).cloned().unwrap_or_default();
        let chunk = GuildChunk { invites: guild.invites, done: true, ..GuildChunk::default() };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(chunk)]))))
    }

    async fn feed(&self, _: Request<FeedRequest>) -> Out<Self::FeedStream> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn ack_feed(&self, _: Request<AckFeedRequest>) -> Out<AckFeedReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn read_log(&self, _: Request<ReadLogRequest>) -> Out<ReadLogReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn create_heads(&self, _: Request<CreateHeadsRequest>) -> Out<CreateHeadsReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn list_heads(&self, _: Request<ListHeadsRequest>) -> Out<ListHeadsReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn inspect(&self, _: Request<InspectRequest>) -> Out<InspectReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn claim(&self, _: Request<ClaimRequest>) -> Out<ClaimReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn split_guild(&self, _: Request<SplitGuildRequest>) -> Out<RunReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn merge_guild(&self, _: Request<MergeGuildRequest>) -> Out<RunReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn switch(&self, _: Request<SwitchRequest>) -> Out<SwitchReply> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn ship(
        &self,
        _: tonic::Request<cell_proto::v1::ShipRequest>,
    ) -> Result<tonic::Response<cell_proto::v1::ShipReply>, tonic::Status> {
        Err(tonic::Status::unimplemented("this data service keeps no copies"))
    }

    async fn cut_over(
        &self,
        _: tonic::Request<cell_proto::v1::CutOverRequest>,
    ) -> Result<tonic::Response<cell_proto::v1::CutOverReply>, tonic::Status> {
        Err(tonic::Status::unimplemented("this data service keeps no copies"))
    }

    async fn end_copy(
        &self,
        _: tonic::Request<cell_proto::v1::EndCopyRequest>,
    ) -> Result<tonic::Response<cell_proto::v1::RunReply>, tonic::Status> {
        Err(tonic::Status::unimplemented("this data service keeps no copies"))
    }

    async fn copy_status(
        &self,
        _: tonic::Request<cell_proto::v1::CopyStatusRequest>,
    ) -> Result<tonic::Response<cell_proto::v1::CopyStatusReply>, tonic::Status> {
        Err(tonic::Status::unimplemented("this data service keeps no copies"))
    }
}
