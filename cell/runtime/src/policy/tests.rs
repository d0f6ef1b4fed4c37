use cell_proto::v1::{Overwrite, User};

use super::*;

const GUILD: i64 = 100;
const EVERYONE: i64 = GUILD;
const MODERATOR: i64 = 101;

struct World {
    guild: Guild,
    roles: Vec<Role>,
    channel: Channel,
}

fn world() -> World {
    let role = |id, permissions| Role { id, permissions, ..Role::default() };
    World {
        guild: Guild { id: GUILD, owner_id: 1, ..Guild::default() },
        roles: vec![role(EVERYONE, bits::DEFAULT_EVERYONE), role(MODERATOR, bits::MANAGE_MESSAGES)],
        channel: Channel { id: 200, guild_id: GUILD, ..Channel::default() },
    }
}

fn member(id: i64, role_ids: &[i64]) -> Member {
    Member { user: Some(User { id, ..User::default() }), role_ids: role_ids.to_vec(), ..Member::default() }
}

impl World {
    fn overwrite(mut self, id: i64, kind: i32, allow: i64, deny: i64) -> Self {
        self.channel.overwrites.push(Overwrite { id, r#type: kind, allow, deny });
        self
    }

    fn of(&self, member: &Member) -> i64 {
        channel_permissions(&self.guild, member, &self.channel, 1000, |id| self.roles.iter().find(|role| role.id == id))
    }
}

#[test]
fn the_owner_may_do_everything_whatever_the_overwrites_say() {
    let world = world().overwrite(EVERYONE, 0, 0, bits::ALL);
    assert_eq!(world.of(&member(1, &[])), bits::ALL);
}

#[test]
fn without_view_channel_nothing_else_counts() {
    let world = world().overwrite(EVERYONE, 0, bits::SEND_MESSAGES, bits::VIEW_CHANNEL);
    assert_eq!(world.of(&member(2, &[MODERATOR])), 0);
}

#[test]
fn role_allows_win_over_role_denies_and_the_members_own_overwrite_comes_last() {
    let world = world()
        .overwrite(EVERYONE, 0, 0, bits::SEND_MESSAGES)
        .overwrite(MODERATOR, 0, bits::SEND_MESSAGES, 0)
        .overwrite(3, 1, 0, bits::SEND_MESSAGES);
    assert_eq!(world.of(&member(2, &[])) & bits::SEND_MESSAGES, 0);
    assert_ne!(world.of(&member(2, &[MODERATOR])) & bits::SEND_MESSAGES, 0);
    assert_eq!(world.of(&member(3, &[MODERATOR])) & bits::SEND_MESSAGES, 0);
}

#[test]
fn a_timeout_leaves_only_reading() {
    let mut timed_out = member(2, &[MODERATOR]);
    timed_out.timed_out_until_ms = 2000;
    assert_eq!(world().of(&timed_out), bits::VIEW_CHANNEL | bits::READ_MESSAGE_HISTORY);
    timed_out.timed_out_until_ms = 500;
    assert_ne!(world().of(&timed_out) & bits::SEND_MESSAGES, 0);
}

#[test]
fn an_administrator_sees_past_overwrites_and_a_deleted_role_counts_for_nothing() {
    let mut world = world().overwrite(EVERYONE, 0, 0, bits::VIEW_CHANNEL);
    world.roles.push(Role { id: 102, permissions: bits::ADMINISTRATOR, ..Role::default() });
    assert_eq!(world.of(&member(2, &[102])), bits::ALL);
    assert_eq!(world.of(&member(2, &[999])), 0);
}
