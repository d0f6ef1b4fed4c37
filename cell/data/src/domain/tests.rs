use cell_proto::unit::{Unit, bucket_of};
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    Change, Channel, ChannelDeleted, ChannelPut, Entry, Guild, GuildClaimed, GuildCreated, GuildUpdated, IdRange,
    Invite, InvitePut, Member, MemberPut, MemberRemoved, Message, MessageCreated, MessageDeleted, MessagesDeleted,
    ReadRowsRequest, ReadState, ReadStatesAdvanced, Reason, Refusal, Role, RolePut, User,
};
use cell_store::MemoryState;

use super::*;

const GUILD: i64 = 81_384_788_765_712_384;
const READER: i64 = 7;

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
        let asked = Asked { actor_id: 1, policy_version, guild_term, operation_id: &operation_id, least_run: 2 };
        let unit = if matches!(kind, Kind::ReadStatesAdvanced(_)) { Unit::bucket(READER) } else { Unit::bucket(GUILD) };
        let judged = judge(&self.state, unit, &asked, &Change { kind: Some(kind) }, self.ids)?;
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

impl Log {
    fn write(&mut self, count: usize) -> Vec<i64> {
        let one = |log: &mut Self| match log.commit(log.message("x")).unwrap().change.unwrap().kind.unwrap() {
            Kind::MessageCreated(created) => created.message.unwrap().id,
            other => panic!("{other:?}"),
        };
        (0..count).map(|_| one(self)).collect()
    }

    fn bulk(&mut self, message_ids: Vec<i64>) -> Result<MessagesDeleted, Refusal> {
        let (guild_id, channel_id) = (GUILD, self.channel_id());
        let deleted = MessagesDeleted { guild_id, channel_id, message_ids, ..MessagesDeleted::default() };
        match self.commit(Kind::MessagesDeleted(deleted))?.change.unwrap().kind.unwrap() {
            Kind::MessagesDeleted(deleted) => Ok(deleted),
            other => panic!("{other:?}"),
        }
    }

    fn left(&mut self, ids: &[i64]) -> Vec<i64> {
        let present = |log: &mut Self, id: i64| {
            let partition = tables::message_partition(log.channel_id(), cell_proto::snowflake::message_bucket(id));
            let (start, end) = (id.to_be_bytes().to_vec(), (id + 1).to_be_bytes().to_vec());
            let (table, limit) = (tables::MESSAGES.into(), 1);
            let read = ReadRowsRequest { table, partition, start, end, limit, reverse: false };
            match log.store.handle(read.into(), 0).unwrap() {
                cell_store::Reply::Rows(reply) => !reply.rows.is_empty(),
                other => panic!("{other:?}"),
            }
        };
        ids.iter().filter(|id| present(self, **id)).copied().collect()
    }
}

#[test]
fn messages_that_lie_side_by_side_are_deleted_by_one_tombstone() {
    let mut log = Log::with_guild();
    let ids = log.write(8);
    let (between, alone) = (ids[4], ids[5]);
    let wanted = vec![alone, ids[3], ids[1], ids[2], 999, ids[7] + 1];
    // In any order, with one from long ago and one that is not there yet.
    let deleted = log.bulk(wanted).unwrap();
    assert_eq!(deleted.message_ids, [ids[1], ids[2], ids[3], alone]);
    assert_eq!(deleted.ranges, [IdRange { first: ids[1], last: ids[3] }]);
    let entry = log.entries.last().unwrap();
    let rows = tables::mutations(entry);
    assert_eq!(rows.len(), 2, "one for the run, one for the message alone");
    assert!(rows.iter().all(|row| row.timestamp_us == entry.timestamp_us));
    assert_eq!(log.left(&ids), [ids[0], between, ids[6], ids[7]]);
    // A message that is gone lies between no others.
    let deleted = log.bulk(vec![ids[0], between]).unwrap();
    assert_eq!(deleted.ranges, [IdRange { first: ids[0], last: between }]);
    assert!(log.bulk(vec![ids[0], between]).unwrap().message_ids.is_empty(), "done already, and no refusal");
    assert_eq!(log.left(&ids), ids[6..]);
}

#[test]
fn a_run_is_told_across_messages_of_the_same_batch() {
    let mut log = Log::with_guild();
    let ids = log.write(3);
    let deleted = MessagesDeleted {
        guild_id: GUILD,
        channel_id: log.channel_id(),
        message_ids: vec![ids[0], ids[2]],
        ranges: vec![IdRange { first: 1, last: i64::MAX }],
    };
    // Known before the batch, changed by an entry that is accepted first.
    let kind = Kind::MessagesDeleted(deleted);
    let (needs, requests) = log.state.missing(&needs(&kind).into_iter().collect());
    let replies = requests.into_iter().map(|request| log.store.handle(request, 0)).collect();
    log.state.learn(needs, replies).unwrap();
    let one = MessageDeleted { guild_id: GUILD, channel_id: log.channel_id(), message_id: ids[1] };
    let change = Some(Change { kind: Some(Kind::MessageDeleted(one)) });
    log.state.overlay(&Entry { timestamp_us: 5, change, ..Entry::default() });
    let asked = Asked { actor_id: 1, policy_version: 0, guild_term: 0, operation_id: &[1; 16], least_run: 2 };
    let judged = judge(&log.state, Unit::bucket(GUILD), &asked, &Change { kind: Some(kind) }, log.ids).unwrap();
    let Some(Kind::MessagesDeleted(judged)) = judged.change.kind else { panic!("another kind") };
    assert_eq!(judged.ranges, [IdRange { first: ids[0], last: ids[2] }], "and never the sender's");
}

#[test]
fn what_was_not_read_between_far_messages_is_deleted_one_by_one() {
    let mut log = Log::with_guild();
    let ids = log.write(400);
    let deleted = log.bulk(vec![ids[0], ids[1], ids[398], ids[399]]).unwrap();
    assert_eq!(deleted.message_ids, [ids[0], ids[1], ids[398], ids[399]]);
    assert_eq!(deleted.ranges, [IdRange { first: ids[0], last: ids[1] }]);
    assert_eq!(log.left(&ids), ids[2..398]);
}

#[test]
fn a_bulk_delete_of_none_too_many_or_the_same_is_refused() {
    let mut log = Log::with_guild();
    let ids = log.write(2);
    for wanted in [vec![], vec![ids[0], ids[0]], (1..=101).collect(), vec![0, ids[0]]] {
        assert_eq!(log.bulk(wanted).unwrap_err().why(), Reason::Invalid);
    }
    let days = |days: i64| (days * 86_400_000) << 22 | 1;
    assert_eq!(log.bulk(vec![days(5), days(15), days(25), days(35)]).unwrap_err().why(), Reason::Invalid);
    assert_eq!(log.left(&ids), ids);
}

#[test]
fn a_channel_goes_with_its_messages_by_one_tombstone_for_ten_days() {
    let mut log = Log::with_guild();
    let first = log.write(3);
    log.ids.unix_ms += 25 * 86_400_000;
    let second = log.write(3);
    let channel_id = log.channel_id();
    let gone = Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id });
    let entry = log.commit(gone).unwrap();
    let purged = tables::mutations(&entry).into_iter().filter(|row| row.table == tables::MESSAGES).count();
    assert!((3..=4).contains(&purged), "{purged} buckets in 25 days");
    assert_eq!((log.left(&first), log.left(&second)), (vec![], vec![]));
    assert_eq!(why(log.commit(log.message("late"))), Reason::NotFound);
}

fn read(states: &[(i64, i64)]) -> Kind {
    let states = states
        .iter()
        .map(|(channel_id, last_message_id)| ReadState { channel_id: *channel_id, last_message_id: *last_message_id });
    Kind::ReadStatesAdvanced(ReadStatesAdvanced { user_id: READER, states: states.collect() })
}

#[test]
fn read_states_only_go_forward() {
    let mut log = Log::empty();
    let kept = |entry: Entry| match entry.change.unwrap().kind.unwrap() {
        Kind::ReadStatesAdvanced(read) => read.states.iter().map(|state| state.channel_id).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(kept(log.commit(read(&[(1, 10), (2, 20)])).unwrap()), [1, 2]);
    assert_eq!(kept(log.commit(read(&[(1, 11), (2, 19), (3, 1)])).unwrap()), [1, 3]);
    assert_eq!(why(log.commit(read(&[(1, 11), (2, 5)]))), Reason::AlreadyExists);
    let ahead = cell_proto::snowflake::first_of_ms(log.ids.unix_ms + 3_600_000);
    let bad = [vec![], vec![(1, 0)], vec![(0, 1)], vec![(1, 12), (1, 13)], vec![(1, ahead)]];
    for states in bad {
        assert_eq!(why(log.commit(read(&states))), Reason::Invalid, "{states:?}");
    }
    assert_eq!(why(log.commit(read(&(1..=101).map(|id| (id, 1)).collect::<Vec<_>>()))), Reason::Invalid);
}
