//! Permissions, computed as the client protocol documents them. Pure; the gateway and the guild owner judge with the same code.

use cell_proto::v1::{Channel, Guild, Member, Role};

/// Permission bits of the client protocol.
pub mod bits {
    pub const CREATE_INSTANT_INVITE: i64 = 1;
    pub const KICK_MEMBERS: i64 = 1 << 1;
    pub const BAN_MEMBERS: i64 = 1 << 2;
    pub const ADMINISTRATOR: i64 = 1 << 3;
    pub const MANAGE_CHANNELS: i64 = 1 << 4;
    pub const MANAGE_GUILD: i64 = 1 << 5;
    pub const ADD_REACTIONS: i64 = 1 << 6;
    pub const VIEW_CHANNEL: i64 = 1 << 10;
    pub const SEND_MESSAGES: i64 = 1 << 11;
    pub const SEND_TTS_MESSAGES: i64 = 1 << 12;
    pub const MANAGE_MESSAGES: i64 = 1 << 13;
    pub const EMBED_LINKS: i64 = 1 << 14;
    pub const ATTACH_FILES: i64 = 1 << 15;
    pub const READ_MESSAGE_HISTORY: i64 = 1 << 16;
    pub const MENTION_EVERYONE: i64 = 1 << 17;
    pub const CONNECT: i64 = 1 << 20;
    pub const SPEAK: i64 = 1 << 21;
    pub const CHANGE_NICKNAME: i64 = 1 << 26;
    pub const MANAGE_NICKNAMES: i64 = 1 << 27;
    pub const MANAGE_ROLES: i64 = 1 << 28;
    pub const MODERATE_MEMBERS: i64 = 1 << 40;
    /// Every documented bit (0–52).
    pub const ALL: i64 = (1 << 53) - 1;
    /// What @everyone has in a new guild.
    pub const DEFAULT_EVERYONE: i64 = CREATE_INSTANT_INVITE
        | ADD_REACTIONS
        | VIEW_CHANNEL
        | SEND_MESSAGES
        | EMBED_LINKS
        | ATTACH_FILES
        | READ_MESSAGE_HISTORY
        | CONNECT
        | SPEAK
        | CHANGE_NICKNAME;
}

/// What a member may do in the guild as a whole. `role_of` finds a role by id; roles that no longer exist count for nothing.
pub fn guild_permissions<'a>(
    guild: &Guild,
    member: &Member,
    now_ms: i64,
    role_of: impl Fn(i64) -> Option<&'a Role>,
) -> i64 {
    let user_id = member.user.as_ref().map_or(0, |user| user.id);
    if user_id == guild.owner_id {
        return bits::ALL;
    }
    let everyone = role_of(guild.id).map_or(0, |role| role.permissions);
    let all = member.role_ids.iter().filter_map(|id| role_of(*id)).fold(everyone, |sum, role| sum | role.permissions);
    if all & bits::ADMINISTRATOR != 0 {
        return bits::ALL;
    }
    if member.timed_out_until_ms > now_ms { all & (bits::VIEW_CHANNEL | bits::READ_MESSAGE_HISTORY) } else { all }
}

/// What a member may do in a channel. Without VIEW_CHANNEL nothing else counts.
pub fn channel_permissions<'a>(
    guild: &Guild,
    member: &Member,
    channel: &Channel,
    now_ms: i64,
    role_of: impl Fn(i64) -> Option<&'a Role>,
) -> i64 {
    let mut allowed = guild_permissions(guild, member, now_ms, &role_of);
    if allowed == bits::ALL {
        return allowed;
    }
    let user_id = member.user.as_ref().map_or(0, |user| user.id);
    if let Some(everyone) =
        channel.overwrites.iter().find(|overwrite| overwrite.type_is_role() && overwrite.id == guild.id)
    {
        allowed = allowed & !everyone.deny | everyone.allow;
    }
    let (mut deny, mut allow) = (0, 0);
    for overwrite in &channel.overwrites {
        if overwrite.type_is_role() && overwrite.id != guild.id && member.role_ids.contains(&overwrite.id) {
            deny |= overwrite.deny;
            allow |= overwrite.allow;
        }
    }
    allowed = allowed & !deny | allow;
    if let Some(own) = channel.overwrites.iter().find(|overwrite| !overwrite.type_is_role() && overwrite.id == user_id)
    {
        allowed = allowed & !own.deny | own.allow;
    }
    if member.timed_out_until_ms > now_ms {
        allowed &= bits::VIEW_CHANNEL | bits::READ_MESSAGE_HISTORY;
    }
    if allowed & bits::VIEW_CHANNEL == 0 { 0 } else { allowed }
}

trait OverwriteType {
    fn type_is_role(&self) -> bool;
}

impl OverwriteType for cell_proto::v1::Overwrite {
    fn type_is_role(&self) -> bool {
        self.r#type == 0
    }
}

#[cfg(test)]
mod tests;
