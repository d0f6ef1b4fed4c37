//! A scripted cell for the gateway's tests: one data owner and one guild owner in memory, over real gRPC on loopback. It keeps logs in
//! order and answers as the contracts say; faults are switched on by the tests.

pub mod client;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cell_proto::directory::{Buckets, Member as FleetMember, Role as FleetRole};
use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_server::{DataService, DataServiceServer};
use cell_proto::v1::guild_service_server::{GuildService, GuildServiceServer};
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::*;
use cell_runtime::View;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

type Link = mpsc::Sender<Result<LinkDown, Status>>;

/// One guild.
#[derive(Default, Clone)]
pub struct FakeGuild {
    pub guild: Guild,
    pub channels: Vec<Channel>,
    pub roles: Vec<Role>,
    pub members: Vec<Member>,
    pub invites: Vec<Invite>,
    pub messages: Vec<Message>,
    /// Position and entry, in order.
    pub log: Vec<(Position, Entry)>,
}

#[derive(Default)]
pub struct State {
    pub users: HashMap<i64, User>,
    pub user_guilds: HashMap<i64, Vec<i64>>,
    pub guilds: HashMap<i64, FakeGuild>,
    pub numbers: HashMap<String, u64>,
    pub done: HashMap<Vec<u8>, Committed>,
    pub links: Vec<(Link, Vec<i64>)>,
    pub typing: Vec<Typing>,
    /// Refuse so many commands with WAIT.
    pub waits: u32,
    /// Refuse so many message commands with STALE_POLICY.
    pub stale_policies: u32,
    /// Operation ids and deadlines of every Submit seen.
    pub seen: Vec<(Vec<u8>, i64)>,
    /// Commit, but answer with a broken call, so many times.
    pub lost_answers: u32,
    pub attaches: Vec<Attach>,
}

#[derive(Clone, Default)]
pub struct Fake {
    pub state: Arc<Mutex<State>>,
    ids: Arc<AtomicU64>,
}

impl State {
    fn position(&mut self, guild_id: i64) -> Position {
        let log = Unit::bucket(guild_id).log();
        let number = self.numbers.entry(log.clone()).or_default();
        *number += 3;
        Position { log, number: *number }
    }
}

impl Fake {
    fn id(&self, bucket: u16) -> i64 {
        loop {
            let low = self.ids.fetch_add(1, Ordering::Relaxed) as i64;
            let id = cell_proto::snowflake::first_of_ms(cell_runtime::unix_ms()) + low;
            if bucket_of(id) == bucket {
                return id;
            }
        }
    }

    /// Makes a user.
    pub fn user(&self, id: i64, name: &str) {
        self.state.lock().users.insert(id, User { id, name: name.into(), bot: true, ..User::default() });
    }

    /// Breaks every link.
    pub fn break_links(&self) {
        self.state.lock().links.clear();
    }

    /// Commits a change to a guild and feeds it.
    pub fn commit(&self, guild_id: i64, operation_id: Vec<u8>, actor_id: i64, mut kind: Kind) -> Committed {
        let mut state = self.state.lock();
        if let Some(done) = state.done.get(&operation_id) {
            return Committed { duplicate: true, ..done.clone() };
        }
        self.assign(guild_id, &mut kind);
        let position = state.position(guild_id);
        let timestamp_us = cell_runtime::clock::unix_us().max(position.number as i64);
        let entry = Entry {
            number: position.number,
            timestamp_us,
            operation_id: operation_id.clone(),
            actor_id,
            policy_version: 0,
            change: Some(Change { kind: Some(kind.clone()) }),
        };
        let guild = state.guilds.entry(guild_id).or_default();
        apply(guild, &kind);
        guild.log.push((position.clone(), entry.clone()));
        let event = event_of(guild, &position, &entry);
        match &kind {
            Kind::GuildCreated(created) => {
                let owner = created.guild.as_ref().unwrap().owner_id;
                state.user_guilds.entry(owner).or_default().push(guild_id);
            }
            Kind::MemberPut(put) if put.joined => {
                let user = put.member.as_ref().unwrap().user.as_ref().unwrap().id;
                state.user_guilds.entry(user).or_default().push(guild_id);
            }
            _ => {}
        }
        let frame = Down::Events(GuildEvents { guild_id, events: vec![event], term: 1 });
        for (link, guilds) in &state.links {
            if guilds.contains(&guild_id) {
                let _ = link.try_send(Ok(LinkDown { kind: Some(frame.clone()) }));
            }
        }
        let committed = Committed { position: Some(position), entry: Some(entry), duplicate: false, term: 1 };
        state.done.insert(operation_id, committed.clone());
        committed
    }

    fn assign(&self, guild_id: i64, kind: &mut Kind) {
        let bucket = bucket_of(guild_id);
        let now_ms = cell_runtime::unix_ms();
        match kind {
            Kind::GuildCreated(created) => {
                created.channels.iter_mut().for_each(|channel| channel.id = self.id(bucket));
                created.owner.as_mut().unwrap().joined_at_ms = now_ms;
            }
            Kind::ChannelPut(put) if put.created => put.channel.as_mut().unwrap().id = self.id(bucket),
            Kind::RolePut(put) if put.created => put.role.as_mut().unwrap().id = self.id(bucket),
            Kind::MemberPut(put) if put.joined => put.member.as_mut().unwrap().joined_at_ms = now_ms,
            Kind::InvitePut(put) => {
                let invite = put.invite.as_mut().unwrap();
                invite.code = code(guild_id, self.ids.fetch_add(1, Ordering::Relaxed));
                invite.created_at_ms = now_ms;
            }
            Kind::MessageCreated(created) => {
                let message = created.message.as_mut().unwrap();
                message.id =
                    cell_proto::snowflake::first_of_ms(now_ms) + self.ids.fetch_add(1, Ordering::Relaxed) as i64;
                message.timestamp_ms = now_ms;
            }
            _ => {}
        }
    }
}

fn code(guild_id: i64, number: u64) -> String {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let (mut rest, mut text) = (guild_id, Vec::new());
    for _ in 0..11 {
        text.insert(0, DIGITS[(rest % 62) as usize]);
        rest /= 62;
    }
    format!("{}{:06}", String::from_utf8(text).unwrap(), number % 1_000_000)
}

fn put<T>(list: &mut Vec<T>, value: T, same: impl Fn(&T) -> bool) {
    match list.iter_mut().find(|one| same(one)) {
        Some(one) => *one = value,
        None => list.push(value),
    }
}

fn apply(guild: &mut FakeGuild, kind: &Kind) {
    let id = |member: &Member| member.user.as_ref().unwrap().id;
    match kind.clone() {
        Kind::GuildCreated(created) => {
            guild.guild = created.guild.unwrap();
            guild.roles = created.roles;
            guild.channels = created.channels;
            guild.members = created.owner.into_iter().collect();
        }
        Kind::GuildUpdated(updated) => guild.guild = updated.guild.unwrap(),
        Kind::ChannelPut(change) => {
            let channel = change.channel.unwrap();
            put(&mut guild.channels, channel.clone(), |one| one.id == channel.id);
            guild.guild.policy_version += 1;
        }
        Kind::ChannelDeleted(change) => guild.channels.retain(|one| one.id != change.channel_id),
        Kind::RolePut(change) => {
            let role = change.role.unwrap();
            put(&mut guild.roles, role.clone(), |one| one.id == role.id);
            guild.guild.policy_version += 1;
        }
        Kind::RoleDeleted(change) => guild.roles.retain(|one| one.id != change.role_id),
        Kind::MemberPut(change) => {
            let member = change.member.unwrap();
            put(&mut guild.members, member.clone(), |one| id(one) == id(&member));
        }
        Kind::MemberRemoved(change) => guild.members.retain(|one| id(one) != change.user_id),
        Kind::InvitePut(change) => guild.invites.push(change.invite.unwrap()),
        Kind::InviteDeleted(change) => guild.invites.retain(|one| one.code != change.code),
        Kind::MessageCreated(change) => guild.messages.push(change.message.unwrap()),
        Kind::MessageEdited(change) => {
            guild
                .messages
                .iter_mut()
                .filter(|one| one.id == change.message_id)
                .for_each(|one| one.content = change.content.clone());
        }
        Kind::MessageDeleted(change) => guild.messages.retain(|one| one.id != change.message_id),
        _ => {}
    }
}

fn event_of(guild: &FakeGuild, position: &Position, entry: &Entry) -> GuildEvent {
    GuildEvent {
        position: Some(position.clone()),
        entry: Some(entry.clone()),
        policy_version: guild.guild.policy_version,
        member_count: guild.members.len() as i32,
    }
}

fn refuse(reason: Reason, retry_after_ms: u32) -> SubmitReply {
    let refusal = Refusal::new(reason, "scripted").retry_after_ms(retry_after_ms);
    SubmitReply { outcome: Some(submit_reply::Outcome::Refusal(refusal)) }
}

fn guild_of(change: &Change, state: &State) -> i64 {
    match change.kind.as_ref().unwrap() {
        Kind::GuildCreated(created) => created.guild.as_ref().unwrap().id,
        Kind::MessageCreated(created) => created.message.as_ref().unwrap().guild_id,
        Kind::MessageEdited(edited) => edited.guild_id,
        Kind::MessageDeleted(deleted) => deleted.guild_id,
        other => panic!("{other:?} among {} guilds", state.guilds.len()),
    }
}

type Out<T> = Result<Response<T>, Status>;
type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl DataService for Fake {
    type ReadGuildStream = Boxed<GuildChunk>;
    type FeedStream = Boxed<FeedBatch>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Out<SubmitReply> {
        let request = request.into_inner();
        let change = request.change.unwrap();
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
        let state = self.state.lock();
        let not_found = || Answer::Refusal(Refusal::new(Reason::NotFound, "scripted"));
        let mut messages = state.guilds.values().flat_map(|guild| &guild.messages);
        let answer = match request.into_inner().query.unwrap() {
            Query::User(query) => state.users.get(&query.user_id).cloned().map(Answer::User),
            Query::UserGuilds(query) => {
                let guild_ids = state.user_guilds.get(&query.user_id).cloned().unwrap_or_default();
                Some(Answer::UserGuilds(UserGuilds { guild_ids }))
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
        Ok(Response::new(QueryReply { as_of: 1, answer: Some(answer.unwrap_or_else(not_found)) }))
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
}

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
                    term: 1,
                    guild_term: 1,
                })
            }
            Some(held) => {
                let after = guild.log.iter().filter(|(position, _)| position.number > held.number);
                let events = after.map(|(position, entry)| event_of(guild, position, entry)).collect();
                Down::Events(GuildEvents { guild_id, events, term: 1 })
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
        let info = MemberInfo { guild_id: interest.guild_id, members, not_members };
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

/// A fleet member.
pub fn fleet_member(id: &str, role: FleetRole, address: &str) -> FleetMember {
    FleetMember {
        id: id.into(),
        role,
        cell: "a".into(),
        storage_cell: "main".into(),
        incarnation: 1,
        grpc_address: address.into(),
        http_address: None,
        admin_address: "127.0.0.1:1".into(),
        draining: false,
    }
}

/// Serves the fake on a port of its own and describes the fleet.
pub async fn serve(fake: &Fake) -> View {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let server = tonic::transport::Server::builder()
        .add_service(DataServiceServer::new(fake.clone()))
        .add_service(GuildServiceServer::new(fake.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut view = View::default();
    view.set_member(fleet_member("a-data-0", FleetRole::Data, &address));
    view.set_member(fleet_member("a-guild-0", FleetRole::Guild, &address));
    view.set_buckets(Buckets { cells: vec!["a".into()], assignment: vec![0; 4096] });
    view
}
