use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    Change, Channel, ChannelPut, Entry, Guild, GuildClaimed, GuildCreated, GuildUpdated, Invite, InvitePut, Member,
    MemberPut, MemberRemoved, Message, MessageCreated, Reason, Refusal, Role, RolePut, User,
};
use cell_store::MemoryState;

use super::*;

const GUILD: i64 = 81_384_788_765_712_384;

/// A guild's log without a log: judged changes are applied to tables at once.
struct Log {
    state: State,
    store: MemoryState,
    ids: Ids,
    entries: Vec<Entry>,
}

fn user(id: i64) -> Option<User> {
    Some(User { id, name: format!("user {id}"), ..User::default() })
}

fn role(id: i64) -> Role {
    Role { id, name: "role".into(), ..Role::default() }
}

fn member(id: i64) -> Option<Member> {
    Some(Member { user: user(id), ..Member::default() })
}

fn channel(name: &str) -> Channel {
    Channel { guild_id: GUILD, name: name.into(), ..Channel::default() }
}

impl Log {
    fn empty() -> Self {
        let ids = Ids { last: 0, unix_ms: 1_796_000_000_000 };
        Self { state: State::default(), store: MemoryState::default(), ids, entries: Vec::new() }
    }

    fn with_guild() -> Self {
        let mut log = Self::empty();
        let created = GuildCreated {
            guild: Some(Guild { id: GUILD, name: "g".into(), owner_id: 1, ..Guild::default() }),
            roles: vec![role(GUILD)],
            channels: vec![
                Channel { id: 1, r#type: 4, ..channel("category") },
                Channel { id: 2, parent_id: 1, ..channel("text") },
            ],
            owner: member(1),
        };
        log.commit(Kind::GuildCreated(created)).unwrap();
        log
    }

    fn commit(&mut self, kind: Kind) -> Result<Entry, Refusal> {
        self.commit_as(kind, 0, 0)
    }

    fn commit_as(&mut self, kind: Kind, policy_version: u64, guild_term: u64) -> Result<Entry, Refusal> {
        let (needs, requests) = self.state.missing(&needs(&kind).into_iter().collect());
        let replies = requests.into_iter().map(|request| self.store.handle(request, 0)).collect();
        self.state.learn(needs, replies).unwrap();
        let number = self.entries.len() as u64 + 1;
        let operation_id = [number as u8; 16];
        let asked = Asked { actor_id: 1, policy_version, guild_term, operation_id: &operation_id };
        let judged = judge(&self.state, Unit::bucket(GUILD), &asked, &Change { kind: Some(kind) }, self.ids)?;
        self.ids.last = judged.last_snowflake;
        self.ids.unix_ms += 1000;
        let entry = Entry {
            number,
            timestamp_us: self.ids.unix_ms * 1000,
            operation_id: operation_id.into(),
            actor_id: 1,
            change: Some(judged.change),
            policy_version: judged.policy_version,
        };
        self.state.overlay(&entry);
        self.state.end_batch();
        let write =
            cell_proto::v1::WriteRequest { timestamp_us: 1, mutations: tables::mutations(&entry), ttl_seconds: 0 };
        self.store.handle(write.into(), 0).unwrap();
        self.entries.push(entry.clone());
        Ok(entry)
    }

    fn channel_id(&self) -> i64 {
        match self.entries[0].change.as_ref().unwrap().kind.as_ref().unwrap() {
            Kind::GuildCreated(created) => created.channels[1].id,
            other => panic!("{other:?}"),
        }
    }

    fn message(&self, content: &str) -> Kind {
        let message = Message {
            guild_id: GUILD,
            channel_id: self.channel_id(),
            author: user(1),
            content: content.into(),
            ..Message::default()
        };
        Kind::MessageCreated(MessageCreated { message: Some(message) })
    }
}

fn put_role(id: i64) -> Kind {
    Kind::RolePut(RolePut { guild_id: GUILD, role: Some(role(id)), created: id == 0 })
}

fn join(id: i64, invite_code: &str) -> Kind {
    Kind::MemberPut(MemberPut {
        guild_id: GUILD,
        member: member(id),
        joined: true,
        invite_code: invite_code.into(),
        ..MemberPut::default()
    })
}

fn why(result: Result<Entry, Refusal>) -> Reason {
    result.unwrap_err().why()
}

#[test]
fn a_guilds_channels_get_ids_in_its_bucket_and_keep_their_parents() {
    let log = Log::with_guild();
    let Some(Kind::GuildCreated(created)) = log.entries[0].change.clone().unwrap().kind else {
        panic!("not the guild")
    };
    assert!(created.channels.iter().all(|channel| bucket_of(channel.id) == bucket_of(GUILD)));
    assert_eq!(created.channels[1].parent_id, created.channels[0].id);
    assert_ne!(created.owner.unwrap().joined_at_ms, 0);
    assert_eq!(log.entries[0].policy_version, 1);
}

#[test]
fn the_policy_version_rises_exactly_with_who_may_do_or_see_what() {
    let mut log = Log::with_guild();
    let role_id = match log.commit(put_role(0)).unwrap().change.unwrap().kind.unwrap() {
        Kind::RolePut(put) => put.role.unwrap().id,
        other => panic!("{other:?}"),
    };
    let put = |change: fn(&mut Member)| {
        let mut member = member(2).unwrap();
        change(&mut member);
        MemberPut { guild_id: GUILD, member: Some(member), ..MemberPut::default() }
    };
    let mut with_role = put(|_| ());
    with_role.member.as_mut().unwrap().role_ids = vec![role_id];
    let guild = |owner_id| Guild { id: GUILD, name: "renamed".into(), owner_id, ..Guild::default() };
    let steps = [
        (join(2, ""), false),
        (Kind::MemberPut(put(|member| member.nick = "nick".into())), false),
        (Kind::MemberPut(with_role), true),
        (Kind::MemberPut(put(|member| member.timed_out_until_ms = 5)), true),
        (Kind::GuildUpdated(GuildUpdated { guild: Some(guild(1)) }), false),
        (Kind::GuildUpdated(GuildUpdated { guild: Some(guild(2)) }), true),
        (Kind::ChannelPut(ChannelPut { channel: Some(channel("new")), created: true }), true),
        (Kind::MemberRemoved(MemberRemoved { guild_id: GUILD, user_id: 1 }), true),
    ];
    let mut version = 2;
    for (kind, raises) in steps {
        let entry = log.commit(kind.clone()).unwrap();
        version += u64::from(raises);
        assert_eq!(entry.policy_version, if raises { version } else { 0 }, "{kind:?}");
    }
}

#[test]
fn a_message_judged_by_an_older_policy_is_refused() {
    let mut log = Log::with_guild();
    log.commit(put_role(0)).unwrap();
    let message = log.message("x");
    assert_eq!(why(log.commit_as(message.clone(), 1, 0)), Reason::StalePolicy);
    assert!(log.commit_as(message, 2, 0).is_ok());
    assert_eq!(why(log.commit_as(put_role(0), 1, 0)), Reason::StalePolicy);
}

#[test]
fn structure_of_a_lower_guild_term_is_refused() {
    let mut log = Log::with_guild();
    let claim = |guild_term| Kind::GuildClaimed(GuildClaimed { guild_id: GUILD, node: "n".into(), guild_term });
    log.commit(claim(3)).unwrap();
    assert_eq!(why(log.commit(claim(3))), Reason::StaleGuildTerm);
    assert_eq!(why(log.commit_as(put_role(0), 0, 2)), Reason::StaleGuildTerm);
    assert!(log.commit_as(put_role(0), 0, 3).is_ok());
}

#[test]
fn an_invite_is_used_up_and_expires() {
    let mut log = Log::with_guild();
    let invite = |max_uses, max_age_seconds| Invite {
        guild_id: GUILD,
        channel_id: 0,
        max_uses,
        max_age_seconds,
        ..Invite::default()
    };
    let put = |log: &mut Log, invite: Invite| {
        let invite = Invite { channel_id: log.channel_id(), ..invite };
        match log.commit(Kind::InvitePut(InvitePut { invite: Some(invite) })).unwrap().change.unwrap().kind.unwrap() {
            Kind::InvitePut(put) => put.invite.unwrap().code,
            other => panic!("{other:?}"),
        }
    };
    let code = put(&mut log, invite(2, 0));
    log.commit(join(10, &code)).unwrap();
    log.commit(join(11, &code)).unwrap();
    assert_eq!(why(log.commit(join(12, &code))), Reason::NotFound);
    assert_eq!(why(log.commit(join(10, ""))), Reason::AlreadyExists);
    let short = put(&mut log, invite(0, 3));
    log.commit(join(13, &short)).unwrap();
    log.ids.unix_ms += 5000;
    assert_eq!(why(log.commit(join(14, &short))), Reason::NotFound);
}

#[test]
fn fields_out_of_range_are_named_and_their_text_is_not() {
    let mut log = Log::with_guild();
    for content in [String::new(), "x".repeat(2001)] {
        let refusal = log.commit(log.message(&content)).unwrap_err();
        assert_eq!(refusal.why(), Reason::Invalid);
        assert!(refusal.message.starts_with("content") && !refusal.message.contains("xx"), "{}", refusal.message);
    }
    assert!(log.commit(log.message(&"é".repeat(2000))).is_ok());
    let put = |name: String| Kind::ChannelPut(ChannelPut { channel: Some(channel(&name)), created: true });
    assert_eq!(why(log.commit(put(String::new()))), Reason::Invalid);
    assert_eq!(why(log.commit(put("x".repeat(101)))), Reason::Invalid);
    assert_eq!(why(log.commit(put_role(99))), Reason::NotFound);
    let elsewhere =
        Kind::MessageCreated(MessageCreated { message: Some(Message { guild_id: 5, ..Message::default() }) });
    assert_eq!(why(log.commit(elsewhere)), Reason::Invalid);
}

#[test]
fn a_guild_has_at_most_five_hundred_channels() {
    let mut log = Log::with_guild();
    for number in 2..500 {
        let put = ChannelPut { channel: Some(channel(&number.to_string())), created: true };
        log.commit(Kind::ChannelPut(put)).unwrap();
    }
    let put = ChannelPut { channel: Some(channel("one more")), created: true };
    assert_eq!(why(log.commit(Kind::ChannelPut(put))), Reason::TooLarge);
}

#[test]
fn what_was_overlaid_is_what_is_read_back() {
    let mut log = Log::with_guild();
    log.commit(put_role(0)).unwrap();
    log.commit(join(2, "")).unwrap();
    let before = format!("{:?}", log.state);
    log.state.forget();
    let (needs, requests) = log.state.missing(&[Need::Guild(GUILD)].into());
    let replies = requests.into_iter().map(|request| log.store.handle(request, 0)).collect();
    log.state.learn(needs, replies).unwrap();
    assert_eq!(format!("{:?}", log.state), before);
}
