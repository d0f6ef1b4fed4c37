//! Judging against one small guild: an owner, a moderator, a member, a stranger.

use cell_proto::v1::{
    Channel, ChannelDeleted, ChannelPut, Guild, GuildDeleted, GuildUpdated, Invite, InvitePut, MemberPut,
    MemberRemoved, Overwrite, Role, RoleDeleted, RolePut, User,
};

use super::*;

const GUILD: i64 = 100;
const OWNER: i64 = 1;
const MODERATOR: i64 = 2;
const MEMBER: i64 = 3;
const STRANGER: i64 = 9;
const HIGH: i64 = 110;
const LOW: i64 = 111;
const CHANNEL: i64 = 200;
const NOW_MS: i64 = 1_700_000_000_000;

fn member(id: i64, role_ids: &[i64]) -> Member {
    Member { user: Some(User { id, ..User::default() }), role_ids: role_ids.to_vec(), ..Member::default() }
}

fn view() -> GuildView {
    let role = |id, permissions, position| Role { id, permissions, position, name: "r".into(), ..Role::default() };
    let moderation = bits::KICK_MEMBERS | bits::MANAGE_ROLES | bits::MANAGE_NICKNAMES | bits::MODERATE_MEMBERS;
    let roles =
        [role(GUILD, bits::DEFAULT_EVERYONE, 0), role(HIGH, moderation | bits::MANAGE_CHANNELS, 5), role(LOW, 0, 2)];
    let channel = Channel { id: CHANNEL, guild_id: GUILD, name: "general".into(), ..Channel::default() };
    let invite = Invite { code: "code".into(), guild_id: GUILD, channel_id: CHANNEL, ..Invite::default() };
    let mut view = GuildView {
        guild: Guild { id: GUILD, owner_id: OWNER, name: "guild".into(), ..Guild::default() },
        ..GuildView::default()
    };
    view.roles = std::sync::Arc::new(roles.into_iter().map(|role| (role.id, role)).collect());
    view.channels = std::sync::Arc::new([(CHANNEL, channel)].into());
    view.invites = std::sync::Arc::new([("code".to_owned(), invite)].into());
    for (id, role_ids) in [(OWNER, &[][..]), (MODERATOR, &[HIGH]), (MEMBER, &[LOW])] {
        view.members.insert(id, member(id, role_ids));
    }
    view
}

fn judged(view: &GuildView, actor_id: i64, kind: Kind) -> Result<Kind, Reason> {
    let judging = Judging { view, actor_id, now_ms: NOW_MS, member_limit: 4, joining: &[] };
    judge(&judging, &Change { kind: Some(kind) }).map(|change| change.kind.unwrap()).map_err(|refusal| refusal.why())
}

fn join(user_id: i64, code: &str) -> Kind {
    let member = Some(member(user_id, &[HIGH]));
    Kind::MemberPut(MemberPut { member, joined: true, invite_code: code.into(), ..MemberPut::default() })
}

fn change(member: Member) -> Kind {
    Kind::MemberPut(MemberPut { member: Some(member), ..MemberPut::default() })
}

fn remove(user_id: i64) -> Kind {
    Kind::MemberRemoved(MemberRemoved { guild_id: GUILD, user_id })
}

fn role(role: Role, created: bool) -> Kind {
    Kind::RolePut(RolePut { guild_id: GUILD, role: Some(role), created })
}

fn channel(channel: Channel, created: bool) -> Kind {
    Kind::ChannelPut(ChannelPut { channel: Some(channel), created })
}

#[test]
fn a_join_brings_no_roles_along() {
    let Ok(Kind::MemberPut(put)) = judged(&view(), STRANGER, join(STRANGER, "code")) else { panic!() };
    assert!(put.joined && put.member.unwrap().role_ids.is_empty());
}

#[test]
fn a_join_needs_a_valid_invite_and_ones_own_user() {
    let mut view = view();
    assert_eq!(judged(&view, STRANGER, join(STRANGER, "other")), Err(Reason::NotFound));
    assert_eq!(judged(&view, STRANGER, join(8, "code")), Err(Reason::Forbidden));
    assert_eq!(judged(&view, MEMBER, join(MEMBER, "code")), Err(Reason::AlreadyExists));
    let invites = std::sync::Arc::make_mut(&mut view.invites);
    let expired = Invite { created_at_ms: NOW_MS - 60_000, max_age_seconds: 60, ..invites["code"].clone() };
    let used_up = Invite { max_uses: 2, uses: 2, ..invites["code"].clone() };
    invites.insert("expired".into(), expired);
    invites.insert("used".into(), used_up);
    assert_eq!(judged(&view, STRANGER, join(STRANGER, "expired")), Err(Reason::NotFound));
    assert_eq!(judged(&view, STRANGER, join(STRANGER, "used")), Err(Reason::NotFound));
}

#[test]
fn a_full_guild_takes_nobody() {
    let mut view = view();
    view.members.insert(7, member(7, &[]));
    assert_eq!(judged(&view, STRANGER, join(STRANGER, "code")), Err(Reason::TooLarge));
}

#[test]
fn the_owner_cannot_leave_or_be_removed_and_members_can_leave() {
    let view = view();
    assert_eq!(judged(&view, OWNER, remove(OWNER)), Err(Reason::Forbidden));
    assert_eq!(judged(&view, MODERATOR, remove(OWNER)), Err(Reason::Forbidden));
    assert!(judged(&view, MEMBER, remove(MEMBER)).is_ok());
}

#[test]
fn nobody_acts_on_an_equal_or_higher_member() {
    let mut view = view();
    view.members.insert(7, member(7, &[HIGH]));
    assert!(judged(&view, MODERATOR, remove(MEMBER)).is_ok());
    assert_eq!(judged(&view, MODERATOR, remove(7)), Err(Reason::Forbidden));
    assert_eq!(judged(&view, MEMBER, remove(MODERATOR)), Err(Reason::Forbidden));
    assert!(judged(&view, OWNER, remove(7)).is_ok());
}

#[test]
fn roles_are_given_only_below_ones_own() {
    let view = view();
    assert!(judged(&view, MODERATOR, change(member(MEMBER, &[]))).is_ok());
    assert_eq!(judged(&view, MODERATOR, change(member(MEMBER, &[LOW, HIGH]))), Err(Reason::Forbidden));
    assert_eq!(judged(&view, MODERATOR, change(member(MEMBER, &[LOW, 999]))), Err(Reason::Invalid));
    assert_eq!(judged(&view, MODERATOR, change(member(MEMBER, &[LOW, LOW]))), Err(Reason::Invalid));
    assert_eq!(judged(&view, MEMBER, change(member(MEMBER, &[]))), Err(Reason::Forbidden));
}

#[test]
fn nicknames_are_ones_own_or_need_the_permission() {
    let view = view();
    let named = |id, role| Member { nick: "nick".into(), ..member(id, &[role]) };
    assert!(judged(&view, MEMBER, change(named(MEMBER, LOW))).is_ok());
    assert!(judged(&view, MODERATOR, change(named(MEMBER, LOW))).is_ok());
    assert_eq!(judged(&view, MEMBER, change(named(MODERATOR, HIGH))), Err(Reason::Forbidden));
    let long = Member { nick: "n".repeat(33), ..member(MEMBER, &[LOW]) };
    assert_eq!(judged(&view, MEMBER, change(long)), Err(Reason::Invalid));
}

#[test]
fn a_timeout_is_bounded_and_never_the_owners() {
    let view = view();
    let until = |id, role_ids: &[i64], ms| Member { timed_out_until_ms: ms, ..member(id, role_ids) };
    assert!(judged(&view, MODERATOR, change(until(MEMBER, &[LOW], NOW_MS + 1000))).is_ok());
    let month = NOW_MS + 31 * 24 * 3600 * 1000;
    assert_eq!(judged(&view, MODERATOR, change(until(MEMBER, &[LOW], month))), Err(Reason::Invalid));
    assert_eq!(judged(&view, MODERATOR, change(until(OWNER, &[], NOW_MS + 1000))), Err(Reason::Forbidden));
}

#[test]
fn a_role_never_grants_what_its_maker_lacks() {
    let view = view();
    let wanted = |permissions, position| Role { name: "new".into(), permissions, position, ..Role::default() };
    assert!(judged(&view, MODERATOR, role(wanted(bits::KICK_MEMBERS, 1), true)).is_ok());
    assert_eq!(judged(&view, MODERATOR, role(wanted(bits::ADMINISTRATOR, 1), true)), Err(Reason::Forbidden));
    assert_eq!(judged(&view, MODERATOR, role(wanted(0, 5), true)), Err(Reason::Forbidden));
    assert!(judged(&view, OWNER, role(wanted(bits::ADMINISTRATOR, 1), true)).is_ok());
    assert_eq!(judged(&view, OWNER, role(wanted(1 << 60, 1), true)), Err(Reason::Forbidden));
}

#[test]
fn everyone_stays_at_the_bottom_and_cannot_be_deleted() {
    let view = view();
    let everyone = |position| Role { id: GUILD, name: "@everyone".into(), position, ..Role::default() };
    assert!(judged(&view, OWNER, role(everyone(0), false)).is_ok());
    assert_eq!(judged(&view, OWNER, role(everyone(1), false)), Err(Reason::Invalid));
    let delete = |role_id| Kind::RoleDeleted(RoleDeleted { guild_id: GUILD, role_id });
    assert_eq!(judged(&view, OWNER, delete(GUILD)), Err(Reason::Invalid));
    assert!(judged(&view, MODERATOR, delete(LOW)).is_ok());
    assert_eq!(judged(&view, MODERATOR, delete(HIGH)), Err(Reason::Forbidden));
}

#[test]
fn channels_are_checked_field_by_field() {
    let view = view();
    let wanted = Channel { name: "new".into(), ..Channel::default() };
    assert!(judged(&view, MODERATOR, channel(wanted.clone(), true)).is_ok());
    assert_eq!(judged(&view, MEMBER, channel(wanted.clone(), true)), Err(Reason::Forbidden));
    for bad in [
        Channel { name: String::new(), ..wanted.clone() },
        Channel { topic: "t".repeat(1025), ..wanted.clone() },
        Channel { rate_limit_per_user_seconds: 21_601, ..wanted.clone() },
        Channel { parent_id: CHANNEL, ..wanted.clone() },
        Channel { id: 5, ..wanted.clone() },
        Channel { position: -1, ..wanted.clone() },
    ] {
        assert_eq!(judged(&view, OWNER, channel(bad.clone(), true)), Err(Reason::Invalid), "{bad:?}");
    }
    assert_eq!(judged(&view, OWNER, channel(Channel { r#type: 13, ..wanted }, true)), Err(Reason::Unsupported));
    let delete = |channel_id| Kind::ChannelDeleted(ChannelDeleted { guild_id: GUILD, channel_id });
    assert!(judged(&view, MODERATOR, delete(CHANNEL)).is_ok());
    assert_eq!(judged(&view, MODERATOR, delete(5)), Err(Reason::NotFound));
}

#[test]
fn an_overwrite_never_grants_what_its_maker_lacks() {
    let view = view();
    let with = |allow| Channel {
        overwrites: vec![Overwrite { id: LOW, r#type: 0, allow, deny: 0 }],
        ..view.channels[&CHANNEL].clone()
    };
    assert!(judged(&view, MODERATOR, channel(with(bits::SEND_MESSAGES), false)).is_ok());
    assert_eq!(judged(&view, MODERATOR, channel(with(bits::MANAGE_MESSAGES), false)), Err(Reason::Forbidden));
    assert!(judged(&view, OWNER, channel(with(bits::MANAGE_MESSAGES), false)).is_ok());
}

#[test]
fn invites_are_bounded_and_made_by_the_platform() {
    let view = view();
    let invite = |invite| Kind::InvitePut(InvitePut { invite: Some(invite) });
    let wanted = Invite { channel_id: CHANNEL, uses: 5, ..Invite::default() };
    let Ok(Kind::InvitePut(put)) = judged(&view, MEMBER, invite(wanted.clone())) else { panic!() };
    let made = put.invite.unwrap();
    assert_eq!((made.inviter_id, made.uses), (MEMBER, 0));
    assert_eq!(judged(&view, MEMBER, invite(Invite { code: "mine".into(), ..wanted.clone() })), Err(Reason::Invalid));
    assert_eq!(judged(&view, MEMBER, invite(Invite { max_uses: 101, ..wanted.clone() })), Err(Reason::Invalid));
    assert_eq!(judged(&view, STRANGER, invite(wanted)), Err(Reason::Forbidden));
}

#[test]
fn only_the_owner_gives_the_guild_away_or_deletes_it() {
    let view = view();
    let given = |owner_id| {
        Kind::GuildUpdated(GuildUpdated { guild: Some(Guild { name: "new".into(), owner_id, ..Guild::default() }) })
    };
    assert!(judged(&view, OWNER, given(MEMBER)).is_ok());
    assert_eq!(judged(&view, OWNER, given(STRANGER)), Err(Reason::Invalid));
    assert_eq!(judged(&view, MODERATOR, given(MODERATOR)), Err(Reason::Forbidden));
    let delete = Kind::GuildDeleted(GuildDeleted { guild_id: GUILD });
    assert_eq!(judged(&view, MODERATOR, delete.clone()), Err(Reason::Forbidden));
    assert!(judged(&view, OWNER, delete).is_ok());
}

#[test]
fn messages_and_the_platforms_own_changes_are_refused() {
    let view = view();
    assert_eq!(judged(&view, OWNER, Kind::MessageDeleted(Default::default())), Err(Reason::Invalid));
    assert_eq!(judged(&view, OWNER, Kind::MessagesDeleted(Default::default())), Err(Reason::Invalid));
    assert_eq!(judged(&view, OWNER, Kind::ReadStatesAdvanced(Default::default())), Err(Reason::Invalid));
    assert_eq!(judged(&view, OWNER, Kind::GuildClaimed(Default::default())), Err(Reason::Forbidden));
    assert_eq!(judged(&view, OWNER, Kind::UserGuildAdded(Default::default())), Err(Reason::Invalid));
    let judging = Judging { view: &view, actor_id: OWNER, now_ms: NOW_MS, member_limit: 4, joining: &[] };
    assert_eq!(judge(&judging, &Change { kind: None }).unwrap_err().why(), Reason::Invalid);
}

#[test]
fn a_timed_out_moderator_may_do_nothing() {
    let mut view = view();
    view.members.insert(MODERATOR, Member { timed_out_until_ms: NOW_MS + 1, ..member(MODERATOR, &[HIGH]) });
    assert_eq!(judged(&view, MODERATOR, remove(MEMBER)), Err(Reason::Forbidden));
}
