//! A scripted cell for the gateway's tests: one data owner and one guild owner in memory, over real gRPC on loopback. It keeps logs in
//! order and answers as the contracts say; faults are switched on by the tests.

pub mod client;
mod data_service;
mod guild_service;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cell_proto::directory::{Buckets, Member as FleetMember, Role as FleetRole};
use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_server::DataServiceServer;
use cell_proto::v1::guild_service_server::GuildServiceServer;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::*;
use cell_runtime::View;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tonic::{Response, Status};

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
    /// By user and channel: how far it has read.
    pub read_states: HashMap<i64, std::collections::BTreeMap<i64, i64>>,
    /// The next answer about read states is told to be ready, and held back.
    pub read_gate: Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
    /// Commands that advanced read states.
    pub ack_writes: u64,
    /// Refuse every command as if the volume were full.
    pub full: bool,
    /// Added to the term of every frame.
    pub risen: u64,
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

    /// Sends a frame down every link that follows the guild.
    pub fn inject(&self, guild_id: i64, frame: &Down) {
        for (link, guilds) in &self.state.lock().links {
            if guilds.contains(&guild_id) {
                let _ = link.try_send(Ok(LinkDown { kind: Some(frame.clone()) }));
            }
        }
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
        let term = 1 + state.risen;
        let frame = Down::Events(GuildEvents { guild_id, events: vec![event], term });
        for (link, guilds) in &state.links {
            if guilds.contains(&guild_id) {
                let _ = link.try_send(Ok(LinkDown { kind: Some(frame.clone()) }));
            }
        }
        let committed = Committed { position: Some(position), entry: Some(entry), duplicate: false, term: 1 };
        state.done.insert(operation_id, committed.clone());
        committed
    }

    /// Advances a user's read states, forward only.
    fn advance(&self, actor_id: i64, operation_id: Vec<u8>, read: &ReadStatesAdvanced) -> SubmitReply {
        let mut state = self.state.lock();
        state.ack_writes += 1;
        let position = Position { log: Unit::bucket(read.user_id).log(), number: state.ack_writes };
        let known = state.read_states.entry(read.user_id).or_default();
        let forward = |one: &&ReadState| known.get(&one.channel_id).is_none_or(|last| *last < one.last_message_id);
        let states: Vec<ReadState> = read.states.iter().filter(forward).copied().collect();
        if states.is_empty() {
            return refuse(Reason::AlreadyExists, 0);
        }
        known.extend(states.iter().map(|one| (one.channel_id, one.last_message_id)));
        let change =
            Change { kind: Some(Kind::ReadStatesAdvanced(ReadStatesAdvanced { user_id: read.user_id, states })) };
        let (number, timestamp_us) = (position.number, cell_runtime::clock::unix_us());
        let entry = Entry { number, timestamp_us, operation_id, actor_id, policy_version: 0, change: Some(change) };
        let committed = Committed { position: Some(position), entry: Some(entry), duplicate: false, term: 1 };
        SubmitReply { outcome: Some(submit_reply::Outcome::Committed(committed)) }
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
        Kind::MessagesDeleted(change) => guild.messages.retain(|one| !change.message_ids.contains(&one.id)),
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
        Kind::MessagesDeleted(deleted) => deleted.guild_id,
        other => panic!("{other:?} among {} guilds", state.guilds.len()),
    }
}

type Out<T> = Result<Response<T>, Status>;
type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

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
