use std::sync::Arc;

use cell_proto::v1::{
    Change, ChannelDeleted, ChannelPut, MemberRemoved, Message, MessageCreated, Overwrite, RoleDeleted, RolePut, User,
};
use cell_runtime::policy::bits;
use parking_lot::Mutex;

use super::*;
use crate::guilds::fanout::Fanout;
use crate::session::machine::{Identity, Session, Taken};
use crate::session::registry::Slot;
use crate::wire::intents::{GUILD_MESSAGES, GUILDS, Intents, all_privileged};

const GUILD: i64 = 1;
const OWNER: i64 = 10;
const USER: i64 = 11;
const OPEN: i64 = 100;
const SECRET: i64 = 101;

struct Nobody;

impl Names for Nobody {
    fn user(&self, _: i64) -> Option<User> {
        None
    }
    fn member(&self, _: i64) -> Option<Member> {
        None
    }
}

fn member(id: i64, roles: &[i64]) -> Member {
    Member {
        user: Some(User { id, name: format!("u{id}"), ..User::default() }),
        role_ids: roles.to_vec(),
        ..Member::default()
    }
}

fn channel(id: i64, hidden: bool) -> Channel {
    let deny = Overwrite { id: GUILD, r#type: 0, allow: 0, deny: bits::VIEW_CHANNEL };
    Channel { id, guild_id: GUILD, overwrites: hidden.then_some(deny).into_iter().collect(), ..Channel::default() }
}

fn replica() -> Replica {
    Replica::from_snapshot(GuildSnapshot {
        guild: Some(Guild { id: GUILD, owner_id: OWNER, policy_version: 1, ..Guild::default() }),
        channels: vec![channel(OPEN, false), channel(SECRET, true)],
        roles: vec![Role { id: GUILD, permissions: bits::DEFAULT_EVERYONE, ..Role::default() }],
        members: vec![member(OWNER, &[]), member(USER, &[])],
        member_count: 2,
        ..GuildSnapshot::default()
    })
}

/// A guild with sessions, fed entries.
struct World {
    replica: Replica,
    fanout: Fanout,
}

impl World {
    fn new(slots: &[&Arc<Slot>]) -> Self {
        let mut world = Self { replica: replica(), fanout: Fanout::default() };
        slots.iter().for_each(|slot| world.fanout.wait(slot));
        world.fanout.admit(&world.replica, &[], 0);
        world
    }

    fn apply(&mut self, kind: Kind) {
        let entry =
            Entry { actor_id: OWNER, timestamp_us: 5, change: Some(Change { kind: Some(kind) }), ..Entry::default() };
        let version = self.replica.policy_version + 1;
        for effect in self.replica.apply(&entry, version, 2, &Nobody, &|_| false) {
            match effect {
                Effect::Send(outgoing) => _ = self.fanout.send(&outgoing),
                Effect::Visibility(whose) => self.fanout.look_again(&self.replica, whose, 0),
                Effect::Left(user_id) => self.fanout.leave(GUILD, user_id),
                Effect::Joined(_) | Effect::GuildGone => {}
            }
        }
        self.fanout.end_entry();
    }
}

fn session(user_id: i64, bits: u32) -> Arc<Slot> {
    let intents = Intents::parse(i64::from(bits), all_privileged()).unwrap();
    let identity = Identity { id: format!("s{user_id}-{bits}"), user_id, bot: true, intents, shard: None };
    let mut session = Session::new(identity, 0);
    session.attach_new(1);
    Slot::new(session)
}

/// Names of the events since the last call, and the last one's body.
fn told(slot: &Slot) -> Vec<&'static str> {
    match slot.machine.lock().take(1, 100, 1 << 20) {
        Taken::Events(events) => events.iter().map(|(_, event)| event.name()).collect(),
        other => panic!("{other:?}"),
    }
}

fn message(channel_id: i64) -> Kind {
    let author = Some(User { id: OWNER, ..User::default() });
    Kind::MessageCreated(MessageCreated { message: Some(Message { id: 1, channel_id, author, ..Message::default() }) })
}

#[test]
fn messages_of_a_channel_reach_only_who_sees_it() {
    let (owner, user) = (session(OWNER, GUILDS | GUILD_MESSAGES), session(USER, GUILDS | GUILD_MESSAGES));
    let mut world = World::new(&[&owner, &user]);
    assert_eq!((told(&owner), told(&user)), (vec!["GUILD_CREATE"], vec!["GUILD_CREATE"]));
    world.apply(message(SECRET));
    assert_eq!((told(&owner), told(&user)), (vec!["MESSAGE_CREATE"], vec![]));
    world.apply(message(OPEN));
    assert_eq!((told(&owner), told(&user)), (vec!["MESSAGE_CREATE"], vec!["MESSAGE_CREATE"]));
}

#[test]
fn a_channel_that_becomes_hidden_vanishes_and_comes_back_as_new() {
    let user = session(USER, GUILDS | GUILD_MESSAGES);
    let mut world = World::new(&[&user]);
    told(&user);
    world.apply(Kind::ChannelPut(ChannelPut { channel: Some(channel(OPEN, true)), created: false }));
    assert_eq!(told(&user), ["CHANNEL_DELETE"]);
    world.apply(message(OPEN));
    assert_eq!(told(&user), Vec::<&str>::new());
    world.apply(Kind::ChannelPut(ChannelPut { channel: Some(channel(OPEN, false)), created: false }));
    assert_eq!(told(&user), ["CHANNEL_CREATE"], "told once, not also as an update");
}

#[test]
fn a_new_hidden_channel_is_never_told_of_and_a_new_open_one_is() {
    let user = session(USER, GUILDS);
    let mut world = World::new(&[&user]);
    told(&user);
    world.apply(Kind::ChannelPut(ChannelPut { channel: Some(channel(200, true)), created: true }));
    assert_eq!(told(&user), Vec::<&str>::new());
    world.apply(Kind::ChannelPut(ChannelPut { channel: Some(channel(201, false)), created: true }));
    assert_eq!(told(&user), ["CHANNEL_CREATE"]);
    world.apply(Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id: 200 }));
    assert_eq!(told(&user), Vec::<&str>::new());
    world.apply(Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id: 201 }));
    assert_eq!(told(&user), ["CHANNEL_DELETE"]);
}

#[test]
fn a_role_opens_a_channel_to_its_members_at_once() {
    let user = session(USER, GUILDS | GUILD_MESSAGES);
    let mut world = World::new(&[&user]);
    told(&user);
    let admin = Role { id: 5, permissions: bits::ADMINISTRATOR, ..Role::default() };
    world.apply(Kind::RolePut(RolePut { guild_id: GUILD, role: Some(admin), created: true }));
    world.apply(Kind::MemberPut(MemberPut {
        guild_id: GUILD,
        member: Some(member(USER, &[5])),
        ..MemberPut::default()
    }));
    assert_eq!(told(&user), ["GUILD_ROLE_CREATE", "GUILD_MEMBER_UPDATE", "CHANNEL_CREATE"]);
    world.apply(message(SECRET));
    assert_eq!(told(&user), ["MESSAGE_CREATE"]);
    world.apply(Kind::RoleDeleted(RoleDeleted { guild_id: GUILD, role_id: 5 }));
    assert_eq!(told(&user), ["GUILD_ROLE_DELETE", "CHANNEL_DELETE"]);
}

#[test]
fn who_is_removed_loses_the_guild_and_hears_nothing_more() {
    let user = session(USER, GUILDS | GUILD_MESSAGES);
    let mut world = World::new(&[&user]);
    told(&user);
    world.apply(Kind::MemberRemoved(MemberRemoved { guild_id: GUILD, user_id: USER }));
    world.apply(message(OPEN));
    assert_eq!(told(&user), ["GUILD_DELETE"]);
}

#[test]
fn a_session_that_is_no_member_is_told_that_the_guild_is_gone() {
    let stranger = session(99, GUILDS);
    let mut world = World::new(&[&stranger]);
    assert_eq!(told(&stranger), Vec::<&str>::new());
    world.fanout.admit(&world.replica, &[99], 0);
    assert_eq!(told(&stranger), ["GUILD_DELETE"]);
    assert!(world.fanout.is_empty());
}

#[test]
fn an_event_is_serialised_once_for_all_sessions() {
    let slots: Vec<_> = (0..3).map(|n| session(OWNER, GUILDS | GUILD_MESSAGES | (n << 12))).collect();
    let mut world = World::new(&slots.iter().collect::<Vec<_>>());
    slots.iter().for_each(|slot| _ = told(slot));
    world.apply(message(OPEN));
    let bodies = Mutex::new(Vec::new());
    for slot in &slots {
        let Taken::Events(events) = slot.machine.lock().take(1, 10, 1 << 20) else { panic!() };
        bodies.lock().push(events[0].1.clone());
    }
    let bodies = bodies.into_inner();
    assert!(bodies.iter().all(|event| Arc::ptr_eq(event, &bodies[0])));
}
