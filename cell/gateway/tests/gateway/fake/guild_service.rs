//! The scripted guild owner's gRPC: links, structural changes, members.

use cell_proto::v1::guild_service_server::GuildService;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Boxed, Fake, Link, Out, event_of};

impl Fake {
    fn attach(&self, link: &Link, index: usize, attach: Attach) {
        let mut state = self.state.lock();
        state.attaches.push(attach.clone());
        let guild_id = attach.guild_id;
        let Some(guild) = state.guilds.get(&guild_id) else {
            let refusal = Some(Refusal::new(Reason::NotFound, "scripted"));
            let _ = link.try_send(Ok(LinkDown { kind: Some(Down::Refused(AttachRefused { guild_id, refusal })) }));
            return;
        };
        let down = match &attach.position {
            None => {
                let named = |member: &&Member| attach.user_ids.contains(&member.user.as_ref().unwrap().id);
                Down::Snapshot(GuildSnapshot {
                    guild: Some(guild.guild.clone()),
                    channels: guild.channels.clone(),
                    roles: guild.roles.clone(),
                    members: guild.members.iter().filter(named).cloned().collect(),
                    member_count: guild.members.len() as i32,
                    position: guild.log.last().map(|(position, _)| position.clone()),
                    term: 1 + state.risen,
                    guild_term: 1,
                })
            }
            Some(held) => {
                let after = guild.log.iter().filter(|(position, _)| position.number > held.number);
                let events = after.map(|(position, entry)| event_of(guild, position, entry)).collect();
                Down::Events(GuildEvents { guild_id, events, term: 1 + state.risen })
            }
        };
        let _ = link.try_send(Ok(LinkDown { kind: Some(down) }));
        if let Some((_, guilds)) = state.links.get_mut(index) {
            guilds.push(guild_id);
        }
    }

    fn interest(&self, link: &Link, interest: &Interest) {
        if interest.add_user_ids.is_empty() {
            return;
        }
        let state = self.state.lock();
        let Some(guild) = state.guilds.get(&interest.guild_id) else { return };
        let id = |member: &Member| member.user.as_ref().unwrap().id;
        let (mut members, mut not_members) = (Vec::new(), Vec::new());
        for user in &interest.add_user_ids {
            match guild.members.iter().find(|member| id(member) == *user) {
                Some(member) => members.push(member.clone()),
                None => not_members.push(*user),
            }
        }
        let info = MemberInfo { guild_id: interest.guild_id, members, not_members, position: None };
        let _ = link.try_send(Ok(LinkDown { kind: Some(Down::Members(info)) }));
    }
}

#[tonic::async_trait]
impl GuildService for Fake {
    type LinkStream = Boxed<LinkDown>;

    async fn link(&self, request: Request<Streaming<LinkUp>>) -> Out<Self::LinkStream> {
        let mut up = request.into_inner();
        let (link, frames) = mpsc::channel(4096);
        let index = {
            let mut state = self.state.lock();
            state.links.push((link.clone(), Vec::new()));
            state.links.len() - 1
        };
        let fake = self.clone();
        let weak = link.downgrade();
        drop(link);
        tokio::spawn(async move {
            while let Ok(Some(frame)) = up.message().await {
                let Some(link) = weak.upgrade() else { return };
                match frame.kind {
                    Some(Up::Attach(attach)) => fake.attach(&link, index, attach),
                    Some(Up::Interest(interest)) => fake.interest(&link, &interest),
                    Some(Up::Typing(typing)) => {
                        let _ = link.try_send(Ok(LinkDown { kind: Some(Down::Typing(typing)) }));
                        fake.state.lock().typing.push(typing);
                    }
                    _ => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(frames))))
    }

    async fn mutate(&self, request: Request<MutateRequest>) -> Out<SubmitReply> {
        let request = request.into_inner();
        let kind = request.change.unwrap().kind.unwrap();
        let committed = self.commit(request.guild_id, request.operation_id, request.actor_id, kind);
        Ok(Response::new(SubmitReply { outcome: Some(submit_reply::Outcome::Committed(committed)) }))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Out<MembersReply> {
        let request = request.into_inner();
        let state = self.state.lock();
        let guild = state.guilds.get(&request.guild_id).cloned().unwrap_or_default();
        let id = |member: &Member| member.user.as_ref().unwrap().id;
        let wanted = |member: &&Member| {
            if request.by_prefix {
                member.user.as_ref().unwrap().name.starts_with(&request.name_prefix)
            } else if request.user_ids.is_empty() {
                id(member) > request.after_user_id
            } else {
                request.user_ids.contains(&id(member))
            }
        };
        let mut members: Vec<_> = guild.members.iter().filter(wanted).cloned().collect();
        members.sort_by_key(id);
        let not_found =
            request.user_ids.iter().copied().filter(|user| !members.iter().any(|member| id(member) == *user));
        let not_found = not_found.collect();
        members.truncate(request.limit.max(1) as usize);
        Ok(Response::new(MembersReply { members, not_found, member_count: guild.members.len() as i32, refusal: None }))
    }

    async fn warm(&self, _: Request<WarmRequest>) -> Out<WarmReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn announce_standby(&self, _: Request<AnnounceStandbyRequest>) -> Out<RunReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn reach(&self, _: Request<ReachRequest>) -> Out<ReachReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn take_over(&self, _: Request<TakeOverRequest>) -> Out<RunReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn forget(&self, _: Request<ForgetRequest>) -> Out<RunReply> {
        Err(Status::unimplemented("not scripted"))
    }
    async fn inspect_guild(&self, _: Request<InspectGuildRequest>) -> Out<InspectGuildReply> {
        Err(Status::unimplemented("not scripted"))
    }
}
